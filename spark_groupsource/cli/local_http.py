"""HTTP server of a command: bounded connections, no log of requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from spark_groupsource.common import net

MAX_CONNECTIONS = 64
_SLOW_CLIENT_S = 10.0
# of a whole connection: a client that sends byte by byte never lets a single read time out
_CONNECTION_S = 60.0


class Handler(BaseHTTPRequestHandler):
    """Responds with a text; subclasses have ``do_GET`` and the like. Requests are not logged."""

    timeout = _SLOW_CLIENT_S
    # the version of Python concerns no client
    server_version, sys_version = "groupsource", ""

    def respond(self, status: int, text: str, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Sends a response; to HEAD without the text."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Closes a connection above the limit without a response."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        ending = threading.Timer(_CONNECTION_S, _end, (request,))
        ending.daemon = True
        ending.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            ending.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection early is no error of the server."""


def _end(connection: socket.socket) -> None:
    """Ends a connection; its thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class HttpServer:
    """Listens at once, and serves from `start` to `close`.

    Raises: ConfigurationError that names the option if the address cannot be used.
    """

    def __init__(self, address: net.Address, option: str, handler: Callable[..., Handler]) -> None:
        listener = net.listen(address, option)
        self._server = _Server((address.host, address.port), handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self.address = net.Address(address.host, listener.getsockname()[1])
        self.is_loopback = net.is_loopback(listener)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http-server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
