"""Limits of broker state: offsets, metadata, transactional ids, producer ids."""

from __future__ import annotations

import pytest
from support.commit_requests import commit_topics
from support.group_context import GROUP, GroupContext, subscribing
from support.raw_broker import RawConnection, create_topic

from spark_groupsource.broker.coordinators import transaction_runtime
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.group.group_store import FIRST_OFFSET_BYTES, offset_bytes
from spark_groupsource.broker.state_budget import StateBudget
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import AddPartitionsToTxnRequest, InitProducerIdRequest, OffsetCommitRequest


def _offsets_bytes(context: GroupContext) -> int:
    """The memory of the stored offsets, computed from all of them."""
    offsets = context.shard.store.offsets
    values = sum(offset_bytes(each, value.metadata) for stored in offsets.values() for each, value in stored.items())
    return values + FIRST_OFFSET_BYTES * len(offsets)


def test_the_memory_of_a_shard_is_the_sum_of_its_parts_after_any_change():
    context = GroupContext()
    store = context.shard.store
    assert context.shard.size_bytes == 0
    for metadata in ("", "some metadata", "x"):
        context.commit(1, group="simple", partitions=(0, 1, 2), metadata=metadata)
        context.commit_in_transaction(1, partitions=(0, 3), group="simple")
        assert store.size_bytes == _offsets_bytes(context) and store.pending.size_bytes > 0
    context.end_transaction(7, True)
    assert store.size_bytes == _offsets_bytes(context) and store.pending.size_bytes == 0
    members = context.stable(protocols=subscribing("topic"))
    with_members = context.shard.size_bytes
    assert context.restarted().shard.store.size_bytes == store.size_bytes
    context.leave(*((member.member_id, None) for member in members))
    assert _offsets_bytes(context) < context.shard.size_bytes < with_members
    context.delete_groups("simple", GROUP)
    assert context.shard.size_bytes == 0


@pytest.fixture
def small():
    config = {"offsets.topic.num.partitions": "2", "group.coordinator.max.state.bytes": "300000"}
    with EmbeddedBroker(config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", 400)
        yield connection


def _commit(connection: RawConnection, group: str, numbers: range, metadata: str = "") -> set[int]:
    topics = commit_topics(OffsetCommitRequest, {"t": dict.fromkeys(numbers, 1)}, committed_metadata=metadata)
    request = OffsetCommitRequest(group_id=group, topics=topics)
    return {each.error_code for topic in connection.call(request, 8).topics for each in topic.partitions}


def test_offsets_and_metadata_of_an_existing_group_are_bounded_and_known_ones_are_committed_still(small):
    assert _commit(small, "g", range(10)) == _commit(small, "other", range(10)) == {0}
    codes = [_commit(small, "g", range(start, start + 10), "m" * 1_000) for start in range(0, 400, 10)]
    assert 15 < codes.index({15}) < 30 and {15} == set.union(*codes[codes.index({15}) :])
    assert _commit(small, "other", range(10)) == {0}
    assert _commit(small, "other", range(10), "longer") == {15}
    assert _commit(small, "g", range(10), "m" * 1_000) == {0}


def _add_partitions(connection: RawConnection, name: str, producer, topic: str, numbers: list[int]) -> int:
    wanted = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name, v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch, v3_and_below_topics=[wanted],
    )  # fmt: skip
    (result,) = connection.call(request, 3).results_by_topic_v3_and_below
    return result.results_by_partition[0].partition_error_code


def test_transactional_ids_are_bounded_and_known_ones_can_be_used_still(small, monkeypatch):
    monkeypatch.setattr(transaction_runtime, "MAX_STATE_BYTES", 5_000)

    def init(number: int):
        request = InitProducerIdRequest(transactional_id=f"t{number}", transaction_timeout_ms=10_000)
        return small.call(request, 2)

    producers = [init(number) for number in range(8)]
    assert [producer.error_code for producer in producers] == [0] * 5 + [15] * 3
    assert init(1).error_code == 0
    assert _add_partitions(small, "t0", producers[0], "t", list(range(20))) == 0
    assert _add_partitions(small, "t2", producers[2], "t", [0]) == 15


def test_all_state_shares_a_budget():
    budget = StateBudget(1_000)
    parts = [300, 500]
    for number in range(2):
        budget.add_part(lambda number=number: parts[number])
    assert budget.used_bytes == 800 and not budget.is_full(200) and budget.is_full(201)


def test_above_the_budget_nothing_is_added_and_what_is_known_can_be_used(monkeypatch):
    config = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with EmbeddedBroker(config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", 30)
        init = InitProducerIdRequest(transactional_id="known", transaction_timeout_ms=10_000)
        assert connection.call(init, 2).error_code in (0, 14, 15) and _commit(connection, "g", range(5)) <= {0, 14}
        monkeypatch.setattr(StateBudget, "left_bytes", property(lambda self: -(2**40)))
        assert create_topic(connection, "other").error_code == ErrorCode.POLICY_VIOLATION
        # a few offsets may be added until the memory of all state is added up again
        codes = [_commit(connection, "g", range(number, number + 1), "m" * 4_000) for number in range(5, 30)]
        assert {ErrorCode.COORDINATOR_NOT_AVAILABLE} == set.union(*codes[-5:])
        assert _commit(connection, "g", range(5)) == {0}
        other = InitProducerIdRequest(transactional_id="other", transaction_timeout_ms=10_000)
        assert connection.call(other, 2).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert connection.call(init, 2).error_code == 0
