"""Counters, protocols and generations of a group and its members."""

from __future__ import annotations

import pytest
from support.group_context import GROUP, subscribing

from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE
from spark_groupsource.broker.group.members import DelayedRequest, Member, Protocols, most_voted
from spark_groupsource.errors import ErrorCode

DELAYED = DelayedRequest("token", 9)


def member(member_id: str, *names: str, instance: str | None = None, join: DelayedRequest | None = None) -> Member:
    protocols: Protocols = tuple((name, name.encode()) for name in names or ("range",))
    return Member(member_id, instance, "client", "/h", 1_000, 500, protocols, awaiting_join=join)


def group_of(*members: Member, protocol_type: str = "consumer") -> ClassicGroup:
    group = ClassicGroup(GROUP)
    group.protocol_type = protocol_type
    for one in members:
        group.add(one)
    return group


# --- members


@pytest.mark.conformance("MB-001")
def test_protocols_are_equal_only_with_names_order_and_bytes() -> None:
    one = member("a", "range", "sticky").protocols
    assert one == member("b", "range", "sticky").protocols
    assert one != member("b", "sticky", "range").protocols
    assert one != member("b", "range").protocols
    assert one != (("range", b"other"), ("sticky", b"sticky"))


@pytest.mark.conformance("MB-002", "MB-005")
def test_member_votes_for_its_first_candidate() -> None:
    one = member("a", "range", "sticky")
    assert one.vote({"sticky", "range"}) == "range"
    assert one.vote({"sticky"}) == "sticky"
    with pytest.raises(ValueError, match="'a' supports none of the protocols other"):
        one.vote({"other"})


@pytest.mark.conformance("MB-003", "MB-004")
def test_metadata_by_protocol_name() -> None:
    one = member("a", "range", "sticky")
    assert one.metadata("sticky") == b"sticky"
    with pytest.raises(ValueError, match="'a' does not support protocol 'other'"):
        one.metadata("other")


@pytest.mark.conformance("MB-006", "MB-007")
def test_static_members_and_protocol_names() -> None:
    assert member("a", instance="one").is_static
    assert not member("a").is_static
    assert member("a", "range", "sticky").protocol_names == {"range", "sticky"}


@pytest.mark.conformance("MB-008")
def test_members_with_delayed_requests_satisfy_the_heartbeat() -> None:
    one = member("a")
    assert not one.has_satisfied_heartbeat
    one.awaiting_join = DELAYED
    assert one.has_satisfied_heartbeat
    one.awaiting_join, one.awaiting_sync = None, DELAYED
    assert one.has_satisfied_heartbeat
    one.is_new = True
    assert not one.has_satisfied_heartbeat


# --- votes


@pytest.mark.conformance("ST-022", "ST-023", "ST-024")
def test_protocol_with_most_votes_is_selected() -> None:
    group = group_of(member("a", "range", "sticky"))
    assert group.select_protocol() == "range"
    group.add(member("b", "sticky", "range"))
    assert group.select_protocol() == "sticky"  # a tie goes to the first in a Java hash map
    group.add(member("c", "sticky", "range"))
    assert group.select_protocol() == "sticky"
    group.add(member("d", "range", "x"))
    assert group.candidate_protocols() == {"range"}
    assert group.select_protocol() == "range"
    with pytest.raises(ValueError, match="without members"):
        most_voted([], {"range"})
    tied = [member("a", "range", "rr"), member("b", "rr", "range")]
    assert most_voted(tied, {"range", "rr"}) == "rr"


@pytest.mark.conformance("ST-025")
def test_supported_protocols() -> None:
    group = group_of()
    assert group.supports_protocols("consumer", ["anything"])
    assert not group.supports_protocols("", ["range"])
    assert not group.supports_protocols("consumer", [])
    group.add(member("a", "range", "sticky"))
    assert group.supports_protocols("consumer", ["sticky", "x"])
    assert not group.supports_protocols("consumer", ["x"])
    assert not group.supports_protocols("connect", ["range"])
    group.add(member("b", "range", "x"))
    assert group.supports_protocols("consumer", ["range"])
    assert not group.supports_protocols("consumer", ["sticky"])


def test_name_offered_twice_counts_once() -> None:
    group = group_of(member("a", "range", "range"), member("b", "sticky", "range"))
    assert group.candidate_protocols() == {"range"}


# --- members of a group


@pytest.mark.conformance("ST-039")
def test_update_replaces_protocols_and_timeouts() -> None:
    one = member("a", "range")
    group = group_of(one, member("b", "range", "sticky"))
    group.update(one, (("sticky", b""),), 5_000, 700)
    assert group.candidate_protocols() == {"sticky"}
    assert (group.rebalance_timeout_ms, one.session_timeout_ms) == (5_000, 700)


@pytest.mark.conformance("ST-040", "ST-041")
def test_replacing_a_static_member() -> None:
    group = group_of(member("a", instance="one", join=DELAYED), member("b"))
    with pytest.raises(ValueError, match="unknown"):
        group.replace_static_member("unknown", "c")
    old, new = group.replace_static_member("one", "c")
    assert (old.member_id, old.awaiting_join, new.awaiting_join) == ("a", DELAYED, None)
    assert group.static_members == {"one": "c"}
    assert (group.leader_id, group.awaiting_join_count) == ("c", 0)
    assert set(group.members) == {"b", "c"}


