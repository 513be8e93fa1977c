"""Clusters, group clients and fake brokers for tests of the client."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.group_client import GroupClient, GroupView
from spark_groupsource.client.settings import ClientSettings, GroupSettings
from spark_groupsource.common.clock import Clock, SystemClock
from spark_groupsource.common.net import Address
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.frames import decode_request, encode_response, read_request_header
from spark_groupsource.wire.messages import ApiVersionsResponse

POLL_MS = 20_000

ResponseFunction = Callable[[Any, int], Any]
"""(request, version) -> response, or raw bytes to send instead"""


def client_settings(bootstrap_servers: str, **settings: str) -> ClientSettings:
    """Settings by Kafka's names with ``_`` for ``.``."""
    options = {"bootstrap.servers": bootstrap_servers, **{k.replace("_", "."): v for k, v in settings.items()}}
    return ClientSettings.parse(options)


def open_cluster(bootstrap_servers: str, **settings: str) -> ClusterClient:
    """A client of a cluster; use it as a context manager."""
    return open_cluster_at(SystemClock(), bootstrap_servers, **settings)


def open_cluster_at(clock: Clock, bootstrap_servers: str, **settings: str) -> ClusterClient:
    """As `open_cluster`, with a clock."""
    parsed = client_settings(bootstrap_servers, **settings)
    return ClusterClient(parsed.bootstrap, parsed, clock)


def advertise(**ranges: tuple[int, int]) -> Any:
    """An ApiVersions response that names APIs by their message names."""
    row = ApiVersionsResponse.ApiVersion
    by_name = {api.name: api.key for api in APIS.values()}
    return ApiVersionsResponse(
        error_code=0,
        api_keys=[row(api_key=by_name[name], min_version=lo, max_version=hi) for name, (lo, hi) in ranges.items()],
        throttle_time_ms=0,
    )


class ConnectionLostError(Exception):
    """Raised by a response function to close the connection."""


class FakeBroker:
    """A broker that responds with `responses` (API name -> function); any other request closes the connection.

    Attributes:
        address: also after `close`, which a thread that serves a request may follow.
        requests: API name, version and body of each request.
        send: sends the bytes of a response to a peer.
        tls: context of the listener; None without TLS.
    """

    tls: ssl.SSLContext | None = None

    send: Callable[[socket.socket, bytes], None] = staticmethod(lambda peer, data: peer.sendall(data))

    def __init__(self, responses: dict[str, ResponseFunction], greeting: bytes = b"") -> None:
        self.responses = responses
        self._greeting = greeting
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname()[:2])
        self.requests: list[tuple[str, int, Any]] = []
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        # ends accept() in the other thread before the descriptor is closed
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(5)
        for peer in self._peers:
            with suppress(OSError):  # closed already
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        peer = accepted if self.tls is None else self.tls.wrap_socket(accepted, server_side=True)
        with peer:
            if self._greeting:
                peer.sendall(self._greeting)
            while frame := _read_frame(peer):
                header, position = read_request_header(memoryview(frame))
                request = decode_request(memoryview(frame), header, position)
                name = APIS[header.api_key].name
                self.requests.append((name, header.api_version, request))
                if name not in self.responses:
                    return
                try:
                    response = self.responses[name](request, header.api_version)
                except ConnectionLostError:
                    return
                if response is None:
                    continue
                if not isinstance(response, bytes):
                    version = header.api_version
                    if name == "ApiVersions" and response.error_code:
                        version = 0
                    response = encode_response(response, version, header.correlation_id)
                with suppress(OSError):  # the client has closed the connection
                    self.send(peer, response)


def _read_frame(peer: socket.socket) -> bytes:
    prefix = _read(peer, 4)
    return _read(peer, struct.unpack(">i", prefix)[0]) if prefix else b""


def _read(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = peer.recv(count - len(data))
        except OSError:
            return b""
        if not more:
            return b""
        data += more
    return data


@contextmanager
def fake_broker(greeting: bytes = b"", **responses: ResponseFunction) -> Iterator[FakeBroker]:
    broker = FakeBroker(responses, greeting)
    try:
        yield broker
    finally:
        broker.close()


def group_client(client: ClusterClient, group: str, topic: str = "", **settings: Any) -> GroupClient:
    values: dict[str, Any] = {"client_id": "app", "session_timeout_ms": 10_000, "heartbeat_interval_ms": 200}
    if "pattern" not in settings:
        values["topics"] = (topic,)
    return GroupClient(client, GroupSettings(group, **{**values, **settings}))


def is_connected(client: GroupClient) -> bool:
    """Returns whether the connection that the members share is open."""
    # private: only tests need it
    pipeline = client.loop.connections._pipeline
    return pipeline is not None and not pipeline.is_closed


@contextmanager
def polling(*clients: GroupClient) -> Iterator[None]:
    """Other applications, each of which polls in a separate thread."""
    ending = threading.Event()

    def run(client: GroupClient) -> None:
        while not ending.is_set():
            client.poll(200)
            ending.wait(0.05)

    threads = [threading.Thread(target=run, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join(10)


def settle(client: GroupClient, expected: int | None = None) -> GroupView:
    """Polls until stable, with `expected` partitions in all."""

    def settled() -> GroupView | None:
        view = client.poll(1_000)
        return view if view.is_stable and (expected is None or len(view.partitions) == expected) else None

    view = wait_until(settled, f"{expected} partitions, stable", 40)
    assert view is not None
    return view
