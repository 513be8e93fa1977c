"""One scenario of a group, seen by each source of its rebalances."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import pytest
from support.observed_group import POLL_MS, SESSION_MS, ObservedGroup, ObservedMember

from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Origin, Phases, Rebalance
from spark_groupsource.monitor.rebalances.rebalance_sources import rebalances_of_group
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.member_reasons import METADATA_CHANGED, REMOVED_BY_ADMIN, REVOKE_AND_REJOIN

SETTLE_MS = 20_000
POLL_EXPIRED = "consumer poll timeout has expired."


def member_joins(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.rebalance(group.add("c"))


def member_leaves(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.leave(b, Cause.LEFT, "the query was stopped")
    group.end(b)
    group.rebalance()


def session_expires(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.end(b)
    group.run(SESSION_MS + 1_000)
    group.rebalance()


def member_is_paused(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    b.is_alive = False
    group.run(SESSION_MS + 1_000)
    group.rebalance()
    group.run(SETTLE_MS)
    b.is_alive = True
    group.run(1_000)
    group.rebalance(b)


def misses_the_join_timeout(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    b.is_busy = True
    group.rebalance(a, reason=METADATA_CHANGED)
    b.is_busy = False
    group.run(SETTLE_MS)
    group.rebalance(b)


def static_member_restarts(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.restart_member(group.members["s"])


def leader_changes_subscription(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    a.topics = ("t", "u")
    group.rebalance(a, reason="subscription has changed")


def partitions_are_added(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.partitions += 2
    group.rebalance(a, reason=METADATA_CHANGED)


def coordinator_moves(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.restart_coordinator()
    group.rebalance(a, reason="rebalance failed due to NOT_COORDINATOR from JoinGroup response")


def group_empties(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    member_leaves(group, a, b)
    group.run(SETTLE_MS)
    group.leave(a, Cause.LEFT, "the query was stopped")
    group.end(a)


def offsets_expire(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group_empties(group, a, b)
    group.expire_offsets()
    group.rebalance(group.add("c"))


def poll_timeout(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    b.is_busy = True
    group.run(POLL_MS)
    b.is_busy = False
    group.leave(b, Cause.POLL_EXCEEDED, POLL_EXPIRED)
    group.rebalance()
    group.run(SETTLE_MS)
    group.rebalance(b)


def removed_by_operator(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.leave(b, Cause.REMOVED_BY_OPERATOR, REMOVED_BY_ADMIN, client_id="operator")
    group.run(2_000)
    group.rebalance(b)


def leader_rejoins(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.rebalance(a, reason="rebalance enforced by user")


def cooperative_hand_over(group: ObservedGroup, a: ObservedMember, b: ObservedMember) -> None:
    group.rebalance(group.add("c"))
    group.rebalance(a, reason=REVOKE_AND_REJOIN)


class Case(NamedTuple):
    """What happens, and the cause and client of the rebalances that follow.

    Attributes:
        expected: by the coordinator, the history, and all sources together.
        reports: by the reports of the members alone; "UNKNOWN" where none of those that report knows it.
        history: by the history alone, where it shows less.
        group: the assignor; "static" for a group that has a static member, too.
    """

    act: Callable[[ObservedGroup, ObservedMember, ObservedMember], None]
    expected: tuple[str, ...]
    reports: tuple[str, ...]
    history: tuple[str, ...] = ()
    group: str = "range"


CASES = [
    Case(member_joins, ("JOINED c",), ("JOINED c",)),
    Case(member_leaves, ("LEFT b",), ("UNKNOWN",)),
    Case(session_expires, ("SESSION_EXPIRED b",), ("UNKNOWN",)),
    Case(member_is_paused, ("SESSION_EXPIRED b", "JOINED b"), ("SESSION_EXPIRED b", "JOINED b")),
    Case(misses_the_join_timeout, ("JOIN_TIMED_OUT b", "JOINED b"), ("PARTITIONS_CHANGED a", "JOINED b")),
    Case(static_member_restarts, ("STATIC_REPLACED s",), ("JOINED s",), group="static"),
    Case(leader_changes_subscription, ("SUBSCRIPTION_CHANGED a",), ("SUBSCRIPTION_CHANGED a",)),
    Case(partitions_are_added, ("PARTITIONS_CHANGED a",), ("PARTITIONS_CHANGED a",)),
    Case(coordinator_moves, ("COORDINATOR_MOVED a",), ("COORDINATOR_MOVED a",), ("COORDINATOR_MOVED",)),
    Case(group_empties, ("LEFT b", "LEFT a"), ("UNKNOWN",)),
    # only the log shows that the first generation occurs twice
    Case(offsets_expire, ("LEFT b", "LEFT a", "JOINED c"), ("UNKNOWN", "JOINED a")),
    Case(poll_timeout, ("POLL_EXCEEDED b", "JOINED b"), ("POLL_EXCEEDED b", "JOINED b")),
    Case(removed_by_operator, ("REMOVED_BY_OPERATOR b",), ("REMOVED_BY_OPERATOR b",)),
    Case(leader_rejoins, ("LEADER_REJOINED a",), ("LEADER_REJOINED a",)),
    Case(
        cooperative_hand_over,
        ("JOINED c", "COOPERATIVE_SECOND_ROUND a"),
        ("JOINED c", "COOPERATIVE_SECOND_ROUND a"),
        group="cooperative-sticky",
    ),
]


def texts(rebalances: list[Rebalance], after: int) -> tuple[str, ...]:
    found = [r for r in rebalances if r.completed_ms >= after]
    return tuple(" ".join([r.cause.value, *([str(r.actor.client_id)] if r.actor else [])]) for r in found)


class Sources(NamedTuple):
    """Rebalances of one scenario by source; `begin_ms` is its start."""

    begin_ms: int
    coordinator: list[Rebalance]
    history: list[Rebalance]
    reports: list[Rebalance]
    any_kafka: list[Rebalance]
    everything: list[Rebalance]


def observe(case: Case) -> Sources:
    group = ObservedGroup((case.group,) if case.group != "static" else ("range",))
    a, b = group.add("a"), group.add("b")
    group.rebalance(a, b)
    group.run(SETTLE_MS)
    if case.group == "static":
        group.rebalance(group.add("s", instance="s-1"))
        group.run(SETTLE_MS)
    begin_ms = group.now_ms
    case.act(group, a, b)
    group.run(SETTLE_MS)
    return Sources(
        begin_ms,
        rebalances_of_group("g", group.log(False, False), group.events),
        rebalances_of_group("g", group.log(has_reports=False), ()),
        rebalances_of_group("g", group.log(has_records=False), ()),
        rebalances_of_group("g", group.log(), ()),
        rebalances_of_group("g", group.log(), group.events),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.act.__name__)
def test_cause_and_actor_by_each_source(case: Case) -> None:
    found = observe(case)
    assert texts(found.coordinator, found.begin_ms) == case.expected
    assert texts(found.everything, found.begin_ms) == case.expected
    assert texts(found.history, found.begin_ms) == (case.history or case.expected)
    assert texts(found.reports, found.begin_ms) == case.reports
    assert texts(found.any_kafka, found.begin_ms) == case.expected


def effects(rebalances: list[Rebalance]) -> list[tuple[Any, ...]]:
    """What the assignments show."""
    return [
        (r.generation, r.completed_ms, r.members, r.moves, r.partitions_moved, r.partitions_unassigned)
        for r in rebalances
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.act.__name__)
def test_effect_by_each_source(case: Case) -> None:
    found = observe(case)
    assert effects(found.coordinator) == effects(found.history)
    assert effects(found.coordinator) == effects(found.any_kafka)
    assert effects(found.coordinator) == effects(found.everything)
    for exact, inferred, reported in zip(found.coordinator, found.history, found.any_kafka, strict=True):
        # the history alone does not know when members stopped, so that it says less; their reports do
        assert exact.unowned_seconds is not None and inferred.unowned_seconds is not None
        assert inferred.unowned_seconds <= reported.unowned_seconds <= exact.unowned_seconds


# -- what the sources say of one rebalance ---------------------------------------------------------------------------

OWNED = {"a-1": {"t": [0, 1]}}


def event(at_ms: int, kind: EventKind, generation: int, member: str | None = None, **detail: Any) -> GroupEvent:
    application, query = (detail.pop("application", None), detail.pop("query", None))
    host = None if application or member is None else "/10.0.0.1"
    member_id = None if member is None else f"{member}-1"
    values = {name: value for name, value in detail.items() if value is not None}
    return GroupEvent(
        at_ms, "g", kind, generation, member_id, member, host, application=application, query=query, detail=values
    )


def of_group(
    cause: str, member: str, generation: int = 2, at_ms: int = 2_000, reason: str | None = None, **inferred: Any
) -> list[GroupEvent]:
    """A rebalance by the coordinator; with `inferred`, by the history."""
    detail: dict[str, Any] = {"members": {"a-1": ["a", "/10.0.0.1", None]}, "protocol": "range"}
    return [
        event(at_ms, EventKind.REBALANCE_STARTED, generation, member, cause=cause, reason=reason, **inferred),
        event(at_ms + 5, EventKind.JOIN_COMPLETED, generation, **detail),
        event(at_ms + 9, EventKind.ASSIGNED, generation, assignment=OWNED),
    ]


def of_history(cause: str, member: str, generation: int = 2, at_ms: int = 2_000) -> list[GroupEvent]:
    return of_group(cause, member, generation, at_ms, inferred=["cause", "started_ms"], is_late=True)


def of_members(cause: str, member: str, at_ms: int = 2_000) -> list[GroupEvent]:
    names = {"application": "app", "query": "q"}
    return [
        event(at_ms, EventKind.REBALANCE_STARTED, 2, member, cause=cause, **names),
        event(at_ms, EventKind.MEMBER_JOINING, 2, member, **names),
        event(at_ms + 6, EventKind.JOIN_COMPLETED, 2, member, **names),
        event(at_ms + 8, EventKind.ASSIGNED, 2, member, **names),
    ]


@pytest.mark.parametrize(
    ("exact", "inferred", "is_coordinator", "expected"),
    [
        # a client that sends no reason leaves alike when its poll interval has elapsed
        ("LEFT", "POLL_EXCEEDED", True, "POLL_EXCEEDED"),
        ("LEFT", "SESSION_EXPIRED", True, "LEFT"),
        ("STATIC_REPLACED", "ASSIGNOR_CHANGED", True, "ASSIGNOR_CHANGED"),
        ("JOINED", "JOIN_TIMED_OUT", True, "JOINED"),
        ("UNKNOWN", "LEFT", True, "LEFT"),
        # a member does not know whether its own action was the first change
        ("JOINED", "JOIN_TIMED_OUT", False, "JOIN_TIMED_OUT"),
        ("JOINED", "STATIC_REPLACED", False, "STATIC_REPLACED"),
        ("POLL_EXCEEDED", "LEFT", False, "POLL_EXCEEDED"),
        ("LEADER_REJOINED", "PARTITIONS_CHANGED", False, "LEADER_REJOINED"),
        ("JOINED", "UNKNOWN", False, "JOINED"),
    ],
)
def test_sources_that_differ(exact: str, inferred: str, is_coordinator: bool, expected: str) -> None:
    events = of_group(exact, "exact") if is_coordinator else of_members(exact, "exact")
    (found,) = rebalances_from_events(events, of_history(inferred, "inferred"))
    is_inferred = expected == inferred
    assert (found.cause, found.actor and found.actor.client_id) == (expected, "inferred" if is_inferred else "exact")
    assert found.origins["cause"] is (Origin.INFERRED if is_inferred else Origin.SEEN)


def test_a_reason_of_the_coordinator_is_not_refined() -> None:
    events = of_group("LEFT", "b", reason="the consumer is being closed")
    (found,) = rebalances_from_events(events, of_history("POLL_EXCEEDED", "b"))
    assert (found.cause, found.reason) == ("LEFT", "the consumer is being closed")


def test_a_reason_that_names_no_cause_is_kept() -> None:
    events = of_group("UNKNOWN", "a", reason="maintenance")
    (found,) = rebalances_from_events(events, of_history("LEADER_REJOINED", "a"))
    assert (found.cause, found.reason) == ("LEADER_REJOINED", "maintenance")


def test_members_add_what_the_coordinator_does_not_see() -> None:
    (found,) = rebalances_from_events([*of_group("JOINED", "b"), *of_members("JOINED", "b")])
    assert found.actor == Actor("b-1", "b", "/10.0.0.1", None, "app", "q")
    # without a coordinator, the times of the records are exact, those of the members of another clock
    (found,) = rebalances_from_events(of_members("JOINED", "b", 1_990), of_history("JOINED", "b"))
    assert (found.started_ms, found.completed_ms, found.phases) == (1_990, 2_009, Phases(join_ms=15, sync_ms=4))
    assert found.origins["join_ms"] is Origin.SEEN and found.actor == Actor("b-1", "b", "/10.0.0.1", None, "app", "q")


def test_the_history_adds_an_assignment_that_was_too_large_for_an_event() -> None:
    events = of_group("LEFT", "b")
    events[-1] = events[-1]._replace(detail={})
    before = of_history("JOINED", "a", 1, 1_000)
    assert "moves" not in rebalances_from_events(events)[0].origins
    found = rebalances_from_events(events, [*before, *of_history("LEFT", "b")])[-1]
    assert (found.partitions_moved, found.moves, "moves" in found.origins) == (0, {}, True)


def test_generations_of_a_recreated_group_are_paired_by_time() -> None:
    history = [*of_history("JOINED", "old", at_ms=1_000), *of_history("JOINED", "new", at_ms=90_000)]
    found = rebalances_from_events(of_group("JOINED", "new", at_ms=90_010), history)
    assert [(r.completed_ms, r.actor and r.actor.client_id) for r in found] == [(1_009, "old"), (90_019, "new")]


def test_a_report_belongs_to_the_rebalance_of_its_generation_that_is_nearest_in_time() -> None:
    """A static member that returns starts no generation: its process reports the one of the rebalance before."""
    history = [*of_history("JOINED", "a"), *of_history("STATIC_REPLACED", "b", at_ms=60_000)]
    found = rebalances_from_events([*of_members("JOINED", "a"), *of_members("JOINED", "b", 59_990)], history)
    assert [(r.generation, r.cause, r.started_ms) for r in found] == [
        (2, "JOINED", 2_000),
        (2, "STATIC_REPLACED", 59_990),
    ]
    assert [r.phases.join_ms for r in found] == [5, 15]


def test_clocks_of_brokers_that_differ_do_not_reorder_what_follows() -> None:
    """The new coordinator is one second behind."""
    joined = of_history("JOINED", "b", 3, 3_000)
    joined[-1] = joined[-1]._replace(detail={"assignment": {"b-1": {"t": [0, 1]}}})
    history = [*of_history("JOINED", "a", 1, 1_000), *of_history("COORDINATOR_MOVED", "a", 2, 900), *joined]
    found = {r.generation: r for r in rebalances_from_events((), history)}
    assert [found[number].partitions_moved for number in (1, 2, 3)] == [0, 0, 2]
