"""HTTP requests of token sources, with the standard library.

`urllib.request` and `ssl` are imported at the first request, because most clients send none.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError

_MAX_RESPONSE_BYTES = 1_048_576


def http_json(
    url: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int, ca_file: str | None = None
) -> dict[str, Any]:
    """Returns the object of a JSON response; errors as of `http_text`."""
    try:
        response = json.loads(http_text(url, headers, body, timeout_ms, ca_file))
    except ValueError:
        response = None
    if not isinstance(response, dict):
        raise AuthenticationError(f"Requesting {url} failed: the response is not a JSON object. Check the URL.")
    return response


def http_text(
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    timeout_ms: int,
    ca_file: str | None = None,
    method: str | None = None,
) -> str:
    """Sends `method`, by default GET, or POST with `body`, and returns the text of the response.

    Redirects are errors, because headers are secret.

    Raises: AuthenticationError for a rejected request; NetworkError, which is retried, for a server without a response.
    """
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    handlers: list[urllib.request.BaseHandler] = [NoRedirects()]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
    opener = urllib.request.build_opener(*handlers)
    try:
        request = urllib.request.Request(url, body, dict(headers), method=method)
        with opener.open(request, timeout=timeout_ms / 1000) as response:
            return str(response.read(_MAX_RESPONSE_BYTES).decode())
    except urllib.error.HTTPError as error:
        text = f"Requesting {url} failed: status {error.code}{_oauth_error(error)}."
        if error.code >= 500 or error.code == 429:
            raise NetworkError(f"{text} It is retried.") from None
        raise AuthenticationError(f"{text} Check the URL, client id, client secret and scope.") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise AuthenticationError(f"Requesting {url} failed: {reason}. Set kafka.https.ca.location.") from None
        raise NetworkError(f"Requesting {url} failed: {reason}. Check the address.") from None
    except ValueError as error:
        raise ConfigurationError(f"Option kafka.sasl.oauthbearer.token.endpoint.url is no URL: {url!r}.") from error


def _oauth_error(error: Any) -> str:
    """Returns the error fields of RFC 6749 section 5.2, bounded; no other text of the response."""
    try:
        found = json.loads(error.read(10_000))
        text = ": ".join(str(found[name]) for name in ("error", "error_description") if found.get(name))
    except (OSError, ValueError, AttributeError, TypeError):
        text = ""
    return f" ({' '.join(text.split())[:300]})" if text else ""
