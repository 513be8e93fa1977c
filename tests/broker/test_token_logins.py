"""OAUTHBEARER: sources of tokens, refresh, validation, re-authentication, with several clients."""

from __future__ import annotations

import pickle
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from support.aiokafka_producer import send_by_aiokafka
from support.java_tools import TOPICS, JavaTools
from support.raw_broker import RawConnection, metadata
from support.token_endpoint import Endpoint, jwt

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import AuthenticationError, ConfigurationError, ErrorCode
from spark_groupsource.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from spark_groupsource.wire.sasl_client import BearerClient

JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    config = {"sasl.enabled.mechanisms": "OAUTHBEARER", "offsets.topic.num.partitions": "1"}
    with EmbeddedBroker(config=config) as running:
        yield running


def settings(broker: EmbeddedBroker, **more: str) -> ClientSettings:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return ClientSettings.parse(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            **given,
        }
    )


def connect(parsed: ClientSettings) -> None:
    with ClusterClient(parsed.bootstrap, parsed) as cluster:
        assert cluster.metadata([], refresh=True).nodes


# --- token endpoint ---


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as running:
        yield running


@pytest.mark.parametrize(
    "given",
    [
        {
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": "hush:1",
            "sasl.oauthbearer.scope": "kafka",
        },
        {"sasl.jaas.config": f'{JAAS} clientId="me" clientSecret="hush:1" scope="kafka" extension_a="b";'},
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "hush:1",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "a=b",
        },
    ],
    ids=["Kafka 4", "JAAS", "librdkafka"],
)
def test_client_credentials(broker: EmbeddedBroker, endpoint: Endpoint, given: dict[str, str]) -> None:
    parsed = settings(broker, **{"sasl.oauthbearer.token.endpoint.url": endpoint.url}, **given)
    for _ in range(2):  # the second connection uses the same token
        connect(parsed)
    ((path, authorization, fields),) = endpoint.requests
    assert path == "/token" and fields == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert b64decode(authorization.removeprefix("Basic ")) == b"me:hush:1"
    assert "hush" not in repr(parsed) and pickle.loads(pickle.dumps(parsed)) == parsed


# --- other sources ---


def test_file_that_is_replaced(broker: EmbeddedBroker, tmp_path: Path) -> None:
    path = tmp_path / "token"
    parsed = settings(broker, **{"sasl.oauthbearer.token.endpoint.url": path.as_uri()})
    with pytest.raises(AuthenticationError, match=f"Reading the token file {path} failed: No such file"):
        connect(parsed)
    path.write_text(jwt() + "\n")
    connect(parsed)


def given_token(config: str) -> Any:
    return {"text": jwt(), "pair": (jwt(), time.time() + 60, "ann", {"x": "y"})}[config]


@pytest.mark.parametrize("config", ["text", "pair"])
def test_function(broker: EmbeddedBroker, config: str) -> None:
    name = f"{__name__}:given_token"
    more = {"sasl.login.callback.handler.class": name, "sasl.oauthbearer.config": config}
    connect(settings(broker, **more))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("no_module:f", "", "'no_module:f', which cannot be imported"),
        ("os:no_function", "", "which cannot be imported"),
        (f"{__name__}:given_token", "secret", "raised KeyError. Correct it"),
    ],
)
def test_function_that_fails(broker: EmbeddedBroker, name: str, config: str, message: str) -> None:
    more = {"sasl.login.callback.handler.class": name, "sasl.oauthbearer.config": config}
    with pytest.raises((AuthenticationError, ConfigurationError), match=message) as raised:
        connect(settings(broker, **more))
    assert "secret" not in str(raised.value)


def test_unsecured_token_of_jaas(broker: EmbeddedBroker) -> None:
    connect(settings(broker, **{"sasl.jaas.config": f'{JAAS} unsecuredLoginStringClaim_sub="ann";'}))


# --- other clients, the broker ---


@pytest.mark.slow
def test_librdkafka(broker: EmbeddedBroker, topic: str, group: str) -> None:
    given: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda config: (jwt(), time.time() + 3600),
    }
    producer = Producer(given)
    producer.produce(topic, b"v")
    assert producer.flush(20) == 0
    consumer = Consumer({**given, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None and message.value() == b"v"
    consumer.close()


@pytest.mark.slow
def test_librdkafka_with_an_expired_token(broker: EmbeddedBroker) -> None:
    errors: list[KafkaError] = []
    expired = jwt(-3600)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda config: (expired, time.time() + 3600),
            "error_cb": errors.append,
        }
    )
    for _ in range(100):
        producer.poll(0.1)
        if errors:
            break
    assert errors[0].code() == KafkaError._AUTHENTICATION and "invalid_token" in errors[0].str()


