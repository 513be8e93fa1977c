"""SyncGroup: the assignment of the leader is stored and returned."""

from __future__ import annotations

from typing import Any

import pytest
from support.group_context import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, GroupContext, Joined

from spark_groupsource.broker.group import SyncTimer
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import DeleteGroupsRequest


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


def sync_all(context: GroupContext, members: list[Joined], generation_id: int) -> list[Any]:
    return [context.sync(member.member_id, generation_id) for member in members]


# --- refusals


@pytest.mark.conformance("GC-025")
def test_dead_group(context: GroupContext) -> None:
    (member,) = context.completing()
    context.kill()
    assert context.sync(member.member_id, 1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.conformance("GC-079")
def test_request_after_unloading_gets_not_coordinator(context: GroupContext) -> None:
    context.shard.on_unloaded(context.clock.instant())
    assert context.sync("member", 1).error is ErrorCode.NOT_COORDINATOR


@pytest.mark.conformance("GC-080", "JM-077")
def test_unknown_group(context: GroupContext) -> None:
    assert context.sync("member", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.conformance("GC-081", "JM-078")
def test_unknown_member(context: GroupContext) -> None:
    context.completing()
    assert context.sync("made-up", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.conformance("GC-082", "JM-079")
@pytest.mark.parametrize("generation_id", [0, 2, -1])
def test_another_generation(context: GroupContext, generation_id: int) -> None:
    (member,) = context.completing()
    assert context.sync(member.member_id, generation_id).error is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.conformance("GC-061", "JM-073", "GC-062", "JM-074")
@pytest.mark.parametrize("index", [0, 1], ids=["leader", "follower"])
@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol_name": "roundrobin"}], ids=str)
def test_another_protocol_type_or_name(context: GroupContext, index: int, wrong: dict[str, str]) -> None:
    members = context.completing(2)
    handle = context.sync(members[index].member_id, 1, {}, **wrong)  # type: ignore[arg-type]
    assert handle.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (handle.response.protocol_type, handle.response.assignment) == (None, b"")
    assert context.state() is COMPLETING_REBALANCE


def test_version_5_requires_protocol_type_and_name(context: GroupContext) -> None:
    (member,) = context.completing()
    for absent in ({"protocol_type": None}, {"protocol_name": None}):
        error = context.sync(member.member_id, 1, **absent).error  # type: ignore[arg-type]
        assert error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.conformance("GC-063", "JM-075")
@pytest.mark.parametrize("version", range(5))
def test_older_versions_have_no_protocol_type_and_name(context: GroupContext, version: int) -> None:
    leader, follower = context.completing(2)
    first = context.sync(leader.member_id, 1, {follower.member_id: b"half"}, version=version)
    second = context.sync(follower.member_id, 1, version=version)
    assert (first.error, second.response.assignment) == (ErrorCode.NONE, b"half")


@pytest.mark.conformance("GC-064", "JM-076")
def test_response_has_protocol_type_and_name(context: GroupContext) -> None:
    for member in context.completing(2):
        handle = context.sync(member.member_id, 1, {})
        assert (handle.response.protocol_type, handle.response.protocol_name) == ("consumer", "range")


# --- success


@pytest.mark.conformance("GC-078", "JM-102")
def test_empty_assignment_is_accepted(context: GroupContext) -> None:
    (member,) = context.completing()
    handle = context.sync(member.member_id, 1, {})
    assert (handle.error, handle.response.assignment) == (ErrorCode.NONE, b"")
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NONE


@pytest.mark.conformance("GC-094", "JM-083")
def test_follower_after_leader(context: GroupContext) -> None:
    leader, follower = context.completing(2)
    assignments = {leader.member_id: b"one", follower.member_id: b"two", "unknown": b"three"}
    assert context.sync(leader.member_id, 1, assignments).response.assignment == b"one"
    assert context.sync(follower.member_id, 1).response.assignment == b"two"
    assert context.state() is STABLE


@pytest.mark.conformance("GC-095", "JM-084", "ST-046", "ST-047", "ST-061", "ST-062")
def test_leader_after_follower(context: GroupContext) -> None:
    leader, follower = context.completing(2)
    delayed = context.sync(follower.member_id, 1)
    assert delayed.is_delayed
    context.sync(leader.member_id, 1, {follower.member_id: b"two"})
    assert delayed.response.assignment == b"two"
    # one response each: a second one would fail in `deliver`
    assert not any(member.awaiting_sync for member in context.group().members.values())
    assert context.sync(leader.member_id, 1, {follower.member_id: b"three"}).response.assignment == b""
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    assert delayed.response.assignment == b"two"


@pytest.mark.conformance("SM-035")
def test_group_is_stored_with_members_and_assignments(context: GroupContext) -> None:
    leader, follower = context.completing(2, protocols=[("range", b"wants")])
    context.sync(leader.member_id, 1, {leader.member_id: b"one", "unknown": b"x"})
    stored = context.shard.store.groups[GROUP]
    assert (stored.protocol_type, stored.generation_id, stored.protocol_name) == ("consumer", 1, "range")
    assert stored.leader == leader.member_id
    assert {m.member_id: (m.subscription, m.assignment) for m in stored.members} == {
        leader.member_id: (b"wants", b"one"),
        follower.member_id: (b"wants", b""),
    }


def test_assignment_of_the_leader_is_ignored_in_stable(context: GroupContext) -> None:
    (leader,) = context.stable()
    records = len(context.log)
    handle = context.sync(leader.member_id, 1, {leader.member_id: b"other"})
    assert handle.response.assignment == leader.member_id.encode()
    assert len(context.log) == records


def test_sync_responses_wait_for_the_append(context: GroupContext) -> None:
    leader, follower = context.completing(2)
    delayed = context.sync(follower.member_id, 1)
    context.hold_appends = True
    own = context.sync(leader.member_id, 1, {follower.member_id: b"two"})
    assert delayed.is_delayed and own.is_delayed
    assert context.state() is COMPLETING_REBALANCE
    context.release_appends()
    assert delayed.response.assignment == b"two"
    assert context.state() is STABLE


def test_assignment_of_an_earlier_generation_has_no_effect(context: GroupContext) -> None:
    leader, follower = context.completing(2)
    delayed = context.sync(follower.member_id, 1)
    context.hold_appends = True
    own = context.sync(leader.member_id, 1, {follower.member_id: b"two"})
    context.join()  # a new member
    assert delayed.error is own.error is ErrorCode.REBALANCE_IN_PROGRESS
    context.release_appends()
    assert context.state() is PREPARING_REBALANCE
    assert context.group().members[follower.member_id].assignment == b""


def test_leader_that_syncs_twice_gets_two_responses(context: GroupContext) -> None:
    leader, _ = context.completing(2)
    context.hold_appends = True
    first = context.sync(leader.member_id, 1, {leader.member_id: b"1"})
    second = context.sync(leader.member_id, 1, {leader.member_id: b"2"})
    context.release_appends()
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.response.assignment == b"2"  # what the log holds


# --- failed appends


@pytest.mark.conformance("SM-036")
def test_assignment_is_not_stored_after_the_coordinator_has_moved(context: GroupContext) -> None:
    leader, follower = context.completing(2)
    waiting = context.sync(follower.member_id, 1)
    records = list(context.log)
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    late = context.sync(leader.member_id, 1, {leader.member_id: b"1", follower.member_id: b"2"})
    assert waiting.error is late.error is ErrorCode.NOT_COORDINATOR
    assert (waiting.response.assignment, late.response.assignment) == (b"", b"")
    assert context.log == records


@pytest.mark.conformance("SM-034")
def test_sync_of_a_stored_assignment_returns_no_error(context: GroupContext) -> None:
    leader, follower = context.completing(2)
    waiting = context.sync(follower.member_id, 1)
    own = context.sync(leader.member_id, 1, {follower.member_id: b"two"})
    assert waiting.error is own.error is ErrorCode.NONE
    assert waiting.response.assignment == b"two" and context.state() is STABLE


@pytest.mark.conformance("JM-080", "JM-047", "SM-034")
@pytest.mark.parametrize(
    "append_error, expected",
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_FETCH_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    ],
)
def test_assignment_that_cannot_be_stored(
    context: GroupContext, append_error: ErrorCode, expected: ErrorCode
) -> None:
    leader, follower = context.completing(2)
    delayed = context.sync(follower.member_id, 1)
    context.append_error = append_error
    own = context.sync(leader.member_id, 1, {follower.member_id: b"two"})
    assert delayed.error is own.error is expected
    assert own.response.assignment == b""
    assert context.state() is PREPARING_REBALANCE
    context.append_error = None
    again = [context.join(m.member_id) for m in (leader, follower)]
    assert [a.response.generation_id for a in again] == [2, 2]


# --- the wait for SyncGroup


def test_group_deleted_before_its_assignment_is_durable_is_removed(context: GroupContext) -> None:
    (member,) = context.completing()
    context.hold_appends = True
    delayed = context.sync(member.member_id, 1, {member.member_id: b"all"})
    context.leave((member.member_id, None))
    context.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    context.release_appends()
    assert delayed.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert context.state() is DEAD and context.list() == {}
    assert context.delayed_count() == 0


@pytest.mark.conformance("GC-089", "JM-104")
def test_members_are_removed_if_none_syncs(context: GroupContext) -> None:
    members = context.completing(3, session_ms=2 * REBALANCE_MS)
    context.advance(REBALANCE_MS // 2)
    assert {context.heartbeat(m.member_id, 1) for m in members} == {ErrorCode.NONE}
    context.advance(REBALANCE_MS // 2)
    assert {context.heartbeat(m.member_id, 1) for m in members} == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert context.state() is EMPTY


@pytest.mark.conformance("GC-090", "JM-105")
def test_only_the_leader_syncs(context: GroupContext) -> None:
    leader, *followers = context.completing(3, session_ms=2 * REBALANCE_MS)
    context.sync(leader.member_id, 1, {})
    context.advance(REBALANCE_MS // 2)
    assert {context.heartbeat(m.member_id, 1) for m in (leader, *followers)} == {ErrorCode.NONE}
    context.advance(REBALANCE_MS // 2)
    assert context.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert {context.heartbeat(m.member_id, 1) for m in followers} == {ErrorCode.UNKNOWN_MEMBER_ID}


@pytest.mark.conformance("GC-091", "JM-106")
def test_only_followers_sync(context: GroupContext) -> None:
    leader, *followers = context.completing(3, session_ms=2 * REBALANCE_MS)
    handles = sync_all(context, followers, 1)
    context.advance(REBALANCE_MS)
    assert {a.error for a in handles} == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert context.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert {context.heartbeat(m.member_id, 1) for m in followers} == {ErrorCode.REBALANCE_IN_PROGRESS}


@pytest.mark.conformance("GC-092", "JM-107")
def test_all_sync(context: GroupContext) -> None:
    members = context.stable(3, session_ms=2 * REBALANCE_MS)
    assert SyncTimer(GROUP) not in context.timers
    context.advance(REBALANCE_MS)
    assert {context.heartbeat(m.member_id, 1) for m in members} == {ErrorCode.NONE}
    assert context.state() is STABLE


@pytest.mark.conformance("GC-093", "JM-082")
def test_leader_fails_before_its_sync(context: GroupContext) -> None:
    leader, follower = context.completing(2, rebalance_ms=10 * SESSION_MS)
    delayed = context.sync(follower.member_id, 1)
    context.advance(SESSION_MS)
    assert delayed.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.member_id not in context.group().members


def test_new_rebalance_cancels_the_sync_timer(context: GroupContext) -> None:
    context.completing(2, session_ms=10 * REBALANCE_MS)
    context.advance(REBALANCE_MS - 1)
    context.join()
    context.advance(1)
    assert "members_not_synced" not in context.kinds()


@pytest.mark.conformance("JM-131")
def test_completed_rebalance_is_logged_once(context: GroupContext) -> None:
    def logged() -> list[int]:
        kinds = ("rebalance_started", "rebalance_stabilized", "assignment_received")
        return [context.kinds().count(kind) for kind in kinds]

    leader, follower = context.stable(2)
    assert logged() == [1, 1, 1]
    for _ in range(2):
        assert context.heartbeat(follower.member_id, 1) is ErrorCode.NONE
    assert logged() == [1, 1, 1], "only rebalances are logged"
    for member in (leader, follower):
        context.join(member.member_id)
    assert logged() == [2, 2, 1], "a rebalance is complete with the assignment"
    context.join(follower.member_id, protocols=[("range", b"other")])
    context.join(leader.member_id)
    assert logged() == [3, 3, 1], "an interrupted rebalance is never complete"
    context.sync(leader.member_id, 3, {})
    assert logged() == [3, 3, 2]


def test_later_member_joins_the_current_join_phase(context: GroupContext) -> None:
    (leader,) = context.stable()
    second, third = context.join(), context.join()
    rejoined = context.join(leader.member_id)
    assert [a.response.generation_id for a in (second, third, rejoined)] == [2, 2, 2]
    context.advance(DELAY_MS)
    assert context.state() is COMPLETING_REBALANCE
