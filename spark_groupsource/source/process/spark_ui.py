"""Settings of a running application, from the web interface of its driver.

The interface listens on the machine of the driver and serves Spark's monitoring REST API. It is found by the listening
ports of the driver process, so that the interface of another application is never asked.
Source: WebUI, ApiRootResource, https://spark.apache.org/docs/latest/monitoring.html.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Iterator, Mapping
from urllib.parse import quote

_log = logging.getLogger(__name__)

_FIRST_PORT, _MAX_RETRIES = 4040, 16
# the driver initializes the API at the first request: a second, on a busy machine more than ten
_TIMEOUT_S = 30.0
_MAX_RESPONSE_BYTES = 4_194_304
_LISTENING = "0A"
_LOOPBACK = ("127.0.0.1", "::1")


def running_settings(driver: int, settings: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the settings of the application of a driver process, with those of its code.

    Args:
        settings: what is known of them: the port of the interface, and whether it is enabled.

    Returns: None if the interface is disabled, protected or not found; on other systems than Linux it is not found.
    """
    if settings.get("spark.ui.enabled", "true").strip().lower() != "true":
        return None
    try:
        first = int(settings.get("spark.ui.port", _FIRST_PORT))
        ports = range(first, first + int(settings.get("spark.port.maxRetries", _MAX_RETRIES)) + 1)
        for host, port in _listening_addresses(driver):
            # a request to another server of the driver would be an error in its log
            found = _settings_of(host, port) if first and port in ports else None
            if found is not None:
                return found
    except (OSError, ValueError) as error:
        _log.debug("[driver=%d] The web interface is not found: %s", driver, error)
    return None


def _listening_addresses(pid: int) -> Iterator[tuple[str, int]]:
    """Yields address and port of the listening TCP sockets of a process, by port (proc(5)).

    Raises: OSError, ValueError.
    """
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/{pid}/net/{name}")
        for fields in map(str.split, table.read_text().splitlines()[1:] if table.exists() else ()):
            if fields[3] == _LISTENING and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found |= {(int(port, 16), host) for host in _hosts(address)}
    for number, host in sorted(found):
        yield host, number


def _hosts(address: str) -> tuple[str, ...]:
    """Returns the addresses under which a socket can be reached that listens on `address`, words in host order."""
    words = (int(address[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(address), 8))
    raw = b"".join(words)
    found = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)
    if found.is_unspecified:
        return _LOOPBACK[:1] if len(raw) == 4 else _LOOPBACK
    return (str(getattr(found, "ipv4_mapped", None) or found),)


def _settings_of(host: str, port: int) -> dict[str, str] | None:
    """Returns the settings that the interface at an address reports; None if it reports none."""
    try:
        (application,) = _get(host, port, "applications")
        environment = _get(host, port, f"applications/{quote(application['id'], safe='')}/environment")
        return {str(name): str(value) for name, value in environment["sparkProperties"]}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        # protected by a filter or TLS, or not the interface
        _log.debug("[interface=%s:%d] The interface does not report settings: %s", host, port, error)
        return None


def _get(host: str, port: int, path: str) -> Any:
    """Returns the JSON of the API. Raises: OSError, HTTPException, ValueError for another response."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/api/v1/{path}")
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        return json.loads(response.read(_MAX_RESPONSE_BYTES))
    finally:
        connection.close()
