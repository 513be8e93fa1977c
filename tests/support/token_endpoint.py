"""Tokens without signature, and a token endpoint."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).decode().rstrip("=")


def jwt(lifetime_s: float = 3600, **claims: Any) -> str:
    return f"{encoded({'alg': 'none'})}.{encoded({'sub': 'ann', 'exp': time.time() + lifetime_s, **claims})}."


class Endpoint:
    """A token endpoint. `answer` is (status, body); `requests` are (path, Authorization, fields)."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {"access_token": jwt(), "expires_in": 3600})
        self.requests: list[tuple[str, str, dict[str, list[str]]]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.requests.append((self.path, self.headers.get("Authorization", ""), parse_qs(body)))
                status, answer = endpoint.answer
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/other")
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
