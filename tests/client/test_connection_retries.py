"""Retries after lost connections, missing responses and invalid responses."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import certificates
from support.certificates import write_pem
from support.clients import FakeBroker, advertise, client_settings, fake_broker, open_cluster

from spark_groupsource.client.cluster import routing
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.fencing import find_generation
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common import net
from spark_groupsource.common.clock import ManualClock, SystemClock
from spark_groupsource.common.net import Address
from spark_groupsource.common.tls import TlsSettings
from spark_groupsource.errors import (
    AuthenticationError,
    GroupSourceError,
    NetworkError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from spark_groupsource.wire.messages import HeartbeatRequest, MetadataResponse

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
REFUSING = Address("127.0.0.1", 1)


@contextmanager
def answering(reply: bytes) -> Iterator[Address]:
    """A listener that sends `reply` to the first bytes of each connection and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.recv(65536)
                peer.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address(*listener.getsockname()[:2])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@contextmanager
def frozen() -> Iterator[Address]:
    """A listener whose process does not run: connections are established, no response is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address(*listener.getsockname()[:2])


def connect(address: Address, **settings: Any) -> BrokerConnection:
    values: dict[str, Any] = {"client_id": "test", "security": SecuritySettings(), "request_timeout_ms": 5_000}
    return BrokerConnection(address, clock=SystemClock(), **(values | settings))


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"", NetworkError),
        (b"\x16\x03\x03\0\x40", NetworkError),
        (b"\x15\x03\x03\0\x02\x02\x50", NetworkError),
        (b"\x15\x03\x03\0\x02\x02\x28", AuthenticationError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", AuthenticationError),
    ],
    ids=["closed", "closed within a record", "alert internal_error", "alert handshake_failure", "not TLS"],
)
def test_handshake_that_the_peer_ends_is_a_lost_connection(reply: bytes, expected: type[GroupSourceError]) -> None:
    with answering(reply) as address:
        with pytest.raises(expected, match=f"TLS handshake with {address} failed"):
            net.dial(address, 5_000, TlsSettings(check_hostname=False))


def test_handshake_without_response_names_the_timeout() -> None:
    with frozen() as address:
        with pytest.raises(NetworkError, match=f"TLS handshake with {address} failed: no response within 50 ms"):
            net.dial(address, 50, TlsSettings(check_hostname=False))


@contextmanager
def tls_listener(directory: Path, certificate: str, authority: str | None = None) -> Iterator[Address]:
    """A TLS 1.3 listener that closes each connection after its first bytes; with `authority` it requires a certificate.

    The authority is that of the certificates of clients.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_pem(directory / "server.pem", certificate, certificates.KEY))
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                peer = context.wrap_socket(listener.accept()[0], server_side=True)
            except OSError:
                return  # the handshake failed
            with peer:
                peer.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address(*listener.getsockname()[:2])
        thread.join(5)


@pytest.mark.parametrize(
    ("certificate", "trusted", "remedy"),
    [
        (certificates.SERVER, certificates.STRANGER, "unable to get local issuer certificate.* kafka.ssl.ca.location"),
        (certificates.OTHER_NAME, certificates.CA, "IP address mismatch.* to names in their certificates, or "),
        (certificates.EXPIRED, certificates.EXPIRED, "certificate has expired.* Renew the certificate of the broker"),
    ],
    ids=["unknown authority", "other name", "expired"],
)
def test_rejected_certificate_of_a_broker_names_what_to_do(
    tmp_path: Path, certificate: str, trusted: str, remedy: str
) -> None:
    with tls_listener(tmp_path, certificate) as address:
        with pytest.raises(AuthenticationError, match=remedy):
            net.dial(address, 5_000, TlsSettings(ca_file=write_pem(tmp_path / "ca.pem", trusted)))


@pytest.mark.parametrize("client", [None, certificates.STRANGER], ids=["no certificate", "unknown certificate"])
def test_rejected_certificate_of_a_client_is_no_lost_connection(tmp_path: Path, client: str | None) -> None:
    """In TLS 1.3 the alert arrives after the handshake of the client, as the first response."""
    own = None if client is None else write_pem(tmp_path / "client.pem", client, certificates.KEY)
    tls = TlsSettings(ca_file=write_pem(tmp_path / "ca.pem", certificates.CA), cert_file=own)
    with tls_listener(tmp_path, certificates.SERVER, certificates.CA) as address:
        connection = connect(address, security=SecuritySettings("SSL", tls))
        with pytest.raises(AuthenticationError, match=r"TLS handshake .*_ALERT_.*Set kafka.ssl.certificate.location"):
            connection.open(5_000)


