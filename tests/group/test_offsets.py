"""Committed offsets: commit, fetch and delete."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.group_context import CONFIG, GROUP, GroupContext, subscribing

from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetValue
from spark_groupsource.wire.messages import OffsetCommitRequest, OffsetFetchRequest

NONE = [ErrorCode.NONE]
TP = TopicPartition("topic", 0)


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


# --- checks of the member


@pytest.mark.conformance("GC-096", "OM-001")
@pytest.mark.parametrize("version", range(2, 10))
def test_unknown_group_with_a_generation(context: GroupContext, version: int) -> None:
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert context.commit(1, "member", 10, version=version) == [expected]


@pytest.mark.conformance("GC-097", "OM-011", "OM-012")
@pytest.mark.parametrize("instance", [None, "instance"])
def test_commit_without_a_generation_creates_a_simple_group(context: GroupContext, instance: str | None) -> None:
    assert context.commit(1, instance=instance) == NONE
    assert context.state() is EMPTY
    assert context.group().protocol_type is None
    assert context.fetch() == {TP: 1}
    assert len(context.log) == 1  # the offset, no group record


@pytest.mark.conformance("GC-051", "OM-002")
def test_dead_group(context: GroupContext) -> None:
    context.kill()
    assert context.commit(1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert context.commit(1, "member", 1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.conformance("SM-041")
def test_request_after_unloading_gets_not_coordinator(context: GroupContext) -> None:
    context.shard.on_unloaded(context.clock.instant())
    assert context.commit(1) == [ErrorCode.NOT_COORDINATOR]
    assert context.log == []


@pytest.mark.conformance("OM-003", "OM-004", "OM-005", "OM-006", "OM-008", "ST-065")
def test_members_are_checked(context: GroupContext) -> None:
    (member,) = context.stable(instances=["one"])
    member_id = member.member_id
    assert context.commit(1, "made-up", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert context.commit(1, member_id, 2) == [ErrorCode.ILLEGAL_GENERATION]
    assert context.commit(1, member_id, -1) == [ErrorCode.ILLEGAL_GENERATION]
    assert context.commit(1, member_id, 1, instance="unknown") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert context.commit(1, "made-up", 1, instance="one") == [ErrorCode.FENCED_INSTANCE_ID]
    assert context.commit(1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert context.commit(1, "", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert context.commit(1, member_id, 1, instance="one") == NONE
    assert context.commit(1, member_id, 1) == NONE


@pytest.mark.conformance("GC-111", "GC-112", "GC-113", "OM-007", "ST-065")
def test_commit_in_completing_rebalance(context: GroupContext) -> None:
    (member,) = context.completing()
    assert context.state() is COMPLETING_REBALANCE
    assert context.commit(1, member.member_id, 1) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert context.commit(1, "made-up", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert context.commit(1, member.member_id, 0) == [ErrorCode.ILLEGAL_GENERATION]
    assert context.fetch() == {}


def test_previous_generation_commits_in_preparing_rebalance(context: GroupContext) -> None:
    (member,) = context.stable()
    context.join()
    assert context.state() is PREPARING_REBALANCE
    assert context.commit(5, member.member_id, 1) == NONE
    assert context.fetch() == {TP: 5}


@pytest.mark.conformance("GC-098")
def test_after_the_group_is_empty(context: GroupContext) -> None:
    (member,) = context.stable()
    context.leave((member.member_id, None))
    assert context.commit(3) == NONE
    assert context.fetch() == {TP: 3}


@pytest.mark.conformance("GC-114")
def test_commit_without_a_generation_to_an_empty_group_ignores_member_ids(context: GroupContext) -> None:
    (member,) = context.stable(instances=["one"])
    context.leave(("", "one"))
    assert context.commit(1, "made-up") == NONE
    assert context.commit(2, member.member_id, instance="other") == NONE


@pytest.mark.conformance("GC-100")
def test_group_id_may_be_empty(context: GroupContext) -> None:
    assert context.commit(1, group="") == NONE
    assert context.fetch(("topic", 0), group="") == {TP: 1}
    assert context.describe("").group_state == "Empty"
    assert context.delete_groups("") == {"": ErrorCode.NONE}
    assert context.fetch(("topic", 0), group="") == {TP: -1}


# --- stored values


@pytest.mark.conformance("GC-099", "SM-037", "OM-053")
def test_offset_metadata_and_epoch_are_returned(context: GroupContext) -> None:
    context.commit(1, metadata="first")
    context.commit(97, metadata="meta", leader_epoch=15)
    (topic,) = context.fetch_response(GROUP, [TP], 8).response.groups[0].topics
    (entry,) = topic.partitions
    assert (entry.committed_offset, entry.metadata, entry.committed_leader_epoch) == (97, "meta", 15)


@pytest.mark.conformance("MI-008")
def test_stored_offset_has_the_fields_of_the_request_and_the_time_of_the_commit(context: GroupContext) -> None:
    context.clock.advance_ms(7)
    now = context.clock.timestamp_ms()
    context.commit(100, metadata=None)
    assert context.shard.store.offsets[GROUP][TP] == OffsetValue(100, -1, "", now, -1)
    context.clock.advance_ms(3)
    context.commit(100, metadata="hello", leader_epoch=10)
    assert context.shard.store.offsets[GROUP][TP] == OffsetValue(100, 10, "hello", now + 3, -1)
    context.commit(100, metadata="hello", retention_ms=5_678, version=4)
    assert context.shard.store.offsets[GROUP][TP] == OffsetValue(100, -1, "hello", now + 3, now + 3 + 5_678)


@pytest.mark.conformance("OM-009", "SM-057", "MI-008")
@pytest.mark.parametrize("version", [2, 4, 5])
def test_retention_of_the_request(context: GroupContext, version: int) -> None:
    context.commit(1, retention_ms=1_234, version=version)
    stored = context.shard.store.offsets[GROUP][TP]
    assert stored.commit_timestamp_ms == context.clock.timestamp_ms()
    assert stored.expire_timestamp_ms == (context.clock.timestamp_ms() + 1_234 if version < 5 else -1)
    assert context.log[0][1] is not None
    assert context.log[0][1][:2] == (b"\x00\x01" if version < 5 else b"\x00\x03")


@pytest.mark.conformance("OM-018", "SM-043", "SM-045")
def test_metadata_too_large_on_one_partition_only() -> None:
    context = GroupContext(replace(CONFIG, offset_metadata_max_bytes=10))
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_class = topic_class.OffsetCommitRequestPartition
    partitions = [
        partition_class(partition_index=i, committed_offset=i, committed_metadata="x" * length)
        for i, length in enumerate((10, 11))
    ]
    request = OffsetCommitRequest(group_id=GROUP, topics=[topic_class(name="topic", partitions=partitions)])
    response = context.send(request, 8).response
    assert [p.error_code for p in response.topics[0].partitions] == [0, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert context.fetch() == {TP: 0}


@pytest.mark.conformance("SM-044")
def test_only_too_large_metadata_appends_nothing() -> None:
    context = GroupContext(replace(CONFIG, offset_metadata_max_bytes=10))
    assert context.commit(1, metadata="x" * 11) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert context.log == []
    assert context.state() is DEAD


def test_metadata_limit_counts_utf_16_units() -> None:
    context = GroupContext(replace(CONFIG, offset_metadata_max_bytes=2))
    assert context.commit(1, metadata="消费") == NONE  # six bytes of UTF-8
    assert context.commit(1, metadata="😀") == NONE  # two units
    assert context.commit(1, metadata="😀x") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.conformance("SM-042")
@pytest.mark.parametrize(
    "append_error, expected",
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_commit_that_cannot_be_stored_returns_the_error(
    context: GroupContext, append_error: ErrorCode, expected: ErrorCode
) -> None:
    context.append_error = append_error
    assert context.commit(1, partitions=(0, 1)) == [expected, expected]
    assert context.fetch(("topic", 0)) == {TP: -1}
    assert context.state() is DEAD


def test_commit_response_is_sent_when_the_commit_is_durable(context: GroupContext) -> None:
    context.hold_appends = True
    with pytest.raises(AssertionError, match="no response"):
        context.commit(1)
    context.release_appends()
    assert context.delayed_count() == 0


# --- fetch


@pytest.mark.conformance("GC-108", "OM-028", "OM-032", "SM-012")
@pytest.mark.parametrize("version", range(1, 10))
def test_never_committed(context: GroupContext, version: int) -> None:
    handle = context.fetch_response("unknown", [TP], version)
    topics = handle.response.topics if version < 8 else handle.response.groups[0].topics
    (entry,) = topics[0].partitions
    assert (entry.committed_offset, entry.metadata, entry.error_code) == (-1, "", 0)
    if version >= 5:
        assert entry.committed_leader_epoch == -1
    if version >= 2:
        assert context.fetch(group="unknown", version=version) == {}


@pytest.mark.conformance("OM-027", "OM-031", "SM-012")
def test_dead_group_has_no_offsets(context: GroupContext) -> None:
    context.commit(1)
    context.kill()
    assert context.fetch(("topic", 0)) == {TP: -1}
    assert context.fetch() == {}


@pytest.mark.conformance("GC-109", "SM-012")
@pytest.mark.parametrize("version", range(1, 10))
def test_fetch_where_the_partition_is_not_owned(context: GroupContext, version: int) -> None:
    context.shard.on_unloaded(context.clock.instant())
    response = context.fetch_response(GROUP, [TP], version).response
    if version >= 8:
        (error,) = [group.error_code for group in response.groups]
    elif version >= 2:
        error = response.error_code
    else:
        (error,) = [p.error_code for t in response.topics for p in t.partitions]
    assert error == ErrorCode.NOT_COORDINATOR


@pytest.mark.conformance("GC-110")
@pytest.mark.parametrize("version", range(2, 10))
def test_all_offsets(context: GroupContext, version: int) -> None:
    assert context.fetch(version=version) == {}
    context.commit(1, partitions=(0, 1))
    context.commit(2, topic="other")
    expected = {TP: 1, ("topic", 1): 1, ("other", 0): 2}
    assert context.fetch(version=version) == expected


@pytest.mark.parametrize("version", [8, 9])
def test_many_groups_in_one_request(context: GroupContext, version: int) -> None:
    context.commit(1, group="a")
    context.commit(2, group="b")
    entry_class = OffsetFetchRequest.OffsetFetchRequestGroup
    groups = [entry_class(group_id=group_id, topics=None) for group_id in ("b", "a", "none")]
    response = context.send(OffsetFetchRequest(groups=groups, require_stable=True), version).response
    found = {g.group_id: [p.committed_offset for t in g.topics for p in t.partitions] for g in response.groups}
    assert found == {"b": [2], "a": [1], "none": []}
    assert [g.group_id for g in response.groups] == ["b", "a", "none"]


@pytest.mark.parametrize("version", [7, 8])
def test_every_stored_offset_is_stable(context: GroupContext, version: int) -> None:
    context.commit(4)
    response = context.fetch_response(GROUP, [TP], version, require_stable=True).response
    topics = response.topics if version < 8 else response.groups[0].topics
    assert [(p.committed_offset, p.error_code) for p in topics[0].partitions] == [(4, 0)]


# --- delete


@pytest.mark.conformance("GC-150", "GC-154", "ST-066")
def test_delete_of_no_group(context: GroupContext) -> None:
    assert context.delete_offsets(TP).error is ErrorCode.GROUP_ID_NOT_FOUND
    context.commit(1)
    context.kill()
    assert context.delete_offsets(TP).error is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.conformance("GC-155", "OM-040")
def test_delete_in_an_empty_consumer_group(context: GroupContext) -> None:
    (member,) = context.stable(protocols=subscribing("topic"))
    context.leave((member.member_id, None))
    context.commit(1, partitions=(0, 1))
    handle = context.delete_offsets(TP)
    assert handle.error is ErrorCode.NONE
    assert context.fetch() == {("topic", 1): 1}


@pytest.mark.conformance("GC-156", "OM-041")
def test_delete_in_a_stable_consumer_group(context: GroupContext) -> None:
    (member,) = context.stable(protocols=subscribing("topic"))
    context.commit(1, member.member_id, 1)
    context.commit(2, member.member_id, 1, topic="other")
    assert context.state() is STABLE
    handle = context.delete_offsets(TP, ("other", 0), ("never", 0))
    errors = {t.name: t.partitions[0].error_code for t in handle.response.topics}
    assert errors == {"topic": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "other": 0, "never": 0}
    assert context.fetch() == {TP: 1}


@pytest.mark.conformance("GC-153")
def test_unparsable_metadata_counts_as_subscribed_to_every_topic(context: GroupContext) -> None:
    (member,) = context.stable(protocols=[("range", b"\x00")])
    context.commit(1, member.member_id, 1)
    handle = context.delete_offsets(TP)
    assert handle.response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert context.fetch() == {TP: 1}


def test_topics_of_a_newer_subscription_are_read(context: GroupContext) -> None:
    newer = b"\x00\x63" + subscribing("topic")[0][1][2:] + b"what a later version adds"
    context.stable(protocols=[("range", newer)])
    assert context.group().subscribed_topics == {"topic"}
