"""Admin client: topics, configurations, groups, on both brokers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.clients import group_client, open_cluster, settle
from support.waiting import wait_until

from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import EARLIEST, ClusterClient
from spark_groupsource.client.cluster.configs import describe_topic_config
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.records.encode import Record


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    with open_cluster(cluster.bootstrap_servers) as opened:
        yield opened


def code_of(raised: Any) -> ErrorCode:
    return ErrorCode(raised.value.code)


class ThrottlingController:
    """A controller that accepts one topic of each request, and whose quota rejects the others (KIP-599)."""

    settings = SimpleNamespace(request_timeout_ms=1_000)

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def retry(self) -> Any:
        return SimpleNamespace(remaining_ms=1_000, backoff_or_raise=lambda error: None)

    def call_controller(self, request: Any, timeout_ms: int) -> Any:
        names = [each.name for each in request.topics]
        self.asked.append(names)
        codes = [0, *[ErrorCode.THROTTLING_QUOTA_EXCEEDED] * (len(names) - 1)]
        rows = [SimpleNamespace(name=name, error_code=code, error_message="") for name, code in zip(names, codes)]
        return SimpleNamespace(topics=rows, results=rows)


def test_topics_above_the_quota_of_mutations_are_requested_again() -> None:
    controller: Any = ThrottlingController()
    admin.create_topics(controller, [admin.NewTopic(name) for name in "abc"])
    assert controller.asked == [["a", "b", "c"], ["b", "c"], ["c"]]
    admin.create_partitions(controller, {"a": 2, "b": 2})
    assert controller.asked[3:] == [["a", "b"], ["b"]]


def test_topic_is_created_changed_and_deleted(client: ClusterClient, topic: str) -> None:
    admin.create_topics(client, [admin.NewTopic(topic, 2, config={"retention.ms": "3600000"})])
    wait_until(lambda: topic in admin.list_topics(client), "the topic is listed")
    assert len(admin.list_topics(client)[topic].partitions) == 2
    assert "__consumer_offsets" not in admin.list_topics(client)
    settings = describe_topic_config(client, topic)
    assert settings["retention.ms"].value == "3600000" and not settings["retention.ms"].is_default

    with pytest.raises(BrokerError, match=f"Creating topic '{topic}'") as raised:
        admin.create_topics(client, [admin.NewTopic(topic, 2)])
    assert code_of(raised) is ErrorCode.TOPIC_ALREADY_EXISTS

    admin.create_partitions(client, {topic: 3})
    wait_until(lambda: len(admin.list_topics(client)[topic].partitions) == 3, "the third partition")
    with pytest.raises(BrokerError) as raised:
        admin.create_partitions(client, {topic: 1})
    assert code_of(raised) is ErrorCode.INVALID_PARTITIONS

    admin.delete_topics(client, [topic])
    wait_until(lambda: topic not in admin.list_topics(client), "the topic is gone")
    with pytest.raises(BrokerError, match=f"Deleting topic '{topic}'") as raised:
        admin.delete_topics(client, [topic])
    assert code_of(raised) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (admin.NewTopic("a/b", 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (admin.NewTopic("zero", 0), ErrorCode.INVALID_PARTITIONS),
        (admin.NewTopic("nine", 1, 9), ErrorCode.INVALID_REPLICATION_FACTOR),
        (admin.NewTopic("odd", 1, config={"no.such.setting": "1"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_topics_are_rejected(client: ClusterClient, new: admin.NewTopic, code: ErrorCode) -> None:
    with pytest.raises(BrokerError, match=f"Creating topic '{new.name}'") as raised:
        admin.create_topics(client, [new])
    assert code_of(raised) is code


def test_validate_only_creates_no_topic(client: ClusterClient, topic: str) -> None:
    admin.create_topics(client, [admin.NewTopic(topic, 1)], validate_only=True)
    assert topic not in admin.list_topics(client)


def test_records_are_deleted_before_an_offset(client: ClusterClient, topic: str) -> None:
    admin.create_topics(client, [admin.NewTopic(topic, 1)])
    tp = TopicPartition(topic, 0)
    BatchProducer(client).send(encoded(TopicPartition(topic, 0), [Record(None, b"x", 1)] * 10))
    assert admin.delete_records(client, {tp: 4}) == {tp: 4}
    assert client.list_offsets({tp: EARLIEST})[tp].offset == 4
    assert admin.delete_records(client, {tp: -1}) == {tp: 10}


def test_group_is_listed_described_and_deleted(client: ClusterClient, topic: str, group: str) -> None:
    admin.create_topics(client, [admin.NewTopic(topic, 2)])
    tp = TopicPartition(topic, 0)
    assert admin.describe_groups(client, [group])[group].state == "Dead"
    with pytest.raises(BrokerError) as raised:
        admin.delete_groups(client, [group])
    assert code_of(raised) is ErrorCode.GROUP_ID_NOT_FOUND

    with group_client(client, group, topic) as ours:
        settle(ours, 2)
        ours.commit({tp: OffsetAndMetadata(1)})
        (listed,) = [g for g in admin.list_groups(client) if g.group_id == group]
        assert (listed.protocol_type, listed.state) == ("consumer", "Stable")
        assert group in [g.group_id for g in admin.list_groups(client, ["Stable"])]
        assert group not in [g.group_id for g in admin.list_groups(client, ["Empty"])]
        with pytest.raises(BrokerError, match=f"Deleting group '{group}'") as raised:
            admin.delete_groups(client, [group])
        assert code_of(raised) is ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(BrokerError) as raised:
            admin.delete_offsets(client, group, [tp])
        assert code_of(raised) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert admin.describe_groups(client, [group])[group].state == "Empty"
    admin.delete_offsets(client, group, [tp])
    assert client.fetch_committed(group) == {}
    client.commit(group, {tp: OffsetAndMetadata(2)})
    admin.delete_groups(client, [group])
    assert admin.describe_groups(client, [group])[group].state == "Dead"
    assert client.fetch_committed(group) == {}