@pytest.mark.conformance("ST-050", "ST-051")
def test_pending_ids() -> None:
    group = group_of(member("a"))
    with pytest.raises(ValueError, match="'a' cannot be pending: it is a member"):
        group.add_pending_join("a")
    group.add_pending_join("b")
    assert not group.has_all_members_joined
    group.add(member("b"))
    assert group.pending_joins == set()


@pytest.mark.conformance("ST-053")
def test_group_instance_id_belongs_to_one_member() -> None:
    group = group_of(member("a", instance="one"))
    with pytest.raises(ValueError, match="instance id 'one' is already"):
        group.add(member("b", instance="one"))
    with pytest.raises(ValueError, match="Member 'a' is already"):
        group.add(member("a"))


@pytest.mark.conformance("ST-054", "ST-055", "ST-056", "ST-057", "ST-058")
def test_pending_syncs() -> None:
    group = group_of(member("a"), member("b"))
    with pytest.raises(ValueError, match="not a member"):
        group.add_pending_sync("unknown")
    group.add_pending_sync("a")
    group.add_pending_sync("b")
    group.remove("a")
    assert group.pending_syncs == {"b"}
    group.transition(PREPARING_REBALANCE, 0)
    group.init_next_generation(0)
    assert group.pending_syncs == set()


@pytest.mark.conformance("ST-042", "ST-044", "ST-059", "ST-060")
def test_delayed_join_is_taken_once() -> None:
    one = member("a")
    group = group_of(one)
    assert group.take_awaiting_join(one) is None
    assert group.await_join(one, DELAYED) is None
    assert group.awaiting_join_count == 1
    assert group.await_join(one, DelayedRequest("later", 9)) == DELAYED
    assert group.awaiting_join_count == 1
    assert group.take_awaiting_join(one) == DelayedRequest("later", 9)
    assert group.take_awaiting_join(one) is None
    assert group.awaiting_join_count == 0


@pytest.mark.conformance("ST-063", "ST-064")
def test_leader_that_has_not_joined_is_replaced() -> None:
    leader, other = member("a"), member("b", join=DELAYED)
    group = group_of(leader, other)
    assert group.leader_id == "a"
    assert group.maybe_elect_joined_leader()
    assert group.leader_id == "b"
    group.await_join(leader, DELAYED)
    assert group.maybe_elect_joined_leader()
    assert group.leader_id == "b"
    group.take_awaiting_join(leader)
    group.take_awaiting_join(other)
    assert not group.maybe_elect_joined_leader()


def test_removal_of_the_leader_elects_another_member() -> None:
    group = group_of(member("a"), member("b"))
    group.remove("a")
    assert group.leader_id == "b"
    group.remove("b")
    assert group.leader_id is None


def test_validate_member() -> None:
    group = group_of(member("a", instance="one"), member("b"))
    assert group.validate_member("a", "one") is ErrorCode.NONE
    assert group.validate_member("b", None) is ErrorCode.NONE
    assert group.validate_member("b", "one") is ErrorCode.FENCED_INSTANCE_ID
    assert group.validate_member("a", "two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.validate_member("c", None) is ErrorCode.UNKNOWN_MEMBER_ID


# --- generations


@pytest.mark.conformance("ST-029", "ST-030")
def test_init_next_generation() -> None:
    group = group_of(member("a"))
    group.transition(PREPARING_REBALANCE, 1)
    group.init_next_generation(2)
    assert (group.generation_id, group.state, group.protocol_name) == (1, COMPLETING_REBALANCE, "range")
    group.transition(PREPARING_REBALANCE, 3)
    group.remove("a")
    group.init_next_generation(4)
    assert (group.generation_id, group.state, group.protocol_name) == (2, EMPTY, None)
    assert group.state_timestamp_ms == 4


@pytest.mark.conformance("ST-027", "ST-028", "ST-069")
def test_subscribed_topics() -> None:
    def subscriber(member_id: str, *topics: str) -> Member:
        return Member(member_id, None, "client", "/h", 1_000, 500, tuple(subscribing(*topics)))

    group = group_of(subscriber("a", "one"))
    assert group.subscribed_topics is None
    assert not group.subscribes_to("one")  # still Empty
    group.transition(PREPARING_REBALANCE, 0)
    assert group.subscribes_to("anything")  # not known yet
    group.init_next_generation(0)
    assert group.subscribed_topics == {"one"}
    group.add(subscriber("b", "two"))
    assert group.subscribed_topics == {"one"}
    group.transition(PREPARING_REBALANCE, 0)
    group.init_next_generation(0)
    assert group.subscribed_topics == {"one", "two"}
    assert group.subscribes_to("two") and not group.subscribes_to("three")
    group.transition(PREPARING_REBALANCE, 0)
    for member_id in ("a", "b"):
        group.remove(member_id)
    group.init_next_generation(0)
    assert group.subscribed_topics == frozenset()
    other = group_of(member("a"), protocol_type="connect")
    other.transition(PREPARING_REBALANCE, 0)
    other.init_next_generation(0)
    assert other.subscribed_topics is None
    assert not other.subscribes_to("one")