def test_aiokafka(broker: EmbeddedBroker, topic: str) -> None:
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return jwt()

    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    provider = Provider()
    assert send_by_aiokafka(broker.bootstrap_servers, topic, sasl_oauth_token_provider=provider, **options) == 0


@pytest.mark.kafka
def test_java(broker: EmbeddedBroker, java: JavaTools, tmp_path: Path, topic: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f'sasl.jaas.config={JAAS} unsecuredLoginStringClaim_sub="ann";\n'
    )
    where = ["--bootstrap-server", broker.bootstrap_servers, "--command-config", str(path)]
    assert f"Created topic {topic}." in java.run(TOPICS, *where, "--create", "--topic", topic)


def test_rejected_token_is_named(broker: EmbeddedBroker) -> None:
    parsed = settings(broker, **{"sasl.login.callback.handler.class": f"{__name__}:expired_token"})
    with pytest.raises(AuthenticationError, match='with a token at .*"invalid_token".*: the token has expired.*issuer'):
        connect(parsed)
    assert any("Authentication failed: {" in line and "the token has expired" in line for line in broker.reports)


def expired_token(config: str) -> Any:
    return jwt(-3600), time.time() + 60


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic x\x01\x01",
     b"y,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", b"n,,\x01auth=Bearer x\x01",
     b"\xff" * 10,
     b"n,," + b"\x01auth=Bearer x" * 30_000],
)  # fmt: skip
def test_invalid_first_messages(broker: EmbeddedBroker, message: bytes) -> None:
    with RawConnection(broker.bootstrap_servers) as connection:
        assert connection.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0
        response = connection.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# --- re-authentication (KIP-368) ---


@contextmanager
def limited(**config: str) -> Iterator[EmbeddedBroker]:
    given = {name.replace("_", "."): value for name, value in config.items()}
    with EmbeddedBroker(config={"sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN", **PLAIN, **given}) as broker:
        yield broker


PLAIN = {
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret" user_bob="secret";'
    )
}


def login(connection: RawConnection, mechanism: str, token: bytes, version: int = 2) -> Any:
    code = connection.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code
    return code or connection.call(SaslAuthenticateRequest(auth_bytes=token), version)


def bearer(token: str) -> bytes:
    return BearerClient(token).next_token()


def test_lifetime_of_a_session_is_that_of_the_token_and_of_the_setting() -> None:
    with limited(connections_max_reauth_ms="60000") as broker:
        for mechanism, token, low, high in (
            ("PLAIN", b"\0ann\0secret", 60_000, 60_000),
            ("OAUTHBEARER", bearer(jwt(10)), 5_000, 10_000),
            ("OAUTHBEARER", bearer(jwt(3600)), 60_000, 60_000),
        ):
            with RawConnection(broker.bootstrap_servers) as connection:
                assert low <= login(connection, mechanism, token).session_lifetime_ms <= high
                assert metadata(connection).brokers


@pytest.mark.slow
def test_expired_session_and_reauthentication() -> None:
    with limited(connections_max_reauth_ms="1100") as broker:
        with ExitStack() as clients:
            every = [clients.enter_context(RawConnection(broker.bootstrap_servers)) for _ in range(4)]
            first, second, third, fourth = every
            for connection in every:
                assert login(connection, "PLAIN", b"\0ann\0secret").session_lifetime_ms == 1100
            # as in Kafka, not within a second
            assert first.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
            time.sleep(1.2)
            assert login(first, "PLAIN", b"\0ann\0secret").session_lifetime_ms == 1100
            assert metadata(first).brokers
            response = login(second, "PLAIN", b"\0bob\0secret")
            assert "Cannot change principals during re-authentication from User:ann: User:bob" in response.error_message
            assert second.is_closed_by_peer()
            assert login(third, "OAUTHBEARER", b"") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            with pytest.raises(Exception, match="closed|lost"):
                metadata(fourth)
        assert any("session has expired, and the client has not authenticated again" in line for line in broker.reports)


@pytest.mark.slow
def test_stock_client_authenticates_again(topic: str) -> None:
    """A connection of librdkafka, and one of this package, outlive several sessions."""
    with limited(connections_max_reauth_ms="1500") as broker:
        common = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
        errors: list[KafkaError] = []
        producer = Producer({**common, "error_cb": errors.append, "linger.ms": 0})
        parsed = ClientSettings.parse(common)
        with ClusterClient(parsed.bootstrap, parsed) as cluster:
            end = time.monotonic() + 3.2
            while time.monotonic() < end:
                producer.produce(topic, b"v")
                assert producer.flush(10) == 0
                assert cluster.metadata([], refresh=True).nodes
                time.sleep(0.2)
        assert errors == []