def test_lost_connection_without_tls_does_not_load_it() -> None:
    """Loading the module takes memory and time in every worker process."""
    code = (
        "import sys\n"
        "from spark_groupsource.common.net import Address, certificate_rejection, dial\n"
        "from spark_groupsource.errors import NetworkError\n"
        "connection = dial(Address('127.0.0.1', int(sys.argv[1])), 5_000)\n"
        "assert certificate_rejection(connection, NetworkError('lost')) is None and 'ssl' not in sys.modules\n"
    )
    with frozen() as address:
        subprocess.run([sys.executable, "-c", code, str(address.port)], check=True, timeout=60)


# -- deadlines -------------------------------------------------------------------------------------------------------


def test_peer_that_sends_byte_by_byte_exceeds_the_timeout() -> None:
    near, far = socket.socketpair()
    ending = threading.Event()

    def drip() -> None:
        while not ending.wait(0.01):
            far.sendall(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        with pytest.raises(RequestTimeoutError, match="of 10000 bytes within"):
            net.receive_into(near, memoryview(bytearray(10_000)), 100)
    finally:
        ending.set()
        thread.join(5)
        near.close()
        far.close()


def test_addresses_of_one_host_name_share_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as full, frozen() as address:
        # a listener with a full backlog: the kernel drops further attempts, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in (full.getsockname(), address)]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
            started = time.monotonic()
            net.dial(Address("broker", 9092), 600).close()
            assert 0.29 < time.monotonic() - started < 0.6
            with pytest.raises(NetworkError, match="Connecting to broker:9092 failed: no response within 50 ms"):
                rows.pop()
                net.dial(Address("broker", 9092), 50)


def test_name_lookup_ends_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(20))
    with pytest.raises(NetworkError, match="broker:9092 failed: the host name was not resolved within 50 ms"):
        net.dial(Address("broker", 9092), 50)
    answered.set()


def test_slow_name_lookup_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(net, "_SLOW_LOOKUP_MS", -1)
    with frozen() as address:
        net.dial(Address("localhost", address.port), 5_000).close()
        net.dial(address, 5_000).close()
    (line,) = caplog.messages
    assert line.startswith(f"[broker=localhost:{address.port}] Slow name lookup: ") and line.endswith(" ms.")


@pytest.mark.parametrize("host", ["x" * 64 + ".example", ".."])
def test_name_that_cannot_be_resolved_is_a_network_error(host: str) -> None:
    with pytest.raises(NetworkError, match="failed: the host name cannot be resolved .*Check the address."):
        net.dial(Address(host, 9092), 5_000)


def test_opening_a_connection_is_part_of_the_timeout() -> None:
    with frozen() as address:
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="ApiVersions"):
            connect(address).call(HEARTBEAT, timeout_ms=100)
        assert time.monotonic() - started < 2


def test_peer_before_the_login_cannot_announce_a_large_response() -> None:
    with fake_broker(b"\0\x20\0\0") as broker:
        with pytest.raises(RemoteProtocolError, match="its length is 2097152 bytes, the limit is 1048576"):
            connect(broker.address).open()


def _peak_of_a_call(response: bytes, error: type[Exception], timeout_ms: int) -> int:
    """Traced bytes of a call that ends with `error`."""

    def versions(request: Any, version: int) -> Any:
        return advertise(ApiVersions=(0, 3), Heartbeat=(0, 4))

    with fake_broker(ApiVersions=versions, Heartbeat=lambda r, v: response) as broker:
        connection = connect(broker.address)
        tracemalloc.start()
        try:
            with pytest.raises(error):
                connection.call(HEARTBEAT, timeout_ms=timeout_ms)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return peak


def test_memory_grows_with_the_bytes_that_arrive() -> None:
    peak = _peak_of_a_call(b"\x0f\0\0\0" + b"x" * 100_000, RequestTimeoutError, 100)
    assert peak < 2_000_000, "250 MB were announced"


