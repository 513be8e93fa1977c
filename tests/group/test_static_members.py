"""Static members: group.instance.id, replacement and fencing."""

from __future__ import annotations

from typing import Any

import pytest
from support.group_context import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, GroupContext, Joined, ResponseHandle

from spark_groupsource.broker.group import JoinTimer, SessionTimer
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.errors import ErrorCode

LEADER, FOLLOWER = "leader-instance", "follower-instance"
TWO = [("range", b""), ("roundrobin", b"")]


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


def pair(context: GroupContext, **how: Any) -> tuple[Joined, Joined]:
    """A Stable group of a static leader and a static follower, generation 1."""
    leader, follower = context.stable(instances=[LEADER, FOLLOWER], **how)
    assert leader.leader_id == leader.member_id
    return leader, follower


def keep_alive(context: GroupContext, member: Joined, duration_ms: int, generation_id: int) -> None:
    """Advances the clock while one member sends heartbeats."""
    for _ in range(4):
        context.advance(duration_ms // 4)
        context.heartbeat(member.member_id, generation_id, instance=member.instance_id)


# --- replacement during the first join phase


def test_replaced_member_stays_while_its_join_is_delayed(context: GroupContext) -> None:
    context.completing(1)  # its member does not send JoinGroup again
    context.join(instance=LEADER, session_ms=100, rebalance_ms=REBALANCE_MS)
    restarted = context.join(instance=LEADER, session_ms=100, rebalance_ms=REBALANCE_MS)
    assert restarted.is_delayed and context.state() is PREPARING_REBALANCE
    context.advance(REBALANCE_MS - 1)
    assert restarted.is_delayed and restarted.request.group_instance_id in context.group().static_members
    context.advance(1)
    assert restarted.error is ErrorCode.NONE
    assert [member.group_instance_id for member in context.group().members.values()] == [LEADER]


# --- joining


@pytest.mark.conformance("GC-027", "JM-020")
def test_first_join_takes_one_round_trip(context: GroupContext) -> None:
    handle = context.join(instance=LEADER, version=9)
    context.advance(DELAY_MS)
    assert handle.error is ErrorCode.NONE
    assert handle.member_id == f"{LEADER}-uuid-1"
    assert handle.response.members[0].group_instance_id == LEADER


@pytest.mark.conformance("GC-028", "JM-021")
def test_known_instance_with_an_unknown_member_id(context: GroupContext) -> None:
    pair(context)
    handle = context.join("made-up", instance=LEADER)
    assert (handle.error, handle.member_id) == (ErrorCode.FENCED_INSTANCE_ID, "made-up")


@pytest.mark.conformance("GC-053", "JM-069")
def test_unknown_instance_with_a_known_member_id(context: GroupContext) -> None:
    leader, _ = pair(context)
    assert context.join(leader.member_id, instance="unknown").error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.conformance("GC-046", "JM-065", "GC-047", "JM-066")
@pytest.mark.parametrize("instance", [LEADER, FOLLOWER])
def test_mismatched_ids(context: GroupContext, instance: str) -> None:
    leader, follower = pair(context)
    other = follower if instance == LEADER else leader
    assert context.join(other.member_id, instance=instance).error is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.conformance("GC-035", "JM-056")
def test_dead_group(context: GroupContext) -> None:
    leader, _ = pair(context)
    context.kill()
    assert context.join(leader.member_id, instance=LEADER).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.conformance("GC-036", "JM-057")
def test_known_member_id_in_an_empty_group(context: GroupContext) -> None:
    leader, follower = pair(context)
    context.leave((leader.member_id, LEADER), (follower.member_id, FOLLOWER))
    assert context.state() is EMPTY
    assert context.join(leader.member_id, instance=LEADER).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.conformance("GC-050", "JM-068")
def test_every_rejoin_without_member_id_gets_a_new_one(context: GroupContext) -> None:
    leader, _ = pair(context)
    ids = {leader.member_id}
    for _ in range(3):
        handle = context.join(instance=LEADER)
        assert handle.member_id not in ids
        ids.add(handle.member_id)
    assert len(context.group().members) == 2


@pytest.mark.conformance("JM-046")
def test_replacing_the_only_member_while_completing_starts_the_next_generation_at_once(context: GroupContext) -> None:
    (member,) = context.completing(instances=[LEADER])
    records = len(context.log)
    replacement = context.join(instance=LEADER)
    assert not replacement.is_delayed and replacement.error is ErrorCode.NONE
    assert replacement.member_id != member.member_id
    assert (replacement.response.generation_id, context.group().generation_id) == (2, 2)
    assert context.state() is COMPLETING_REBALANCE
    assert list(context.group().members) == [replacement.member_id]
    assert len(context.log) == records


# --- two processes with the same group.instance.id


@pytest.mark.conformance("JM-029")
def test_duplicate_instance_fences_the_first_during_the_initial_delay(context: GroupContext) -> None:
    first = context.join(instance=LEADER)
    second = context.join(instance=LEADER)
    assert first.error is ErrorCode.FENCED_INSTANCE_ID
    context.advance(DELAY_MS)
    assert second.error is ErrorCode.NONE
    assert list(context.group().members) == [second.member_id]


@pytest.mark.conformance("GC-029", "JM-050")
def test_duplicate_instance_fences_a_delayed_join(context: GroupContext) -> None:
    _, follower = pair(context)
    delayed = context.join(follower.member_id, instance=FOLLOWER, protocols=[("range", b"new")])
    assert delayed.is_delayed
    duplicate = context.join(instance=FOLLOWER, protocols=[("range", b"new")])
    assert (delayed.error, delayed.member_id) == (ErrorCode.FENCED_INSTANCE_ID, follower.member_id)
    assert duplicate.is_delayed
    assert context.state() is PREPARING_REBALANCE


@pytest.mark.conformance("GC-030", "JM-051")
def test_duplicate_instance_fences_a_delayed_sync_and_starts_a_rebalance(context: GroupContext) -> None:
    leader, follower = pair(context)
    rejoined = context.join(leader.member_id, instance=LEADER, protocols=[("range", b"new")])
    context.join(follower.member_id, instance=FOLLOWER)
    generation = rejoined.response.generation_id
    assert (generation, context.state()) == (2, COMPLETING_REBALANCE)
    delayed = context.sync(follower.member_id, generation, instance=FOLLOWER)
    assert delayed.is_delayed

    duplicate = context.join(instance=FOLLOWER)

    assert delayed.error is ErrorCode.FENCED_INSTANCE_ID
    assert context.state() is PREPARING_REBALANCE
    context.advance(REBALANCE_MS)
    assert duplicate.response.generation_id == generation + 1
    assert duplicate.response.leader == duplicate.member_id
    assert [m.member_id for m in duplicate.response.members] == [duplicate.member_id]


@pytest.mark.conformance("GC-031", "JM-052")
def test_former_member_id_is_fenced_after_the_replacement(context: GroupContext) -> None:
    leader, follower = pair(context)
    context.join(leader.member_id, instance=LEADER, protocols=[("range", b"new")])
    duplicate = context.join(instance=FOLLOWER)
    assert duplicate.response.generation_id == 2
    late = context.join(follower.member_id, instance=FOLLOWER)
    assert late.error is ErrorCode.FENCED_INSTANCE_ID


# --- returning with a known id


@pytest.mark.conformance("GC-032", "JM-053")
def test_single_member_rejoins_while_completing(context: GroupContext) -> None:
    (member,) = context.completing(instances=[LEADER])
    again = context.join(member.member_id, instance=LEADER)
    assert again.response.generation_id == 1
    assert context.sync(member.member_id, 1, {member.member_id: b"all"}, instance=LEADER).response.assignment == b"all"
    assert context.state() is STABLE


@pytest.mark.conformance("GC-034", "JM-055")
def test_follower_that_does_not_rejoin_is_removed(context: GroupContext) -> None:
    leader, _ = pair(context, rebalance_ms=10 * SESSION_MS)
    handle = context.join(leader.member_id, instance=LEADER)
    context.advance(SESSION_MS)
    assert handle.response.generation_id == 2
    assert [m.member_id for m in handle.response.members] == [leader.member_id]


@pytest.mark.conformance("GC-037", "JM-058")
def test_follower_becomes_leader_if_the_leader_does_not_rejoin(context: GroupContext) -> None:
    leader, follower = pair(context, protocols=TWO)
    handle = context.join(follower.member_id, instance=FOLLOWER, protocols=[("roundrobin", b"")])
    for _ in range(4):
        context.heartbeat(leader.member_id, 1, instance=LEADER)
        context.advance(REBALANCE_MS // 4)
    assert handle.response.leader == follower.member_id
    assert {m.member_id for m in handle.response.members} == {leader.member_id, follower.member_id}
    assert handle.response.protocol_name == "roundrobin"


@pytest.mark.conformance("GC-045", "JM-064")
def test_unchanged_follower_gets_an_immediate_response(context: GroupContext) -> None:
    leader, follower = pair(context)
    handle = context.join(follower.member_id, instance=FOLLOWER)
    assert handle.response.generation_id == 1
    assert handle.response.leader == leader.member_id
    assert context.state() is STABLE


# --- returning without an id


@pytest.mark.conformance("GC-033", "JM-054", "JM-042", "JM-045")
@pytest.mark.parametrize("version", [5, 8, 9])
def test_returning_leader_causes_no_rebalance(context: GroupContext, version: int) -> None:
    leader, follower = pair(context)
    handle = context.join(instance=LEADER, version=version, protocols=[("range", b"restarted")])
    new_id = handle.member_id
    assert new_id != leader.member_id
    assert handle.response.generation_id == 1
    if version >= 9:
        assert handle.response.leader == new_id
        assert handle.response.skip_assignment is True
        listed = {m.member_id: (m.group_instance_id, m.metadata) for m in handle.response.members}
        assert listed == {new_id: (LEADER, b"restarted"), follower.member_id: (FOLLOWER, b"")}
    else:
        assert handle.response.leader == leader.member_id
        assert list(handle.response.members) == []
    assert context.state() is STABLE
    assert context.join(leader.member_id, instance=LEADER).error is ErrorCode.FENCED_INSTANCE_ID
    assert context.sync(leader.member_id, 1, instance=LEADER).error is ErrorCode.FENCED_INSTANCE_ID
    assert context.sync(leader.member_id, 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert context.sync(new_id, 1, instance=LEADER).response.assignment == leader.member_id.encode()


@pytest.mark.conformance("GC-044", "JM-063")
@pytest.mark.parametrize("version", [5, 9])
def test_returning_follower_causes_no_rebalance(context: GroupContext, version: int) -> None:
    leader, follower = pair(context)
    handle = context.join(instance=FOLLOWER, version=version)
    assert handle.response.generation_id == 1
    assert handle.response.leader == leader.member_id
    assert list(handle.response.members) == []
    if version >= 9:
        assert handle.response.skip_assignment is False
    sync = context.sync(handle.member_id, 1, instance=FOLLOWER)
    assert sync.response.assignment == follower.member_id.encode()


@pytest.mark.conformance("JM-042")
def test_returning_member_gets_its_response_when_it_is_stored(context: GroupContext) -> None:
    pair(context)
    context.hold_appends = True
    handle = context.join(instance=FOLLOWER)
    assert handle.is_delayed
    stored = {m.group_instance_id: m.member_id for m in context.shard.store.groups[GROUP].members}
    context.release_appends()
    assert stored[FOLLOWER] == handle.member_id


def test_rebalance_before_the_append_completes_responds_to_the_returning_member(context: GroupContext) -> None:
    leader, _ = pair(context)
    context.hold_appends = True
    handle = context.join(instance=FOLLOWER)
    leader_join = context.join(leader.member_id, instance=LEADER)
    assert handle.response.generation_id == leader_join.response.generation_id == 2
    context.release_appends()  # sends no second response
    assert context.state() is COMPLETING_REBALANCE


@pytest.mark.conformance("GC-042", "JM-061")
def test_changed_protocols_with_the_same_selection_cause_no_rebalance(context: GroupContext) -> None:
    _, follower = pair(context, protocols=TWO)
    handle = context.join(instance=FOLLOWER, protocols=[("range", b"")])
    assert handle.response.generation_id == 1
    assert context.state() is STABLE
    assert context.join(follower.member_id, instance=FOLLOWER).error is ErrorCode.FENCED_INSTANCE_ID
    assert context.sync(handle.member_id, 1, instance=FOLLOWER).response.assignment == follower.member_id.encode()


@pytest.mark.conformance("GC-038", "JM-059", "JM-043")
def test_protocols_that_change_the_selection_cause_a_rebalance(context: GroupContext) -> None:
    leader, _ = pair(context, protocols=TWO)
    handle = context.join(instance=FOLLOWER, protocols=[("roundrobin", b"")])
    assert handle.is_delayed
    assert context.state() is PREPARING_REBALANCE
    context.join(leader.member_id, instance=LEADER, protocols=TWO)
    assert handle.response.generation_id == 2
    assert handle.response.protocol_name == "roundrobin"


@pytest.mark.conformance("GC-043", "JM-062")
def test_rejoin_of_the_leader_then_changed_protocols_of_a_follower(context: GroupContext) -> None:
    leader, follower = pair(context, protocols=TWO)
    first = context.join(leader.member_id, instance=LEADER, protocols=TWO)
    context.join(follower.member_id, instance=FOLLOWER, protocols=TWO)
    assert first.response.generation_id == 2
    context.sync(leader.member_id, 2, {}, instance=LEADER)
    second = context.join(instance=FOLLOWER, protocols=[("roundrobin", b"")])
    context.advance(REBALANCE_MS)
    assert second.response.generation_id == 3
    assert second.response.leader == second.member_id


@pytest.mark.conformance("GC-039", "JM-060", "JM-044")
@pytest.mark.parametrize("version", [5, 9])
def test_replacement_that_cannot_be_stored_is_undone(context: GroupContext, version: int) -> None:
    leader, follower = pair(context, protocols=TWO)
    context.append_error = ErrorCode.MESSAGE_TOO_LARGE
    handle = context.join(instance=LEADER, protocols=[("range", b"")], version=version)
    assert (handle.error, handle.member_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, "")
    assert (handle.response.generation_id, handle.response.leader) == (1, leader.member_id)
    context.append_error = None
    group = context.group()
    assert group.leader_id == leader.member_id
    assert group.members[leader.member_id].protocols == tuple(TWO)
    assert group.candidate_protocols() == {"range", "roundrobin"}
    assert group.awaiting_join_count == 0
    assert set(context.timers) == {SessionTimer(GROUP, m.member_id) for m in (leader, follower)}
    assert context.sync(leader.member_id, 1, instance=LEADER).response.assignment == leader.member_id.encode()
    assert context.join(follower.member_id, instance=FOLLOWER, protocols=TWO).error is ErrorCode.NONE


@pytest.mark.conformance("GC-040", "GC-041")
@pytest.mark.parametrize("stored", [False, True])
def test_new_timeouts_take_effect_only_if_they_can_be_stored(context: GroupContext, stored: bool) -> None:
    pair(context)
    if not stored:
        context.append_error = ErrorCode.MESSAGE_TOO_LARGE
    context.join(instance=FOLLOWER, session_ms=2 * SESSION_MS, rebalance_ms=2 * REBALANCE_MS)
    member = context.group().members[context.group().static_members[FOLLOWER]]
    factor = 2 if stored else 1
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (factor * SESSION_MS, factor * REBALANCE_MS)
    assert context.group().rebalance_timeout_ms == factor * REBALANCE_MS
    assert context.session_deadline(member.member_id) == context.clock.now_ms() + factor * SESSION_MS


# --- the other requests


@pytest.mark.conformance("GC-048", "JM-067")
def test_sync_with_another_member_id(context: GroupContext) -> None:
    pair(context)
    assert context.sync("made-up", 1, instance=LEADER).error is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.conformance("GC-049", "JM-089")
def test_heartbeat_with_another_member_id(context: GroupContext) -> None:
    leader, _ = pair(context)
    assert context.heartbeat(leader.member_id, 1, instance=LEADER) is ErrorCode.NONE
    assert context.heartbeat("made-up", 1, instance=LEADER) is ErrorCode.FENCED_INSTANCE_ID
    assert context.heartbeat(leader.member_id, 1, instance="unknown") is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.conformance("GC-052")
def test_commit_with_another_member_id(context: GroupContext) -> None:
    leader, _ = pair(context)
    assert context.commit(1, "made-up", 1, instance=LEADER) == [ErrorCode.FENCED_INSTANCE_ID]
    assert context.commit(1, leader.member_id, 1, instance=LEADER) == [ErrorCode.NONE]


# --- phases that static members miss


def only_a_silent_static_leader(context: GroupContext) -> tuple[Joined, ResponseHandle]:
    """A static leader with a long session and a dynamic follower; the follower rejoins, then leaves."""
    first = context.join(instance=LEADER, session_ms=10 * SESSION_MS)
    second = context.join()
    context.advance(2 * DELAY_MS)
    leader = Joined(first.member_id, 1, first.member_id, LEADER)
    context.sync(leader.member_id, 1, {}, instance=LEADER)
    context.sync(second.member_id, 1)
    context.join(second.member_id, protocols=[("range", b"new")])
    context.leave((second.member_id, None))
    assert context.state() is PREPARING_REBALANCE
    return leader, second


@pytest.mark.conformance("GC-055", "JM-113")
def test_join_phase_is_extended_if_only_static_members_are_left(context: GroupContext) -> None:
    only_a_silent_static_leader(context)
    for _ in range(3):
        context.advance(REBALANCE_MS)
        assert (context.state(), context.group().generation_id) == (PREPARING_REBALANCE, 1)
    assert context.kinds().count("rebalance_prolonged") >= 2
    context.advance(10 * SESSION_MS)
    assert (context.state(), context.group().generation_id) == (EMPTY, 2)
    assert context.group().leader_id is None


@pytest.mark.conformance("JM-041")
def test_extended_join_phase_completes_when_all_static_members_have_rejoined(context: GroupContext) -> None:
    leader, follower = pair(context, session_ms=100 * SESSION_MS)
    context.join()
    (newcomer,) = [member_id for member_id, member in context.group().members.items() if not member.is_static]
    context.leave((newcomer, None))
    for times in range(1, 4):
        context.advance(REBALANCE_MS)
        assert (context.state(), context.group().generation_id) == (PREPARING_REBALANCE, 1)
        assert context.timers[JoinTimer(GROUP)] == context.clock.now_ms() + REBALANCE_MS
        assert context.kinds().count("rebalance_prolonged") == times
    handles = [context.join(leader.member_id, instance=LEADER), context.join(follower.member_id, instance=FOLLOWER)]
    assert [handle.response.generation_id for handle in handles] == [2, 2]
    assert {m.group_instance_id for m in handles[0].response.members} == {LEADER, FOLLOWER}


@pytest.mark.conformance("GC-056")
def test_returning_static_leader_completes_an_extended_join_phase(context: GroupContext) -> None:
    leader, _ = only_a_silent_static_leader(context)
    context.advance(2 * REBALANCE_MS)
    handle = context.join(leader.member_id, instance=LEADER)
    assert handle.response.generation_id == 2
    assert [m.member_id for m in handle.response.members] == [leader.member_id]


@pytest.mark.conformance("GC-057", "JM-071")
def test_static_follower_that_does_not_rejoin_is_kept(context: GroupContext) -> None:
    leader, follower = pair(context, session_ms=10 * SESSION_MS)
    handle = context.join(leader.member_id, instance=LEADER, session_ms=10 * SESSION_MS)
    context.advance(REBALANCE_MS)
    assert handle.response.generation_id == 2
    assert {m.member_id for m in handle.response.members} == {leader.member_id, follower.member_id}


@pytest.mark.conformance("GC-058", "JM-072")
def test_static_leader_that_does_not_rejoin_is_kept_as_follower(context: GroupContext) -> None:
    leader, follower = pair(context, session_ms=10 * SESSION_MS)
    newcomer = context.join(session_ms=10 * SESSION_MS)
    rejoined = context.join(follower.member_id, instance=FOLLOWER, session_ms=10 * SESSION_MS)
    context.advance(REBALANCE_MS)
    new_leader = rejoined if rejoined.response.members else newcomer
    assert new_leader.response.leader == new_leader.member_id != leader.member_id
    expected = {leader.member_id, follower.member_id, newcomer.member_id}
    assert {m.member_id for m in new_leader.response.members} == expected


@pytest.mark.conformance("GC-077", "JM-101")
def test_static_member_that_only_sends_heartbeats_is_removed_later(context: GroupContext) -> None:
    # two static members, then a third joins: the second heartbeats but does not rejoin
    leader, follower = pair(context)
    newcomer = context.join(instance="third")
    rejoined = context.join(leader.member_id, instance=LEADER)
    for _ in range(5):
        context.advance(REBALANCE_MS // 5)
        error = context.heartbeat(follower.member_id, 1, instance=FOLLOWER)
    assert error is ErrorCode.ILLEGAL_GENERATION
    assert rejoined.response.generation_id == newcomer.response.generation_id == 2
    context.sync(leader.member_id, 2, {}, instance=LEADER)
    context.sync(newcomer.member_id, 2, instance="third")
    for _ in range(5):
        context.advance(SESSION_MS // 5)
        first = context.heartbeat(leader.member_id, 2, instance=LEADER)
        second = context.heartbeat(newcomer.member_id, 2, instance="third")
    assert first is second is ErrorCode.REBALANCE_IN_PROGRESS
    assert FOLLOWER not in context.group().static_members
    handles = [context.join(leader.member_id, instance=LEADER), context.join(newcomer.member_id, instance="third")]
    assert [a.response.generation_id for a in handles] == [3, 3]


def test_group_without_members_is_not_dead(context: GroupContext) -> None:
    leader, follower = pair(context)
    keep_alive(context, leader, SESSION_MS, 1)
    assert follower.member_id not in context.group().members
    assert context.state() is not DEAD
