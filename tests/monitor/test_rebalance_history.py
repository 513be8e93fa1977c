"""Causes of rebalances, inferred from group records."""

from __future__ import annotations

from typing import Iterable

from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.group_steps import CommitTracker, GroupRecord
from spark_groupsource.monitor.rebalances.history_events import history_events
from spark_groupsource.monitor.rebalances.rebalance import Cause, MemberMove, Origin, Rebalance
from spark_groupsource.wire.consumer_protocol import encode_assignment, encode_subscription
from spark_groupsource.wire.group_events import EventKind, GroupEvent
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


def rebalances(records: Iterable[GroupRecord], reports: Iterable[GroupEvent] = ()) -> list[Rebalance]:
    """Rebalances of the history alone; the reports are evidence for it only."""
    return rebalances_from_events((), history_events("g", records, reports))


def report(kind: EventKind, generation: int, member_id: str, at_ms: int = 0) -> GroupEvent:
    return GroupEvent(at_ms, "g", kind, generation, member_id, application="app")


def last(*records: GroupRecord) -> Rebalance:
    return rebalances(records)[-1]


def test_first_member() -> None:
    (found,) = rebalances([record(1, member("a", 0, 1))])
    assert (found.generation, found.cause, found.difference) == (1, "JOINED", "Joined: a.")
    assert (found.completed_ms, found.phases.sync_ms, found.members) == (1_040, 40, 1)
    assert found.actor is not None and (found.actor.client_id, found.actor.host) == ("a", "/10.0.0.1")


def test_a_member_joins_and_partitions_move() -> None:
    found = last(record(1, member("a", 0, 1)), record(2, member("a", 0), member("b", 1)))
    assert (found.cause, found.actor and found.actor.client_id) == ("JOINED", "b")
    assert (found.partitions_moved, found.partitions_unassigned) == (1, 0)


def test_a_member_leaves() -> None:
    found = last(record(1, member("a", 0), member("b", 1)), record(2, member("a", 0, 1)))
    assert (found.cause, found.difference) == ("LEFT", "No longer a member: b (LEFT).")
    assert found.actor is not None and found.actor.client_id == "b"


def test_the_last_member_leaves() -> None:
    found = last(record(1, member("a", 0, 1)), record(2))
    assert (found.cause, found.members, found.partitions_unassigned, found.phases.sync_ms) == ("LEFT", 0, 2, None)


def test_a_member_is_replaced_by_another() -> None:
    found = last(record(1, member("a", 0)), record(2, member("b", 0)))
    assert (found.cause, found.difference) == ("JOINED", "Joined: b; no longer a member: a.")


def test_subscription_changes() -> None:
    found = last(record(1, member("a", 0), member("b", 1)), record(2, member("a", 0), member("b", topics=("t", "u"))))
    assert (found.cause, found.actor and found.actor.client_id) == ("SUBSCRIPTION_CHANGED", "b")


def test_partitions_are_added() -> None:
    found = last(record(1, member("a", 0), member("b", 1)), record(2, member("a", 0, 2), member("b", 1)))
    assert (found.cause, found.actor and found.actor.client_id) == ("PARTITIONS_CHANGED", "a")
    assert found.partitions_moved == 0


def test_assignor_changes() -> None:
    found = last(record(1, member("a", 0)), record(2, member("a", 0), protocol="sticky"))
    assert (found.cause, found.difference) == ("ASSIGNOR_CHANGED", "Assignor sticky, before range.")


def test_leader_rejoins() -> None:
    assert last(record(1, member("a", 0)), record(2, member("a", 0))).cause == "LEADER_REJOINED"


def test_second_round_of_a_cooperative_rebalance() -> None:
    name = "cooperative-sticky"
    first = record(1, member("a", 0, 1), protocol=name)
    second = record(2, member("a", 0), member("b"), protocol=name)
    third = record(3, member("a", 0), member("b", 1), protocol=name)
    found = rebalances([first, second, third])
    assert [each.cause for each in found] == ["JOINED", "JOINED", "COOPERATIVE_SECOND_ROUND"]
    assert [each.partitions_unassigned for each in found] == [0, 1, 0]


