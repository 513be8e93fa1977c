"""Events of the coordinator: cause, actor and effect of every rebalance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from support.group_context import CONFIG, DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, GroupContext

from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.rebalance import Cause, MemberMove, Origin, Rebalance
from spark_groupsource.wire.consumer_protocol import encode_assignment, encode_subscription
from spark_groupsource.wire.group_events import EventKind, decode_event, encode_event
from spark_groupsource.wire.messages import LeaveGroupRequest

Protocols = Sequence[tuple[str, bytes]]


def partitions(*numbers: int, topic: str = "t") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def subscription(*topics: str, owned: Sequence[TopicPartition] = (), names: Sequence[str] = ("range",)) -> Protocols:
    data = encode_subscription(Subscription(topics or ("t",), owned_partitions=tuple(owned)))
    return tuple((name, data) for name in names)


class Owned(NamedTuple):
    """A member and the partitions that the leader assigns to it."""

    member_id: str
    numbers: tuple[int, ...]
    instance: str | None = None


class Scenario:
    """A group whose members' requests are sent one by one; `rebalances` are those of its events."""

    def __init__(self, context: GroupContext | None = None) -> None:
        self.context = context or GroupContext(CONFIG)

    @property
    def rebalances(self) -> list[Rebalance]:
        # through JSON, as another process reads them
        return rebalances_from_events(decode_event(encode_event(event)) for event in self.context.events)

    @property
    def last(self) -> Rebalance:
        return self.rebalances[-1]

    def assign(self, *members: Owned, protocol: str = "range") -> None:
        """Sends the SyncGroup of every member, that of the leader last."""
        group = self.context.group()
        assignments = {m.member_id: encode_assignment(Assignment(partitions(*m.numbers))) for m in members}
        for member in sorted(members, key=lambda each: each.member_id == group.leader_id):
            is_leader = member.member_id == group.leader_id
            self.context.sync(
                member.member_id,
                group.generation_id,
                assignments if is_leader else None,
                instance=member.instance,
                protocol_name=protocol,
            )

    def stable(self, names: Sequence[str] = ("range",), instance: str | None = None) -> tuple[Owned, Owned]:
        """Two members of one generation: the first leads and owns partitions 0 and 1, the second owns 2 and 3."""
        join = self.context.join
        first = join(protocols=subscription(names=names), client_id="a")
        second = join(protocols=subscription(names=names), client_id="b", instance=instance)
        self.context.advance(DELAY_MS * 2)
        members = (Owned(first.member_id, (0, 1)), Owned(second.member_id, (2, 3), instance))
        self.assign(*members, protocol=names[0])
        assert self.last.cause is Cause.JOINED
        return members

    def rejoin(
        self, member: Owned, *, reason: str | None = None, protocols: Protocols | None = None, version: int = 9
    ) -> None:
        self.context.join(
            member.member_id,
            instance=member.instance,
            protocols=protocols or subscription(),
            version=version,
            reason=reason,
            client_id="a",
        )


def joined(scenario: Scenario, a: Owned, b: Owned) -> str:
    third = scenario.context.join(protocols=subscription(), client_id="c", reason=None)
    new_id = next(m for m in scenario.context.group().members if m not in (a.member_id, b.member_id))
    for member in (a, b):
        scenario.rejoin(member, reason="group is already rebalancing")
    assert third.member_id == new_id
    scenario.assign(a._replace(numbers=(0, 1)), b._replace(numbers=(2,)), Owned(new_id, (3,)))
    return new_id


def leave(reason: str | None, client_id: str = "b", named: bool = True) -> Callable[[Scenario, Owned, Owned], str]:
    def run(scenario: Scenario, a: Owned, b: Owned) -> str:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=b.member_id if named else "", group_instance_id=b.instance, reason=reason
        )
        scenario.context.send(LeaveGroupRequest(group_id=GROUP, members=[identity]), 5, client_id=client_id)
        scenario.rejoin(a, reason="group is already rebalancing")
        scenario.assign(a._replace(numbers=(0, 1, 2, 3)))
        return b.member_id

    return run


