"""Hostile clients of a broker, drawn by hypothesis.

Each example opens a connection to one embedded broker, sends a few frames (requests of every served version with bytes
changed, removed or inserted; wrong lengths; noise) and closes the connection, at once or after a response. After each
example the broker serves another client. At the end no thread, connection or delayed fetch is left, memory is bounded,
and the broker has reported no unexpected error.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Callable

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from support.message_strategies import messages
from support.raw_broker import unexpected_errors

from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest

CONFIG = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "socket.request.max.bytes": "1000000",
    "num.partitions": "2",
}
_SASL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": "PlainLoginModule required user_ann=secret;",
}
VERSIONS = [(key, version) for key, api in SERVED.items() for version in range(api.min_version, api.max_version + 1)]
KNOWN = "known"
# a topic may have 100,000 partitions, which take as many files
_MAKES_FILES = frozenset({19, 37})
_GROWTH_MB = 300


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A request with its length, as encoded or damaged."""
    key, version = draw(st.sampled_from(VERSIONS))
    if key in _MAKES_FILES or draw(st.integers(0, 9)) == 0:
        body = draw(st.binary(max_size=200))
        return struct.pack(">i", len(body)) + struct.pack(">hhi", key, version, 1)[: len(body)] + body[8:]
    request = draw(messages(APIS[key].request, version))
    if draw(st.booleans()):
        _use_known_names(request)
    data = bytearray(encode_request(request, version, 1, "fuzz"))
    for _ in range(draw(st.integers(0, 4))):
        # not the API: a damaged request must not become one that makes files
        at = draw(st.integers(8, max(len(data) - 1, 8)))
        what = draw(st.sampled_from(["flip", "cut", "insert", "large", "negative", "varint", "version"]))
        if what == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del data[at : at + draw(st.integers(1, 20))]
        elif what == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif what == "varint":
            # of compact lengths and tagged fields: up to 10 bytes, or without end
            end = draw(st.sampled_from([b"", b"\0", b"\x01", b"\x0f"]))
            data[at : at + 1] = b"\xff" * draw(st.integers(1, 12)) + end
        elif what == "version":
            # of another header, or one that is not served
            struct.pack_into(">h", data, 6, draw(st.integers(-1, 20)))
        elif what == "large":
            data[at : at + 4] = b"\x7f\xff\xff\xff"
        else:
            data[at : at + 4] = struct.pack(">i", -draw(st.integers(1, 2**31)))
    if draw(st.integers(0, 9)):
        struct.pack_into(">i", data, 0, len(data) - 4)  # a correct length
    return bytes(data)


def _use_known_names(request: Any) -> None:
    """Replaces names by those of a group, topic and transaction that other examples use too."""
    for field in ("group_id", "transactional_id", "v3_and_below_transactional_id"):
        if isinstance(getattr(request, field, None), str):
            setattr(request, field, KNOWN)
    for field in ("topics", "topic_data"):
        for topic in getattr(request, field, None) or ():
            if isinstance(getattr(topic, "name", None), str):
                topic.name = KNOWN
            elif isinstance(getattr(topic, "topic", None), str):
                topic.topic = KNOWN


def send_hostile(address: tuple[str, int], sent: list[bytes], waits: bool, login: bool = False) -> bool:
    """Runs one hostile client; returns whether the broker is known to have closed its connection."""
    with _connect(address) as connection:
        try:
            if login:
                _log_in(connection)
            for frame in sent:
                connection.sendall(frame)
            if waits:
                connection.settimeout(0.02)
                return not connection.recv(65536)
        except TimeoutError:
            return False  # the broker may delay the response
        except ConnectionError:
            return True
    return False


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _log_in(connection: socket.socket) -> None:
    """Authenticates with PLAIN."""
    token = SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret")
    for request, version in ((SaslHandshakeRequest(mechanism="PLAIN"), 1), (token, 1)):
        connection.sendall(encode_request(request, version, 1, "fuzz"))
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(length, socket.MSG_WAITALL)


class Fuzz:
    """One broker, and another client that it must serve. With `sasl`, every second hostile client logs in."""

    def __init__(self, sasl: bool = False) -> None:
        self._sasl = sasl
        self._broker = EmbeddedBroker(config={**CONFIG, **(_SASL if sasl else {})})

    def __enter__(self) -> Fuzz:
        self._broker.start()
        host, _, port = self._broker.bootstrap_servers.rpartition(":")
        self._address = (host, int(port))
        self._other_client = _connect(self._address)
        if self._sasl:
            _log_in(self._other_client)
        self._request = bytes(encode_request(ApiVersionsRequest(), 0, 1, "other"))
        self._memory_mb = memory_mb()
        self._threads = threading.active_count()
        return self

    def __exit__(self, *_: object) -> None:
        self._other_client.close()
        self._broker.stop()

    def run(self, sent: list[bytes], waits: bool) -> None:
        """Runs one hostile client, then a request of the other client."""
        send_hostile(self._address, sent, waits, self._sasl and len(b"".join(sent)) % 2 == 0)
        self._other_client.sendall(self._request)
        (length,) = struct.unpack(">i", self._take(4))
        self._take(length)
        bugs = unexpected_errors(self._broker.reports)
        assert not bugs, bugs[0]

    def check_end(self) -> None:
        """Checks that closed connections leave no fetches, threads or memory behind."""
        deadline = time.monotonic() + 20
        while True:
            left = self._broker.call(lambda broker: len(broker.fetch_manager))
            connections = self._broker.call(lambda broker: self._broker.connection_count)
            if not left and connections == 1:
                break
            assert time.monotonic() < deadline, f"{left} fetches and {connections} connections are left"
            time.sleep(0.02)
        assert threading.active_count() <= self._threads + 1, threading.enumerate()
        grown_mb = memory_mb() - self._memory_mb
        assert grown_mb < _GROWTH_MB, f"memory has grown by {grown_mb:.0f} MB"

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._other_client.recv(size - len(data))
            assert more, "the connection of the other client was closed"
            data += more
        return data


def memory_mb() -> float:
    """Resident memory of this process, 0 where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0.0
    return pages * 4096 / 2**20


def fuzz(examples: int, chosen_seed: int, sasl: bool = False) -> None:
    """Runs `examples` hostile clients. Raises: AssertionError with the shortest failing example."""
    with Fuzz(sasl) as target:
        run_examples(examples, chosen_seed, target.run)
        target.check_end()


def run_examples(examples: int, chosen_seed: int, run: Callable[[list[bytes], bool], object]) -> None:
    """Calls `run` with the frames of each of `examples` hostile clients, and whether it waits for a response."""

    @seed(chosen_seed)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sent=st.lists(frames(), min_size=1, max_size=4), waits=st.booleans())
    def one(sent: list[bytes], waits: bool) -> None:
        run(sent, waits)

    one()