def test_a_static_member_is_replaced_within_a_generation() -> None:
    found = last(record(1, member("a", 0, instance="i")), record(1, member("a", 0, instance="i", number=2)))
    assert (found.generation, found.cause) == (1, "STATIC_REPLACED")


def test_a_repeated_record_is_no_rebalance() -> None:
    assert len(rebalances([record(1, member("a", 0)), record(1, member("a", 0))])) == 1


def test_cause_is_unknown_where_compaction_has_removed_the_records_before() -> None:
    first, second = rebalances([record(7, member("a", 0)), record(8, member("a", 0))])
    assert (first.cause, first.actor, second.cause) == ("UNKNOWN", None, "LEADER_REJOINED")


def test_a_deleted_group_starts_anew() -> None:
    again = record(1, member("b", 0))._replace(timestamp_ms=10_000)
    found = last(record(5, member("a", 0)), GroupRecord(9_000, None), again)
    assert (found.cause, found.difference) == ("JOINED", "Joined: b.")


# -- with commits ----------------------------------------------------------------------------------------------------

SESSION_MS, POLL_MS = 45_000, 300_000
Event = tuple[int, "int | tuple[MemberValue, ...]"]


def history(
    *events: Event, generation: int = 1, protocol: str = "range", epochs: Iterable[int] = ()
) -> list[Rebalance]:
    """Rebalances of a log: (time, partition) is a commit, (time, members) a group record 40 ms after its join phase."""
    tracker, found, epoch, generation = CommitTracker(), [], iter(epochs), 1
    for at_ms, content in sorted(events, key=lambda event: event[0]):
        if isinstance(content, int):
            tracker.commit(TopicPartition("t", content), at_ms)
            continue
        leader = content[0].member_id if content else None
        value = GroupValue("consumer", generation, protocol if content else None, leader, at_ms - 40, content)
        found.append(tracker.record(at_ms, value, next(epoch, -1)))
        generation += 1
    return rebalances(found)


def commits(partition: int, start_ms: int, end_ms: int, every_ms: int = 5_000) -> list[Event]:
    return [(at_ms, partition) for at_ms in range(start_ms, end_ms, every_ms)]


A, B = member("a", 0), member("b", 1)
BOTH: Event = (1_000, (A, B))


def test_session_expired_if_the_commits_ended_the_session_timeout_before() -> None:
    end_ms = 102_000
    events = [BOTH, *commits(0, 2_000, end_ms), *commits(1, 2_000, 57_000), (end_ms, (A,))]
    found = history(*events)[-1]
    assert (found.cause, found.actor and found.actor.client_id) == (Cause.SESSION_EXPIRED, "b")
    assert found.origins["cause"] is Origin.INFERRED and found.origins["completed_ms"] is Origin.SEEN
    assert history(BOTH, *commits(0, 2_000, end_ms), *commits(1, 2_000, 100_000), (end_ms, (A,)))[-1].cause == "LEFT"


def test_a_timeout_that_has_not_elapsed_since_the_assignment_is_not_the_cause() -> None:
    assert history(BOTH, (1_000 + SESSION_MS - 1_000, (A,)))[-1].cause == "LEFT"


def test_poll_exceeded_if_the_client_returns_after_the_poll_interval() -> None:
    end_ms = 10_000 + POLL_MS + 1_000
    again = member("b", 1, number=2)
    quiet = [BOTH, *commits(0, 2_000, end_ms + 60_000), *commits(1, 2_000, 10_000), (end_ms, (A,))]
    found = history(*quiet, (end_ms + 60_000, (A, again)))
    assert [each.cause for each in found[1:]] == ["POLL_EXCEEDED", "JOINED"]
    assert all(each.actor and each.actor.client_id == "b" for each in found[1:])


def test_poll_exceeded_if_the_client_commits_in_the_background() -> None:
    # the last commit is one interval after the last poll
    end_ms = 13_000 + POLL_MS
    quiet = [BOTH, *commits(0, 2_000, end_ms + 60_000), *commits(1, 2_000, 18_000), (end_ms, (A,))]
    found = history(*quiet, (end_ms + 60_000, (A, member("b", 1, number=2))))
    assert found[1].cause == "POLL_EXCEEDED"


