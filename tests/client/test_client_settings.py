"""Client settings: Java's and librdkafka's names, bounds, rejected settings."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from spark_groupsource.client.network.sasl_options import parse_jaas
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.client.records.partition_fetch import PartitionState, fetch_request, response_bytes
from spark_groupsource.client.settings import (
    ACCEPTED_SETTINGS,
    REJECTED_SETTINGS,
    ClientSettings,
    GroupSettings,
    without_prefix,
)
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition

SERVERS = {"bootstrap.servers": "a:1,[::1]:2"}


def test_defaults_and_values() -> None:
    settings = ClientSettings.parse({**SERVERS, "request.timeout.ms": " 5 ", "isolation.level": "READ_COMMITTED"})
    assert settings.bootstrap == (Address("a", 1), Address("::1", 2))
    assert (settings.request_timeout_ms, settings.default_api_timeout_ms) == (5, 60_000)
    assert settings.read_committed and not ClientSettings.parse(SERVERS).read_committed


def test_librdkafka_names() -> None:
    settings = ClientSettings.parse(
        {"metadata.broker.list": "a:1", "fetch.wait.max.ms": "7", "fetch.message.max.bytes": "8"}
    )
    assert (settings.fetch_max_wait_ms, settings.max_partition_fetch_bytes) == (7, 8)


@pytest.mark.parametrize(("leaders", "part"), [(1, 1), (2, 1), (3, 1), (10, 5)])
def test_responses_of_all_leaders_together_have_twice_the_maximum(leaders: int, part: int) -> None:
    settings = ClientSettings.parse({**SERVERS, "fetch.max.bytes": "1000"})
    assert response_bytes(settings, leaders) == 1000 // part


def test_one_response_is_not_larger_than_is_read_fast() -> None:
    default = ClientSettings.parse(SERVERS)
    larger = ClientSettings.parse({**SERVERS, "max.partition.fetch.bytes": str(20 << 20)})
    assert [response_bytes(default, leaders) for leaders in (1, 3, 13, 26)] == [8 << 20] * 3 + [52_428_800 // 13]
    assert [response_bytes(larger, leaders) for leaders in (1, 8)] == [20 << 20, 52_428_800 // 4]


def test_a_fetch_request_has_its_partitions_in_the_order_of_the_ranges() -> None:
    partitions = [("a", 0), ("a", 1), ("b", 0), ("a", 2)]
    states = [PartitionState(TopicPartition(topic, number), 10 * number, 99) for topic, number in partitions]
    topics = fetch_request(states, ClientSettings.parse(SERVERS), 1000).topics
    found = [(topic.topic, each.partition, each.fetch_offset) for topic in topics for each in topic.partitions]
    assert found == [(topic, number, 10 * number) for topic, number in partitions]
    assert [topic.topic for topic in topics] == ["a", "b", "a"]


@pytest.mark.parametrize(("given", "requested"), [("0", 0), ("1", 1), ("4000000", 1)])
def test_a_read_of_records_that_exist_does_not_wait_for_more_bytes(given: str, requested: int) -> None:
    settings = ClientSettings.parse({**SERVERS, "fetch.min.bytes": given})
    states = [PartitionState(TopicPartition("a", 0), 0, 99)]
    assert fetch_request(states, settings, 1000).min_bytes == requested


@pytest.mark.parametrize("reverse", [False, True])
def test_the_name_of_kafka_takes_precedence_over_an_alias(reverse: bool) -> None:
    given = {
        "bootstrap.servers": "a:1",
        "metadata.broker.list": "b:2",
        "socket.timeout.ms": "1",
        "request.timeout.ms": "2",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "u",
        "sasl.password": "p",
        "sasl.mechanisms": "PLAIN",
        "sasl.mechanism": "SCRAM-SHA-256",
    }
    settings = ClientSettings.parse(dict(reversed(given.items())) if reverse else given)
    assert (settings.bootstrap, settings.request_timeout_ms) == ((Address("a", 1),), 2)
    assert settings.security.sasl_mechanism == "SCRAM-SHA-256"


def test_settings_are_picklable() -> None:
    settings = ClientSettings.parse({**SERVERS, "security.protocol": "SSL", "ssl.ca.location": "/ca.pem"})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fetch.max.bytes", "many", "Option kafka.fetch.max.bytes must be an integer between 1 and .* got 'many'"),
        ("fetch.max.bytes", "0", "must be between 1 and"),
        ("isolation.level", "committed", "read_uncommitted, read_committed"),
        ("check.crcs", "false", "Option kafka.check.crcs must be true"),
        ("fetch.max.byte", "1", "kafka.fetch.max.byte is unknown. Did you mean kafka.fetch.max.bytes?"),
        ("auto.offset.reset", "earliest", "startingOffsets"),
        ("group.protocol", "consumer", "classic"),
        ("bootstrap.servers", "a", "'a' is not host:port"),
        ("security.protocol", "TLS", "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_rejected(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ClientSettings.parse({**SERVERS, name: value})


def test_bootstrap_is_required() -> None:
    with pytest.raises(ConfigurationError, match="kafka.bootstrap.servers is not set"):
        ClientSettings.parse({})


def test_no_name_is_in_two_tables() -> None:
    aliases = [alias for key in ACCEPTED_SETTINGS.values() for alias in key.aliases]
    names = [*ACCEPTED_SETTINGS, *aliases, *REJECTED_SETTINGS]
    assert len(set(names)) == len(names)


def test_every_setting_is_documented() -> None:
    docs = [*(key.doc for key in ACCEPTED_SETTINGS.values()), *REJECTED_SETTINGS.values()]
    assert [doc for doc in docs if not doc.endswith(".")] == []


@pytest.mark.parametrize("name", REJECTED_SETTINGS)
def test_settings_without_effect_are_rejected(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Option kafka.{re.escape(name)} is not supported: "):
        ClientSettings.parse({**SERVERS, "security.protocol": "SASL_SSL", name: "1"})


# -- groups ----------------------------------------------------------------------------------------------------------


def test_group_settings() -> None:
    settings = GroupSettings.parse(
        {
            "group.id": "g",
            "client.id": "app",
            "group.instance.id": "i",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor, m:Mine",
        },
        members=2,
        topics=("t",),
    )
    assert settings.assignors == ("cooperative-sticky", "m:Mine")
    assert [settings.instance_id(n) for n in range(2)] == ["i-0", "i-1"]
    assert [settings.member_client_id(n) for n in range(2)] == ["app-0", "app-1"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "group.id is not set"),
        ({"group.id": ""}, "group.id is empty"),
        ({"group.id": "g", "heartbeat.interval.ms": "45000"}, "must be below kafka.session.timeout.ms"),
        ({"group.id": "g", "group.instance.id": "a b"}, "group.instance.id must be .* got 'a b-0'"),
        ({"group.id": "g", "partition.assignment.strategy": " , "}, "Name at least one of range"),
    ],
)
@pytest.mark.conformance("KC-019", "KC-105")
def test_group_settings_rejected(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GroupSettings.parse(settings, topics=("t",))


@pytest.mark.conformance("KC-057", "KC-058")
def test_exactly_one_kind_of_subscription_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="exactly one of the options subscribe and subscribePattern"):
        GroupSettings("g")
    with pytest.raises(ConfigurationError, match="must be a regular expression"):
        GroupSettings("g", pattern="(")


# -- security --------------------------------------------------------------------------------------------------------


def test_jaas() -> None:
    text = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a\\"b" password="c;d=e";'
    assert parse_jaas(text) == (("SCRAM-SHA-256", "SCRAM-SHA-512"), 'a"b', "c;d=e")


def test_java_and_librdkafka_credentials_are_equivalent() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    java = SecuritySettings.parse({"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": jaas})
    librdkafka = SecuritySettings.parse(
        {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    )
    assert java == librdkafka == SecuritySettings("SASL_PLAINTEXT", None, "PLAIN", "u", "p")


def test_repr_omits_the_password() -> None:
    assert "hush" not in repr(SecuritySettings("SASL_PLAINTEXT", None, "PLAIN", "u", "hush"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism must be one of PLAIN, .* but is not set"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "must be one of PLAIN, .* got 'GSSAPI'"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "Set kafka.sasl.username and "),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": "x.Krb5LoginModule required;"}, "Krb5LoginModule"),
        (
            {"security.protocol": "SASL_SSL", "sasl.jaas.config": "x.PlainLoginModule required username=u;"},
            "has no password",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "x.ScramLoginModule required username=u password=p;",
            },
            "is for SCRAM",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.type": "BCFKS"}, "PEM, PKCS12, JKS, .* -srcstoretype BCFKS"),
        ({"ssl.endpoint.identification.algorithm": "httpss"}, "algorithm must be https, or empty .*httpss"),
        ({"ssl.endpoint.identification.algorithm": "none"}, "algorithm must be https, or empty .*none"),
    ],
)
def test_security_settings_rejected(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SecuritySettings.parse(settings)


def test_pem_store_needs_no_name_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("-----BEGIN CERTIFICATE-----\n")
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(path), "bootstrap.servers": "a:1"}
    tls = ClientSettings.parse(settings).security.tls
    assert tls is not None and tls.ca_file == str(path)


def test_messages_without_the_prefix_of_the_data_source() -> None:
    text = "Option kafka.ssl.key.password: topic kafka.events. Check kafka.bootstrap.servers. Did you mean kafka.acks?"
    expected = "Option ssl.key.password: topic kafka.events. Check bootstrap.servers. Did you mean acks?"
    assert without_prefix(text) == expected


def test_tls_files() -> None:
    tls = SecuritySettings.parse(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.location": "/me.pem",
            "ssl.key.password": "k",
            "ssl.endpoint.identification.algorithm": "",
        }
    ).tls
    assert tls is not None
    assert (tls.ca_file, tls.cert_file, tls.key_file, tls.key_password) == ("/ca.pem", "/me.pem", None, "k")
    assert not tls.check_hostname


@pytest.mark.parametrize("value", [None, "https", "HTTPS"])
def test_the_host_name_is_checked(value: str | None) -> None:
    given = {} if value is None else {"ssl.endpoint.identification.algorithm": value}
    tls = SecuritySettings.parse({"security.protocol": "SSL", **given}).tls
    assert tls is not None and tls.check_hostname
