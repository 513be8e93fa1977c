"""API server of Kubernetes, as far as Spark uses it.

It stores objects in memory, starts a pod in namespaces when it is created, ends it when it is deleted, and reports its
state. Watches send no events: Spark polls, too. There are no users: each client may do everything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.pods import Container, Node

_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
_CREATED = "2026-01-01T00:00:00Z"
_KINDS = ("pods", "configmaps", "services", "networkpolicies", "persistentvolumeclaims")
_PATH = re.compile(r"/apis?/[\w./]+/namespaces/default/(?P<kind>\w+)(?:/(?P<name>[\w.-]+))?")

Object = dict[str, Any]


class KubernetesApi:
    """The API server. `objects` has what was created, by ``pods/NAME`` and the like, also what was deleted since.

    Args:
        node: runs the pods; None: they stay pending.
    """

    def __init__(self, node: Node | None = None) -> None:
        self.objects: dict[str, Object] = {}
        self.containers: dict[str, Container] = {}
        self.unknown: list[str] = []
        self._deleted: set[str] = set()
        self._node = node
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Upgrade", "").lower() == "websocket":
                    self._watch()
                    return
                status, value = api.reply(self.command, self.path, json.loads(body) if body else {})
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self) -> None:
                key = self.headers["Sec-WebSocket-Key"] + _WEBSOCKET
                self.send_response(101)
                self.send_header("Upgrade", "websocket")
                self.send_header("Connection", "Upgrade")
                self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
                self.end_headers()
                # no events, until the client closes the connection
                while self.rfile.read1(4096):
                    pass
                self.close_connection = True

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle

            def log_message(self, format: str, *arguments: Any) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"k8s://http://127.0.0.1:{self._server.server_address[1]}"
        # a container ends with the thread that has started it
        self._starts: list[str] = []
        self._has_work = threading.Condition(self._lock)
        self._is_closed = False
        targets = (self._server.serve_forever, self._run_pods)
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        with self._has_work:
            self._is_closed = True
            self._has_work.notify()
        for thread in self._threads:
            thread.join(60)

    def _run_pods(self) -> None:
        while True:
            with self._has_work:
                self._has_work.wait_for(lambda: self._is_closed or any(map(self._is_startable, self._starts)))
                if self._is_closed:
                    break
                key = next(filter(self._is_startable, self._starts))
                self._starts.remove(key)
                node = self._node
                assert node is not None
                kinds: dict[str, dict[str, Object]] = {"configmaps": {}, "services": {}}
                for other, value in self.objects.items():
                    kind, _, name = other.partition("/")
                    kinds.get(kind, {})[name] = value
                node.objects |= {f"configMap/{name}": value["data"] for name, value in kinds["configmaps"].items()}
                # the DNS of the cluster
                node.hosts = [f"{name}.default.svc" for name in kinds["services"]]
                self.containers[key] = node.start(self.objects[key])
        for container in self.containers.values():
            container.close()

    def _is_startable(self, key: str) -> bool:
        """Returns True once the config maps of a pod exist."""
        volumes = self.objects[key]["spec"]["volumes"]
        named = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
        known = self._node.objects if self._node is not None else {}
        return all(f"configmaps/{name}" in self.objects or f"configMap/{name}" in known for name in named)

    def reply(self, method: str, path: str, body: Object) -> tuple[int, Any]:
        """Returns status and body of the response to one request."""
        parts = urlsplit(path)
        found = _PATH.fullmatch(parts.path)
        kind, name = (found["kind"], found["name"] or "") if found else ("", "")
        query = parse_qs(parts.query)
        with self._lock:
            if kind not in _KINDS:
                self.unknown.append(f"{method} {path}")
                return 404, _status(404)
            if method in ("POST", "PATCH", "PUT"):
                return self._store(kind, name or body["metadata"]["name"], body)
            selected = self._selected(kind, name, query)
            if method == "DELETE":
                for key in selected:
                    self._delete(key)
                return 200, _status(200)
            if name:
                return (200, self._current(f"{kind}/{name}")) if selected else (404, _status(404))
            items = [self._current(key) for key in selected]
            listed = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
            return 200, {**listed, "items": items}

    def _selected(self, kind: str, name: str, query: dict[str, list[str]]) -> list[str]:
        wanted = [pair.partition("=")[::2] for text in query.get("labelSelector", ()) for pair in text.split(",")]
        equal = [(key, value) for key, value in wanted if value and not key.endswith("!")]

        def is_selected(key: str) -> bool:
            labels = self.objects[key]["metadata"].get("labels", {})
            return all(labels.get(label) == value for label, value in equal)

        keys = [f"{kind}/{name}"] if name else [key for key in self.objects if key.startswith(f"{kind}/")]
        return [key for key in keys if key in self.objects and key not in self._deleted and is_selected(key)]

    def _store(self, kind: str, name: str, body: Object) -> tuple[int, Object]:
        key = f"{kind}/{name}"
        is_new = key not in self.objects
        known = self.objects.get(key, {"metadata": {"uid": str(uuid.uuid4())}})
        metadata = {**known["metadata"], **body.get("metadata", {}), "name": name, "namespace": "default"}
        metadata = {**metadata, "creationTimestamp": _CREATED, "resourceVersion": "1"}
        self.objects[key] = {**known, **body, "metadata": metadata}
        if kind == "pods" and is_new and self._node is not None:
            self._starts.append(key)
        self._has_work.notify()
        return (201 if is_new else 200), self._current(key)

    def _delete(self, key: str) -> None:
        self._deleted.add(key)
        if key in self.containers:
            threading.Thread(target=self.containers[key].stop, daemon=True).start()

    def _current(self, key: str) -> Object:
        found = self.objects[key]
        if not key.startswith("pods/"):
            return found
        container = self.containers.get(key)
        if container is None:
            return {**found, "status": {"phase": "Pending"}}
        status = container.status
        if status is None:
            return {**found, "status": {"phase": "Running", "podIP": "127.0.0.1"}}
        state = {"name": found["spec"]["containers"][0].get("name", ""), "state": {"terminated": {"exitCode": status}}}
        return {**found, "status": {"phase": "Failed" if status else "Succeeded", "containerStatuses": [state]}}


def _status(code: int) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Success" if code < 400 else "Failure", "code": code}


@contextmanager
def kubernetes_api(node: Node | None = None) -> Iterator[KubernetesApi]:
    """Yields a running API server; its pods end with it."""
    api = KubernetesApi(node)
    try:
        yield api
    finally:
        api.close()
