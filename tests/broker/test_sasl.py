"""SASL: PLAIN and SCRAM with common clients, rejected clients, SCRAM users."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from support.java_tools import TOPICS, JavaTools
from support.raw_broker import RawConnection, metadata

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.client import admin as our_admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import AuthenticationError, ConfigurationError, ErrorCode, StorageError
from spark_groupsource.wire.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from spark_groupsource.wire.sasl_client import SaslClient

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
CONFIG = {
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    JAAS: 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="an\\"n secret" user_bob=b;',
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
USERS = [f'{mechanism}=[name=ann,password=an"n secret]' for mechanism in MECHANISMS[1:]]
PASSWORD = 'an"n secret'


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=CONFIG, add_scram=USERS) as running:
        yield running


def librdkafka(broker: EmbeddedBroker, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "sasl.password": password,
    }


def python(broker: EmbeddedBroker, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ann",
        "sasl_plain_password": password,
    }


# --- accepted clients ---


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(broker: EmbeddedBroker, topic: str, group: str, mechanism: str) -> None:
    settings = librdkafka(broker, mechanism)
    producer = Producer(settings)
    producer.produce(topic, b"v")
    assert producer.flush(20) == 0
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None and message.value() == b"v"
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: EmbeddedBroker, topic: str, mechanism: str) -> None:
    from support.kafka_python import KafkaProducer

    producer = KafkaProducer(**python(broker, mechanism))
    assert producer.send(topic, b"v").get(20).offset == 0
    producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(broker: EmbeddedBroker, topic: str, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> int:
        producer = AIOKafkaProducer(**python(broker, mechanism))
        await producer.start()
        sent = await producer.send_and_wait(topic, b"v")
        await producer.stop()
        return int(sent.offset)

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 0


def our_settings(broker: EmbeddedBroker, mechanism: str, password: str = PASSWORD) -> ClientSettings:
    return ClientSettings.parse(librdkafka(broker, mechanism, password))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ours(broker: EmbeddedBroker, topic: str, mechanism: str) -> None:
    settings = our_settings(broker, mechanism)
    with ClusterClient(settings.bootstrap, settings) as cluster:
        our_admin.create_topics(cluster, [our_admin.NewTopic(topic, 2)])
        assert len(cluster.describe_topics([topic])[topic].partitions) == 2


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java(broker: EmbeddedBroker, java: JavaTools, tmp_path: Path, topic: str, mechanism: str) -> None:
    def tool(password: str, *arguments: str) -> str:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        escaped = password.replace('"', '\\\\"')
        path = tmp_path / "client.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
            f'username="ann" password="{escaped}";\n'
        )
        where = ["--bootstrap-server", broker.bootstrap_servers, "--command-config", str(path)]
        return java.run(TOPICS, *where, *arguments)

    assert f"Created topic {topic}." in tool(PASSWORD, "--create", "--topic", topic)
    assert "Error while executing topic command : Authentication failed" in tool("wrong", "--list")


# --- rejected clients ---


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_rejected_and_reported(broker: EmbeddedBroker, mechanism: str) -> None:
    errors: list[KafkaError] = []
    producer = Producer({**librdkafka(broker, mechanism, "wrong"), "error_cb": errors.append})
    for _ in range(100):
        producer.poll(0.2)
        if errors:
            break
    assert errors[0].code() == KafkaError._AUTHENTICATION and "Authentication failed" in errors[0].str()
    settings = our_settings(broker, mechanism, "wrong")
    with pytest.raises(AuthenticationError, match="Authentication failed"):
        with ClusterClient(settings.bootstrap, settings) as cluster:
            cluster.metadata([], refresh=True)
    assert any(f"Authentication failed: {mechanism}: Authentication failed" in line for line in broker.reports)


def test_requests_before_authentication_are_rejected(broker: EmbeddedBroker) -> None:
    with RawConnection(broker.bootstrap_servers) as connection:
        requested = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        assert connection.call(requested, 3).error_code == 0
        with pytest.raises(Exception, match="closed|lost"):
            metadata(connection)
    assert any("requested before authentication. Set security.protocol" in line for line in broker.reports)
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send((600_000).to_bytes(4, "big") + b"\0\3\0\4" + bytes(100))
        assert connection.is_closed_by_peer()


def handshake(connection: RawConnection, mechanism: str) -> Any:
    return connection.call(SaslHandshakeRequest(mechanism=mechanism), 1)


def authenticate(connection: RawConnection, token: bytes, version: int = 2) -> Any:
    return connection.call(SaslAuthenticateRequest(auth_bytes=token), version)


def test_sasl_requests_out_of_order_close_the_connection(broker: EmbeddedBroker) -> None:
    with RawConnection(broker.bootstrap_servers) as connection:
        assert authenticate(connection, b"\0ann\0x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert connection.is_closed_by_peer()
    with RawConnection(broker.bootstrap_servers) as connection:
        response = handshake(connection, "GSSAPI")
        assert (response.error_code, response.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(MECHANISMS))
        assert connection.is_closed_by_peer()
    with RawConnection(broker.bootstrap_servers) as connection:
        assert handshake(connection, "PLAIN").error_code == 0
        assert handshake(connection, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert connection.is_closed_by_peer()
    with RawConnection(broker.bootstrap_servers) as connection:
        assert handshake(connection, "PLAIN").error_code == 0
        response = authenticate(connection, b"\0ann\0wrong")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_authenticated_connection_rejects_further_sasl_requests(broker: EmbeddedBroker, version: int) -> None:
    with RawConnection(broker.bootstrap_servers) as connection:
        assert handshake(connection, "PLAIN").error_code == 0
        assert authenticate(connection, b"\0bob\0b", version).error_code == 0
        assert metadata(connection).brokers
        assert handshake(connection, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(connection, b"\0bob\0b", version).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert metadata(connection).brokers


# --- tokens without request header ---


def raw_token(connection: RawConnection, token: bytes) -> bytes:
    connection.send(len(token).to_bytes(4, "big") + token)
    return bytes(connection.read_frame())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tokens_follow_version_0_of_the_handshake_without_request_header(
    broker: EmbeddedBroker, mechanism: str
) -> None:
    client = SaslClient(mechanism, "ann", PASSWORD)
    with RawConnection(broker.bootstrap_servers) as connection:
        response = connection.call(SaslHandshakeRequest(mechanism=mechanism), 0)
        assert (response.error_code, response.mechanisms) == (0, list(MECHANISMS))
        while not client.is_complete:
            client.evaluate_challenge(raw_token(connection, client.next_token()))
        assert metadata(connection).brokers


def test_a_wrong_token_without_request_header_closes_the_connection_without_a_response(broker: EmbeddedBroker) -> None:
    for wrong in (b"\0ann\0wrong", b"", b"\0\x24\0\2"):
        with RawConnection(broker.bootstrap_servers) as connection:
            assert connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == 0
            connection.send(len(wrong).to_bytes(4, "big") + wrong)
            assert connection.is_closed_by_peer()
    with RawConnection(broker.bootstrap_servers) as connection:
        assert connection.call(SaslHandshakeRequest(mechanism="GSSAPI"), 0).error_code == 33
        assert connection.is_closed_by_peer()


# --- users ---


def test_scram_users_are_stored_changed_and_removed(tmp_path: Path) -> None:
    config = {**CONFIG, "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}
    with EmbeddedBroker(tmp_path, config=config, add_scram=USERS[:1]) as broker:
        admin = AdminClient(librdkafka(broker, "SCRAM-SHA-256"))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5000)
        (added,) = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("eve", info, b"apple")]).values()
        added.result(20)
        requested = admin.describe_user_scram_credentials(["ann", "eve"])
        described = {name: future.result(20) for name, future in requested.items()}
        returned = {
            name: [(each.mechanism, each.iterations) for each in user.scram_credential_infos]
            for name, user in described.items()
        }
        expected = {"ann": [(ScramMechanism.SCRAM_SHA_256, 4096)], "eve": [(ScramMechanism.SCRAM_SHA_512, 5000)]}
        assert returned == expected
        resource = ConfigResource(ResourceType.BROKER, "1")
        settings = admin.describe_configs([resource])[resource].result(20)
        assert settings[JAAS].value is None and settings[JAAS].is_sensitive
    kept = tmp_path / "scram-credentials.json"
    assert kept.stat().st_mode & 0o777 == 0o600 and "apple" not in kept.read_text()
    with EmbeddedBroker(tmp_path, config=config) as broker:
        as_eve = {**librdkafka(broker, "SCRAM-SHA-512", "apple"), "sasl.username": "eve"}
        admin = AdminClient(as_eve)
        gone = UserScramCredentialDeletion("ann", ScramMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([gone])["ann"].result(20)
        again = admin.alter_user_scram_credentials([gone])["ann"]
        with pytest.raises(Exception, match="does not exist"):
            again.result(20)
        with pytest.raises(Exception, match="does not exist"):
            admin.describe_user_scram_credentials(["ann"])["ann"].result(20)
        assert set(json.loads(kept.read_text())["users"]) == {"eve"}
    kept.write_text("{")
    with pytest.raises(StorageError, match="scram-credentials.json is corrupt"):
        EmbeddedBroker(tmp_path, config=config).start()


@pytest.mark.parametrize(
    ("config", "add_scram", "message"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, (), "SCRAM-SHA-512, OAUTHBEARER, got 'GSSAPI'"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, (), "defines no user. Set it to 'org.apache.*user_NAME"),
        ({}, ["ann:secret"], "--add-scram must be MECHANISM="),
        ({}, ["SCRAM-SHA-1=[name=a,password=b]"], "--add-scram must be MECHANISM="),
        ({}, ["SCRAM-SHA-256=[name=a,password=b,iterations=1]"], "must have iterations from 4096 to 16384"),
    ],
)
def test_invalid_sasl_settings_are_errors(
    tmp_path: Path, config: dict[str, str], add_scram: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EmbeddedBroker(tmp_path / "data", config=config, add_scram=add_scram).start()


# --- files and addresses ---


def test_a_private_file_is_private_before_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def write(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)

    left = tmp_path / "users.json.tmp"
    left.write_text("of a process that was killed")
    left.chmod(0o644)
    monkeypatch.setattr("spark_groupsource.broker.storage.files.os.fsync", write)
    umask = os.umask(0)
    try:
        replace_file(tmp_path / "users.json", b"x", private=True)
    finally:
        os.umask(umask)
    assert modes[0] == 0o600 and (tmp_path / "users.json").stat().st_mode & 0o777 == 0o600


def test_a_new_data_directory_is_private_and_an_existing_one_keeps_its_mode(tmp_path: Path) -> None:
    existing = tmp_path / "existing"
    existing.mkdir(mode=0o755)
    existing.chmod(0o755)
    for path, mode in ((existing, 0o755), (tmp_path / "new" / "data", 0o700)):
        with EmbeddedBroker(path, config=CONFIG, add_scram=USERS[:1]):
            assert path.stat().st_mode & 0o777 == mode
            assert (path / "scram-credentials.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("host", "config", "is_warned"),
    [("0.0.0.0", {}, True), ("0.0.0.0", CONFIG, False), ("127.0.0.1", {}, False), ("localhost", {}, False)],
)
def test_one_warning_names_the_open_listener(
    caplog: pytest.LogCaptureFixture, host: str, config: dict[str, str], is_warned: bool
) -> None:
    advertised = {"advertised.listeners": "localhost:0"} if host == "0.0.0.0" else {}
    with EmbeddedBroker(host=host, config={**config, **advertised}):
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == is_warned
    if is_warned:
        assert "any client that reaches this address can read, write and delete all topics" in warnings[0]
        assert "Set sasl.enabled.mechanisms, or listen on 127.0.0.1." in warnings[0]
