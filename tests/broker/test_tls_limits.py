"""Bounds of TLS connections: handshakes in progress, incomplete records, memory of OpenSSL."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attacks.attack_frames import create_topics, fetch, produce
from attacks.client_attacks import Target
from attacks.tls_attacks import client_hello
from support import certificates
from support.raw_broker import BrokerProcess
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.network import tls_handshakes
from spark_groupsource.broker.network.tls_handshakes import HandshakeQueue
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.records.encode import Record, encode_batch


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.write_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def target(files: Path, tmp_path: Path) -> Iterator[Target]:
    settings = [f"{name}={value}" for name, value in certificates.listener_config(files, "SSL").items()]
    with BrokerProcess(tmp_path, *settings) as broker:
        yield Target(broker.bootstrap_servers, broker.process.pid)


def _dial(address: tuple[str, int], files: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=files / "ca.pem")
    return context.wrap_socket(socket.create_connection(address, 10), server_hostname="127.0.0.1")


def _call(client: socket.socket, request: bytes) -> int:
    """Returns the size of the response."""
    client.sendall(request)
    with client.makefile("rb") as stream:
        size = int.from_bytes(stream.read(4), "big")
        assert len(stream.read(size)) == size
    return size


@pytest.mark.slow
@pytest.mark.parametrize("is_complete", [False, True])
def test_handshakes_that_are_begun_need_little_memory(target: Target, files: Path, is_complete: bool) -> None:
    hello = client_hello()
    before_mb = target.memory_mb()
    with ExitStack() as held:
        for _ in range(1_000):
            client = held.enter_context(socket.create_connection(target.address, 10))
            client.sendall(hello if is_complete else hello[:-1])
        client = held.enter_context(_dial(target.address, files))
        assert _call(client, create_topics(1, 1))
        assert target.memory_mb() - before_mb < 25  # 49 kB of each, when each had begun


@pytest.mark.slow
def test_connections_that_have_read_a_large_response_need_little_memory(target: Target, files: Path) -> None:
    batch = bytes(encode_batch([Record(None, bytes(900_000), 1)]))
    with ExitStack() as held:
        client = held.enter_context(_dial(target.address, files))
        _call(client, create_topics(1, 1, "bulk"))
        for _ in range(3):
            _call(client, produce("bulk-0", batch))
        before_mb = target.memory_mb()
        for _ in range(40):
            client = held.enter_context(_dial(target.address, files))
            assert _call(client, fetch("bulk-0", 50_000_000)) > 1_800_000
        assert target.memory_mb() - before_mb < 25  # the size of the response of each, when TLS kept its buffer


def test_incomplete_records_count_as_incomplete_requests(files: Path) -> None:
    with EmbeddedBroker(config=certificates.listener_config(files, "SSL")) as broker:
        (address,) = parse_addresses(broker.bootstrap_servers)

        def requests() -> int:
            # private: the bytes that count as incomplete requests
            return broker.call(lambda _: broker._server._limits.requests.total)

        with _dial(address, files) as client:
            raw = socket.socket(fileno=client.detach())
            with raw:
                raw.sendall(b"\x17\x03\x03\x40\x11" + bytes(12_000))
                wait_until(lambda: requests() == 12_005, "the record counts")
        wait_until(lambda: requests() == 0, "the connection is closed")
        with socket.create_connection(address, 10) as begun:
            begun.sendall(client_hello()[:100])
            wait_until(lambda: requests() == 100, "the first record counts")


class Peer:
    """A handshake as the queue sees it."""

    def __init__(self, queue: HandshakeQueue) -> None:
        self._queue = queue
        self.is_pending = False
        self.steps = 0
        self.rejected = ""

    def send(self) -> None:
        self.is_pending = True
        self._queue.add(self)

    def start_step(self) -> None:
        self.steps += 1
        self.is_pending = False

    def reject(self, reason: str) -> None:
        self.rejected = reason
        self._queue.remove(self)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peer]:
    monkeypatch.setattr(tls_handshakes, "_MAX_IN_PROGRESS", 2)
    queue = HandshakeQueue()
    found = [Peer(queue) for _ in range(5)]
    for peer in found:
        peer.send()
    return found


def test_handshakes_wait_while_others_are_in_progress(peers: list[Peer]) -> None:
    queue = peers[0]._queue
    assert [peer.steps for peer in peers] == [1, 1, 0, 0, 0]
    peers[0].send()  # its second flight of bytes
    assert [peer.steps for peer in peers] == [2, 1, 0, 0, 0]
    queue.remove(peers[0])
    queue.remove(peers[1])
    # alternately the oldest and the newest, whichever was not next before
    assert [peer.steps for peer in peers] == [2, 1, 1, 0, 1]
    queue.remove(peers[3])  # it disconnects while it waits
    queue.remove(peers[2])
    peers[0].send()
    peers[1].send()
    assert [peer.steps for peer in peers] == [3, 1, 1, 0, 1]  # one was free


def test_stalled_handshakes_are_closed_while_others_wait(peers: list[Peer]) -> None:
    queue = peers[0]._queue
    peers[1].is_pending = True  # the broker has not run its step yet
    for now_ms in (1_000, 1_999):
        assert not list(queue.close_stalled(now_ms)) and not peers[0].rejected
    list(queue.close_stalled(2_000))
    assert [bool(peer.rejected) for peer in peers] == [True, False, False, False, False]
    peers[1].send()
    list(queue.close_stalled(3_000))
    assert not peers[1].rejected  # it has sent bytes
    list(queue.close_stalled(4_000))
    assert [bool(peer.rejected) for peer in peers] == [True, True, True, False, False]
    for peer in peers:
        queue.remove(peer)
    peers[0].send()
    for now_ms in (10_000, 20_000):
        list(queue.close_stalled(now_ms))
    assert peers[0].steps == 2  # no other one waits
