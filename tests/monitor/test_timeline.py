"""Timeline of a group: partition owners, member states, rebalances."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled

from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Phases, Rebalance
from spark_groupsource.monitor.rebalances.timeline import timeline
from spark_groupsource.monitor.rebalances.timeline_values import MemberActivity, Phase
from spark_groupsource.wire.group_events import EventKind, GroupEvent


def event(at_ms: int, kind: str, member: str | None = None, generation: int | None = None, **detail: Any) -> GroupEvent:
    application = detail.pop("application", None)
    client_id = None if member is None else f"client-{member}"
    kind_ = EventKind(kind)
    return GroupEvent(at_ms, "g", kind_, generation, member, client_id, application=application, detail=detail)


def rebalance(start: int, generation: int, owned: dict[str, list[int]], joining: list[str]) -> list[GroupEvent]:
    """An eager rebalance: JoinGroup of each member after 1 ms, join phase of 10 ms, assignment after 20 ms."""
    members = {m: [f"client-{m}", "/h", None] for m in owned}
    assignment = {m: {"t": numbers} for m, numbers in owned.items()}
    return [
        event(start, "rebalance_started", joining[0], cause="JOINED", reason="new"),
        *(event(start + 1 + n, "member_joining", m) for n, m in enumerate(joining)),
        event(start + 10, "join_completed", generation=generation, leader=joining[0], members=members),
        event(start + 20, "assigned", generation=generation, assignment=assignment),
    ]


def test_an_eager_rebalance() -> None:
    events = [
        *rebalance(1000, 1, {"a": [0, 1]}, ["a"]),
        event(1500, "batch_wait_started", "a", application="job"),
        event(1900, "batch_wait_ended", "a", application="job"),
        *rebalance(2000, 2, {"a": [0], "b": [1], "c": []}, ["b", "c", "a"]),
        event(2030, "first_record", "b", generation=2, application="job"),
        event(2040, "repeated", "a", generation=1, application="job", records=7),
        event(2500, "lag", "a", application="job", lag=5),
        event(2500, "lag", "b", application="job", lag=6),
        event(3000, "lag", "a", application="job", lag=0),
    ]
    found = timeline("g", events[::-1])  # in any order
    # both partitions from the JoinGroup of a until the assignment
    assert found.unowned_seconds == 0.017 * 2
    first = TopicPartition("t", 1)
    assert [(p.start_ms, p.end_ms, p.owner) for p in found.partitions[first]] == [
        (1020, 2003, "a"), (2003, 2020, None), (2020, 3000, "b"),
    ]  # fmt: skip
    assert found.moves == {TopicPartition("t", 0): 0, first: 1}
    assert [(p.end_ms, p.state.value) for p in found.members["a"]] == [
        (1010, "joining"), (1020, "syncing"), (1500, "reading"), (1900, "waiting for a batch"), (2003, "reading"),
        (2010, "joining"), (2020, "syncing"), (3000, "reading"),
    ]  # fmt: skip
    assert found.members["c"][-1].state is MemberActivity.IDLE
    marker = found.markers[1]
    assert (marker.generation, marker.cause, marker.reason, marker.actor) == (2, "JOINED", "new", "client-b")
    assert (marker.slowest_member, marker.partitions_moved, marker.repeated_records) == ("client-a", 1, 7)
    assert [(b.phase, b.end_ms - b.start_ms) for b in found.bands if b.generation == 2] == [
        (Phase.BATCH, 400), (Phase.JOIN, 10), (Phase.SYNC, 10), (Phase.FIRST_RECORD, 10),
    ]  # fmt: skip
    assert found.lag == [(2500, 11), (3000, 6)]


def test_an_expired_member_owns_nothing_since_its_last_heartbeat() -> None:
    found = timeline("g", [
        *rebalance(0, 1, {"a": [0], "b": [1]}, ["a", "b"]),
        event(1000, "member_left", "b", is_expired=True, last_heartbeat_ms=600),
        *rebalance(1000, 2, {"a": [0, 1]}, ["a"]),
    ])  # fmt: skip
    assert found.unowned_seconds == pytest.approx(0.420 + 0.019)
    assert found.members["b"][-1] == (600, 1000, MemberActivity.EXPIRED)
    assert found.members["b"][-2].end_ms == 600


def test_partitions_wait_until_now_while_a_rebalance_is_in_progress() -> None:
    started = [
        *rebalance(0, 1, {"a": [0], "b": [1]}, ["a", "b"]),
        event(1000, "member_left", "b"),
        event(1000, "rebalance_started", "b", cause="LEFT"),
        event(1400, "batch_wait_started", "a", application="job"),
    ]
    found = timeline("g", started)
    assert found.markers[-1].completed_ms is None
    assert found.unowned_seconds == found.unowned_seconds_of(found.markers[-1]) == 0.4


def test_members_that_retain_partitions() -> None:
    joins = {"a": ["x", "", None], "b": ["x", "", None]}
    found = timeline("g", [
        *rebalance(0, 1, {"a": [0, 1]}, ["a"]),
        event(100, "rebalance_started", "b", cause="JOINED"),
        event(110, "member_joining", "a", retained=2),
        event(120, "join_completed", generation=2, members=joins),
        event(130, "assigned", generation=2, assignment={"a": {"t": [0]}, "b": {}}),
        event(150, "rebalance_started", "a", cause="COOPERATIVE_SECOND_ROUND"),
        event(155, "member_joining", "a", retained=1, revoked={"t": [1]}),
        event(160, "join_completed", generation=3, members=joins),
        event(170, "assigned", generation=3, assignment={"a": {"t": [0]}, "b": {"t": [1]}}),
        event(400, "rebalance_started", "a", cause="LEFT"),
        event(400, "member_left", "a"),
        event(410, "assigned", generation=4, assignment={"b": {"t": [1]}}),
    ])  # fmt: skip
    # partition 1 from the assignment that takes it until the second round; partition 0 has no owner at the end
    assert found.unowned_seconds == 0.040
    assert found.partitions[TopicPartition("t", 0)][-1].owner is None
    assert set(found.names.values()) == {"x …a", "x …b"}


def test_events_of_applications_alone() -> None:
    found = timeline("g", [
        event(0, "assigned", "a", 1, assignment={"a": {"t": [0, 1]}}, application="job"),
        event(50, "revoked", "a", 2, partitions={"t": [0, 1]}, application="job"),
        event(51, "member_joining", "a", application="job"),
        event(90, "assigned", "a", 2, assignment={"a": {"t": [0]}}, application="job"),
        event(95, "assigned", "b", 2, assignment={"b": {"t": [1]}}, application="job"),
    ])  # fmt: skip
    assert found.unowned_seconds == 0.085


def test_a_member_reads_when_it_has_received_its_assignment() -> None:
    events = [
        *rebalance(0, 1, {"a": [0, 1]}, ["a"]),
        *rebalance(100, 2, {"a": [0], "b": [1]}, ["a", "b"]),
        event(115, "member_syncing", "a", 2),
        event(150, "member_syncing", "b", 2),
        event(200, "rebalance_started", "b", cause="LEFT"),
    ]
    found = timeline("g", events)
    # from the JoinGroup of a at 101; b receives its assignment 30 ms after the group is stable
    assert found.unowned_seconds == pytest.approx(0.019 + 0.049)
    assert found.members["b"][-1] == (150, 200, MemberActivity.READING)
    assert found.members["a"][-1].state is MemberActivity.READING


def test_members_that_are_still_there_own_their_partitions_until_now() -> None:
    events = rebalance(0, 1, {"a": [0]}, ["a"])
    found = timeline("g", events, until_ms=5_000)
    assert (found.start_ms, found.end_ms) == (0, 5_000)
    assert found.partitions[TopicPartition("t", 0)][-1][1:] == (5_000, "a")
    assert found.members["a"][-1][1:] == (5_000, MemberActivity.READING)
    assert timeline("g", events, until_ms=7).end_ms == 20, "a clock that is behind the brokers'"


def test_a_record_completes_a_rebalance_whose_last_events_are_not_stored_yet() -> None:
    first = rebalance(100, 1, {"a": [0], "b": [1]}, ["a", "b"])
    begun = [event(500, "member_left", "b", 1, reason="closed"), event(500, "rebalance_started", "b", 1, cause="LEFT")]
    (known,) = rebalances_from_events(first)
    record = known._replace(
        generation=2, started_ms=None, completed_ms=900, cause=Cause.LEFT, actor=None, partitions_moved=1
    )
    found = timeline("g", [*first, *begun], [known, record]).markers
    assert [(m.generation, m.completed_ms, m.partitions_moved) for m in found][1:] == [(2, 900, 1)]
    # an earlier record is that of another rebalance
    earlier = record._replace(completed_ms=450)
    assert [m.generation for m in timeline("g", [*first, *begun], [known, earlier]).markers] == [1, 2, None]


def test_a_rebalance_in_progress_after_one_whose_assignment_is_too_large_for_an_event() -> None:
    large = [*rebalance(0, 1, {"a": [0]}, ["a"])[:-1], event(20, "assigned", generation=1)]
    found = timeline("g", [*large, event(500, "rebalance_started", "b", 1, cause="JOINED")]).markers
    assert [(m.started_ms, m.completed_ms) for m in found] == [(0, 20), (500, None)]


def test_records_of_rebalances_replace_and_add_markers() -> None:
    record = Rebalance(
        "g", 2, Cause.LEFT, "leaving", "", Actor(client_id="a"), 100, 140, Phases(), "b", 1, {}, 4, 0, 0.5, 9, None, {}
    )
    found = timeline("g", rebalance(90, 2, {"b": [0]}, ["b"]), [record, record._replace(generation=3, started_ms=None)])
    assert [(m.cause, m.actor, m.slowest_member, m.started_ms) for m in found.markers] == [
        ("LEFT", "a", "client-b", 100), ("LEFT", "a", "client-b", 140),
    ]  # fmt: skip
    assert timeline("g", [], [record]).unowned_seconds == 0.5
    assert timeline("g", []).end_ms == 0


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_of_event_has_a_handler(kind: EventKind) -> None:
    found = timeline("g", [event(5, kind.value, "a", 1), event(9, kind.value, "a", 1, application="job")])
    assert (found.start_ms, found.end_ms) == (5, 9)


class SimulatedGroup:
    """Members 0 to 3 and partitions 0 to 5; every ms of a partition without an owner between two owners is counted."""

    def __init__(self, is_cooperative: bool) -> None:
        self.is_cooperative = is_cooperative
        self.now = 1_000
        self.generation = 0
        self.owned: dict[str, set[int]] = {}
        self.events: list[GroupEvent] = []
        self.waiting: dict[int, int] = {}
        self.unowned_ms = 0

    def tick(self, duration: int) -> None:
        reading = set().union(*self.owned.values()) if self.owned else set()
        for partition in self.waiting:
            if partition not in reading:
                self.waiting[partition] += duration
        self.now += duration

    def read(self, partition: int) -> None:
        self.unowned_ms += self.waiting.get(partition, 0)
        self.waiting[partition] = 0

    def change(self, member: str, offsets: list[int]) -> None:
        self.events.append(event(self.now, "rebalance_started", member, cause="JOINED"))
        if member in self.owned:
            del self.owned[member]
            self.events.append(event(self.now, "member_left", member))
        else:
            self.owned[member] = set()
        for name, delay in zip(sorted(self.owned), offsets):
            self.tick(delay)
            kept = len(self.owned[name]) if self.is_cooperative else 0
            self.events.append(event(self.now, "member_joining", name, **({"retained": kept} if kept else {})))
            if not self.is_cooperative:
                self.owned[name] = set()
        self.tick(offsets[-1])
        self.generation += 1
        members = {m: [m, "", None] for m in self.owned}
        self.events.append(event(self.now, "join_completed", generation=self.generation, members=members))
        self.tick(offsets[0])
        names = sorted(self.owned)
        self.owned = {name: set(range(6)[at :: len(names)]) for at, name in enumerate(names)}
        for partition in set().union(*self.owned.values()) if names else ():
            self.read(partition)
        form = {name: {"t": sorted(numbers)} for name, numbers in self.owned.items()}
        self.events.append(event(self.now, "assigned", generation=self.generation, assignment=form))


# times are milliseconds: an owner that starts and ends within one is not seen
changes = st.lists(
    st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 50), min_size=5, max_size=5), st.integers(1, 200)),
    min_size=1,
    max_size=12,
)


@given(changes, st.booleans())
@settings(max_examples=scaled(400), deadline=None)
def test_seconds_without_an_owner_and_gapless_rows(steps: list[tuple[str, list[int], int]], cooperative: bool) -> None:
    group = SimulatedGroup(cooperative)
    for member, offsets, pause in steps:
        group.change(member, offsets)
        group.tick(pause)
    found = timeline("g", group.events)
    assert found.unowned_seconds * 1000 == pytest.approx(group.unowned_ms)
    for periods in found.partitions.values():
        assert all(before.end_ms == after.start_ms for before, after in zip(periods, periods[1:]))
        assert all(before.owner != after.owner for before, after in zip(periods, periods[1:]))
        assert periods[-1].end_ms == found.end_ms and all(p.start_ms < p.end_ms for p in periods[:-1])
    for rows in found.members.values():
        assert all(before.end_ms <= after.start_ms and before.start_ms < before.end_ms
                   for before, after in zip(rows, rows[1:]))  # fmt: skip


def test_samples_of_the_lag_of_several_applications() -> None:
    """The lag of the retained partitions before and after a rebalance is less than that of all, and not shown."""
    found = timeline(
        "g",
        [
            event(1000, "lag", application="one", lag=1),
            event(1500, "lag_sampled", application="one", lag=10),
            event(1600, "lag_sampled", application="two", lag=5),
            event(1700, "lag", application="two", lag=2),
            event(2500, "lag_sampled", application="one", lag=0),
            event(2600, "member_left", "two-0", application="two"),
            event(3500, "lag_sampled", application="one", lag=3),
        ],
    )
    assert found.lag == [(1500, 10), (1600, 15), (2500, 5), (3500, 3)]


def test_a_sample_of_the_lag_is_no_rebalance() -> None:
    samples = [event(at_ms, "lag_sampled", generation=4, application="one", lag=at_ms) for at_ms in (1000, 2000)]
    assert rebalances_from_events(samples) == []
    events = [*rebalance(1000, 4, {"a": [0]}, ["a"]), *samples]
    assert rebalances_from_events(events) == rebalances_from_events(events[:-2])
