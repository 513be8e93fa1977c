"""Addresses and credentials of a schema registry.

They are options of every query, so this module does not import the client of `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from spark_groupsource.common.config_def import comma_list
from spark_groupsource.common.tls import TlsSettings
from spark_groupsource.errors import ConfigurationError


@dataclass(frozen=True)
class RegistryAddress:
    """Addresses of one registry, and the credentials for it.

    Attributes:
        user_info: user and password for HTTP basic authentication, as ``user:password``.
        token: bearer token.
        headers: further headers of each request, as name and text.
        tls: files of TLS; None for the certificate authorities of the machine.
        wait_ms: how long a request is retried.
    """

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    tls: TlsSettings | None = field(default=None, repr=False)
    wait_ms: int = 60_000


def parse_urls(name: str, text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of http or https addresses."""
    urls = tuple(url.rstrip("/") for url in comma_list(text))
    problems = [(number, found) for number, url in enumerate(urls, 1) if (found := _problem(url))]
    if not urls or problems:
        number, problem = problems[0] if problems else (1, "is missing")
        # the text may have a password
        raise ConfigurationError(
            f"Option {name} must be a list of http or https addresses without user and password, such as "
            f"http://registry:8081. Of {len(urls)} addresses, number {number} {problem}. Correct it."
        )
    return urls


def _problem(url: str) -> str | None:
    """Returns what is invalid in an address."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return "has characters that must be percent-encoded"
    try:
        parts = urlsplit(url)
        is_port = parts.port != 0
        host = (parts.hostname or "").encode("idna")
    except ValueError:
        return "has an invalid host or port"
    if parts.scheme not in ("http", "https") or "://" not in url:
        return "does not begin with http:// or https://"
    if "@" in url:
        return "has a user or password"
    if not host or not is_port:
        return "has an invalid host or port"
    return "has a query or fragment" if parts.query or parts.fragment or url.endswith(("?", "#")) else None


def check_credentials(name: str, text: str | None, is_header: bool) -> str | None:
    """Returns user and password, or a text that is sent in a header.

    Args:
        is_header: whether the text itself is in a header.
    Raises: ConfigurationError, without the text.
    """
    if text is None or (text.isprintable() and text and (text.isascii() or not is_header)):
        return text
    problem = "is empty, or has a line break or another control character"
    if text.isprintable() and text:
        problem = "has a character that is not ASCII"
    raise ConfigurationError(f"Option {name} {problem}. Give it without the line breaks of the file that it is from.")
