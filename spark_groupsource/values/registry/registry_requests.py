"""HTTP requests to a schema registry."""

from __future__ import annotations

import ssl
from base64 import b64encode
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from spark_groupsource.common.clock import Clock
from spark_groupsource.values.registry.registry_address import RegistryAddress

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 1 << 16


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to http and https; those to the same server carry the credentials."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not newurl.lower().startswith(("http://", "https://")):
            raise HTTPError(req.full_url, code, "redirect to another protocol", headers, fp)
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            found.unredirected_hdrs.update(req.unredirected_hdrs)
        return found


def send(
    url: str,
    address: RegistryAddress,
    context: ssl.SSLContext | None,
    timeout_ms: int,
    clock: Clock,
    body: bytes | None = None,
) -> bytes:
    """Returns the body of a response.

    Args:
        timeout_ms: for the whole response.
        body: JSON to post; None to get.
    Raises: HTTPError for a status that is no success; OSError, ValueError.
    """
    deadline_ms = clock.now_ms() + timeout_ms
    headers = {"Accept": _CONTENT_TYPE} | ({} if body is None else {"Content-Type": _CONTENT_TYPE})
    request = Request(url, body, headers)
    if address.user_info is not None:
        request.add_unredirected_header("Authorization", f"Basic {b64encode(address.user_info.encode()).decode()}")
    elif address.token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {address.token}")
    for name, text in address.headers:
        request.add_unredirected_header(name, text)
    opener = build_opener(_Redirects, HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=timeout_ms / 1000) as response:
            return _body(response, deadline_ms, clock)
    except (HTTPException, RecursionError) as error:
        raise ValueError(f"the response is invalid: {type(error).__name__} {str(error)[:100]}".strip()) from None


def error_body(error: HTTPError) -> bytes:
    """Returns the body of an error; empty if it cannot be read."""
    try:
        return error.read(_MAX_BYTES)
    except (HTTPException, OSError, ValueError):
        return b""


def _body(response: HTTPResponse, deadline_ms: int, clock: Clock) -> bytes:
    found = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        found += piece
        if len(found) > _MAX_BYTES:
            raise ValueError(f"the response has more than {_MAX_BYTES >> 20} MiB")
        if clock.now_ms() > deadline_ms:
            raise TimeoutError("the response did not end in time")
    if response.length:
        raise IncompleteRead(bytes(found), response.length)
    return bytes(found)