def test_a_member_that_does_not_return_after_both_timeouts_has_expired() -> None:
    short = B._replace(rebalance_timeout_ms=50_000)
    end_ms = 57_000 + 51_000
    quiet = [(1_000, (A, short)), *commits(0, 2_000, end_ms), *commits(1, 2_000, 57_000), (end_ms, (A,))]
    assert history(*quiet)[-1].cause == "SESSION_EXPIRED"
    again = short._replace(member_id="b-2")
    assert history(*quiet, (end_ms + 9_000, (A, again)))[1].cause == "POLL_EXCEEDED"


def test_a_rebalance_timeout_that_is_the_session_timeout_is_no_poll_interval() -> None:
    # a paused process of aiokafka, which continues and joins again
    paused = B._replace(rebalance_timeout_ms=SESSION_MS)
    end_ms = 57_000 + SESSION_MS
    quiet = [(1_000, (A, paused)), *commits(0, 2_000, end_ms), *commits(1, 2_000, 57_000), (end_ms, (A,))]
    again = paused._replace(member_id="b-2")
    assert history(*quiet, (end_ms + 4_000, (A, again)))[1].cause == "SESSION_EXPIRED"


def test_a_member_that_is_removed_returns_at_once() -> None:
    again = member("b", 1, number=2)
    steady = [BOTH, *commits(0, 2_000, 60_000), *commits(1, 2_000, 60_000)]
    assert history(*steady, (60_000, (A, again)))[-1].cause == "REMOVED_BY_OPERATOR"
    assert [each.cause for each in history(*steady, (60_000, (A,)), (64_000, (A, again)))[1:]] == [
        "REMOVED_BY_OPERATOR",
        "JOINED",
    ]
    # a member that is closed commits before it leaves
    assert history(*steady, (58_500, 1), (60_000, (A, again)))[-1].cause == "LEFT"
    # the usual time between commits counts, not a longer one on a busy broker
    late = [(BOTH), *commits(0, 2_000, 60_000), *commits(1, 2_000, 30_000), *commits(1, 33_500, 60_000)]
    assert history(*late, (60_000, (A, again)))[-1].cause == "REMOVED_BY_OPERATOR"
    # several members may have the same client id
    twin = member("b", 2, number=7)
    assert history((1_000, (A, B, twin)), (60_000, (A, twin, again)))[-1].cause == "JOINED"


def test_members_that_return_one_after_the_other_are_started_again() -> None:
    """A rolling restart; one client alone is removed more probably than its process is started again in 8 s."""
    c, again, c_again = member("c", 2), member("b", 1, number=2), member("c", 2, number=2)
    steady = [(1_000, (A, B, c)), *(each for number in range(3) for each in commits(number, 2_000, 60_000))]
    both = [(60_000, (A, c)), (62_000, (A, again, c)), (66_000, (A, again)), (68_000, (A, again, c_again))]
    assert [each.cause for each in history(*steady, *both)[1:]] == ["LEFT", "JOINED", "LEFT", "JOINED"]
    # each once: a second departure is another event
    removed = [*both, (75_000, (A, c_again)), (77_000, (A, member("b", 1, number=3), c_again))]
    assert history(*steady, *removed, *commits(1, 68_000, 75_000))[-2].cause == "REMOVED_BY_OPERATOR"
    # one whose session has expired was not started again: SESSION_MS after its last commit, 20 s before the other
    expired = [(1_000, (A, B, c)), *commits(0, 2_000, 120_000), *commits(1, 2_000, 100_000), *commits(2, 2_000, 50_000)]
    back = [(94_000, (A, B)), (96_000, (A, B, c_again)), (102_000, (A, again, c_again))]
    assert [each.cause for each in history(*expired, *back)[1:]] == ["SESSION_EXPIRED", "JOINED", "REMOVED_BY_OPERATOR"]
    later = [(at_ms + 40_000, members) for at_ms, members in both[2:]]
    found = history(*steady, *both[:2], *commits(0, 62_000, 105_000), *commits(2, 62_000, 105_000), *later)
    assert [each.cause for each in found[1::2]] == ["REMOVED_BY_OPERATOR", "REMOVED_BY_OPERATOR"]


