"""The owner's side of a member, hand-over, metadata, leading: cases of Kafka's ConsumerCoordinatorTest."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.scripted_group import T0, T1, T2, U0, Bench, follower, joined

from spark_groupsource.assign import RangeAssignor
from spark_groupsource.client.membership.state_machine import Generation
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError, RemoteProtocolError
from spark_groupsource.model import Assignment, OffsetAndMetadata, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription, encode_assignment

COOPERATIVE = {"assignors": ("cooperative-sticky",)}
QUICK = {"metadata_max_age_ms": 1_000}
BOTH = pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])


def subscriptions(bench: Bench) -> list[Subscription]:
    """What each JoinGroup said, by its first protocol."""
    return [decode_subscription(request.protocols[0].metadata) for request in bench.script.of("JoinGroup")]


def sent_assignments(bench: Bench) -> dict[str, tuple[TopicPartition, ...]]:
    """What the leader sent last."""
    request = bench.script.of("SyncGroup")[-1]
    return {row.member_id: decode_assignment(row.assignment).partitions for row in request.assignments}


def after_metadata_age(bench: Bench) -> None:
    """Metadata are asked for again, and the member does what follows."""
    bench.clock.advance_ms(QUICK["metadata_max_age_ms"] + 1)
    bench.settle()


class Moving(RangeAssignor):
    """Gives everything to the last member, whoever owns it; cooperative by its own account."""

    name = "moving"
    cooperative = True

    def assign(self, partitions: Any, members: Any, racks: Any = None) -> Any:
        every = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
        return {m.member_id: every if m is members[-1] else [] for m in members}


class MovingEagerly(Moving):
    name = "moving eagerly"
    cooperative = False


class Generous(RangeAssignor):
    """Also assigns a topic to which nobody subscribes."""

    name = "generous"

    def assign(self, partitions: Any, members: Any, racks: Any = None) -> Any:
        return {m.member_id: [T0, U0] for m in members}


class Forgetful(RangeAssignor):
    """Cannot take its assignment."""

    name = "forgetful"

    def on_assignment(self, assignment: Any, generation_id: int) -> None:
        raise LookupError("assignor")


class ForgetfulLater(RangeAssignor):
    """Cannot take its second assignment."""

    name = "forgetful later"
    cooperative = True

    def on_assignment(self, assignment: Any, generation_id: int) -> None:
        if generation_id > 1:
            raise LookupError("assignor")


def own(name: str) -> dict[str, Any]:
    return {"assignors": (f"{__name__}:{name}",)}


# -- finding and losing the coordinator ------------------------------------------------------------------------------


@pytest.mark.conformance("CC-008")
def test_lookup_that_is_not_authorized_is_raised() -> None:
    bench = Bench()
    bench.script.once("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="Grant") as raised:
        bench.settle()
    assert raised.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.conformance("CC-007")
def test_heartbeat_that_succeeds_changes_nothing() -> None:
    bench = joined()
    before = bench.client.view
    bench.beat()
    assert bench.script.asked() == ["Heartbeat"] and bench.poll() == before
    (request,) = bench.script.of("Heartbeat")
    assert (request.generation_id, request.member_id) == (before.generation_id, "m1")


@pytest.mark.conformance("CC-013", "CC-017", "CC-028")
@pytest.mark.parametrize(
    "failure", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, NetworkError("peer closed")]
)
def test_coordinator_that_moved_is_looked_up_again_and_nothing_is_lost(failure: Any) -> None:
    bench = joined()
    before = bench.client.view
    bench.script.once("Heartbeat", failure)
    bench.beat()
    assert not bench.thread.is_connected and "g" not in bench.cluster._coordinators
    bench.beat()
    assert bench.script.asked() == ["Heartbeat", "FindCoordinator", "Heartbeat"]
    assert bench.poll() == before and bench.told == []


@pytest.mark.conformance("CC-055")
def test_poll_counts_while_no_coordinator_is_known() -> None:
    bench = Bench(max_poll_interval_ms=60_000)
    bench.script.once("FindCoordinator", *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000)
    for _ in range(5):
        bench.clock.advance_ms(30_000)
        bench.poll()
        assert bench.member._poll_due_ms == bench.clock.now_ms() + 60_000


# -- rounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-030")
@BOTH
def test_leader_assigns_and_owns_the_result(settings: Any) -> None:
    bench = Bench(**settings)
    bench.script.others = {"other": Subscription(("t",))}
    assert bench.settle().partitions == (T0,)
    assert sent_assignments(bench) == {"m1": (T0,), "other": (T1,)}
    assert bench.told == [("assigned", (T0,))]


@pytest.mark.conformance("CC-054")
@BOTH
def test_follower_syncs_with_nothing_and_gets_its_partitions(settings: Any) -> None:
    bench = Bench(**settings)
    bench.script.leads, bench.script.assigned = False, (T1,)
    assert bench.settle().partitions == (T1,)
    assert sent_assignments(bench) == {} and "Metadata" not in bench.script.asked()[1:]
    assert bench.told == [("assigned", (T1,))]


@pytest.mark.conformance("CC-143")
def test_view_before_and_after_joining() -> None:
    bench = Bench(group_instance_id="i")
    (member,) = bench.client.view.members
    assert (member.generation_id, member.member_id, member.group_instance_id) == (-1, "", "i-0")
    bench.settle()
    (member,) = bench.client.view.members
    assert (member.generation_id, member.member_id, member.group_instance_id) == (1, "m1", "i-0")


@pytest.mark.conformance("CC-144")
def test_generation_is_new_inside_the_callback() -> None:
    bench = follower(T0, T1, **COOPERATIVE)
    seen: list[int] = []
    bench.listener.on = lambda call: seen.append(bench.client.view.generation_id)
    bench.member.request_rejoin("a test")
    bench.script.assigned = (T0,)
    bench.poll()
    bench.pump()
    bench.poll()
    assert bench.told == [("revoked", (T1,)), ("assigned", ())] and seen == [2, 2]


@pytest.mark.conformance("CC-060")
def test_unknown_error_of_a_sync_is_raised() -> None:
    bench = Bench()
    bench.script.once("SyncGroup", ErrorCode.UNKNOWN_SERVER_ERROR)
    with pytest.raises(BrokerError, match="SyncGroup.*UNKNOWN_SERVER_ERROR"):
        bench.settle()


@pytest.mark.conformance("CC-061", "CC-062", "CC-063")
@pytest.mark.parametrize(
    "code, expected",
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ["m1", "", "m2"]),
        (ErrorCode.REBALANCE_IN_PROGRESS, ["m1", "m1"]),
        (ErrorCode.ILLEGAL_GENERATION, ["m1", "m1"]),
    ],
)
def test_refused_sync_leads_to_another_join(code: ErrorCode, expected: list[str]) -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.once("SyncGroup", code)
    assert bench.settle().is_stable
    assert [request.member_id for request in bench.script.of("JoinGroup")] == expected


@pytest.mark.conformance("CC-146", "CC-147")
@pytest.mark.parametrize("code, member_id", [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "m1")])
@pytest.mark.parametrize("settings, lost", [({}, []), (COOPERATIVE, [("lost", (T0, T1))])])
def test_retained_partitions_are_lost_if_the_member_is_removed_during_the_rebalance(
    code: ErrorCode, member_id: str, settings: Any, lost: Any
) -> None:
    bench = joined(**settings)
    bench.member.request_rejoin("a test")
    bench.script.once("SyncGroup", code)
    bench.poll()
    bench.pump()
    assert bench.member.generation == Generation(-1, member_id, None)
    bench.told
    bench.poll()
    assert bench.told == lost and bench.client.view.partitions == ()
    assert bench.settle().partitions == (T0, T1)


@pytest.mark.conformance("CC-018", "CC-027")
@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
@BOTH
def test_partitions_of_a_removed_member_are_lost(code: ErrorCode, settings: Any) -> None:
    bench = joined(**settings)
    bench.script.once("Heartbeat", code)
    bench.beat()
    assert bench.client.rejoin_needed and bench.client.view.partitions == (T0, T1), "they go in poll and not before"
    bench.poll()
    assert bench.told == [("lost", (T0, T1))] and bench.client.view.partitions == ()
    assert bench.settle().is_stable


@pytest.mark.conformance("CC-031")
@BOTH
def test_assignment_that_does_not_match_the_subscription_is_dropped_and_the_member_rejoins(settings: Any) -> None:
    bench = Bench(**settings)
    bench.script.leads = False
    bench.script.once("SyncGroup", lambda request: bench.script.sync_answer(request, encode_assignment(ASSIGNED_U)))
    assert bench.settle().partitions == (T0, T1)
    assert len(bench.script.of("SyncGroup")) == 2 and bench.told == [("assigned", (T0, T1))]
    assert [subscription.topics for subscription in subscriptions(bench)[-2:]] == [("t",), ("t",)]
    assert bench.script.of("JoinGroup")[-1].reason == "received assignment does not match the current subscription"
    assert not bench.member.rejoin_needed and bench.member.generation.generation_id == 2


ASSIGNED_U = Assignment((U0,))


def test_assignment_that_cannot_be_read_is_raised() -> None:
    bench = Bench()
    bench.script.once("SyncGroup", lambda request: bench.script.sync_answer(request, b"\0"))
    with pytest.raises(RemoteProtocolError, match="ConsumerProtocolAssignment"):
        bench.settle()
    assert bench.settle().is_stable


# -- the user's code in a round --------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-020")
def test_failing_revoke_is_raised_and_the_rest_still_happens() -> None:
    bench = follower(T0, T1, **own("ForgetfulLater"))
    bench.member.request_rejoin("a test")
    bench.script.assigned = (T0,)
    bench.listener.raising = {"revoked": ValueError("revoked"), "assigned": ValueError("assigned")}
    bench.poll()
    bench.pump()
    with pytest.raises(ValueError, match="revoked"):
        bench.poll()
    assert bench.told == [("revoked", (T1,)), ("assigned", ())] and bench.client.view.partitions == (T0,)


@pytest.mark.conformance("CC-020", "CC-021")
def test_assignors_exception_comes_before_that_of_the_assigned_callback() -> None:
    bench = Bench(**own("Forgetful"))
    bench.listener.raising = {"assigned": ValueError("assigned")}
    with pytest.raises(LookupError, match="assignor"):
        bench.settle()
    assert bench.told == [("assigned", (T0, T1))]


@pytest.mark.conformance("CC-022")
def test_exception_of_the_assigned_callback_is_raised() -> None:
    bench = Bench()
    bench.listener.raising = {"assigned": ValueError("assigned")}
    with pytest.raises(ValueError, match="assigned"):
        bench.settle()
    assert bench.client.view.partitions == (T0, T1)


def test_failing_rebalance_callback_is_not_called_again() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.listener.raising = {"revoked": ValueError("revoked")}
    with pytest.raises(ValueError, match="revoked"):
        bench.poll()
    assert bench.settle().is_stable
    assert bench.told == [("revoked", (T0, T1)), ("assigned", (T0, T1))]


# -- leading ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-002")
def test_assigned_topics_without_subscription_are_watched() -> None:
    bench = Bench(client=QUICK, **own("Generous"))
    bench.script.topics["u"] = [[0]]
    bench.script.others = {"foreign": Subscription(("t", "u"))}
    bench.poll()
    bench.pump()
    asked = [tuple(topic.name for topic in request.topics) for request in bench.script.of("Metadata")]
    assert asked[-1] == ("t", "u") and asked.count(("t", "u")) == 1, "a second look only for what is new"

    bench = Bench(client=QUICK, **own("Generous"))
    bench.script.topics["u"] = [[0]]
    bench.poll()
    bench.pump()
    asked = [tuple(topic.name for topic in request.topics) for request in bench.script.of("Metadata")]
    assert asked[-2:] == [("t",), ("t", "u")]
    assert bench.client.shared.group_topics == {"t", "u"}


@pytest.mark.conformance("CC-003")
@pytest.mark.parametrize("name, allowed", [("Moving", False), ("MovingEagerly", True)])
def test_cooperative_assignor_must_not_move_an_owned_partition_at_once(name: str, allowed: bool) -> None:
    bench = Bench(**own(name))
    owner = Subscription(("t",), owned_partitions=(T0,))
    bench.script.others = {"owner": owner, "taker": Subscription(("t",))}
    if allowed:
        assert bench.settle().is_stable
        assert sent_assignments(bench)["taker"] == (T0, T1)
    else:
        with pytest.raises(RuntimeError, match="moving.*t-0"):
            bench.settle()


@pytest.mark.conformance("CC-005")
def test_cooperative_sticky_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_groupsource.assign import CooperativeStickyAssignor

    monkeypatch.setattr(CooperativeStickyAssignor, "assign", Moving.assign)
    bench = Bench(**COOPERATIVE)
    bench.script.others = {
        "owner": Subscription(("t",), owned_partitions=(T0,)),
        "taker": Subscription(("t",)),
    }
    assert bench.settle().is_stable
    assert sent_assignments(bench)["taker"] == (T0, T1)


@pytest.mark.conformance("CC-006")
@pytest.mark.parametrize(
    "names, cooperative",
    [
        (("cooperative-sticky",), True),
        (("range", "cooperative-sticky"), False),
        (("range", f"{__name__}:Moving"), False),
        (("range", "sticky"), False),
    ],
)
def test_rebalance_protocol_is_the_highest_of_all_assignors(names: tuple[str, ...], cooperative: bool) -> None:
    bench = joined(assignors=names)
    assert bench.member.config.cooperative is cooperative
    bench.member.request_rejoin("a test")
    bench.settle()
    owned = subscriptions(bench)[-1].owned_partitions
    if cooperative:
        assert (owned, bench.told) == ((T0, T1), [("assigned", ())]), "the member keeps its partitions while it rejoins"
    else:
        assert (owned, bench.told) == ((), [("revoked", (T0, T1)), ("assigned", (T0, T1))])


def skipping(bench: Bench) -> Any:
    """A static leader returns to a stable group: it leads, and has nothing to assign."""
    return lambda request: bench.script.join_answer(request, "m1", skip_assignment=True, generation_id=5)


@pytest.mark.conformance("CC-004", "CC-065")
def test_static_leader_that_returns_assigns_nothing_and_watches_metadata() -> None:
    bench = Bench(client=QUICK, group_instance_id="i")
    bench.script.once("JoinGroup", skipping(bench))
    assert bench.settle().partitions == (T0, T1) and bench.member.is_leader
    assert sent_assignments(bench) == {}
    bench.script.generation_id = 5
    bench.script.topics["t"].append([0])
    after_metadata_age(bench)
    assert bench.client.view.partitions == (T0, T1, T2) and bench.client.view.generation_id == 6


@pytest.mark.conformance("CC-066")
def test_static_leader_that_returns_watches_topics_of_others() -> None:
    bench = Bench(client=QUICK, group_instance_id="i")
    bench.script.topics["u"] = [[0]]
    bench.script.others = {"foreign": Subscription(("u",))}
    bench.script.once("JoinGroup", skipping(bench))
    bench.settle()
    bench.script.generation_id = 5
    bench.script.topics["u"].append([0])
    after_metadata_age(bench)
    assert sent_assignments(bench)["foreign"] == (U0, TopicPartition("u", 1))


# -- metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-064")
def test_leader_rejoins_when_a_topic_grows() -> None:
    bench = joined(client=QUICK)
    bench.script.topics["t"].append([0])
    after_metadata_age(bench)
    assert bench.client.view.partitions == (T0, T1, T2)
    assert bench.script.of("JoinGroup")[0].reason == "cached metadata has changed"


def test_follower_leaves_that_to_the_leader() -> None:
    bench = follower(T0, client=QUICK)
    bench.script.topics["t"].append([0])
    after_metadata_age(bench)
    assert bench.script.of("JoinGroup") == []


@pytest.mark.conformance("CC-067")
def test_partitions_added_between_assignment_and_sync_answer_lead_to_a_rejoin() -> None:
    bench = Bench(client=QUICK)

    def grow(request: Any) -> None:
        bench.script.topics["t"].append([0])
        bench.clock.advance_ms(QUICK["metadata_max_age_ms"] + 1)

    bench.script.once("SyncGroup", grow)
    bench.poll()
    bench.pump()
    bench.poll()
    assert bench.told == [("assigned", (T0, T1)), ("revoked", (T0, T1))], "it is seen as soon as the round is over"
    assert bench.settle().partitions == (T0, T1, T2)


@pytest.mark.conformance("CC-044")
def test_leader_rejoins_when_a_topic_disappears_even_if_it_comes_back_meanwhile() -> None:
    bench = joined(client=QUICK, topics=("t", "u"))
    bench = Bench(client=QUICK, topics=("t", "u"))
    bench.script.topics["u"] = [[0]]
    assert bench.settle().partitions == (T0, T1, U0)
    gone = bench.script.topics.pop("u")

    def back(request: Any) -> Any:
        bench.script.topics["u"] = gone
        return bench.script._JoinGroup(request, ErrorCode.NOT_COORDINATOR)

    bench.script.sent.clear()
    bench.script.once("JoinGroup", back)
    after_metadata_age(bench)
    assert len(bench.script.of("JoinGroup")) == 2 and bench.client.view.partitions == (T0, T1, U0)


@pytest.mark.conformance("CC-045", "CC-046", "CC-047", "CC-048", "CC-049", "CC-050", "CC-051", "CC-052")
@pytest.mark.parametrize("rack", ["a", ""], ids=["rack", "no rack"])
@pytest.mark.parametrize(
    "before, after, is_rack_change",
    [
        ([[0, 1]], [[0, 2]], True),
        ([[0, 1]], [[0, 1, 2]], True),
        ([[0, 1]], [[0]], True),
        ([[0, 1]], [[0, 1]], False),
        ([[0, 1]], [[3, 4]], False),
        ([[0, 1]], [[0, 1, 3, 4]], False),
        ([[0, 1]], [[0, 1], [0, 1]], None),
    ],
    ids=["other racks", "one more", "one less", "the same", "other brokers", "more replicas", "more partitions"],
)
def test_change_of_racks(before: Any, after: Any, is_rack_change: bool | None, rack: str) -> None:
    bench = Bench(client=QUICK, client_rack=rack)
    bench.script.nodes = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b"}
    bench.script.topics["t"] = before
    bench.settle()
    bench.script.sent.clear()
    bench.script.topics["t"] = after
    after_metadata_age(bench)
    # more partitions matter to every leader, racks to one that has a rack itself
    expected = is_rack_change is None or (is_rack_change and bool(rack))
    assert bool(bench.script.of("JoinGroup")) is expected


@pytest.mark.conformance("CC-148")
@pytest.mark.parametrize("rack, told", [("a", "a"), ("", None)])
def test_rack_is_part_of_the_subscription(rack: str, told: str | None) -> None:
    bench = Bench(client_rack=rack)
    bench.settle()
    assert {subscription.rack_id for subscription in subscriptions(bench)} == {told}


@pytest.mark.conformance("CC-070")
def test_missing_topic_is_waited_for() -> None:
    bench = Bench(client=QUICK)
    partitions = bench.script.topics.pop("t")
    assert bench.settle().partitions == ()
    bench.poll()
    bench.script.topics["t"] = partitions
    assert not bench.poll().is_stable, "what is missing is asked for at every poll"
    assert bench.settle().partitions == (T0, T1)


@pytest.mark.conformance("CC-068")
def test_topic_that_may_not_be_read_is_raised() -> None:
    bench = Bench()
    bench.script.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(BrokerError, match="topic t failed: .*Grant"):
        bench.settle()
    bench.script.topic_errors.clear()
    bench.script.once("JoinGroup", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        bench.settle()
    assert bench.settle().is_stable


# -- patterns --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-033")
def test_leader_with_a_pattern_takes_topics_that_another_member_found() -> None:
    bench = Bench(pattern="t|u", **own("Generous"))
    bench.script.others = {"foreign": Subscription(("t", "u"))}
    bench.script.once("JoinGroup", lambda request: bench.script.topics.update(u=[[0]]))
    assert bench.settle().partitions == (T0, U0)
    assert bench.client.shared.topics == ("t", "u") and bench.poll().is_stable
    assert len(bench.script.of("SyncGroup")) == 1, "the topic joins the subscription silently"


@pytest.mark.conformance("CC-056")
def test_follower_with_a_pattern_subscribes_to_all_that_match() -> None:
    bench = Bench(pattern="t.*")
    bench.script.leads = False
    bench.script.topics |= {"t2": [[0]], "x": [[0]]}
    bench.settle()
    assert {subscription.topics for subscription in subscriptions(bench)} == {("t", "t2")}


@pytest.mark.conformance("CC-034", "CC-075")
@BOTH
def test_created_and_deleted_topics_cause_rebalances(settings: Any) -> None:
    bench = Bench(client=QUICK, pattern="t|u", **settings)
    bench.script.once("SyncGroup", lambda request: bench.script.topics.update(u=[[0]]))
    bench.settle()
    assert subscriptions(bench)[-1].topics == ("t",) and bench.told == [("assigned", (T0, T1))]
    after_metadata_age(bench)
    assert subscriptions(bench)[-1].topics == ("t", "u")
    assert bench.script.of("JoinGroup")[-1].reason == "subscription has changed"
    eager = not settings
    assert bench.told == ([("revoked", (T0, T1))] if eager else []) + [("assigned", (T0, T1, U0) if eager else (U0,))]
    del bench.script.topics["u"]
    after_metadata_age(bench)
    assert subscriptions(bench)[-1].topics == ("t",)
    # nothing more can be read of a topic that is gone, so even a cooperative member gives it up at once
    assert bench.told == [("revoked", (T0, T1, U0) if eager else (U0,)), ("assigned", (T0, T1) if eager else ())]


@pytest.mark.conformance("CC-035", "CC-036")
def test_topics_are_matched_afresh_before_a_join() -> None:
    bench = Bench(pattern="t|u")
    bench.script.leads = False
    bench.settle()
    for topics, expected in ((["t", "u"], ("t", "u")), (["t"], ("t",))):
        bench.script.topics = {topic: [[0]] for topic in topics}
        bench.script.assigned = [TopicPartition(topic, 0) for topic in topics]
        bench.script.once("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
        rounds = len(bench.script.of("SyncGroup"))
        bench.beat()
        bench.settle()
        assert subscriptions(bench)[-1].topics == expected
        assert len(bench.script.of("SyncGroup")) == rounds + 1


@pytest.mark.conformance("CC-071")
def test_pattern_waits_for_topics() -> None:
    bench = Bench(client=QUICK, pattern="t.*")
    partitions = bench.script.topics.pop("t")
    assert bench.settle().partitions == ()
    bench.script.topics["t"] = partitions
    after_metadata_age(bench)
    assert bench.client.view.partitions == (T0, T1)


@pytest.mark.conformance("CC-072")
def test_unavailable_topic_that_does_not_match_is_not_waited_for() -> None:
    bench = Bench(pattern="t")
    bench.script.topics["x"] = [[0]]
    bench.script.topic_errors["x"] = ErrorCode.LEADER_NOT_AVAILABLE
    bench.settle()
    bench.script.sent.clear()
    for _ in range(5):
        bench.poll()
    assert bench.script.sent == []


@pytest.mark.conformance("CC-073", "CC-074")
@pytest.mark.parametrize("exclude, expected", [(True, ("t",)), (False, ("__t", "t"))])
def test_internal_topics_match_only_when_configured(exclude: bool, expected: tuple[str, ...]) -> None:
    bench = Bench(pattern=".*t", exclude_internal_topics=exclude)
    bench.script.topics["__t"] = [[0]]
    bench.settle()
    assert subscriptions(bench)[-1].topics == expected


# -- committing is the owner's ---------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-040")
def test_rebalance_commits_nothing() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.settle()
    bench.client.close()
    assert "OffsetCommit" not in bench.script.asked()


@pytest.mark.conformance("CC-138")
def test_closing_ends_the_members_thread() -> None:
    bench = Bench()
    del bench.thread.start  # type: ignore[attr-defined]
    assert bench.client.poll(0).generation_id == -1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "group member groupsource-0"]
    bench.client.close()
    assert not thread.is_alive()


def test_revoke_callback_commits_before_the_rebalance() -> None:
    bench = joined()
    bench.listener.on = lambda call: call == "revoked" and bench.client.commit({T0: OffsetAndMetadata(3)})
    bench.member.request_rejoin("a test")
    bench.settle()
    assert bench.script.asked()[:2] == ["OffsetCommit", "JoinGroup"]
