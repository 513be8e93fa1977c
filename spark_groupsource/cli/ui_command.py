"""The ``groupsource ui`` command: a page with groups, members, lag and rebalances."""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import signal
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from email.message import Message
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import click

from spark_groupsource.cli.commands import InvalidValueError, command
from spark_groupsource.cli.common import cluster_options, one_line, open_cluster
from spark_groupsource.cli.local_http import Handler, HttpServer
from spark_groupsource.cli.ui_views import ClusterViews
from spark_groupsource.common.net import Address
from spark_groupsource.errors import GroupSourceError

# an outage is shown while it lasts
_TIMEOUT_MS = 10_000
_MAX_BODY_BYTES = 64 << 10
_JSON, _TEXT, _HTML = (f"{kind}; charset=utf-8" for kind in ("application/json", "text/plain", "text/html"))
_TOKEN = "X-Groupsource-Token"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _RefusedError(Exception):
    """A request is not answered: status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Response(NamedTuple):
    status: int
    text: str
    content_type: str
    headers: Mapping[str, str] = {}


class UiPage:
    """The page, and who may request it.

    Args:
        host: that the server listens on.
        token: that a reset must send; empty if resets are not allowed.
    """

    def __init__(self, host: str, token: str) -> None:
        self._host = host
        self._token = token
        text = (files("spark_groupsource.cli") / "resources" / "ui.html").read_text("utf-8")
        self.html = text.replace("{{token}}", token)
        script = _SCRIPT.search(self.html)
        assert script is not None
        digest = b64encode(sha256(script[1].encode()).digest()).decode()
        # names of groups and members come from other programs: nothing in them may become a script or a request
        self.policy = (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def check_host(self, host: str | None) -> None:
        """Raises: _RefusedError unless the Host is this machine or the given host.

        The name of another site that resolves to this address (DNS rebinding) would make its scripts of the same
        origin. The port may be that of a tunnel.
        """
        try:
            name = urlsplit(f"//{host or ''}").hostname or ""
        except ValueError:
            name = ""
        if name not in ("localhost", self._host.lower()) and not self._is_own_address(name):
            raise _RefusedError(403, f"Host {host!r} is not this server: open it as localhost, or set --host.")

    def _is_own_address(self, name: str) -> bool:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # a server that listens on all addresses does not know them; an address needs no DNS
        return address.is_loopback or self._host in ("0.0.0.0", "::")

    def check_change(self, headers: Message) -> None:
        """Raises: _RefusedError unless the request comes from the page of this server, and changes are allowed."""
        if not self._token:
            raise _RefusedError(403, "This server is read-only. Start it with --allow-reset to reset offsets.")
        origin = headers.get("Origin")
        if origin is not None and origin != f"http://{headers.get('Host')}":
            raise _RefusedError(403, f"Requests of {origin} are refused. Use the page of this server.")
        if not hmac.compare_digest(headers.get(_TOKEN, "").encode(), self._token.encode()):
            raise _RefusedError(403, "The token is missing or is not that of this server. Reload the page.")
        # a form of another site cannot send it
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise _RefusedError(415, "The body must be application/json.")


class _UiHandler(Handler):
    """Serves the page, ``/api/cluster``, ``/api/group?name=`` and, if it is allowed, POST ``/api/reset``."""

    def __init__(self, page: UiPage, views: ClusterViews, *arguments: Any) -> None:
        self._page = page
        self._views = views
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, answer: Callable[[], _Response]) -> None:
        try:
            self._page.check_host(self.headers.get("Host"))
            response = answer()
        except _RefusedError as refused:
            response = _Response(refused.status, f"{refused}\n", _TEXT)
        except GroupSourceError as error:
            response = _Response(409, json.dumps({"problem": one_line(error)}), _JSON)
        except Exception as error:
            # the server must survive every error
            text = f"Unexpected {type(error).__name__}: {error}"
            click.echo(f"WARN: {self.path}: {text}", err=True)
            response = _Response(500, json.dumps({"problem": text}), _JSON)
        self.respond(response.status, response.text, response.content_type, {**_HEADERS, **response.headers})

    def _get(self) -> _Response:
        address = urlsplit(self.path)
        if address.path == "/":
            return _Response(200, self._page.html, _HTML, {"Content-Security-Policy": self._page.policy})
        if address.path == "/api/cluster":
            return _Response(200, json.dumps(self._views.overview()), _JSON)
        if address.path == "/api/group":
            name = parse_qs(address.query).get("name", [""])[0]
            return _Response(200, json.dumps(self._views.group(name)), _JSON)
        raise _RefusedError(404, "Not found. The page is at /.")

    def _post(self) -> _Response:
        if urlsplit(self.path).path != "/api/reset":
            raise _RefusedError(404, "Not found. Offsets are reset at /api/reset.")
        self._page.check_change(self.headers)
        return _Response(200, json.dumps(self._views.reset(*_reset_arguments(self._body()))), _JSON)

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            raise _RefusedError(413, f"The body must have a length of at most {_MAX_BODY_BYTES} bytes.")
        try:
            return json.loads(self.rfile.read(int(length)))
        except TimeoutError as error:
            raise _RefusedError(408, "The body did not arrive in time.") from error
        except ValueError as error:
            raise _RefusedError(400, f"The body is not JSON: {error}.") from error


def _reset_arguments(body: Any) -> tuple[str, str, str | None, bool]:
    """Returns group, target, topic and whether to execute. Raises: _RefusedError for a body of another form."""
    given = body if isinstance(body, dict) else {}
    group, to, topic, execute = (given.get(name) for name in ("group", "to", "topic", "execute"))
    if not (group and isinstance(group, str) and to and isinstance(to, str) and isinstance(execute, bool)):
        raise _RefusedError(
            400, 'The body must be {"group": text, "to": text, "topic": text or null, "execute": boolean}.'
        )
    if topic is not None and not isinstance(topic, str):
        raise _RefusedError(400, "The topic must be a text or null.")
    return group, to, topic or None, execute


class UiServer(HttpServer):
    """HTTP server of the page.

    Raises: ConfigurationError if the address cannot be used; InvalidValueError for resets on an address that other
        machines reach.
    """

    def __init__(self, address: Address, views: ClusterViews, allow_reset: bool) -> None:
        page = UiPage(address.host, secrets.token_urlsafe(32) if allow_reset else "")
        super().__init__(address, "--port" if address.port else "--host", partial(_UiHandler, page, views))
        if allow_reset and not self.is_loopback:
            self.close()
            raise InvalidValueError(
                f"Option --allow-reset needs a loopback --host, got {address.host}: the page has no login. Use an SSH "
                "tunnel, or leave one of the options out."
            )


@command()
@cluster_options
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    metavar="PORT",
    help="Port; 0 selects a free port.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address or name to listen on.")
@click.option("--allow-reset", is_flag=True, help="Let the page reset the offsets of groups without members.")
def ui(bootstrap: str, command_config: Path | None, port: int, host: str, allow_reset: bool) -> None:
    """Serves a page with groups, members, lag, rebalances and topics until SIGTERM or Ctrl-C.

    A group has its partitions with owners and lag, its members, the timeline of its rebalances, and the cause of each
    one. The page is read-only unless it is started with --allow-reset. It needs no network but this server. When the
    server is ready, it prints "open http://HOST:PORT".
    """
    ending = threading.Event()
    with open_cluster(bootstrap, command_config, _TIMEOUT_MS) as client:
        addresses = ",".join(map(str, client.settings.bootstrap))
        server = UiServer(Address(host, port), ClusterViews(client, addresses), allow_reset)
        if not server.is_loopback:
            text = f"WARN: The page at {server.address} is readable by other machines without a login."
            click.echo(text, err=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ending.set())
        server.start()
        # flushed: scripts wait for this line
        print(f"open http://{server.address}", flush=True)
        ending.wait()
        server.close()
