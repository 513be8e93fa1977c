"""Settings of an application from the web interface of its driver."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from spark_groupsource.source.process.spark_ui import running_settings

SETTINGS = {"spark.master": "spark://h:7077", "spark.cores.max": "12"}


class Interface(BaseHTTPRequestHandler):
    """The two resources of Spark's API."""

    resources: dict[str, Any] = {
        "/api/v1/applications": [{"id": "app-1"}],
        "/api/v1/applications/app-1/environment": {"sparkProperties": [list(each) for each in SETTINGS.items()]},
    }
    status = 200

    def do_GET(self) -> None:  # noqa: N802
        body = json.dumps(self.resources[self.path]).encode()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class Protected(Interface):
    status = 403


class OtherServer(Interface):
    resources = {"/api/v1/applications": {"name": "another server"}}


class OddName(Interface):
    """An id by spark.deploy.appIdPattern."""

    resources = {
        "/api/v1/applications": [{"id": "a team/1?ü"}],
        "/api/v1/applications/a%20team%2F1%3F%C3%BC/environment": {"sparkProperties": [["spark.master", "x"]]},
    }


class Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


@pytest.fixture(params=[Interface])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    # of an interface: a class, or also an address
    handler, host = request.param if isinstance(request.param, tuple) else (request.param, "127.0.0.1")
    server = (Server6 if ":" in host else ThreadingHTTPServer)((host, 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize(
    "port",
    [
        (Interface, "127.0.0.1"), (Interface, "0.0.0.0"), (Interface, "127.0.0.2"),
        *([(Interface, "::1"), (Interface, "::"), (Interface, "::ffff:127.0.0.1")] if socket.has_ipv6 else []),
    ],
    indirect=True,
)  # fmt: skip
def test_settings_of_this_process(port: int) -> None:
    assert running_settings(os.getpid(), {"spark.ui.port": str(port)}) == SETTINGS
    # Spark takes one of the next ports where the first is in use
    assert running_settings(os.getpid(), {"spark.ui.port": str(port - 9)}) == SETTINGS


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("port", [OddName], indirect=True)
def test_id_of_an_application_is_quoted(port: int) -> None:
    assert running_settings(os.getpid(), {"spark.ui.port": str(port)}) == {"spark.master": "x"}


@pytest.mark.parametrize("port", [Protected, OtherServer], indirect=True)
def test_protected_interface_reports_no_settings(port: int) -> None:
    assert running_settings(os.getpid(), {"spark.ui.port": str(port)}) is None


def test_interface_that_is_not_asked(port: int) -> None:
    own = {"spark.ui.port": str(port)}
    assert running_settings(os.getpid(), {**own, "spark.ui.enabled": "false"}) is None
    assert running_settings(os.getpid(), {"spark.ui.port": str(port + 1)}) is None
    assert running_settings(os.getpid(), {"spark.ui.port": "0"}) is None
    # of another application, and of a process that does not exist
    assert running_settings(os.getppid(), own) is None
    assert running_settings(2**22 + 1, own) is None