def test_members_that_report_know_more_than_the_history() -> None:
    removed = [record(1, A, B), record(2, A, member("b", 1, number=2))]
    back, left = report(EventKind.MEMBER_JOINING, 2, "b-2"), report(EventKind.MEMBER_LEFT, 1, "b-1")
    found = [rebalances(removed, reports)[-1] for reports in ([], [left, back], [back])]
    # a member that is removed reports it; a process that is started again does not
    assert [each.cause for each in found] == ["REMOVED_BY_OPERATOR", "REMOVED_BY_OPERATOR", "LEFT"]
    gone = [record(1, A, B), record(400, A, member("c"))]
    waits_ms = POLL_MS - 4_000, POLL_MS - 3_000
    first = [report(EventKind.MEMBER_JOINING, 400, "a-1", 400_000 - wait_ms) for wait_ms in waits_ms]
    found = [rebalances(gone, [joining])[-1] for joining in first]
    assert [(r.cause, r.actor and r.actor.client_id) for r in found] == [("JOINED", "c"), ("JOIN_TIMED_OUT", "b")]
    # a former group with the same generations is another one
    assert rebalances(gone, [first[1]._replace(member_id="x-1")])[-1].cause == "JOINED"
    same = [record(1, A, B), record(2, A, B)]
    joining = report(EventKind.MEMBER_JOINING, 2, "a-1", 2_000)
    own = rebalances(same, [report(EventKind.REBALANCE_STARTED, 2, "a-1", 2_000), joining])[-1]
    brief = rebalances(same, [joining])[-1]
    assert (own.cause, brief.cause, brief.actor) == ("LEADER_REJOINED", "JOINED", None)
    assert brief.difference == "Same members: another one joined and left before the assignment."


def test_a_static_member_that_is_gone_has_expired_or_was_removed() -> None:
    static = member("b", 1, instance="i")
    steady = [(1_000, (A, static)), *commits(0, 2_000, 110_000), *commits(1, 2_000, 58_000)]
    assert history(*steady, (60_000, (A,)))[-1].cause == "REMOVED_BY_OPERATOR"
    assert history(*steady, (105_000, (A,)))[-1].cause == "SESSION_EXPIRED"


def test_join_timed_out_if_the_others_waited_for_the_rebalance_timeout() -> None:
    c = member("c", 1)
    end_ms = 60_000 + POLL_MS
    events = [BOTH, *commits(0, 2_000, 59_000), *commits(1, 2_000, 61_000), (end_ms, (A, c))]
    found = history(*events)[-1]
    assert (found.cause, found.actor and found.actor.client_id) == (Cause.JOIN_TIMED_OUT, "b")
    assert found.slowest_member == "b-1" and found.started_ms == end_ms - 40 - POLL_MS
    assert found.phases.join_ms == POLL_MS


def test_an_outage_of_the_coordinator_is_no_join_timeout() -> None:
    c = member("c", 1)
    end_ms = 60_000 + POLL_MS
    events = [BOTH, *commits(0, 2_000, 59_000), *commits(1, 2_000, 61_000), (end_ms, (A, c))]
    assert history(*events, epochs=(3, 4))[-1].cause == "JOINED"
    gone = [record(1, A, B)._replace(leader_epoch=3), record(400, A, c)._replace(leader_epoch=4)]
    waited = report(EventKind.MEMBER_JOINING, 400, "a-1", 400_000 - POLL_MS)
    assert rebalances(gone, [waited])[-1].cause == "JOINED"


def test_an_outage_of_the_coordinator_is_no_long_batch() -> None:
    end_ms = 10_000 + POLL_MS + 1_000
    quiet = [BOTH, *commits(0, 2_000, end_ms), *commits(1, 2_000, 10_000), (end_ms, (A,))]
    again = (end_ms + 5_000, (A, member("b", 1, number=2)))
    assert [history(*quiet, again, epochs=epochs)[1].cause for epochs in ((3, 4, 4), (3, 3, 3))] == [
        "SESSION_EXPIRED",
        "POLL_EXCEEDED",
    ]


