"""Offsets committed in transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.group_context import CONFIG, GROUP, GroupContext

from spark_groupsource.broker.group import GroupConfig, verification_error
from spark_groupsource.broker.group.group_states import DEAD, EMPTY, PREPARING_REBALANCE
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetValue

NONE = ErrorCode.NONE
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
RETENTION_MS = 60_000
SHORT = replace(CONFIG, offsets_retention_minutes=1)
P0, P1 = ("topic", 0), ("topic", 1)


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


def stable_fetch(
    context: GroupContext, *partitions: tuple[str, int], version: int = 8
) -> dict[tuple[str, int], object]:
    """Returns (topic, partition) -> offset or error, with require_stable."""
    handle = context.fetch_response(GROUP, partitions or None, version, require_stable=True)
    topics = handle.response.topics if version < 8 else handle.response.groups[0].topics
    found: dict[tuple[str, int], object] = {}
    for topic in topics:
        for entry in topic.partitions:
            code = ErrorCode(entry.error_code)
            found[topic.name, entry.partition_index] = entry.committed_offset if code is NONE else code
            if code is not NONE:
                assert (entry.committed_offset, entry.committed_leader_epoch, entry.metadata) == (-1, -1, "")
    return found


# --- visibility


@pytest.mark.conformance("GC-101", "GC-104", "SM-038", "OM-054")
@pytest.mark.parametrize("version", (7, 8))
def test_offsets_are_visible_after_the_commit_marker(context: GroupContext, version: int) -> None:
    assert context.commit_in_transaction(25) == [NONE]
    assert context.fetch(P0, version=version) == {P0: -1}
    assert stable_fetch(context, P0, version=version) == {P0: UNSTABLE}
    assert context.fetch(version=version) == {}
    context.end_transaction(7, True)
    assert context.fetch(P0, version=version) == stable_fetch(context, P0, version=version) == {P0: 25}


@pytest.mark.conformance("GC-102", "GC-103", "SM-040")
def test_offsets_of_an_aborted_transaction_are_not_visible(context: GroupContext) -> None:
    context.commit_in_transaction(25)
    assert stable_fetch(context, P0) == {P0: UNSTABLE}
    context.end_transaction(7, False)
    assert context.fetch(P0) == stable_fetch(context, P0) == {P0: -1}
    assert not context.shard.store.pending


@pytest.mark.conformance("GC-105")
def test_commit_marker_after_the_abort_has_no_effect(context: GroupContext) -> None:
    context.commit_in_transaction(25)
    context.end_transaction(7, False)
    context.end_transaction(7, True)
    assert context.fetch(P0) == {P0: -1}


@pytest.mark.conformance("GC-106")
def test_marker_affects_one_partition_of_the_offsets_topic() -> None:
    one, other = GroupContext(), GroupContext()  # two partitions of __consumer_offsets
    one.commit_in_transaction(1)
    other.commit_in_transaction(2)
    one.end_transaction(7, True)
    assert (one.fetch(P0), other.fetch(P0)) == ({P0: 1}, {P0: -1})
    other.end_transaction(7, True)
    assert (one.fetch(P0), other.fetch(P0)) == ({P0: 1}, {P0: 2})


@pytest.mark.conformance("GC-107", "ST-049")
def test_marker_affects_offsets_of_its_producer_only(context: GroupContext) -> None:
    context.commit_in_transaction(1, producer_id=7)
    context.commit_in_transaction(2, producer_id=8, partitions=(1,))
    pending = context.shard.store.pending
    assert set(pending.partitions_of(GROUP)) == {
        TopicPartition(*P0), TopicPartition(*P1)
    } and not pending.partitions_of("other")
    context.end_transaction(8, True)
    assert stable_fetch(context, P0, P1) == {P0: UNSTABLE, P1: 2}
    assert set(pending.partitions_of(GROUP)) == {TopicPartition(*P0)}
    context.end_transaction(7, False)
    assert stable_fetch(context, P0, P1) == {P0: -1, P1: 2}
    assert not pending.partitions_of(GROUP)


@pytest.mark.conformance("OM-030")
def test_pending_partitions_are_unstable_only_with_require_stable(context: GroupContext) -> None:
    context.commit(10, partitions=(0, 1))
    context.commit_in_transaction(20)
    assert stable_fetch(context, P0, P1) == {P0: UNSTABLE, P1: 10}
    assert context.fetch(P0, P1) == {P0: 10, P1: 10}
    context.end_transaction(7, True)
    assert context.fetch(P0, P1) == stable_fetch(context, P0, P1) == {P0: 20, P1: 10}


@pytest.mark.conformance("OM-034")
def test_fetch_of_all_topics_omits_pending_partitions(context: GroupContext) -> None:
    context.commit(10)
    context.commit_in_transaction(20, partitions=(0, 1))
    assert stable_fetch(context) == {P0: UNSTABLE}
    assert context.fetch() == {P0: 10}
    context.end_transaction(7, True)
    assert stable_fetch(context) == context.fetch() == {P0: 20, P1: 20}


@pytest.mark.conformance("MI-009")
def test_transactional_offset_has_the_fields_of_the_request_and_does_not_expire(context: GroupContext) -> None:
    context.commit_in_transaction(5, leader_epoch=3, metadata=("note",))
    context.commit_in_transaction(6, partitions=(1,), metadata=(None,))
    context.end_transaction(7, True)
    now = context.clock.timestamp_ms()
    assert context.shard.store.offsets_of(GROUP) == {
        TopicPartition(*P0): OffsetValue(5, 3, "note", now, -1),
        TopicPartition(*P1): OffsetValue(6, -1, "", now, -1),
    }


@pytest.mark.conformance("OM-058")
def test_partition_with_both_kinds_of_offset_counts_once(context: GroupContext) -> None:
    def count() -> int:
        return sum(map(len, context.shard.store.offsets.values()))

    context.commit(1)
    context.commit_in_transaction(2, partitions=(0, 1))
    assert count() == 1
    context.end_transaction(7, True)
    assert count() == 2
    context.commit_in_transaction(3)
    context.end_transaction(7, False)
    assert count() == 2


# --- which commit wins


@pytest.mark.conformance("ST-035", "OM-057")
def test_later_commit_replaces_the_transactional_offset(context: GroupContext) -> None:
    context.commit_in_transaction(100)
    context.commit(50)
    assert stable_fetch(context, P0) == {P0: UNSTABLE}
    context.end_transaction(7, True)
    assert stable_fetch(context, P0) == {P0: 50}


@pytest.mark.conformance("ST-036")
def test_later_transactional_offset_replaces_the_commit(context: GroupContext) -> None:
    context.commit(100)
    context.commit_in_transaction(50)
    context.end_transaction(7, True)
    assert context.fetch(P0) == {P0: 50}


@pytest.mark.conformance("ST-037")
@pytest.mark.parametrize("plain_first", (True, False))
def test_aborted_transaction_keeps_the_committed_offset(context: GroupContext, plain_first: bool) -> None:
    steps = [lambda: context.commit(100), lambda: context.commit_in_transaction(50)]
    for step in steps if plain_first else steps[::-1]:
        step()
    context.end_transaction(7, False)
    assert context.fetch(P0) == {P0: 100}


def test_later_transactional_offset_wins_whichever_transaction_ends_first(context: GroupContext) -> None:
    context.commit_in_transaction(1, producer_id=7)
    context.commit_in_transaction(2, producer_id=8)
    context.end_transaction(8, True)
    context.end_transaction(7, True)
    assert context.fetch(P0) == {P0: 2}


@pytest.mark.conformance("OM-055")
def test_tombstone_removes_pending_offsets_of_its_key(context: GroupContext) -> None:
    context.commit(1, partitions=(0, 1))
    context.commit_in_transaction(2, partitions=(0, 1), producer_id=7)
    context.commit_in_transaction(3, partitions=(0,), producer_id=8)
    context.delete_offsets(P0)
    assert stable_fetch(context, P0, P1) == {P0: -1, P1: UNSTABLE}
    context.end_transaction(7, True)
    context.end_transaction(8, True)
    assert context.fetch(P0, P1) == {P0: -1, P1: 2}


@pytest.mark.conformance("OM-056")
def test_markers_of_other_producers_have_no_effect(context: GroupContext) -> None:
    context.commit_in_transaction(1, producer_id=5)
    context.commit_in_transaction(2, producer_id=6, partitions=(1,))
    context.end_transaction(99, True)
    assert context.fetch(P0, P1) == {P0: -1, P1: -1}
    context.end_transaction(5, True)
    context.end_transaction(6, False)
    assert context.fetch(P0, P1) == {P0: 1, P1: -1}


# --- checks of the member


@pytest.mark.conformance("GC-115")
def test_known_instance_with_a_wrong_or_no_member_id_is_fenced(context: GroupContext) -> None:
    leader, _ = context.stable(instances=["i-0", "i-1"])
    for wrong in ("wrong", ""):
        codes = context.commit_in_transaction(1, wrong, leader.generation_id, instance="i-0")
        assert codes == [ErrorCode.FENCED_INSTANCE_ID]
    assert context.commit_in_transaction(1, leader.member_id, leader.generation_id, instance="i-0") == [NONE]


@pytest.mark.conformance("GC-116", "OM-025")
def test_unknown_member_is_rejected(context: GroupContext) -> None:
    (member,) = context.stable()
    codes = context.commit_in_transaction(1, "stranger", member.generation_id)
    assert codes == [ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.conformance("GC-118", "OM-026")
def test_other_generation_is_rejected(context: GroupContext) -> None:
    (member,) = context.stable()
    for generation_id in (member.generation_id - 1, member.generation_id + 1):
        codes = context.commit_in_transaction(1, member.member_id, generation_id)
        assert codes == [ErrorCode.ILLEGAL_GENERATION]


@pytest.mark.conformance("GC-117", "GC-119", "OM-023")
def test_transactional_commit_does_not_renew_the_session(context: GroupContext) -> None:
    (member,) = context.stable()
    deadline = context.session_deadline(member.member_id)
    context.clock.advance_ms(10)
    before = len(context.log)
    assert context.commit_in_transaction(9, member.member_id, member.generation_id) == [NONE]
    assert len(context.log) == before + 1 and context.history[-1][0] == 7
    assert context.session_deadline(member.member_id) == deadline


@pytest.mark.conformance("OM-020", "OM-024")
def test_generation_of_an_unknown_group_is_rejected(context: GroupContext) -> None:
    assert context.commit_in_transaction(1, "m", 3) == [ErrorCode.ILLEGAL_GENERATION]
    assert context.state() is DEAD
    assert context.commit_in_transaction(1) == [NONE]
    assert context.state() is EMPTY


@pytest.mark.parametrize("version", (0, 2))
def test_transactional_commit_without_member_is_accepted(context: GroupContext, version: int) -> None:
    context.stable()
    assert context.commit_in_transaction(4, version=version) == [NONE]
    context.join()
    assert context.state() is PREPARING_REBALANCE
    assert context.commit_in_transaction(5, version=version) == [NONE]
    context.end_transaction(7, True)
    assert context.fetch(P0) == {P0: 5}


@pytest.mark.conformance("GC-163", "SM-046")
def test_too_long_metadata_fails_its_partition_only(context: GroupContext) -> None:
    long = "x" * (GroupConfig().offset_metadata_max_bytes + 1)
    assert context.commit_in_transaction(1, metadata=(long,)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert not context.shard.store.pending
    codes = context.commit_in_transaction(1, partitions=(0, 1), metadata=(long, "fine"))
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, NONE]
    context.end_transaction(7, True)
    assert context.fetch(P0, P1) == {P0: -1, P1: 1}


@pytest.mark.conformance("SM-039", "ST-038")
def test_failed_append_leaves_no_pending_offset(context: GroupContext) -> None:
    context.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert context.commit_in_transaction(1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert not context.shard.store.pending and context.state() is DEAD
    assert stable_fetch(context, P0) == {P0: -1}
    context.append_error = None
    context.end_transaction(7, True)
    assert context.fetch(P0) == {P0: -1}


@pytest.mark.conformance("GC-162")
@pytest.mark.parametrize(
    "error, expected",
    [
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_error_of_a_commit_whose_transaction_is_not_verified(error: ErrorCode, expected: ErrorCode) -> None:
    assert verification_error(error, 3) is verification_error(error, 4) is expected


def test_error_unknown_to_old_versions_is_replaced() -> None:
    assert verification_error(ErrorCode.TRANSACTION_ABORTABLE, 4) is ErrorCode.TRANSACTION_ABORTABLE
    assert verification_error(ErrorCode.TRANSACTION_ABORTABLE, 3) is ErrorCode.INVALID_TXN_STATE


# --- deletion and expiry


@pytest.mark.conformance("OM-042")
def test_pending_offset_can_be_deleted(context: GroupContext) -> None:
    context.commit_in_transaction(1)
    before = len(context.log)
    assert context.delete_offsets(P0, P1).error is NONE
    assert len(context.log) == before + 1, "one tombstone, and none for what never was"
    context.end_transaction(7, True)
    assert context.fetch(P0) == {P0: -1}


@pytest.mark.conformance("OM-047")
def test_deletion_of_a_group_removes_pending_offsets(context: GroupContext) -> None:
    context.commit(1, partitions=(0, 1))
    context.commit_in_transaction(2, producer_id=7, partitions=(1, 2))
    context.commit_in_transaction(3, producer_id=8, partitions=(2, 3))
    before = len(context.log)
    assert context.delete_groups(GROUP) == {GROUP: NONE}
    keys = [key for key, value in context.log[before:]]
    assert len(keys) == len(set(keys)) == 4
    assert context.state() is DEAD
    context.end_transaction(7, True)
    context.end_transaction(8, True)
    assert context.fetch() == {} and context.list() == {}


@pytest.mark.conformance("OM-052")
def test_pending_offset_prevents_expiration() -> None:
    context = GroupContext(SHORT)

    def expire() -> int:
        before = len(context.log)
        context.settle(context.shard.expire_offsets(context.clock.instant()))
        return len(context.log) - before

    context.commit(1, partitions=(0, 1))
    context.commit_in_transaction(2)
    context.clock.advance_ms(RETENTION_MS)
    assert expire() == 1
    assert context.fetch(P0, P1) == {P0: 1, P1: -1}
    context.end_transaction(7, False)
    assert expire() == 1 and context.list() == {}
    context.commit_in_transaction(3)
    context.clock.advance_ms(RETENTION_MS)
    assert expire() == 0 and list(context.list()) == [GROUP], "nothing but a pending offset"


def test_pending_offsets_of_deleted_partitions_are_removed(context: GroupContext) -> None:
    context.commit_in_transaction(1, partitions=(0, 1))
    context.settle(context.shard.on_partitions_deleted([TopicPartition(*P0)], context.clock.instant()))
    context.end_transaction(7, True)
    assert context.fetch(P0, P1) == {P0: -1, P1: 1}


# --- loading


def test_restart_restores_pending_offsets(context: GroupContext) -> None:
    context.commit(1, partitions=(0, 1, 2))
    context.commit_in_transaction(2, producer_id=7, partitions=(0, 1))
    context.commit_in_transaction(3, producer_id=8, partitions=(1,))
    context.commit(4, partitions=(1,))
    context.delete_offsets(("topic", 2))
    restarted = context.restarted()
    assert restarted.shard.store == context.shard.store
    for each in (context, restarted):
        each.end_transaction(7, True)
        each.end_transaction(8, True)
    assert restarted.fetch() == context.fetch() == {P0: 2, P1: 4}
    assert restarted.restarted().shard.store == context.shard.store


@pytest.mark.conformance("SM-004")
def test_committed_offsets_without_a_group_record_are_loaded(context: GroupContext) -> None:
    context.commit_in_transaction(1, partitions=(0, 1))
    context.end_transaction(7, True)
    loaded = context.restarted()
    assert loaded.state() is EMPTY and loaded.fetch() == {P0: 1, P1: 1}


@pytest.mark.conformance("SM-005")
def test_aborted_offsets_create_no_group(context: GroupContext) -> None:
    context.commit_in_transaction(1)
    context.end_transaction(7, False)
    loaded = context.restarted()
    assert loaded.state() is DEAD and loaded.list() == {}


@pytest.mark.conformance("SM-006")
def test_loaded_group_with_an_open_transaction_has_no_visible_offsets(context: GroupContext) -> None:
    context.commit_in_transaction(1, partitions=(0, 1))
    loaded = context.restarted()
    assert loaded.state() is EMPTY and loaded.fetch() == {}
    assert stable_fetch(loaded, P0, P1, ("topic", 2)) == {P0: UNSTABLE, P1: UNSTABLE, ("topic", 2): -1}


@pytest.mark.conformance("SM-007", "SM-008")
def test_committed_aborted_and_pending_offsets_are_distinguished(context: GroupContext) -> None:
    context.commit_in_transaction(1, partitions=(0,))
    context.end_transaction(7, True)
    context.commit_in_transaction(2, partitions=(0, 1))
    context.end_transaction(7, False)
    context.commit_in_transaction(3, partitions=(2,))
    loaded = context.restarted()
    assert loaded.fetch() == {P0: 1}
    assert stable_fetch(loaded, P0, P1, ("topic", 2)) == {P0: 1, P1: -1, ("topic", 2): UNSTABLE}
    loaded.end_transaction(7, True)
    assert loaded.fetch() == {P0: 1, ("topic", 2): 3}


@pytest.mark.conformance("SM-009")
def test_offsets_of_several_producers_are_loaded_in_log_order(context: GroupContext) -> None:
    context.commit_in_transaction(1, producer_id=7, partitions=(0, 1))
    context.commit_in_transaction(2, producer_id=8, partitions=(1, 2))
    context.end_transaction(8, True)
    context.end_transaction(7, True)
    assert context.restarted().fetch() == {P0: 1, P1: 2, ("topic", 2): 2}


@pytest.mark.conformance("SM-010")
def test_later_plain_commit_wins_when_loaded(context: GroupContext) -> None:
    context.commit_in_transaction(1)
    context.commit(2)
    context.end_transaction(7, True)
    assert context.restarted().fetch() == {P0: 2}


@pytest.mark.conformance("SM-011")
def test_later_transaction_wins_when_loaded(context: GroupContext) -> None:
    context.commit(2)
    context.commit_in_transaction(1)
    context.end_transaction(7, True)
    assert context.restarted().fetch() == {P0: 1}
