"""TLS listeners of the embedded broker: clients, principals, hostile handshakes, replaced certificates."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from support import certificates
from support.aiokafka_producer import send_by_aiokafka
from support.certificates import write_pem
from support.java_tools import TOPICS, JavaTools
from support.raw_broker import RawConnection, metadata
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.network.server_tls import PrincipalMapper, distinguished_name
from spark_groupsource.client import admin as our_admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address, parse_addresses
from spark_groupsource.errors import AuthenticationError, BrokerError, ConfigurationError

ALL = certificates.LISTENERS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.write_files(tmp_path_factory.mktemp("tls"))


def config(files: Path, *protocols: str, **more: str) -> dict[str, str]:
    return {
        **certificates.listener_config(files, *protocols),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def broker(files: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=config(files, *ALL), brokers=2) as running:
        yield running


def settings(broker: EmbeddedBroker, files: Path, protocol: str) -> dict[str, Any]:
    """Settings of librdkafka and of this package."""
    given = {"bootstrap.servers": broker.address(protocol), "security.protocol": protocol}
    if protocol.startswith("SASL"):
        given |= {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "secret"}
    if protocol.endswith("SSL"):
        given |= {"ssl.ca.location": f"{files}/ca.pem"}
    return given


# --- clients ---


@pytest.mark.parametrize("protocol", ALL)
def test_librdkafka(broker: EmbeddedBroker, files: Path, topic: str, group: str, protocol: str) -> None:
    given = settings(broker, files, protocol)
    producer = Producer(given)
    payload = os.urandom(700_000)  # larger than the buffers of TLS and of the connection
    for number in range(3):
        producer.produce(topic, payload, key=b"%d" % number)
    assert producer.flush(20) == 0
    consumer = Consumer({**given, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received = consumer.consume(3, 20)
    assert [message.value() == payload for message in received] == [True] * 3
    consumer.close()


@pytest.mark.parametrize("protocol", ALL)
def test_ours_and_the_addresses_of_the_listener(
    broker: EmbeddedBroker, files: Path, topic: str, protocol: str
) -> None:
    parsed = ClientSettings.parse(settings(broker, files, protocol))
    with ClusterClient(parsed.bootstrap, parsed) as cluster:
        our_admin.create_topics(cluster, [our_admin.NewTopic(topic, 2)])
        nodes = cluster.metadata([topic], refresh=True).nodes
        assert {Address(node.host, node.port) for node in nodes.values()} == set(parsed.bootstrap)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_kafka_python(broker: EmbeddedBroker, files: Path, topic: str, protocol: str) -> None:
    from support.kafka_python import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=broker.address(protocol),
        security_protocol=protocol,
        ssl_cafile=f"{files}/ca.pem",
        sasl_mechanism="PLAIN" if protocol.startswith("SASL") else None,
        sasl_plain_username="ann",
        sasl_plain_password="secret",
    )
    assert producer.send(topic, b"v" * 500_000).get(20).offset == 0
    producer.close()


def test_aiokafka(broker: EmbeddedBroker, files: Path, topic: str) -> None:
    context = ssl.create_default_context(cafile=files / "ca.pem")
    assert send_by_aiokafka(broker.address("SSL"), topic, security_protocol="SSL", ssl_context=context) == 0


@pytest.mark.kafka
def test_java_with_stores(broker: EmbeddedBroker, java: JavaTools, files: Path, tmp_path: Path, topic: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        f"security.protocol=SSL\nssl.truststore.location={files}/trust.jks\nssl.truststore.password=trustpass\n"
        f"ssl.keystore.location={files}/key.jks\nssl.keystore.password=storepass\nssl.key.password=keypass\n"
    )
    where = ["--bootstrap-server", broker.address("SSL"), "--command-config", str(path)]
    assert f"Created topic {topic}." in java.run(TOPICS, *where, "--create", "--topic", topic)


# --- certificates of clients ---


def dial_tls(address: str, files: Path, own: str | None = None, **context_values: Any) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=files / "ca.pem")
    if own:
        context.load_cert_chain(own)
    for name, value in context_values.items():
        setattr(context, name, value)
    (target,) = parse_addresses(address)
    return context.wrap_socket(socket.create_connection(target, 10), server_hostname="127.0.0.1")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_required_client_certificate(files: Path, tmp_path: Path, version: ssl.TLSVersion) -> None:
    stranger = write_pem(tmp_path / "stranger.pem", certificates.KEY, certificates.STRANGER)
    with EmbeddedBroker(config=config(files, "SSL", ssl_client_auth="required")) as broker:
        own = {"ssl.keystore.location": f"{files}/client.pem"}
        for more in ({}, {"ssl.keystore.location": stranger}, own):
            parsed = ClientSettings.parse({**settings(broker, files, "SSL"), **more})
            with ClusterClient(parsed.bootstrap, parsed) as cluster:
                if more is own:
                    assert cluster.metadata([], refresh=True).nodes
                    continue
                with pytest.raises(AuthenticationError, match="TLS handshake with .* Set kafka.ssl.certificate.locat"):
                    cluster.metadata([], refresh=True)
        assert any("Closing the connection: TLS handshake failed:" in line for line in broker.reports)
        with pytest.raises(OSError), dial_tls(broker.bootstrap_servers, files, maximum_version=version) as connection:
            assert not connection.recv(1)
            raise ConnectionResetError


@pytest.mark.parametrize(
    ("rules", "user"), [("DEFAULT", "User:CN=client"), ("RULE:^CN=(.*)$/$1-app/U", "User:CLIENT-APP")]
)
def test_certificate_is_the_principal(files: Path, rules: str, user: str) -> None:
    acls = {"authorizer.class.name": "StandardAuthorizer", "super.users": user, "ssl.principal.mapping.rules": rules}
    given = {**config(files, "SSL", ssl_client_auth="requested"), **acls}
    with EmbeddedBroker(config=given, topics={"t": [b"1"]}) as broker:
        for more, is_allowed in (({"ssl.keystore.location": f"{files}/client.pem"}, True), ({}, False)):
            parsed = ClientSettings.parse({**settings(broker, files, "SSL"), **more})
            with ClusterClient(parsed.bootstrap, parsed) as cluster:
                if is_allowed:
                    our_admin.create_topics(cluster, [our_admin.NewTopic("new", 1)])
                    continue
                with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                    cluster.describe_topics(["t"])


SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Ab, Cd"),),
    (("organizationalUnitName", "ou"),),
    (("commonName", "#Ann"),),
    (("emailAddress", "a@b"),),
)


def test_distinguished_names_are_those_of_java() -> None:
    expected = r"1.2.840.113549.1.9.1=#1603614062,CN=\#Ann,OU=ou,O=Ab\, Cd,C=DE"
    assert distinguished_name({"subject": SUBJECT}) == expected
    assert distinguished_name(None) == distinguished_name({}) == ""


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=a,OU=b", "User:CN=a,OU=b"),
        ("", "CN=a,OU=b", "User:CN=a,OU=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=ServiceUsers,O=x", "User:kafka"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=Others", "User:CN=kafka,OU=Others"),
        ("RULE:^CN=(.*?), *OU=(.*?),.*$/$1@$2/L , DEFAULT", "CN=Duke,OU=SME,O=x", "User:duke@sme"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "OU=b,cn=ab", "User:AB"),
        (r"RULE:^CN=(.*?)\/(.*)$/$2\/$1/", "CN=a/b", "User:b/a"),
    ],
)
def test_principal_mapping_rules(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapper(rules).principal(name) == principal


@pytest.mark.parametrize("rules", ["RULE:a/b", "default", "RULE:a/b/X", "RULE:(/b/", "DEFAULT DEFAULT"])
def test_invalid_mapping_rules_are_named(rules: str) -> None:
    with pytest.raises(ConfigurationError, match="Option ssl.principal.mapping.rules is invalid at"):
        PrincipalMapper(rules)


# --- hostile clients ---


def test_wrong_bytes_and_requests_without_tls_close_the_connection(broker: EmbeddedBroker, files: Path) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\0\0", b"\x16\x03\x01\xff\xff"):
        with RawConnection(broker.address("SSL").partition(",")[0]) as connection:
            connection.send(data)
            if data[:1] != b"\x16":  # an incomplete record
                while connection.socket.recv(100):  # an alert
                    pass
    assert any("TLS handshake failed:" in line for line in broker.reports)
    with dial_tls(broker.address("SSL").partition(",")[0], files) as connection:
        raw = socket.socket(fileno=os.dup(connection.fileno()))
        raw.sendall(b"\x17\x03\x03\0\x20" + bytes(32))  # a record that is not authentic
        with raw, pytest.raises(OSError):
            while raw.recv(1000):
                pass
            raise ConnectionResetError


@pytest.mark.slow
def test_handshakes_that_stall_are_closed_and_delay_nobody(files: Path) -> None:
    with EmbeddedBroker(config=config(files, "SSL", authentication_timeout_ms="3000")) as broker:
        (target,) = parse_addresses(broker.bootstrap_servers)
        stalled = [socket.create_connection(target, 10) for _ in range(200)]
        try:
            for connection in stalled:
                connection.sendall(b"\x16\x03\x01\x02\0\x01")
            with dial_tls(broker.bootstrap_servers, files) as neighbor:
                wrapped = RawConnection.__new__(RawConnection)
                # private: a connection over a socket that exists
                wrapped.socket, wrapped._correlation_id = neighbor, 0
                assert metadata(wrapped).brokers
                assert broker.call(lambda _: broker.connection_count) == 201
                wait_until(lambda: broker.call(lambda _: broker.connection_count) == 1, "stalled handshakes end")
                assert metadata(wrapped).brokers
        finally:
            for connection in stalled:
                connection.close()
        assert any("not authenticated within 3,000 ms" in line for line in broker.reports)


def test_handshake_byte_by_byte_and_requests_in_one_record(broker: EmbeddedBroker, files: Path) -> None:
    context = ssl.create_default_context(cafile=files / "ca.pem")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    (target,) = parse_addresses(broker.address("SSL").partition(",")[0])
    with socket.create_connection(target, 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                for number in (data := outgoing.read()):
                    connection.sendall(bytes((number,)))
                incoming.write(connection.recv(65536))
                assert data or incoming.pending
        # 300 requests and the end of the connection in one write: all are answered
        request = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
        tls.write(request * 300)
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        connection.sendall(outgoing.read())
        received = bytearray()
        while data := connection.recv(65536):
            incoming.write(data)
        incoming.write_eof()
        while True:
            try:
                part = tls.read(65536)
            except ssl.SSLError:
                break
            if not part:
                break
            received += part
    size = int.from_bytes(received[:4], "big") + 4
    assert len(received) == 300 * size


def test_clients_that_do_not_read_are_bounded(broker: EmbeddedBroker, files: Path, topic: str) -> None:
    broker.produce(topic, [os.urandom(100_000) for _ in range(20)])
    address = broker.address("SSL").partition(",")[0]
    request = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
    with dial_tls(address, files) as connection:
        connection.settimeout(0.2)
        with pytest.raises(OSError):
            while True:
                connection.sendall(request * 1000)
        assert broker.call(lambda _: broker.unsent_bytes) < 1_000_000
    with dial_tls(address, files) as neighbor:
        wrapped = RawConnection.__new__(RawConnection)
        wrapped.socket, wrapped._correlation_id = neighbor, 0
        assert metadata(wrapped).brokers


def test_closed_tls_connections_leave_no_cycles(files: Path) -> None:
    with EmbeddedBroker(config=config(files, "SSL")) as broker:
        dial_tls(broker.bootstrap_servers, files).close()
        gc.collect()
        gc.disable()
        try:
            for _ in range(30):
                dial_tls(broker.bootstrap_servers, files).close()
            wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "the connections are closed")
            # a transport of asyncio refers to itself in Python 3.12, by seven objects
            assert gc.collect() < 30 * (8 if sys.version_info[:2] == (3, 12) else 5)
        finally:
            gc.enable()


# --- certificates of the broker ---


def test_replaced_certificate_is_used_for_new_connections(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    write_pem(path, certificates.KEY, certificates.EXPIRED)
    own = {"ssl.keystore.location": str(path)}
    with EmbeddedBroker(config={**config(files, "SSL"), **own}) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            dial_tls(broker.bootstrap_servers, files)
        write_pem(tmp_path / "new.pem", certificates.KEY, certificates.SERVER)
        os.replace(tmp_path / "new.pem", path)
        with dial_tls(broker.bootstrap_servers, files) as first:
            write_pem(path, "damaged")
            with dial_tls(broker.bootstrap_servers, files):
                assert first.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "no certificate. Set ssl.keystore.location"),
        ({"listeners": "TLS://127.0.0.1:0"}, "PROTOCOL://HOST:PORT with PROTOCOL one of PLAINTEXT, SSL"),
        ({"listeners": "127.0.0.1:0"}, "PROTOCOL://HOST:PORT with PROTOCOL one of PLAINTEXT, SSL"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"}, "two listeners PLAINTEXT"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, "sasl.enabled.mechanisms is empty"),
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "advertised.listeners is required"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:0", "advertised.listeners": "SSL://a:1"},
            "advertised.listeners has SSL, the broker listens with PLAINTEXT",
        ),
        (
            {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": "/none.pem"},
            "Loading TLS files failed .*/none.pem.*No such file.* and ssl.key.password where",
        ),
        (
            {"listeners": "SASL_SSL://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"},
            "listener.name.sasl_ssl.plain.sasl.jaas.config defines no user",
        ),
    ],
)
def test_invalid_listeners_are_errors(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EmbeddedBroker(tmp_path / "data", config=settings).start()
