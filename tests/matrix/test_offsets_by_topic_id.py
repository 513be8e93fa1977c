"""OffsetCommit and OffsetFetch with topic ids (from version 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from support.clients import open_cluster
from support.clusters import Cluster
from support.raw_broker import RawConnection
from support.topics import create_topic, delete_topic
from support.waiting import wait_until

from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.messages import (
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

VERSION = 10
UNKNOWN, ZERO = UUID(int=77), UUID(int=0)
_Group = OffsetFetchRequest.OffsetFetchRequestGroup
NOTHING = (-1, -1, "", 0)


@pytest.fixture
def connection(cluster: Cluster, group: str) -> Iterator[RawConnection]:
    with RawConnection(cluster.bootstrap_servers) as opened:

        def found() -> bool:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group, f"{group}-2"])
            return not any(each.error_code for each in opened.call(asked, 4).coordinators)

        wait_until(found, "the group has a coordinator")
        yield opened


def topic_id(connection: RawConnection, name: str) -> UUID:
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    found: UUID = connection.call(request, 12).topics[0].topic_id
    return found


def commit(connection: RawConnection, group: str, offsets: dict[UUID, list[int]]) -> dict[UUID, dict[int, int]]:
    """Commits offset 5 + N for each partition N; returns errors by topic id and partition."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [
        topic(
            topic_id=each,
            partitions=[
                topic.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=5 + number,
                    committed_leader_epoch=-1,
                    committed_metadata="m",
                )
                for number in numbers
            ],
        )
        for each, numbers in offsets.items()
    ]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=topics,
    )

    def answered() -> Any:
        response = connection.call(request, VERSION)
        return None if any(e.error_code == 14 for t in response.topics for e in t.partitions) else response

    response = wait_until(answered, "the group is loaded")
    return {t.topic_id or ZERO: {e.partition_index: e.error_code for e in t.partitions} for t in response.topics}


def fetch(connection: RawConnection, asked: dict[str, dict[UUID, list[int]] | None]) -> dict[str, Any]:
    """Returns (offset, epoch, metadata, error) by group, topic id and partition."""
    return dict(fetch_entries(connection, *asked.items()))


def fetch_entries(
    connection: RawConnection, *asked: tuple[str, dict[UUID, list[int]] | None]
) -> list[tuple[str, dict[UUID, Any]]]:
    """As `fetch`, with the entries of the response in their order."""
    groups = [
        _Group(
            group_id=group,
            member_id=None,
            member_epoch=-1,
            topics=None
            if topics is None
            else [_Group.OffsetFetchRequestTopics(topic_id=each, partition_indexes=n) for each, n in topics.items()],
        )
        for group, topics in asked
    ]
    request = OffsetFetchRequest(groups=groups, require_stable=True)

    def answered() -> Any:
        response = connection.call(request, VERSION)
        return None if any(group.error_code in (14, 15, 16) for group in response.groups) else response

    response = wait_until(answered, "the groups are loaded")
    return [
        (
            group.group_id,
            {
                topic.topic_id: {
                    e.partition_index: (e.committed_offset, e.committed_leader_epoch, e.metadata, e.error_code)
                    for e in topic.partitions
                }
                for topic in group.topics
            },
        )
        for group in response.groups
    ]


@pytest.mark.kafka
def test_stale_commit_of_a_recreated_topic_is_rejected(cluster: Cluster, topic: str, group: str) -> None:
    tp = TopicPartition(topic, 0)
    create_topic(cluster.bootstrap_servers, topic, 1)
    with open_cluster(cluster.bootstrap_servers) as client:
        former = {topic: str(client.describe_topics([topic])[topic].topic_id)}
        client.commit(group, {tp: OffsetAndMetadata(5)}, topic_ids=former)
        assert client.fetch_committed(group, [tp], topic_ids=former) == {tp: OffsetAndMetadata(5)}
        delete_topic(cluster.bootstrap_servers, topic)
        create_topic(cluster.bootstrap_servers, topic, 1)

        def present() -> dict[str, str]:
            found = client.metadata([topic], refresh=True).topics
            return (
                {}
                if topic not in found or str(found[topic].topic_id) == former[topic]
                else {topic: str(found[topic].topic_id)}
            )

        current = wait_until(present, "the topic is there again")
        with pytest.raises(BrokerError, match=f"Commit of {topic}-0 .*UNKNOWN_TOPIC_ID"):
            client.commit(group, {tp: OffsetAndMetadata(7)}, topic_ids=former, timeout_ms=500)
        with pytest.raises(BrokerError, match=f"OffsetFetch of {topic}-0 .*UNKNOWN_TOPIC_ID"):
            client.fetch_committed(group, [tp], topic_ids=former)
        assert client.fetch_committed(group, [tp], topic_ids=current) == {tp: None}
        client.commit(group, {tp: OffsetAndMetadata(2)}, topic_ids=current)
        assert client.fetch_committed(group, [tp]) == {tp: OffsetAndMetadata(2)}


@pytest.mark.kafka
def test_offsets_by_topic_id_and_by_name_are_the_same(
    cluster: Cluster, connection: RawConnection, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    known = topic_id(connection, topic)
    refused = int(ErrorCode.UNKNOWN_TOPIC_ID)
    assert commit(connection, group, {known: [0, 9], UNKNOWN: [0, 1], ZERO: [0]}) == {
        known: {0: 0, 9: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)},
        UNKNOWN: {0: refused, 1: refused},
        ZERO: {0: refused},
    }
    assert commit(connection, group, {UNKNOWN: [0]}) == {UNKNOWN: {0: refused}}
    asked = {known: [0, 1, 9], UNKNOWN: [3]}
    other = f"{group}-2"
    assert fetch(connection, {group: asked, other: asked}) == {
        group: {known: {0: (5, -1, "m", 0), 1: NOTHING, 9: NOTHING}, UNKNOWN: {3: (-1, -1, "", refused)}},
        other: {known: {0: NOTHING, 1: NOTHING, 9: NOTHING}, UNKNOWN: {3: (-1, -1, "", refused)}},
    }
    assert fetch(connection, {group: None, other: None}) == {group: {known: {0: (5, -1, "m", 0)}}, other: {}}
    assert fetch(connection, {group: {}}) == {group: {}}
    twice = (group, {known: [0]}), (group, {UNKNOWN: [3]}), (group, None)
    assert fetch_entries(connection, *twice) == [
        (group, {known: {0: (5, -1, "m", 0)}}),
        (group, {UNKNOWN: {3: (-1, -1, "", refused)}}),
        (group, {known: {0: (5, -1, "m", 0)}}),
    ]


@pytest.mark.kafka
def test_a_recreated_topic_has_no_offsets(cluster: Cluster, connection: RawConnection, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    old = topic_id(connection, topic)
    assert commit(connection, group, {old: [0]}) == {old: {0: 0}}
    delete_topic(cluster.bootstrap_servers, topic)
    create_topic(cluster.bootstrap_servers, topic)
    new = topic_id(connection, topic)
    refused = int(ErrorCode.UNKNOWN_TOPIC_ID)
    assert commit(connection, group, {old: [0]}) == {old: {0: refused}}
    assert fetch(connection, {group: {old: [0], new: [0]}}) == {
        group: {old: {0: (-1, -1, "", refused)}, new: {0: NOTHING}}
    }
    assert fetch(connection, {group: None}) == {group: {}}
