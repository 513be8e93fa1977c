"""Addresses: IPv6, several addresses of a name, unreachable ones."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from real_kafka import free_address

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address, dial, parse_listen_address
from spark_groupsource.errors import ConfigurationError, NetworkError
from spark_groupsource.model import TopicPartition


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"t": [b"1"]}) as running:
        yield running


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SASL_SSL://kafka.example:9092", "kafka.example:9092"),
        ("PLAINTEXT://a:1, SSL://[::1]:2,c:3", "a:1,[::1]:2,c:3"),
        ("http://localhost:9092", "localhost:9092"),
    ],
)
def test_a_protocol_before_an_address_is_skipped(given: str, expected: str) -> None:
    assert ",".join(map(str, settings(given).bootstrap)) == expected


# as Utils.getHost and Utils.getPort of kafka-clients 4.3.0; None where they find no address. Beyond that, an address
# without a host and a host with colons that is no IPv6 address are rejected here.
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1", "a:1"),
        ("://a:1", "a:1"),
        ("SASL-SSL://a:1", "a:1"),
        ("ssl%://a:1", "a:1"),
        ("SASL SSL://a:1", None),
        ("SSL+X://a:1", None),
        ("SSL:/a:1", None),
        ("SSL:a:1", None),
        ("[::1]:9092", "[::1]:9092"),
        ("::1:9092", "[::1]:9092"),
        ("[::1:9092", "[::1]:9092"),
        ("::1]:9092", "[::1]:9092"),
        ("[[::1]]:9092", None),
        ("[fe80::1%eth0]:9092", "[fe80::1%eth0]:9092"),
        ("[]:1", None),
        (":1", None),
        ("a:1:2", None),
        (" a:1 , b:2 ", "a:1,b:2"),
        ("\ta:1\n,\nb:2", "a:1,b:2"),
        ("a:1,a:1", "a:1"),
        ("a : 1", None),
        ("a:1 b:2", None),
        ("a:1;b:2", None),
        ("a:0", "a:0"),
        ("a:01", "a:1"),
        ("a:65535", "a:65535"),
        ("a:65536", None),
        ("a:" + "9" * 5000, None),
        ("a:+1", None),
        ("a:-1", None),
        ("a:\u0663", None),
        ("a:\u00b2", None),
        ("a_b:1", "a_b:1"),
        ("a-b.c:1", "a-b.c:1"),
        ("a/b:1", None),
        ("a:1/", None),
        ("user@a:1", None),
        ("*:1", None),
        ("\u00e9:1", None),
        # rejected since Kafka 4.1, ignored before and by librdkafka
        ("a:1,", "a:1"),
        (",a:1,,b:2", "a:1,b:2"),
    ],
)  # fmt: skip
def test_addresses_are_those_of_the_java_client(given: str, expected: str | None) -> None:
    if expected is not None:
        assert ",".join(map(str, settings(given).bootstrap)) == expected
        return
    with pytest.raises(ConfigurationError, match="must list host:port addresses: .* is not host:port"):
        settings(given)


@pytest.mark.parametrize("given", ["", "a:1,b:2", "http://a:1", "a", ":1"])
def test_a_server_listens_on_one_address_without_a_protocol(given: str) -> None:
    with pytest.raises(ConfigurationError, match="Option --listen must be one HOST:PORT, got"):
        parse_listen_address(given, "--listen")


@pytest.mark.parametrize("given", ["https://localhost", "SSL://:9092", "a://b://c:1"])
def test_an_invalid_address_is_shown_as_it_was_given(given: str) -> None:
    with pytest.raises(ConfigurationError, match=f"bootstrap.servers must list host:port addresses: '{given}' is not"):
        settings(given)


def dead_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return "127.0.0.1:%d" % free.getsockname()[1]


def settings(servers: str, **more: str) -> ClientSettings:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return ClientSettings.parse({"bootstrap.servers": servers, "default.api.timeout.ms": "3000", **given})


def end_offset(parsed: ClientSettings) -> int:
    partition = TopicPartition("t", 0)
    with ClusterClient(parsed.bootstrap, parsed) as cluster:
        return cluster.list_offsets({partition: -1})[partition].offset


@pytest.mark.skipif(not has_ipv6(), reason="the machine has no IPv6")
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "listeners"])
def test_ipv6(protocol: str) -> None:
    config = {"listeners": "PLAINTEXT://[::1]:0"} if protocol == "listeners" else {}
    with EmbeddedBroker(host="::1", config=config, topics={"t": [b"1"]}) as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")
        assert end_offset(settings(broker.bootstrap_servers)) == 1
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"2")
        assert producer.flush(20) == 0


def test_dead_bootstrap_servers_are_passed_over(broker: EmbeddedBroker) -> None:
    dead = [dead_address() for _ in range(3)]
    servers = ",".join([*dead[:2], "no-such-host.invalid:9092", broker.bootstrap_servers, dead[2]])
    started = time.monotonic()
    assert end_offset(settings(servers)) == 1
    assert time.monotonic() - started < 3


def test_all_bootstrap_servers_dead_are_named() -> None:
    dead = [dead_address() for _ in range(2)]
    with pytest.raises(NetworkError) as raised:
        end_offset(settings(",".join(dead), default_api_timeout_ms="300"))
    assert any(each in str(raised.value) for each in dead)


def test_name_with_several_addresses(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first addresses refuse connections."""
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    look_up = socket.getaddrinfo

    def several(host: str, *arguments: Any, **more: Any) -> Any:
        if host != "kafka.example":
            return look_up(host, *arguments, **more)
        stream = (socket.SOCK_STREAM, 6, "")
        return [
            (socket.AF_INET6, *stream, ("::1", port, 0, 0)),
            (socket.AF_INET, *stream, ("127.0.0.9", port)),
            (socket.AF_INET, *stream, ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    assert end_offset(settings(f"kafka.example:{port}")) == 1


class Ipv4Socket(socket.socket):
    """A socket of a kernel without IPv6."""

    def __init__(self, family: int = socket.AF_INET, *arguments: Any, **more: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *arguments, **more)


def socket_without(option: str, code: int) -> type[socket.socket]:
    """Returns a class of sockets that cannot set an option of TCP."""

    class Limited(socket.socket):
        def setsockopt(self, level: int, name: int, *value: Any) -> None:
            if (level, name) == (socket.IPPROTO_TCP, getattr(socket, option)):
                raise OSError(code, os.strerror(code))
            super().setsockopt(level, name, *value)

    return Limited


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_a_sandbox_without_the_timeout_of_unacknowledged_bytes_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(socket, "socket", socket_without("TCP_USER_TIMEOUT", errno.ENOPROTOOPT))
        dial(Address("127.0.0.1", listener.getsockname()[1]), 1_000).close()


def test_a_peer_that_has_closed_the_connection_at_once_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS reports it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(socket, "socket", socket_without("TCP_NODELAY", errno.EINVAL))
        with pytest.raises(NetworkError, match=f"Connecting to 127.0.0.1:{port} failed: the connection was lost"):
            dial(Address("127.0.0.1", port), 1_000)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_kernel_without_ipv6_uses_the_other_addresses(is_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = (socket.SOCK_STREAM, 6, "")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = [(socket.AF_INET6, *stream, ("::1", port, 0, 0)), (socket.AF_INET, *stream, ("127.0.0.1", port))]
        found = found if is_first else found[::-1]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: found)
        monkeypatch.setattr(socket, "socket", Ipv4Socket)
        dial(Address("kafka.example", port), 1_000).close()
    # the cause is that nothing listens, not that an address cannot be used
    with pytest.raises(NetworkError, match=f"Connecting to kafka.example:{port} failed: Connection refused"):
        dial(Address("kafka.example", port), 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("advertised", ["127.0.0.1:1", "no-such-host.invalid:9092"])
def test_advertised_address_that_cannot_be_reached_is_named(advertised: str) -> None:
    address = free_address()
    with EmbeddedBroker(port=address.port, topics={"t": [b"1"]}, config={"advertised.listeners": advertised}):
        parsed = settings(str(address), default_api_timeout_ms="1500")
        with pytest.raises(NetworkError) as raised:
            end_offset(parsed)
        assert advertised in str(raised.value)
        assert "advertised.listeners" in str(raised.value)