def test_coordinator_moved_if_the_leader_epoch_changed() -> None:
    assert history(BOTH, (9_000, (A, B)), epochs=(3, 4))[-1].cause == "COORDINATOR_MOVED"
    assert history(BOTH, (9_000, (A, B)), epochs=(3, 3))[-1].cause == "LEADER_REJOINED"
    # not all partitions have a leader again
    assert history(BOTH, (9_000, (A, member("b"))), epochs=(3, 4))[-1].cause == "COORDINATOR_MOVED"
    again = (member("a", 0, number=2), member("b", 1, number=2))
    assert history(BOTH, (9_000, again), epochs=(3, 4))[-1].cause == "COORDINATOR_MOVED"
    assert history(BOTH, (9_000, (A, B, member("c"))), epochs=(3, 4))[-1].cause == "JOINED"
    # a member that is back, while another one is not yet
    first, second = (A, member("b", 1, number=2)), (A, member("b", number=2), member("c", 1, number=2))
    three = (1_000, (A, B, member("c", 2)))
    found = history(three, (9_000, first), (12_000, second), epochs=(3, 4, 4))
    assert [each.cause for each in found] == ["JOINED", "COORDINATOR_MOVED", "JOINED"]
    # several members may have the same client id
    twins = (member("a", 0, number=3), member("a", 1, number=4))
    again = (member("a", 0, number=5), member("a", 1, number=6))
    assert history((1_000, twins), (9_000, again), epochs=(3, 4))[-1].cause == "COORDINATOR_MOVED"


def test_assignor_changes_with_a_member_that_returns() -> None:
    found = last(record(1, A, B), record(2, A, member("b", 1, number=2), protocol="sticky"))
    assert (found.cause, found.actor and found.actor.member_id) == ("ASSIGNOR_CHANGED", "b-2")


def test_times_and_effect() -> None:
    found = last(record(1, member("a", 0, 1)), record(2, member("a", 0), member("b", 1)))
    assert found.moves == {"a-1": MemberMove(0, 1), "b-1": MemberMove(1, 0)}
    # both partitions of the eager protocol during the sync phase of 40 ms
    assert found.unowned_seconds == 0.08 and found.started_ms is None
    assert last(record(1, member("a", 0)), record(2)).started_ms == 2_000
    name = "cooperative-sticky"
    records = [record(1, member("a", 0, 1), protocol=name), record(2, member("a", 0), member("b"), protocol=name)]
    first, second = rebalances([*records, record(3, member("a", 0), member("b", 1), protocol=name)])[1:]
    # the partition has an owner again after the second one
    assert (first.unowned_seconds, second.unowned_seconds) == (0.0, 1.0) and second.started_ms == first.completed_ms
    assert second.actor and second.actor.client_id == "a"


def test_a_static_member_that_is_replaced_starts_no_join_phase() -> None:
    """The record repeats the generation, with the time at which the group became Stable."""
    first = record(1, member("a", 0, instance="i"), member("b", 1))
    assert first.value is not None
    # after the record, which the coordinator appends before the group is Stable
    members = member("a", 0, instance="i", number=2), member("b", 1)
    again = first.value._replace(state_timestamp_ms=1_045, members=members)
    found = last(first, GroupRecord(60_000, again))
    assert (found.cause, found.generation, found.completed_ms) == ("STATIC_REPLACED", 1, 60_000)
    assert (found.phases.sync_ms, found.unowned_seconds) == (0, 0.0)


def test_the_record_of_a_new_group_is_the_start_of_its_first_rebalance() -> None:
    created = GroupRecord(500, GroupValue("consumer", 0, None, None, 500))
    (found,) = rebalances([created, record(1, member("a", 0))])
    assert (found.cause, found.started_ms, found.phases.join_ms) == ("JOINED", 500, 500)
