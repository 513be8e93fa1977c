"""Causes of rebalances, inferred from group records."""

from __future__ import annotations

from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.monitor.rebalances import GroupRecord, Rebalance, rebalances
from spark_groupsource.wire.consumer_protocol import encode_assignment, encode_subscription
from spark_groupsource.wire.group_records import GroupValue, MemberValue


def member(
    name: str, *partitions: int, topics: tuple[str, ...] = ("t",), instance: str | None = None, number: int = 1
) -> MemberValue:
    assigned = tuple(TopicPartition("t", number) for number in partitions)
    return MemberValue(
        f"{name}-{number}",
        instance,
        name,
        "/10.0.0.1",
        300_000,
        45_000,
        encode_subscription(Subscription(topics)),
        encode_assignment(Assignment(assigned)),
    )


def record(generation: int, *members: MemberValue, protocol: str | None = "range") -> GroupRecord:
    leader = members[0].member_id if members else None
    value = GroupValue("consumer", generation, protocol if members else None, leader, generation * 1_000, members)
    return GroupRecord(generation * 1_000 + 40, value)


def last(*records: GroupRecord) -> Rebalance:
    return list(rebalances(records))[-1]


def test_first_member() -> None:
    (found,) = rebalances([record(1, member("a", 0, 1))])
    assert (found.generation, found.cause, found.reason) == (1, "JOINED", "Joined: a.")
    assert (found.completed_ms, found.sync_ms, found.members) == (1_040, 40, 1)
    assert found.actor is not None and (found.actor.client_id, found.actor.client_host) == ("a", "/10.0.0.1")


def test_a_member_joins_and_partitions_move() -> None:
    found = last(record(1, member("a", 0, 1)), record(2, member("a", 0), member("b", 1)))
    assert (found.cause, found.actor and found.actor.client_id) == ("JOINED", "b")
    assert (found.partitions_moved, found.partitions_unassigned) == (1, 0)


def test_a_member_leaves() -> None:
    found = last(record(1, member("a", 0), member("b", 1)), record(2, member("a", 0, 1)))
    assert (found.cause, found.reason) == ("LEFT", "No longer a member: b.")
    assert found.actor is not None and found.actor.client_id == "b"


def test_the_last_member_leaves() -> None:
    found = last(record(1, member("a", 0, 1)), record(2))
    assert (found.cause, found.members, found.partitions_unassigned, found.sync_ms) == ("LEFT", 0, 2, None)


def test_a_member_is_replaced_by_another() -> None:
    found = last(record(1, member("a", 0)), record(2, member("a", 0, number=2)))
    assert (found.cause, found.reason) == ("JOINED", "Joined: a; no longer a member: a.")


def test_subscription_changes() -> None:
    found = last(record(1, member("a", 0), member("b", 1)), record(2, member("a", 0), member("b", topics=("t", "u"))))
    assert (found.cause, found.actor and found.actor.client_id) == ("SUBSCRIPTION_CHANGED", "b")


def test_partitions_are_added() -> None:
    found = last(record(1, member("a", 0), member("b", 1)), record(2, member("a", 0, 2), member("b", 1)))
    assert (found.cause, found.actor and found.actor.client_id) == ("PARTITIONS_CHANGED", "a")
    assert found.partitions_moved == 0


def test_assignor_changes() -> None:
    found = last(record(1, member("a", 0)), record(2, member("a", 0), protocol="sticky"))
    assert (found.cause, found.reason) == ("ASSIGNOR_CHANGED", "Assignor sticky, before range.")


def test_leader_rejoins() -> None:
    assert last(record(1, member("a", 0)), record(2, member("a", 0))).cause == "LEADER_REJOINED"


def test_second_round_of_a_cooperative_rebalance() -> None:
    name = "cooperative-sticky"
    first = record(1, member("a", 0, 1), protocol=name)
    second = record(2, member("a", 0), member("b"), protocol=name)
    third = record(3, member("a", 0), member("b", 1), protocol=name)
    found = list(rebalances([first, second, third]))
    assert [each.cause for each in found] == ["JOINED", "JOINED", "COOPERATIVE_SECOND_ROUND"]
    assert [each.partitions_unassigned for each in found] == [0, 1, 0]


def test_a_static_member_is_replaced_within_a_generation() -> None:
    found = last(record(1, member("a", 0, instance="i")), record(1, member("a", 0, instance="i", number=2)))
    assert (found.generation, found.cause) == (1, "STATIC_REPLACED")


def test_a_repeated_record_is_no_rebalance() -> None:
    assert len(list(rebalances([record(1, member("a", 0)), record(1, member("a", 0))]))) == 1


def test_cause_is_unknown_where_compaction_has_removed_the_records_before() -> None:
    first, second = rebalances([record(7, member("a", 0)), record(8, member("a", 0))])
    assert (first.cause, first.actor, second.cause) == ("UNKNOWN", None, "LEADER_REJOINED")


def test_a_deleted_group_starts_anew() -> None:
    found = last(record(5, member("a", 0)), GroupRecord(9_000, None), record(1, member("b", 0)))
    assert (found.cause, found.reason) == ("JOINED", "Joined: b.")
