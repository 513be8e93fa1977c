"""Expiration of offsets and groups, and offsets of deleted partitions."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.group_context import CONFIG, GROUP, REBALANCE_MS, GroupContext, subscribing

from spark_groupsource.broker.group import GroupConfig
from spark_groupsource.broker.group.group_states import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    GroupState,
)
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, decode_key

RETENTION_MS = 60_000
SHORT = replace(CONFIG, offsets_retention_minutes=1)


@pytest.fixture
def context() -> GroupContext:
    return GroupContext(SHORT)


def expire(context: GroupContext) -> int:
    """Runs the expiration; returns the number of records appended."""
    before = len(context.log)
    context.settle(context.shard.expire_offsets(context.clock.instant()))
    return len(context.log) - before


@pytest.mark.conformance("GC-002")
def test_longest_retention_does_not_overflow() -> None:
    assert GroupConfig(offsets_retention_minutes=2_147_483_647).offsets_retention_ms == 2_147_483_647 * 60_000


@pytest.mark.conformance("SM-052", "ST-068", "OM-051")
def test_offsets_of_a_simple_group_expire_after_their_commit(context: GroupContext) -> None:
    context.commit(1)
    context.clock.advance_ms(10)
    context.commit(2, partitions=(1,))
    context.clock.advance_ms(RETENTION_MS - 11)
    assert expire(context) == 0
    context.clock.advance_ms(1)
    assert expire(context) == 1
    assert context.fetch() == {("topic", 1): 2}
    assert context.state() is EMPTY
    context.clock.advance_ms(10)
    assert expire(context) == 1  # its last offset; there was no group record to remove
    assert context.state() is DEAD
    assert context.list() == {}


@pytest.mark.conformance("SM-001", "OM-060")
def test_event_has_the_number_of_removed_offsets(context: GroupContext) -> None:
    context.commit(1)
    expire(context)
    assert "offsets_expired" not in context.kinds()
    context.commit(2, partitions=(1,))
    context.commit(2, partitions=(2,), group="other")
    context.clock.advance_ms(RETENTION_MS)
    expire(context)
    assert [e.text for e in context.log_lines if e.kind == "offsets_expired"] == ["Removed 3 expired offsets."]


@pytest.mark.conformance("SM-051", "ST-026", "ST-068")
def test_offsets_of_an_empty_group_expire_after_it_became_empty(context: GroupContext) -> None:
    (member,) = context.stable(session_ms=600_000, protocols=subscribing("topic"))
    context.commit(1, member.member_id, 1)
    context.clock.advance_ms(2 * RETENTION_MS)
    assert expire(context) == 0  # subscribed
    context.leave((member.member_id, None))
    context.clock.advance_ms(RETENTION_MS - 1)
    assert expire(context) == 0
    context.clock.advance_ms(1)
    assert expire(context) == 2  # the offset and the group
    assert context.state() is DEAD
    assert context.shard.store.groups == {}


@pytest.mark.conformance("ST-026")
def test_nothing_expires_after_a_member_has_rejoined(context: GroupContext) -> None:
    (member,) = context.stable(protocols=subscribing("topic"))
    context.commit(1, member.member_id, 1)
    context.leave((member.member_id, None))
    context.clock.advance_ms(RETENTION_MS)
    context.join(protocols=subscribing("topic"))
    assert context.state() is PREPARING_REBALANCE
    assert expire(context) == 0


@pytest.mark.conformance("SM-051")
def test_expire_timestamp_has_precedence_in_an_empty_group(context: GroupContext) -> None:
    (member,) = context.stable(session_ms=600_000, protocols=subscribing("topic"))
    context.commit(1, member.member_id, 1, retention_ms=5, version=4)
    context.commit(2, member.member_id, 1, partitions=(1,), retention_ms=3 * RETENTION_MS, version=4)
    context.commit(3, member.member_id, 1, partitions=(2,))
    context.clock.advance_ms(5)
    assert expire(context) == 0  # there are members
    context.leave((member.member_id, None))
    assert expire(context) == 1
    assert set(context.fetch()) == {("topic", 1), ("topic", 2)}
    context.clock.advance_ms(RETENTION_MS)
    assert expire(context) == 1  # since the group emptied
    assert set(context.fetch()) == {("topic", 1)}
    context.clock.advance_ms(2 * RETENTION_MS)
    assert expire(context) == 2  # the last one, and the group
    assert context.state() is DEAD


@pytest.mark.conformance("SM-050")
def test_loaded_group_without_a_record_is_removed_with_its_offsets(context: GroupContext) -> None:
    context.commit(1, partitions=(0, 1))
    loaded = GroupContext(SHORT, log=context.log)
    assert (loaded.state(), loaded.group().generation_id) == (EMPTY, 0)
    loaded.clock.advance_ms(RETENTION_MS)
    assert expire(loaded) == 2
    keys = [decode_key(key) for key, value in loaded.log[2:] if value is None]
    assert keys == [OffsetKey(GROUP, "topic", 0), OffsetKey(GROUP, "topic", 1)], "no tombstone of the group"
    assert loaded.state() is DEAD and loaded.list() == {}


@pytest.mark.conformance("ST-068")
@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
@pytest.mark.parametrize(
    "state", [EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE], ids=lambda state: state.value
)
def test_expiration_depends_on_state_and_protocol_type(
    context: GroupContext, state: GroupState, protocol_type: str
) -> None:
    """An Empty group loses all offsets, a Stable consumer group those without subscription, other groups none."""
    (member,) = context.completing(
        session_ms=600_000, rebalance_ms=600_000, protocol_type=protocol_type, protocols=subscribing("topic")
    )
    context.sync(member.member_id, 1, {}, protocol_type=protocol_type)
    context.commit(1, member.member_id, 1)
    context.commit(2, member.member_id, 1, topic="old")
    if state is EMPTY:
        context.leave((member.member_id, None))
    elif state is PREPARING_REBALANCE:
        context.join(protocol_type=protocol_type, protocols=subscribing("topic"), rebalance_ms=600_000)
    elif state is COMPLETING_REBALANCE:
        context.join(member.member_id, protocol_type=protocol_type, protocols=subscribing("topic"))
    context.clock.advance_ms(RETENTION_MS)
    assert context.state() is state
    expire(context)
    kept = {"topic", "old"}
    if state is EMPTY:
        kept = set()
    elif state is STABLE and protocol_type == "consumer":
        kept = {"topic"}
    assert {topic for topic, _ in context.fetch()} == kept


@pytest.mark.conformance("SM-047", "ST-068")
def test_expire_timestamp_has_precedence(context: GroupContext) -> None:
    context.commit(1, retention_ms=5, version=4)
    context.commit(2, partitions=(1,), retention_ms=2 * RETENTION_MS, version=4)
    context.clock.advance_ms(4)
    assert expire(context) == 0
    context.clock.advance_ms(1)
    assert expire(context) == 1
    context.clock.advance_ms(RETENTION_MS)
    assert expire(context) == 0
    assert context.fetch() == {("topic", 1): 2}
    context.clock.advance_ms(RETENTION_MS)
    assert expire(context) == 1


@pytest.mark.conformance("SM-053", "OM-051", "ST-068")
def test_stable_group_keeps_offsets_of_subscribed_topics(context: GroupContext) -> None:
    (member,) = context.stable(session_ms=600_000, protocols=subscribing("topic"))
    context.commit(1, member.member_id, 1)
    context.commit(2, member.member_id, 1, topic="old")
    context.clock.advance_ms(RETENTION_MS - 1)
    assert expire(context) == 0
    context.clock.advance_ms(1)
    assert expire(context) == 1
    assert context.fetch() == {("topic", 0): 1}
    assert context.state() is STABLE


@pytest.mark.conformance("OM-050", "ST-068")
@pytest.mark.parametrize("how", [{"protocols": [("range", b"\x00")]}, {"protocol_type": "connect"}], ids=str)
def test_offsets_of_groups_with_unknown_subscriptions_do_not_expire(
    context: GroupContext, how: dict[str, object]
) -> None:
    (member,) = context.stable(session_ms=600_000, **how)  # type: ignore[arg-type]
    context.commit(1, member.member_id, 1)
    context.clock.advance_ms(10 * RETENTION_MS)
    assert expire(context) == 0


@pytest.mark.conformance("SM-048", "OM-048", "JM-130")
def test_empty_group_without_offsets_is_removed(context: GroupContext) -> None:
    assert expire(context) == 0  # no group at all
    (member,) = context.stable(session_ms=600_000)
    assert expire(context) == 0
    context.join(session_ms=600_000)
    assert context.state() is PREPARING_REBALANCE
    assert expire(context) == 0
    context.advance(REBALANCE_MS)
    (newcomer,) = context.group().members
    assert newcomer != member.member_id
    context.leave((newcomer, None))
    assert expire(context) == 1
    assert context.log[-1][1] is None
    assert context.state() is DEAD


def test_group_with_a_pending_member_id_is_kept(context: GroupContext) -> None:
    pending = context.join(version=4)
    assert expire(context) == 0
    context.join(pending.member_id, version=4)
    assert context.state() is PREPARING_REBALANCE


def test_group_is_removed_without_a_record_after_its_last_offset_was_deleted(context: GroupContext) -> None:
    for remove in (lambda: expire(context), lambda: context.delete_groups(GROUP)):
        context.commit(1)
        context.delete_offsets(("topic", 0))
        assert context.state() is EMPTY
        records = len(context.log)
        remove()
        assert len(context.log) == records
        assert context.state() is DEAD


def test_groups_without_requests_since_loading_expire_too(context: GroupContext) -> None:
    context.commit(1)
    again = GroupContext(SHORT, log=context.log)
    again.clock.advance_ms(context.clock.timestamp_ms() + RETENTION_MS - again.clock.timestamp_ms())
    assert expire(again) == 1
    assert again.list() == {}


@pytest.mark.conformance("OM-062")
def test_offsets_of_deleted_partitions_are_removed_from_every_group(context: GroupContext) -> None:
    (member,) = context.stable(protocols=subscribing("topic"))
    context.commit(1, member.member_id, 1, partitions=(0, 1))
    context.commit(2, group="simple")
    context.commit(3, group="simple", topic="other")
    gone = [TopicPartition("topic", 0), TopicPartition("never", 0)]
    context.settle(context.shard.on_partitions_deleted(gone, context.clock.instant()))
    assert context.fetch() == {("topic", 1): 1}
    assert context.fetch(group="simple") == {("other", 0): 3}
    assert context.state(GROUP) is STABLE


@pytest.mark.conformance("OM-062")
def test_a_group_remains_without_the_offsets_of_deleted_partitions(context: GroupContext) -> None:
    context.commit(1, group="simple")
    context.settle(context.shard.on_partitions_deleted([TopicPartition("topic", 0)], context.clock.instant()))
    assert set(context.list()) == {"simple"} and context.state("simple") is EMPTY
    expire(context)
    assert context.list() == {}


@pytest.mark.conformance("OM-062")
def test_offsets_of_deleted_partitions_are_removed_during_a_transaction(context: GroupContext) -> None:
    context.commit_in_transaction(1, partitions=(0, 1))
    context.commit(2, partitions=(0,))
    records = len(context.log)
    context.settle(context.shard.on_partitions_deleted([TopicPartition("topic", 0)], context.clock.instant()))
    assert len(context.log) == records + 1
    context.end_transaction(7, True)
    assert context.fetch() == {("topic", 1): 1}


def test_groups_without_the_deleted_partitions_cost_little(context: GroupContext) -> None:
    for number in range(100):
        context.commit(1, group=f"g{number}")
    large = frozenset(TopicPartition("other", number) for number in range(20_000))

    def seconds(deleted: frozenset[TopicPartition]) -> float:
        started = time.thread_time()
        context.shard.on_partitions_deleted(deleted, context.clock.instant())
        return time.thread_time() - started

    few = min(seconds(frozenset()) for _ in range(5))
    assert min(seconds(large) for _ in range(5)) < 10 * few