def session_expired(scenario: Scenario, a: Owned, b: Owned) -> str:
    generation = scenario.context.group().generation_id
    for _ in range(3):
        scenario.context.advance(SESSION_MS // 2)
        scenario.context.heartbeat(a.member_id, generation)
    scenario.rejoin(a, reason="group is already rebalancing")
    scenario.assign(a._replace(numbers=(0, 1, 2, 3)))
    return b.member_id


def join_timed_out(scenario: Scenario, a: Owned, b: Owned) -> str:
    scenario.rejoin(a, reason="cached metadata has changed")
    scenario.context.advance(REBALANCE_MS // 2)
    generation = scenario.context.group().generation_id
    assert scenario.context.heartbeat(b.member_id, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    scenario.context.advance(REBALANCE_MS // 2)
    scenario.assign(a._replace(numbers=(0, 1, 2, 3)))
    return b.member_id


def sync_timed_out(scenario: Scenario, a: Owned, b: Owned) -> str:
    scenario.rejoin(a, reason="cached metadata has changed")
    scenario.rejoin(b, reason="group is already rebalancing")
    generation = scenario.context.group().generation_id
    scenario.context.sync(a.member_id, generation, {a.member_id: encode_assignment(Assignment(partitions(0, 1)))})
    for _ in range(3):
        scenario.context.advance(REBALANCE_MS // 2)
        scenario.context.heartbeat(a.member_id, generation)
        scenario.context.heartbeat(b.member_id, generation)
    scenario.rejoin(a, reason="group is already rebalancing")
    scenario.assign(a._replace(numbers=(0, 1, 2, 3)))
    return b.member_id


def rejoined(
    reason: str | None, protocols: Protocols | None = None, numbers: tuple[int, ...] = (0, 1), by_leader: bool = True
) -> Callable[[Scenario, Owned, Owned], str]:
    def run(scenario: Scenario, a: Owned, b: Owned) -> str:
        actor, other = (a, b) if by_leader else (b, a)
        scenario.rejoin(actor, reason=reason, protocols=protocols)
        scenario.rejoin(other, reason="group is already rebalancing", protocols=protocols)
        group = scenario.context.group()
        scenario.assign(a._replace(numbers=numbers), b, protocol=group.protocol_name or "")
        return actor.member_id

    return run


def second_round(reason: str | None) -> Callable[[Scenario, Owned, Owned], str]:
    def run(scenario: Scenario, a: Owned, b: Owned) -> str:
        # first round: partition 1 is taken from its owner, and assigned to no member
        scenario.rejoin(a, reason="cached metadata has changed", protocols=subscription(owned=partitions(0, 1)))
        scenario.rejoin(b, reason="group is already rebalancing", protocols=subscription(owned=partitions(2, 3)))
        scenario.assign(a._replace(numbers=(0,)), b)
        # the second one gives it to the other member
        scenario.context.advance(100)
        scenario.rejoin(a, reason=reason, protocols=subscription(owned=partitions(0)))
        scenario.rejoin(b, reason="group is already rebalancing", protocols=subscription(owned=partitions(2, 3)))
        scenario.assign(a._replace(numbers=(0,)), b._replace(numbers=(1, 2, 3)))
        return a.member_id

    return run


def static_replaced(scenario: Scenario, a: Owned, b: Owned) -> str:
    scenario.context.join(instance=b.instance, protocols=subscription(), version=5, client_id="b")
    return scenario.context.group().static_members[b.instance or ""]


def coordinator_moved(scenario: Scenario, a: Owned, b: Owned) -> str:
    events = scenario.context.events
    scenario.context = scenario.context.restarted()
    scenario.context.events = events + scenario.context.events
    scenario.rejoin(a, reason="rebalance failed due to DisconnectException")
    scenario.rejoin(b, reason="group is already rebalancing")
    scenario.assign(a, b)
    return a.member_id


CASES = [
    (Cause.JOINED, joined),
    (Cause.LEFT, leave("the consumer is being closed")),
    (Cause.LEFT, leave(None)),
    # members of this package leave together, by another connection
    (Cause.LEFT, leave("the query was stopped", client_id="groupsource")),
    (Cause.POLL_EXCEEDED, leave("consumer poll timeout has expired.")),
    (Cause.REMOVED_BY_OPERATOR, leave("member was removed by an admin")),
    # with a reason of the operator's own
    (Cause.REMOVED_BY_OPERATOR, leave("maintenance", client_id="adminclient-1")),
    (Cause.SESSION_EXPIRED, session_expired),
    (Cause.JOIN_TIMED_OUT, join_timed_out),
    (Cause.JOIN_TIMED_OUT, sync_timed_out),
    (Cause.SUBSCRIPTION_CHANGED, rejoined("subscription has changed", subscription("t", "u"))),
    (Cause.SUBSCRIPTION_CHANGED, rejoined("cached metadata has changed", subscription("t", "u"))),
    (Cause.SUBSCRIPTION_CHANGED, rejoined(None, subscription("t", "u"), by_leader=False)),
    (Cause.PARTITIONS_CHANGED, rejoined("cached metadata has changed")),
    (Cause.LEADER_REJOINED, rejoined("rebalance enforced by user")),
    (Cause.LEADER_REJOINED, rejoined(None)),
    (Cause.ASSIGNOR_CHANGED, rejoined(None, subscription(names=("range", "sticky")), by_leader=False)),
    (Cause.COOPERATIVE_SECOND_ROUND, second_round("need to revoke partitions and re-join")),
    (Cause.COOPERATIVE_SECOND_ROUND, second_round(None)),
    (Cause.COORDINATOR_MOVED, coordinator_moved),
]


@pytest.mark.parametrize(("cause", "act"), CASES)
def test_cause_and_actor(cause: Cause, act: Callable[[Scenario, Owned, Owned], str]) -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    before = len(scenario.rebalances)
    actor_id = act(scenario, a, b)
    last = scenario.last
    assert len(scenario.rebalances) > before
    assert (last.cause, last.actor and last.actor.member_id) == (cause, actor_id)
    assert last.actor is not None and last.actor.host == "/127.0.0.1" and last.origins["cause"] is Origin.SEEN
    assert last.generation == scenario.context.group().generation_id


@pytest.mark.parametrize(("cause", "act"), [
    (Cause.STATIC_REPLACED, static_replaced),
    (Cause.REMOVED_BY_OPERATOR, leave(None, named=False)),
])  # fmt: skip
def test_cause_and_actor_of_static_members(cause: Cause, act: Callable[[Scenario, Owned, Owned], str]) -> None:
    scenario = Scenario()
    a, b = scenario.stable(instance="i-1")
    actor_id = act(scenario, a, b)
    assert scenario.last.cause is cause and scenario.last.actor is not None
    assert (scenario.last.actor.member_id, scenario.last.actor.group_instance_id) == (actor_id, "i-1")


def test_static_member_with_another_assignor() -> None:
    scenario = Scenario()
    a, b = scenario.stable(names=("range", "roundrobin"), instance="i-1")
    protocols = subscription(names=("roundrobin",))
    scenario.context.join(instance=b.instance, protocols=protocols, version=5, client_id="b")
    scenario.rejoin(a, protocols=subscription(names=("range", "roundrobin")))
    new_id = scenario.context.group().static_members["i-1"]
    scenario.assign(a, Owned(new_id, (2, 3), "i-1"), protocol="roundrobin")
    assert scenario.last.cause is Cause.ASSIGNOR_CHANGED
    assert scenario.last.actor is not None and scenario.last.actor.member_id == new_id


@pytest.mark.parametrize(("is_operator", "cause"), [(True, Cause.REMOVED_BY_OPERATOR), (False, Cause.LEFT)])
def test_operator_with_the_client_id_of_the_member(is_operator: bool, cause: Cause) -> None:
    scenario = Scenario()
    # consumers and administrators of kafka-python have the same client id by default
    scenario.context.connection_id = 1
    a, b = scenario.stable()
    scenario.context.connection_id = 2 if is_operator else 1
    leave(None)(scenario, a, b)
    assert scenario.last.cause is Cause.LEFT
    scenario.context.connection_id = 1
    scenario.context.join(protocols=subscription(), client_id="b")
    assert (scenario.last.cause, scenario.last.actor and scenario.last.actor.member_id) == (cause, b.member_id)


def test_client_that_joins_again_after_its_coordinator_moved() -> None:
    scenario = Scenario()
    scenario.context.connection_id = 1
    a, b = scenario.stable()
    events = scenario.context.events
    scenario.context = scenario.context.restarted()
    scenario.context.events, scenario.context.connection_id, scenario.context.request_count = events, 2, 10
    scenario.context.heartbeat(a.member_id, scenario.context.group().generation_id)
    scenario.context.join(protocols=subscription(), client_id="b")
    (new_id,) = scenario.context.group().members.keys() - {a.member_id, b.member_id}
    started = [e for e in scenario.context.events if e.kind is EventKind.REBALANCE_STARTED][-1]
    assert (started.detail["cause"], started.member_id) == (Cause.COORDINATOR_MOVED, new_id)
    # the client of a member that has reached the new coordinator runs twice
    again = scenario.context.restarted()
    again.connection_id, again.request_count = 3, 20
    again.heartbeat(a.member_id, again.group().generation_id)
    again.join(protocols=subscription(), client_id="a")
    assert [e.detail["cause"] for e in again.events if e.kind is EventKind.REBALANCE_STARTED] == [Cause.JOINED]


@pytest.mark.parametrize(("after_ms", "cause"), [(REBALANCE_MS, Cause.POLL_EXCEEDED), (0, Cause.LEFT)])
def test_client_without_reasons_that_comes_back_had_exceeded_its_poll_interval(after_ms: int, cause: Cause) -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    generation = scenario.context.group().generation_id
    for _ in range(2 * after_ms // SESSION_MS):
        scenario.context.advance(SESSION_MS // 2)
        for member in (a, b):
            scenario.context.heartbeat(member.member_id, generation)
    leave(None)(scenario, a, b)
    scenario.context.join(protocols=subscription(), client_id="b")
    left = scenario.rebalances[1]
    assert left.cause is cause
    assert left.origins["cause"] is (Origin.INFERRED if cause is Cause.POLL_EXCEEDED else Origin.SEEN)


def test_returning_static_member_keeps_its_partitions_in_the_same_generation() -> None:
    scenario = Scenario()
    a, b = scenario.stable(instance="i-1")
    generation = scenario.last.generation
    static_replaced(scenario, a, b)
    assert scenario.last.generation == generation
    assert (scenario.last.members, scenario.last.moves, scenario.last.unowned_seconds) == (2, {}, 0)


def test_leader_without_reason_and_other_partitions_is_inferred() -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    rejoined(None, numbers=(0, 1, 4))(scenario, a, b)
    assert scenario.last.cause is Cause.PARTITIONS_CHANGED and scenario.last.origins["cause"] is Origin.INFERRED


def test_follower_without_reason_and_more_partitions_is_inferred() -> None:
    """librdkafka: every member rejoins when the partitions of its topics change."""
    scenario = Scenario()
    a, b = scenario.stable()
    protocols = subscription(owned=partitions(2, 3))
    rejoined(None, protocols, numbers=(0, 1, 4), by_leader=False)(scenario, a, b)
    assert scenario.last.cause is Cause.PARTITIONS_CHANGED and scenario.last.origins["cause"] is Origin.INFERRED


def test_eager_rebalance_leaves_partitions_unowned_from_join_to_sync() -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    scenario.rejoin(a, reason="cached metadata has changed")
    scenario.context.advance(200)
    scenario.rejoin(b, reason="group is already rebalancing")
    scenario.context.advance(50)
    scenario.assign(a._replace(numbers=(0,)), b._replace(numbers=(1, 2, 3)))
    last = scenario.last
    assert last.unowned_seconds == pytest.approx(2 * 0.250 + 2 * 0.050)
    assert last.moves == {a.member_id: MemberMove(0, 1), b.member_id: MemberMove(1, 0)}
    assert (last.partitions_moved, last.slowest_member) == (1, b.member_id)
    assert (last.phases.join_ms, last.phases.sync_ms) == (200, 50)


def test_cooperative_rebalance_leaves_only_moved_partitions_unowned() -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    second_round("need to revoke partitions and re-join")(scenario, a, b)
    first, second = scenario.rebalances[-2:]
    assert (first.unowned_seconds, first.partitions_unassigned) == (0, 1)
    # from the assignment of the first round to that of the second
    assert second.unowned_seconds == pytest.approx(0.100)
    assert second.moves == {b.member_id: MemberMove(1, 0)}


def test_expired_member_reads_nothing_since_its_last_heartbeat() -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    session_expired(scenario, a, b)
    # its two partitions from the last heartbeat, those of the other member not at all: it rejoined at once
    assert scenario.last.unowned_seconds == pytest.approx(2 * (SESSION_MS // 2 * 3) / 1000 + 0)
    assert scenario.last.difference == "No longer a member: b (SESSION_EXPIRED)."


def test_empty_group_ends_the_time_without_owner() -> None:
    scenario = Scenario()
    members = scenario.stable()
    scenario.context.leave(*((each.member_id, None) for each in members))
    assert (scenario.last.cause, scenario.last.members) == (Cause.REMOVED_BY_OPERATOR, 0)
    assert scenario.last.partitions_unassigned == 4
    scenario.context.advance(60_000)
    again = scenario.context.join(protocols=subscription(), client_id="a")
    scenario.context.advance(DELAY_MS * 2)
    scenario.assign(Owned(again.member_id, (0, 1, 2, 3)))
    assert (scenario.last.cause, scenario.last.unowned_seconds) == (Cause.JOINED, 0)


def test_join_phase_that_starts_again_is_one_rebalance() -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    count = len(scenario.rebalances)
    scenario.rejoin(a, reason="cached metadata has changed")
    scenario.rejoin(b, reason="group is already rebalancing")
    # before the assignment, another member joins
    new_id = joined(scenario, a, b)
    assert len(scenario.rebalances) == count + 1
    assert scenario.last.cause is Cause.PARTITIONS_CHANGED
    assert scenario.last.difference == "Joined: c; also: JOINED c." and new_id in scenario.last.moves


def test_hostile_reason_is_bounded_and_printable() -> None:
    scenario = Scenario()
    a, b = scenario.stable()
    leave("\x1b[2Jgone\nforged line" + "x" * 32_000)(scenario, a, b)
    reason = scenario.last.reason or ""
    assert reason.startswith("\\x1b[2Jgone\\nforged line") and len(reason) < 300 and reason.isprintable()


def test_heartbeat_and_commit_add_no_event() -> None:
    scenario = Scenario()
    a, _ = scenario.stable()
    count = len(scenario.context.events)
    generation = scenario.context.group().generation_id
    assert scenario.context.heartbeat(a.member_id, generation) is ErrorCode.NONE
    scenario.context.commit(1, a.member_id, generation)
    assert len(scenario.context.events) == count


def test_other_protocols_have_no_assignment() -> None:
    """Kafka Connect, for example: its assignments are not partitions."""
    scenario = Scenario()
    worker = scenario.context.join(protocols=(("range", b"\x00"),), protocol_type="connect")
    scenario.context.advance(DELAY_MS * 2)
    scenario.context.sync(worker.member_id, 1, {worker.member_id: b"\xff\xff"}, protocol_type="connect")
    assigned = [event for event in scenario.context.events if event.kind is EventKind.ASSIGNED]
    assert [dict(event.detail) for event in assigned] == [{}]
    assert scenario.last.unowned_seconds is None and "moves" not in scenario.last.origins
