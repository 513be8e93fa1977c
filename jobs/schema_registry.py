"""Schema registry in memory, for the demo and for tests.

It serves the paths of Confluent's that serializers and readers use.

with SchemaRegistryServer() as registry:
    registry.register("flights-value", schema)
    print(registry.url)
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

Response = tuple[int, Any]
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistryServer:
    """Listens on loopback between `__enter__` and `__exit__`, with TLS if it has a context.

    Attributes:
        requests: method and path of every request.
        intercept: given method, path and headers (names in lower case), returns a response in place of the registry's,
            or None.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.intercept: Callable[[str, str, Mapping[str, str]], Response | None] = lambda method, path, headers: None
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, dict[int, int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http" if context is None else "https"
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> SchemaRegistryServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Adds a version to a subject, if the schema is new there; returns the id of the schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        stored: dict[str, Any] = {"schema": text, "schemaType": kind, "references": list(references)}
        with self._lock:
            if stored not in self._schemas:
                self._schemas.append(stored)
            schema_id = self._schemas.index(stored) + 1
            versions = self._subjects.setdefault(subject, {})
            if schema_id not in versions.values():
                versions[max(versions, default=0) + 1] = schema_id
            return schema_id

    def guid(self, schema_id: int) -> str:
        """Returns the UUID of a schema."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(self._schemas[schema_id - 1])))

    def respond(self, method: str, target: str, body: bytes) -> Response:
        """Returns status and JSON of the response to a request."""
        path = urlsplit(target).path
        for pattern, served, function in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found is not None and served == method:
                response: Response = function(
                    self, *map(unquote, found.groups()), *([body] if method == "POST" else [])
                )
                return response
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _by_id(self, text: str) -> Response:
        number = int(text)
        if not 1 <= number <= len(self._schemas):
            return 404, {"error_code": 40403, "message": f"Schema {text} not found"}
        return 200, self._described(number)

    def _by_guid(self, guid: str) -> Response:
        for number in range(1, len(self._schemas) + 1):
            if self.guid(number) == guid:
                return 200, self._described(number)
        return 404, {"error_code": 40403, "message": f"Schema {guid} not found"}

    def _described(self, number: int) -> dict[str, Any]:
        stored = self._schemas[number - 1]
        described = {"schema": stored["schema"], "guid": self.guid(number)}
        if stored["schemaType"] != "AVRO":
            described["schemaType"] = stored["schemaType"]
        return described | ({"references": stored["references"]} if stored["references"] else {})

    def _version(self, subject: str, version: str) -> Response:
        versions = self._subjects.get(subject)
        if not versions:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = max(versions) if version in ("latest", "-1") else int(version)
        if number not in versions:
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        schema_id = versions[number]
        return 200, {"subject": subject, "version": number, "id": schema_id, **self._described(schema_id)}

    def _versions(self, subject: str) -> Response:
        versions = self._subjects.get(subject)
        return (200, sorted(versions)) if versions else self._version(subject, "latest")

    def _post_version(self, subject: str, body: bytes) -> Response:
        given = json.loads(body)
        schema_id = self.register(
            subject, given["schema"], given.get("schemaType", "AVRO"), given.get("references") or ()
        )
        return 200, {"id": schema_id, "guid": self.guid(schema_id)}

    def _look_up(self, subject: str, body: bytes) -> Response:
        given = json.loads(body)
        for version, schema_id in self._subjects.get(subject, {}).items():
            if self._schemas[schema_id - 1]["schema"] == given["schema"]:
                return self._version(subject, str(version))
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _delete(self, subject: str) -> Response:
        return 200, sorted(self._subjects.pop(subject, {}))


_ROUTES: Sequence[tuple[str, str, Callable[..., Response]]] = (
    (r"/schemas/ids/(\d+)", "GET", SchemaRegistryServer._by_id),
    (r"/schemas/guids/([^/]+)", "GET", SchemaRegistryServer._by_guid),
    (r"/subjects/([^/]+)/versions", "GET", SchemaRegistryServer._versions),
    (r"/subjects/([^/]+)/versions", "POST", SchemaRegistryServer._post_version),
    (r"/subjects/([^/]+)/versions/(\d+|-1|latest)", "GET", SchemaRegistryServer._version),
    (r"/subjects/([^/]+)", "POST", SchemaRegistryServer._look_up),
    (r"/subjects/([^/]+)", "DELETE", SchemaRegistryServer._delete),
)


def _handler(registry: SchemaRegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            registry.requests.append(f"{self.command} {self.path}")
            response = registry.intercept(
                self.command, self.path, {name.lower(): text for name, text in self.headers.items()}
            )
            status, found = response if response is not None else registry.respond(self.command, self.path, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _respond

        def log_message(self, *args: Any) -> None:
            """Logs nothing."""

    return Handler
