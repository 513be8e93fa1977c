"""Dynamic broker settings: fallback of topics, validation, durability."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import topics
from support.clusters import Cluster
from support.raw_broker import RawConnection, produce
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.errors import ErrorCode
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

TOPIC, BROKER = 2, 4
PASSWORD = 9
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
SET, DELETE, APPEND = range(3)
OF_NODE, OF_ALL, STATIC, DEFAULT = 2, 3, 4, 5
LIMIT, BACKOFF, FOREIGN = "message.max.bytes", "log.cleaner.backoff.ms", "sasl.kerberos.min.time.before.relogin"


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[RawConnection]:
    with RawConnection(cluster.bootstrap_servers) as opened:
        yield opened
        for of in ("1", ""):
            alter(opened, of, *((name, None, DELETE) for name in (LIMIT, BACKOFF, FOREIGN)))


def alter(connection: RawConnection, of: str, *changes: tuple[str, str | None, int], validate: bool = False) -> int:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name=name, value=value, config_operation=what) for name, value, what in changes]
    wanted = resource(resource_type=BROKER, resource_name=of, configs=configs)
    response = connection.call(IncrementalAlterConfigsRequest(resources=[wanted], validate_only=validate), 1)
    return int(response.responses[0].error_code)


def described(connection: RawConnection, kind: int, of: str, *names: str) -> dict[str, tuple[str | None, int]]:
    """Value and source by setting."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = resource(resource_type=kind, resource_name=of, configuration_keys=list(names))
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=False, include_documentation=False)
    (result,) = connection.call(request, 4).results
    assert result.error_code == ErrorCode.NONE
    return {each.name: (each.value, each.config_source) for each in result.configs}


def becomes(connection: RawConnection, kind: int, of: str, name: str, expected: tuple[str | None, int]) -> None:
    """Waits for a setting: Kafka applies it through the metadata log."""
    wait_until(lambda: described(connection, kind, of, name).get(name) == expected, f"{name} is {expected}")


def test_topics_fall_back_to_dynamic_broker_settings(connection: RawConnection, cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    large = encode_batch([Record(b"k", b"x" * 3_000, 1_700_000_000_000)])
    assert alter(connection, "", (LIMIT, "2000", SET)) == ErrorCode.NONE
    becomes(connection, TOPIC, topic, "max.message.bytes", ("2000", OF_ALL))
    assert produce(connection, topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter(connection, "1", (LIMIT, "5000", SET)) == ErrorCode.NONE
    becomes(connection, TOPIC, topic, "max.message.bytes", ("5000", OF_NODE))
    assert produce(connection, topic, large).error_code == ErrorCode.NONE
    assert described(connection, BROKER, "1", LIMIT) == {LIMIT: ("5000", OF_NODE)}
    assert described(connection, BROKER, "", LIMIT) == {LIMIT: ("2000", OF_ALL)}
    assert alter(connection, "1", (LIMIT, None, DELETE)) == ErrorCode.NONE
    becomes(connection, TOPIC, topic, "max.message.bytes", ("2000", OF_ALL))
    assert alter(connection, "", (LIMIT, None, DELETE)) == ErrorCode.NONE
    becomes(connection, TOPIC, topic, "max.message.bytes", ("1048588", DEFAULT))


def test_dynamic_and_static_broker_settings(connection: RawConnection) -> None:
    assert alter(connection, "1", (BACKOFF, "20000", SET), (FOREIGN, "58000", SET)) == ErrorCode.NONE
    becomes(connection, BROKER, "1", BACKOFF, ("20000", OF_NODE))
    assert described(connection, BROKER, "1", FOREIGN)[FOREIGN][1] == OF_NODE
    refused = [("num.partitions", "3", SET), (LIMIT, "many", SET), (LIMIT, "-5", SET)]
    assert [alter(connection, "1", each) for each in refused] == [ErrorCode.INVALID_REQUEST] * 3
    assert alter(connection, "1", (LIMIT, "3000", APPEND)) == ErrorCode.INVALID_CONFIG
    assert alter(connection, "7", (LIMIT, "3000", SET)) == ErrorCode.INVALID_REQUEST
    assert alter(connection, "1", (LIMIT, "3000", SET), validate=True) == ErrorCode.NONE
    assert described(connection, BROKER, "1", LIMIT)[LIMIT] == ("1048588", DEFAULT)


def test_alter_configs_replaces_all_settings(connection: RawConnection) -> None:
    assert alter(connection, "1", (BACKOFF, "20000", SET)) == ErrorCode.NONE
    resource = AlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name=LIMIT, value="900000")]
    wanted = resource(resource_type=BROKER, resource_name="1", configs=configs)
    response = connection.call(AlterConfigsRequest(resources=[wanted], validate_only=False), 2)
    assert response.responses[0].error_code == ErrorCode.NONE
    becomes(connection, BROKER, "1", LIMIT, ("900000", OF_NODE))
    becomes(connection, BROKER, "1", BACKOFF, ("15000", DEFAULT))


def test_dynamic_settings_survive_a_restart(tmp_path: Path, topic: str) -> None:
    settings = {"log.retention.ms": "5000000"}
    with EmbeddedBroker(tmp_path, config=settings) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(broker.bootstrap_servers, topic)
        assert described(connection, TOPIC, topic, "retention.ms") == {"retention.ms": ("5000000", STATIC)}
        assert alter(connection, "", ("log.retention.ms", "6000000", SET)) == ErrorCode.NONE
    with EmbeddedBroker(tmp_path, config=settings) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert described(connection, TOPIC, topic, "retention.ms") == {"retention.ms": ("6000000", OF_ALL)}


def test_nodes_of_one_process_have_no_settings_of_their_own(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, brokers=2) as broker:
        with RawConnection(broker.bootstrap_servers.split(",")[0]) as connection:
            assert alter(connection, "1", (LIMIT, "5000", SET)) == ErrorCode.INVALID_REQUEST
            assert alter(connection, "1", (FOREIGN, "5000", SET)) == ErrorCode.NONE
            assert alter(connection, "", (LIMIT, "5000", SET)) == ErrorCode.NONE


def test_passwords_are_described_without_their_value(embedded: EmbeddedBroker) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name="1", configuration_keys=[JAAS]
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=False)
    with RawConnection(embedded.bootstrap_servers) as opened:
        (entry,) = opened.call(request, 4).results[0].configs
    assert (entry.value, entry.is_sensitive, entry.config_type) == (None, True, PASSWORD)
    assert [synonym.value for synonym in entry.synonyms] == [None]


def test_min_insync_replicas_above_the_number_of_replicas_counts_as_that_number(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, config={"min.insync.replicas": "2"})
    assert topics.produce(cluster.bootstrap_servers, topic, [(0, None, b"x")]) == 1
