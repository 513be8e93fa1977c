"""Kafka's ConsumerCoordinatorTest: the leader, its assignor, topic metadata, patterns."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_group import T0, T1, T2, U0, Bench, follower, joined, sent_assignments, subscriptions, using

from spark_groupsource.assign import RangeAssignor
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import Subscription, TopicPartition

COOPERATIVE = {"assignors": ("cooperative-sticky",)}
QUICK = {"metadata_max_age_ms": 1_000}
BOTH = pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])


def after_metadata_age(bench: Bench) -> None:
    """Advances the clock to the next refresh of metadata and settles."""
    bench.clock.advance_ms(QUICK["metadata_max_age_ms"] + 1)
    bench.settle()


class Moving(RangeAssignor):
    """Assigns all partitions to the last member, although others own some, and claims to be cooperative."""

    name = "moving"
    cooperative = True

    def assign(self, partitions: Any, members: Any, racks: Any = None) -> Any:
        every = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
        return {m.member_id: every if m is members[-1] else [] for m in members}


class Cooperative(RangeAssignor):
    name = "cooperative"
    cooperative = True


class MovingEagerly(Moving):
    name = "moving eagerly"
    cooperative = False


class Generous(RangeAssignor):
    """Also assigns a topic to which no member subscribes."""

    name = "generous"

    def assign(self, partitions: Any, members: Any, racks: Any = None) -> Any:
        return {m.member_id: [] if m.member_id == "foreign" else [T0, U0] for m in members}


# -- leader ----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-002")
def test_leader_refreshes_metadata_of_assigned_topics_without_subscription() -> None:
    bench = Bench(client=QUICK, **using(Generous))
    bench.script.topics["u"] = [[0]]
    bench.script.other_members = {"foreign": Subscription(("t", "u"))}
    bench.poll()
    bench.run_members()
    requested = [tuple(topic.name for topic in request.topics) for request in bench.script.requests("Metadata")]
    assert requested[-1] == ("t", "u") and requested.count(("t", "u")) == 1, "requested again for new topics only"

    bench = Bench(client=QUICK, **using(Generous))
    bench.script.topics["u"] = [[0]]
    bench.poll()
    bench.run_members()
    requested = [tuple(topic.name for topic in request.topics) for request in bench.script.requests("Metadata")]
    assert requested[-2:] == [("t",), ("t", "u")]
    assert bench.client.shared.group_topics == {"t", "u"}


@pytest.mark.conformance("CC-003")
@pytest.mark.parametrize("assignor, allowed", [(Moving, False), (MovingEagerly, True)])
def test_cooperative_assignor_must_not_move_an_owned_partition_at_once(assignor: Any, allowed: bool) -> None:
    bench = Bench(**using(assignor))
    owner = Subscription(("t",), owned_partitions=(T0,))
    bench.script.other_members = {"owner": owner, "taker": Subscription(("t",))}
    if allowed:
        assert bench.settle().is_stable
        assert sent_assignments(bench)["taker"] == (T0, T1)
    else:
        with pytest.raises(ConfigurationError, match="Moving.assign is cooperative, but assigns t-0 to a new member"):
            bench.settle()


@pytest.mark.conformance("CC-005")
def test_assignments_of_cooperative_sticky_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_groupsource.assign import CooperativeStickyAssignor

    monkeypatch.setattr(CooperativeStickyAssignor, "assign", Moving.assign)
    bench = Bench(**COOPERATIVE)
    bench.script.other_members = {
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
        (("cooperative-sticky", f"{__name__}:Cooperative"), True),
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
        assert (owned, bench.callbacks()) == ((T0, T1), [("assigned", ())]), "partitions are kept during the rebalance"
    else:
        assert (owned, bench.callbacks()) == ((), [("revoked", (T0, T1)), ("assigned", (T0, T1))])


def skipping(bench: Bench) -> Any:
    """Returns the JoinGroup response to a static leader that returns to a Stable group (KIP-814)."""
    return lambda request: bench.script.join_response(request, "m1", skip_assignment=True, generation_id=5)


@pytest.mark.conformance("CC-004", "CC-065")
def test_returning_static_leader_sends_no_assignment_and_refreshes_metadata() -> None:
    bench = Bench(client=QUICK, group_instance_id="i")
    bench.script.prepare("JoinGroup", skipping(bench))
    assert bench.settle().partitions == (T0, T1) and bench.member.is_leader
    assert sent_assignments(bench) == {}
    bench.script.generation_id = 5
    bench.script.topics["t"].append([0])
    after_metadata_age(bench)
    assert bench.client.view.partitions == (T0, T1, T2) and bench.client.view.generation_id == 6


@pytest.mark.conformance("CC-066")
def test_returning_static_leader_refreshes_metadata_of_the_topics_of_others() -> None:
    bench = Bench(client=QUICK, group_instance_id="i")
    bench.script.topics["u"] = [[0]]
    bench.script.other_members = {"foreign": Subscription(("u",))}
    bench.script.prepare("JoinGroup", skipping(bench))
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
    assert bench.script.requests("JoinGroup")[0].reason == "cached metadata has changed"


def test_follower_does_not_rejoin_when_a_topic_grows() -> None:
    bench = follower(T0, client=QUICK)
    bench.script.topics["t"].append([0])
    after_metadata_age(bench)
    assert bench.script.requests("JoinGroup") == []


@pytest.mark.conformance("CC-067")
def test_partitions_added_between_assignment_and_sync_response_lead_to_a_rejoin() -> None:
    bench = Bench(client=QUICK)

    def grow(request: Any) -> None:
        bench.script.topics["t"].append([0])
        bench.clock.advance_ms(QUICK["metadata_max_age_ms"] + 1)

    bench.script.prepare("SyncGroup", grow)
    bench.poll()
    bench.run_members()
    bench.poll()
    # the change is detected when the rebalance completes
    assert bench.callbacks() == [("assigned", (T0, T1)), ("revoked", (T0, T1))]
    assert bench.settle().partitions == (T0, T1, T2)


@pytest.mark.conformance("CC-044")
def test_leader_rejoins_after_a_topic_was_deleted_even_if_it_is_recreated_during_the_join() -> None:
    bench = Bench(client=QUICK, topics=("t", "u"))
    bench.script.topics["u"] = [[0]]
    assert bench.settle().partitions == (T0, T1, U0)
    deleted = bench.script.topics.pop("u")

    def recreate(request: Any) -> Any:
        bench.script.topics["u"] = deleted
        return bench.script.default_response(request, ErrorCode.NOT_COORDINATOR)

    bench.script.sent.clear()
    bench.script.prepare("JoinGroup", recreate)
    after_metadata_age(bench)
    assert len(bench.script.requests("JoinGroup")) == 2 and bench.client.view.partitions == (T0, T1, U0)


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
def test_leader_with_a_rack_rejoins_when_the_racks_of_a_partition_change(
    before: Any, after: Any, is_rack_change: bool | None, rack: str
) -> None:
    bench = Bench(client=QUICK, client_rack=rack)
    bench.script.broker_racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b"}
    bench.script.topics["t"] = before
    bench.settle()
    bench.script.sent.clear()
    bench.script.topics["t"] = after
    after_metadata_age(bench)
    # every leader rejoins for new partitions; for a change of racks only one with a rack
    expected = is_rack_change is None or (is_rack_change and bool(rack))
    assert bool(bench.script.requests("JoinGroup")) is expected


@pytest.mark.conformance("CC-148")
@pytest.mark.parametrize("rack, rack_id", [("a", "a"), ("", None)])
def test_rack_is_part_of_the_subscription(rack: str, rack_id: str | None) -> None:
    bench = Bench(client_rack=rack)
    bench.settle()
    assert {subscription.rack_id for subscription in subscriptions(bench)} == {rack_id}


@pytest.mark.conformance("CC-070")
def test_topic_created_after_the_subscription_is_assigned() -> None:
    bench = Bench(client=QUICK)
    partitions = bench.script.topics.pop("t")
    assert bench.settle().partitions == ()
    bench.poll()
    bench.script.topics["t"] = partitions
    assert not bench.poll().is_stable, "every poll requests the metadata of missing topics"
    assert bench.settle().partitions == (T0, T1)


@pytest.mark.conformance("CC-068")
def test_topic_and_group_authorization_errors_are_raised() -> None:
    bench = Bench()
    bench.script.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(BrokerError, match="topic t failed: .*Grant"):
        bench.settle()
    bench.script.topic_errors.clear()
    bench.script.prepare("JoinGroup", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        bench.settle()
    assert bench.settle().is_stable


# -- patterns --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-033")
def test_leader_with_a_pattern_adds_topics_that_another_member_subscribes_to() -> None:
    bench = Bench(pattern="t|u", **using(Generous))
    bench.script.other_members = {"foreign": Subscription(("t", "u"))}
    bench.script.prepare("JoinGroup", lambda request: bench.script.topics.update(u=[[0]]))
    assert bench.settle().partitions == (T0, U0)
    assert bench.client.shared.topics == ("t", "u") and bench.poll().is_stable
    assert len(bench.script.requests("SyncGroup")) == 1, "the topic is added to the subscription without a rebalance"


@pytest.mark.conformance("CC-056")
def test_follower_with_a_pattern_subscribes_to_all_matching_topics() -> None:
    bench = Bench(pattern="t")
    bench.script.is_leader = False
    bench.script.topics |= {"t2": [[0]], "x": [[0]], "at": [[0]]}
    bench.settle()
    # the names contain a match, as in Spark's Kafka source
    assert {subscription.topics for subscription in subscriptions(bench)} == {("at", "t", "t2")}


@pytest.mark.conformance("CC-034", "CC-075")
@BOTH
def test_created_and_deleted_topics_cause_rebalances(settings: Any) -> None:
    bench = Bench(client=QUICK, pattern="t|u", **settings)
    bench.script.prepare("SyncGroup", lambda request: bench.script.topics.update(u=[[0]]))
    bench.settle()
    assert subscriptions(bench)[-1].topics == ("t",) and bench.callbacks() == [("assigned", (T0, T1))]
    after_metadata_age(bench)
    assert subscriptions(bench)[-1].topics == ("t", "u")
    assert bench.script.requests("JoinGroup")[-1].reason == "subscription has changed"
    is_eager = not settings
    if is_eager:
        assert bench.callbacks() == [("revoked", (T0, T1)), ("assigned", (T0, T1, U0))]
    else:
        assert bench.callbacks() == [("assigned", (U0,))]
    del bench.script.topics["u"]
    after_metadata_age(bench)
    assert subscriptions(bench)[-1].topics == ("t",)
    # even a cooperative member revokes the partitions of a deleted topic before it rejoins
    if is_eager:
        assert bench.callbacks() == [("revoked", (T0, T1, U0)), ("assigned", (T0, T1))]
    else:
        assert bench.callbacks() == [("revoked", (U0,)), ("assigned", ())]


@pytest.mark.conformance("CC-035", "CC-036")
def test_pattern_is_matched_again_before_each_join() -> None:
    bench = Bench(pattern="t|u")
    bench.script.is_leader = False
    bench.settle()
    for topics, expected in ((["t", "u"], ("t", "u")), (["t"], ("t",))):
        bench.script.topics = {topic: [[0]] for topic in topics}
        bench.script.assigned = [TopicPartition(topic, 0) for topic in topics]
        bench.script.prepare("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
        syncs = len(bench.script.requests("SyncGroup"))
        bench.heartbeat()
        bench.settle()
        assert subscriptions(bench)[-1].topics == expected
        assert len(bench.script.requests("SyncGroup")) == syncs + 1


@pytest.mark.conformance("CC-071")
def test_pattern_waits_for_topics() -> None:
    bench = Bench(client=QUICK, pattern="t.*")
    partitions = bench.script.topics.pop("t")
    assert bench.settle().partitions == ()
    bench.script.topics["t"] = partitions
    after_metadata_age(bench)
    assert bench.client.view.partitions == (T0, T1)


@pytest.mark.conformance("CC-072")
def test_unavailable_topic_that_does_not_match_is_ignored() -> None:
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