def test_large_response_is_in_memory_once() -> None:
    size = 40_000_000
    peak = _peak_of_a_call(size.to_bytes(4, "big") + bytes(size), RemoteProtocolError, 30_000)
    assert peak < 1.6 * size


@pytest.mark.parametrize(
    ("limit", "error"),
    [("52428800", RemoteProtocolError), ("400000000", RequestTimeoutError)],
    ids=["default", "large"],
)
def test_largest_response_follows_from_fetch_max_bytes(limit: str, error: type[GroupSourceError]) -> None:
    def versions(request: Any, version: int) -> Any:
        return advertise(ApiVersions=(0, 3), Heartbeat=(0, 4))

    with fake_broker(ApiVersions=versions, Heartbeat=lambda r, v: b"\x12\0\0\0") as broker:
        with open_cluster(str(broker.address), fetch_max_bytes=limit) as client, pytest.raises(error):
            client.call_address(broker.address, HEARTBEAT, 100)


def test_generation_of_a_fenced_member_is_looked_up_within_its_deadline() -> None:
    with frozen() as address, open_cluster(str(address)) as client:
        started = time.monotonic()
        assert find_generation(client, "g", timeout_ms=200) == -1
        assert time.monotonic() - started < 2


# -- several addresses -----------------------------------------------------------------------------------------------


def versions(request: Any, version: int) -> Any:
    return advertise(ApiVersions=(0, 3), Metadata=(0, 12))


@contextmanager
def one_broker(*empty: bool) -> Iterator[FakeBroker]:
    """A cluster of one broker; its first Metadata responses name none where `empty` is True."""
    is_empty = list(empty)

    def metadata(request: Any, version: int) -> Any:
        row = MetadataResponse.MetadataResponseBroker(node_id=7, host="127.0.0.1", port=broker.address.port, rack=None)
        rows = [] if is_empty and is_empty.pop(0) else [row]
        return MetadataResponse(throttle_time_ms=0, brokers=rows, cluster_id="c", controller_id=7, topics=[])

    with fake_broker(ApiVersions=versions, Metadata=metadata) as broker:
        yield broker


def test_metadata_without_brokers_are_requested_again() -> None:
    settings = {"retry_backoff_ms": "1"}
    with one_broker(True, True, False, True) as broker, open_cluster(str(broker.address), **settings) as client:
        assert list(client.metadata().nodes) == [7]
        assert list(client.metadata(refresh=True).nodes) == [7], "a broker that starts does not know the others yet"
        assert [name for name, *_ in broker.requests].count("Metadata") == 5


def test_metadata_without_brokers_fail_after_the_timeout() -> None:
    # the pause after the first response exceeds the timeout
    with one_broker(*[True] * 1_000) as broker, open_cluster(str(broker.address), retry_backoff_ms="1000") as client:
        with pytest.raises(NetworkError, match="Metadata request failed: the response names no broker."):
            client.metadata(timeout_ms=700)


def test_frozen_address_leaves_time_for_the_others_and_is_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_MIN_ATTEMPT_MS", 50)
    with frozen() as address, one_broker() as broker:
        with open_cluster(f"{address},{broker.address}") as client:
            assert client.metadata(timeout_ms=400).cluster_id == "c"
            started = time.monotonic()
            assert client.metadata(refresh=True, timeout_ms=8_000).cluster_id == "c"
            assert time.monotonic() - started < 2, "the frozen address was tried again"


def test_address_of_a_cluster_that_exists_is_tried_until_the_timeout() -> None:
    clock, settings = ManualClock(), client_settings(str(REFUSING))
    with ClusterClient(settings.bootstrap, settings, clock) as client:
        with pytest.raises(NetworkError):
            client.metadata()
        assert clock.now_ms() < 5_000, "the address may be wrong"
    clock = ManualClock()
    with ClusterClient(settings.bootstrap, settings, clock, known_brokers=[REFUSING]) as client:
        with pytest.raises(NetworkError):
            client.metadata()
        assert clock.now_ms() > settings.default_api_timeout_ms - 2_000


def test_brokers_known_to_another_process_replace_a_dead_bootstrap_server() -> None:
    with one_broker() as broker, open_cluster(str(REFUSING)) as client:
        client.add_known_brokers([broker.address])
        assert client.metadata().cluster_id == "c"
