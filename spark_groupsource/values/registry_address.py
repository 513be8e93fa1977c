"""Addresses and credentials of a schema registry.

They are options of every query, so this module does not import the client of `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.tls import TlsSettings


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
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    if not urls or not all(url.startswith(("http://", "https://")) and "@" not in url for url in urls):
        raise ConfigurationError(
            f"Option {name} must be a list of http or https addresses without user and password, such as "
            f"http://registry:8081, got {len(urls)} addresses of which one is not. Correct it."
        )
    return urls
