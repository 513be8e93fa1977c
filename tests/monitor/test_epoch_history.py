"""Rebalances of groups without generations, from their records."""

from __future__ import annotations

from typing import Any

from spark_groupsource.monitor.rebalances.epoch_history import EpochRecord, epoch_events, epoch_facts
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.explanation import Explanation
from spark_groupsource.monitor.rebalances.rebalance import Cause, MemberMove, Origin, Rebalance


def member(at_ms: int, name: str, topics: tuple[str, ...] = ("t",), instance: str | None = None) -> EpochRecord:
    value = {"clientId": name[0], "clientHost": "/h", "instanceId": instance, "subscribedTopicNames": list(topics)}
    return EpochRecord(at_ms, 5, name, value)


def gone(at_ms: int, name: str) -> list[EpochRecord]:
    return [EpochRecord(at_ms, 8, name, None), EpochRecord(at_ms, 5, name, None)]


def epoch(at_ms: int, number: int) -> EpochRecord:
    return EpochRecord(at_ms, 3, None, {"epoch": number})


def owns(at_ms: int, name: str, number: int, *partitions: int) -> EpochRecord:
    topics = [{"topicId": "id", "partitions": list(partitions)}]
    return EpochRecord(at_ms, 8, name, {"memberEpoch": number, "assignedPartitions": topics})


FIRST = [member(0, "a1"), epoch(0, 1), owns(5, "a1", 1, 0, 1)]
SECOND = [member(100, "b1"), epoch(100, 2), owns(140, "a1", 2, 0), owns(190, "b1", 2, 1)]


def rebalances(records: list[EpochRecord]) -> list[Rebalance]:
    return rebalances_from_events((), epoch_events("g", records))


def last(*records: Any) -> Any:
    flat = [each for part in records for each in (part if isinstance(part, list) else [part])]
    return rebalances(flat)[-1]


def test_member_joins_and_partitions_move() -> None:
    first, second = rebalances([*FIRST, *SECOND])
    assert (first.generation, first.cause, first.members) == (1, Cause.JOINED, 1)
    assert (second.started_ms, second.completed_ms, second.members) == (100, 190, 2)
    assert second.actor is not None and (second.actor.client_id, second.origins["cause"]) == ("b", Origin.SEEN)
    assert second.moves == {"a1": MemberMove(0, 1), "b1": MemberMove(1, 0)} and second.partitions_moved == 1


def test_causes() -> None:
    left = last(FIRST, SECOND, gone(300, "b1"), epoch(300, 3))
    assert (left.cause, left.actor.client_id, left.origins["cause"]) == (Cause.LEFT, "b", Origin.INFERRED)
    assert last(FIRST, member(300, "a1", ("t", "u")), epoch(300, 2)).cause is Cause.SUBSCRIPTION_CHANGED
    assert last(FIRST, epoch(300, 2)).cause is Cause.PARTITIONS_CHANGED
    static = [member(0, "s1", instance="i"), epoch(0, 1)]
    replaced = last(static, gone(300, "s1"), member(300, "s2", instance="i"), epoch(300, 2))
    assert (replaced.cause, replaced.actor.member_id) == (Cause.STATIC_REPLACED, "s2")
    assert last(epoch(300, 7)).cause is Cause.UNKNOWN
    deleted = [EpochRecord(400, 3, None, None), member(500, "c1"), epoch(500, 1)]
    assert (last(FIRST, deleted).cause, last(FIRST, deleted).members) == (Cause.JOINED, 1)


def test_moves_of_an_epoch_do_not_contain_the_removal_that_follows() -> None:
    """The coordinator deletes the records of a member before it increases the epoch."""
    records = [*FIRST, *SECOND, *gone(300, "b1"), epoch(300, 3), owns(310, "a1", 3, 0, 1)]
    _, joined, left = rebalances(records)
    assert joined.moves == {"a1": MemberMove(0, 1), "b1": MemberMove(1, 0)} and joined.partitions_moved == 1
    assert left.moves == {"a1": MemberMove(1, 0), "b1": MemberMove(0, 1)} and left.partitions_moved == 1
    text = repr(Explanation(epoch_facts("g", records), [left], ()))
    assert "Epoch 3: b (/h) left, or its session expired [inferred]." in text


def test_facts_and_sentences() -> None:
    facts = epoch_facts("g", [*FIRST, *SECOND])
    assert [(m.client_id, m.partitions) for m in facts.members] == [("a", 1), ("b", 1)] and facts.protocol is None
    text = repr(Explanation(facts, rebalances([*FIRST, *SECOND])[1:], ()))
    assert "Epoch 2: b (/h) joined." in text and "1 partition moved; 2 members." in text
