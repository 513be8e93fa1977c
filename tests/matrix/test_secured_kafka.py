"""TLS and permissions on a real Apache Kafka: errors and recovery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from support import certificates
from support.clients import open_cluster
from support.direct_readers import StreamQuery
from support.secured_kafka import PASSWORD, USER, SecuredKafka
from support.topics import create_topic, produce
from support.unauthorized_requests import cases, codes_of, logged_in
from support.waiting import wait_until

from spark_groupsource.errors import AuthenticationError, BrokerError, GroupSourceError

# a broker of its own
pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.usefixtures("in_process")]

READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured")) as kafka:
        yield kafka


# --- TLS ---


def test_tls_with_and_without_a_client_certificate(secured: SecuredKafka) -> None:
    common = {"security_protocol": "SSL", "ssl_ca_location": secured.authority}
    own = {"ssl_certificate_location": secured.client_certificate, "ssl_key_location": secured.client_certificate}
    for listener, settings in (("TLS", common), ("MUTUAL", {**common, **own})):
        with open_cluster(secured.address(listener), **settings) as client:
            assert client.metadata(()).nodes
    with open_cluster(secured.address("MUTUAL"), **common) as client:
        with pytest.raises(AuthenticationError, match="TLS handshake with .* Set kafka.ssl.certificate.location"):
            client.metadata(())


@pytest.mark.parametrize(
    ("trust", "own"), [("TRUST_JKS", "KEY_JKS"), ("TRUST_PKCS12", "KEY_PKCS12")], ids=["JKS", "PKCS12"]
)
def test_stores_of_java(secured: SecuredKafka, tmp_path: Path, trust: str, own: str) -> None:
    (tmp_path / "trust").write_bytes(getattr(certificates, trust))
    (tmp_path / "own").write_bytes(getattr(certificates, own))
    stores = {
        "security_protocol": "SSL",
        "ssl_truststore_location": str(tmp_path / "trust"),
        "ssl_truststore_password": "trustpass",
        "ssl_keystore_location": str(tmp_path / "own"),
        "ssl_keystore_password": "storepass",
        "ssl_key_password": "keypass",
    }
    with open_cluster(secured.address("MUTUAL"), **stores) as client:
        assert client.metadata(()).nodes


# --- tokens ---


def test_tokens_and_sessions_that_end(secured: SecuredKafka, topic: str) -> None:
    jaas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="
    login = {"security_protocol": "SASL_SSL", "ssl_ca_location": secured.authority, "sasl_mechanism": "OAUTHBEARER"}
    with open_cluster(secured.address("OAUTH"), **login, sasl_jaas_config=f'{jaas}"{USER}";') as client:
        end = time.monotonic() + 5  # two sessions
        while time.monotonic() < end:
            assert client.metadata((), refresh=True).nodes
            time.sleep(0.3)


# --- permissions ---


def test_each_api_rejects_a_user_without_acls(secured: SecuredKafka, topic: str, group: str) -> None:
    """The same table as for the embedded broker (tests/broker/test_acls.py)."""
    create_topic(secured.address("PLAINTEXT"), topic)
    with logged_in(secured.address("SASL"), USER, PASSWORD) as connection:
        found = {
            f"{number} {name}": (codes_of(connection.call(request, version), version), codes)
            for number, (name, request, version, codes) in enumerate(cases(topic, group))
        }
    # topics that other tests permitted are in Metadata of all topics
    assert {name: pair for name, pair in found.items() if pair[0] - {0} != pair[1] - {0}} == {}


class Permissions:
    """A topic, a group and a query of `USER` that continues its checkpoint."""

    def __init__(self, secured: SecuredKafka, topic: str, group: str) -> None:
        self._secured, self._topic, self._group = secured, topic, group
        self._checkpoint: dict[str, object] = {}
        self.values: list[int] = []
        self.produced = 0
        create_topic(secured.address("PLAINTEXT"), topic)

    def permit(self, topic: list[AclOperation], group: list[AclOperation]) -> None:
        self._secured.permit(ResourceType.TOPIC, self._topic, topic)
        self._secured.permit(ResourceType.GROUP, self._group, group)

    def produce(self, count: int) -> None:
        rows = [(0, None, b"%d" % n) for n in range(self.produced, self.produced + count)]
        self.produced += produce(self._secured.address("PLAINTEXT"), self._topic, rows)

    def query(self) -> StreamQuery:
        cluster = SimpleNamespace(bootstrap_servers=self._secured.address("SASL"))
        login = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": USER, "kafka.sasl.password": PASSWORD}
        options = {"kafka.security.protocol": "SASL_PLAINTEXT", "subscribe": self._topic, **login}
        query = StreamQuery(cluster, {**options, "kafka.group.id": self._group, "startingOffsets": "earliest"})
        query.start = self._checkpoint
        return query

    def trigger(self, query: StreamQuery) -> None:
        """Runs one trigger; Spark checkpoints its end unless it fails."""
        self.values += [int(row["value"]) for row in query.trigger()]
        self._checkpoint = query.start

    def read(self) -> None:
        """Reads what was produced."""
        with self.query() as query:
            wait_until(lambda: self.trigger(query) or len(self.values) >= self.produced, "all records are read")
            self.trigger(query)


@pytest.fixture
def permissions(secured: SecuredKafka, topic: str, group: str) -> Permissions:
    return Permissions(secured, topic, group)


@pytest.mark.parametrize(
    ("topic_operations", "group_operations", "remedy"),
    [
        ([], [READ], "Grant the user DESCRIBE and READ on the topic|Grant the user the operation on the topic"),
        ([DESCRIBE], [READ], "Grant the user READ on the topic"),
        ([READ], [], "Grant the user READ on the group|Grant the user the operation on the group"),
        ([READ], [DESCRIBE], "Grant the user READ on the group"),
    ],
    ids=["nothing on the topic", "DESCRIBE on the topic", "nothing on the group", "DESCRIBE on the group"],
)
def test_missing_permission_is_named_and_nothing_is_lost(
    permissions: Permissions,
    topic_operations: list[AclOperation],
    group_operations: list[AclOperation],
    remedy: str,
) -> None:
    permissions.produce(10)
    permissions.permit(topic_operations, group_operations)
    with permissions.query() as query, pytest.raises(GroupSourceError, match=remedy) as raised:
        wait_until(lambda: query.trigger(), "the query fails")
    assert "\n" not in str(raised.value)
    permissions.permit([READ], [READ])
    permissions.read()
    assert permissions.values == list(range(10))


@pytest.mark.parametrize("withdrawn", ["topic", "group"])
def test_withdrawn_permission_is_named_and_nothing_is_lost(permissions: Permissions, withdrawn: str) -> None:
    permissions.permit([READ], [READ])
    permissions.produce(10)
    permissions.read()
    with permissions.query() as query:
        permissions.trigger(query)
        permissions.produce(10)
        permissions.permit([] if withdrawn == "topic" else [READ], [] if withdrawn == "group" else [READ])
        with pytest.raises(BrokerError, match=f"Grant the user .* on the {withdrawn}"):
            wait_until(lambda: permissions.trigger(query), "the query fails")
    permissions.permit([READ], [READ])
    permissions.read()
    assert permissions.values == list(range(20))
