"""JoinGroup of dynamic members: validation, protocols, group.max.size, the first record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.group_context import CONFIG, DELAY_MS, GROUP, RANGE, REBALANCE_MS, SESSION_MS, GroupContext, ResponseHandle

from spark_groupsource.broker.group import coordinator_config, responses
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, DEAD, PREPARING_REBALANCE, STABLE
from spark_groupsource.errors import ErrorCode


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


def errors(handles: list[ResponseHandle]) -> list[str]:
    return sorted(handle.error.name for handle in handles)


FOUR_OF_FIVE = sorted(["NONE"] * 4 + ["GROUP_MAX_SIZE_REACHED"])


# --- entry


@pytest.mark.conformance("GC-003")
def test_join_where_the_partition_is_not_owned(context: GroupContext) -> None:
    context.shard.on_unloaded(context.clock.instant())
    assert context.join().error is ErrorCode.NOT_COORDINATOR


@pytest.mark.conformance("GC-010", "GC-011")
@pytest.mark.parametrize("session_ms", [9, 600_001])
def test_session_timeout_out_of_bounds(context: GroupContext, session_ms: int) -> None:
    assert context.join(session_ms=session_ms).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert context.state() is DEAD


@pytest.mark.parametrize("session_ms", [10, 600_000])
def test_bounds_of_the_session_timeout_are_inclusive(context: GroupContext, session_ms: int) -> None:
    assert context.join(session_ms=session_ms).is_delayed


@pytest.mark.conformance("GC-013")
def test_empty_group_id_is_rejected(context: GroupContext) -> None:
    assert context.join(group="").error is ErrorCode.INVALID_GROUP_ID
    assert context.sync("m", 1, group="").error is ErrorCode.INVALID_GROUP_ID
    assert context.heartbeat("m", 1, group="") is ErrorCode.INVALID_GROUP_ID
    assert context.leave(("m", None), group="").error is ErrorCode.INVALID_GROUP_ID
    assert context.delete_offsets(("t", 0), group="").error is ErrorCode.INVALID_GROUP_ID


@pytest.mark.conformance("GC-012", "JM-013")
def test_made_up_member_id_of_an_unknown_group(context: GroupContext) -> None:
    handle = context.join("made-up")
    assert (handle.error, handle.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "made-up")
    assert context.state() is DEAD


@pytest.mark.conformance("GC-023", "JM-022")
def test_made_up_member_id_of_a_known_group(context: GroupContext) -> None:
    context.stable()
    handle = context.join("made-up")
    assert (handle.error, handle.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "made-up")
    assert context.state() is STABLE


@pytest.mark.conformance("GC-024", "JM-023", "JM-032")
def test_dead_group(context: GroupContext) -> None:
    context.kill()
    assert context.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.join("member").error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.conformance("JM-038")
def test_member_id_in_an_empty_group(context: GroupContext) -> None:
    (member,) = context.stable()
    context.leave((member.member_id, None))
    handle = context.join(member.member_id)
    assert (handle.error, handle.response.generation_id) == (ErrorCode.UNKNOWN_MEMBER_ID, -1)


@pytest.mark.conformance("GC-014")
def test_first_join_of_a_new_group(context: GroupContext) -> None:
    handle = context.join()
    context.advance(DELAY_MS)
    assert handle.error is ErrorCode.NONE
    assert handle.response.generation_id == 1
    assert handle.response.leader == handle.member_id == "client-uuid-1"
    assert handle.response.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in handle.response.members] == [(handle.member_id, b"")]


@pytest.mark.parametrize("version", range(10))
def test_join_response_of_every_version(version: int) -> None:
    context = GroupContext()
    handle = context.join(version=version)
    if version >= 4:
        assert handle.error is ErrorCode.MEMBER_ID_REQUIRED
        assert handle.response.protocol_name == (None if version >= 7 else "")
        handle = context.join(handle.member_id, version=version)
    context.advance(DELAY_MS)
    assert handle.error is ErrorCode.NONE
    assert handle.response.protocol_name == "range"
    member = context.group().members[handle.member_id]
    assert member.rebalance_timeout_ms == (SESSION_MS if version == 0 else REBALANCE_MS)


def test_version_0_uses_the_session_timeout_as_rebalance_timeout(context: GroupContext) -> None:
    context.join(version=0, session_ms=70)
    assert context.group().rebalance_timeout_ms == 70


# --- protocols


@pytest.mark.conformance("GC-015", "JM-014")
def test_another_protocol_type(context: GroupContext) -> None:
    context.stable()
    assert context.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert context.state() is STABLE


@pytest.mark.conformance("GC-016", "JM-015")
@pytest.mark.parametrize("instance", [None, "instance"])
def test_empty_protocol_type(context: GroupContext, instance: str | None) -> None:
    handle = context.join(protocol_type="", instance=instance)
    assert (handle.error, handle.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")


@pytest.mark.conformance("GC-017", "JM-016")
def test_no_protocols(context: GroupContext) -> None:
    assert context.join(protocols=()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert context.log == []


@pytest.mark.conformance("GC-022", "JM-018")
def test_no_protocol_in_common_with_the_waiting_member(context: GroupContext) -> None:
    first = context.join(protocols=[("range", b"")])
    assert context.join(protocols=[("roundrobin", b"")]).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    context.advance(DELAY_MS)
    assert first.error is ErrorCode.NONE
    assert len(first.response.members) == 1


@pytest.mark.conformance("GC-026", "JM-019")
def test_second_join_without_protocols_keeps_the_member_id_pending(context: GroupContext) -> None:
    required = context.join(version=4)
    assert required.error is ErrorCode.MEMBER_ID_REQUIRED
    refused = context.join(required.member_id, protocols=(), version=4)
    assert (refused.error, refused.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, required.member_id)
    third = context.join(required.member_id, version=4)
    context.advance(DELAY_MS)
    assert third.error is ErrorCode.NONE


@pytest.mark.conformance("GC-059", "JM-024")
def test_errors_have_no_protocol_type(context: GroupContext) -> None:
    context.stable()
    handle = context.join("made-up", version=7)
    assert handle.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert handle.response.protocol_type is None
    assert handle.response.protocol_name is None


@pytest.mark.conformance("GC-060", "JM-025")
def test_leader_and_follower_get_the_protocol_type(context: GroupContext) -> None:
    handles = [context.join(instance=instance, version=7) for instance in ("a", "b")]
    context.advance(2 * DELAY_MS)
    assert [handle.response.protocol_type for handle in handles] == ["consumer", "consumer"]
    assert [len(handle.response.members) for handle in handles] == [2, 0]


# --- size


@pytest.mark.conformance("GC-004", "JM-007")
def test_full_group_rejects_a_new_member(context: GroupContext) -> None:
    context.completing(4)
    assert context.state() is COMPLETING_REBALANCE
    handle = context.join()
    assert (handle.error, handle.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


def test_a_group_has_a_limit_without_group_max_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coordinator_config.GroupConfig().max_members == 2_000
    monkeypatch.setattr(coordinator_config, "MAX_MEMBERS", 2)
    context = GroupContext(replace(CONFIG, group_max_size=coordinator_config.GroupConfig().group_max_size))
    context.completing(2)
    assert context.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_responses_to_joins_are_built_when_they_are_sent(context: GroupContext) -> None:
    joined = context.completing(2)
    group = context.group()
    build = [responses.join_success(group, member.member_id) for member in joined]
    expected = [responses.join_success(group, member.member_id)() for member in joined]
    context.join()  # starts a rebalance
    group.remove(joined[1].member_id)
    assert [each() for each in build] == expected
    assert sorted(len(each.members) for each in expected) == [0, 2]


@pytest.mark.conformance("GC-005", "JM-008")
def test_pending_member_ids_do_not_count_for_group_max_size(context: GroupContext) -> None:
    ids = [context.join(version=4).member_id for _ in range(5)]
    for _ in range(2):
        handles = [context.join(member_id, version=4) for member_id in ids]
        context.advance(4 * DELAY_MS)
        assert errors(handles) == FOUR_OF_FIVE
        assert handles[4].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(context.group().members) == 4


@pytest.mark.conformance("GC-006", "JM-009", "GC-007", "JM-010")
@pytest.mark.parametrize("static", [False, True])
def test_members_join_up_to_the_limit(context: GroupContext, static: bool) -> None:
    instances = [f"i-{i}" if static else None for i in range(5)]
    handles = [context.join(instance=instance) for instance in instances]
    context.advance(4 * DELAY_MS)
    assert errors(handles) == FOUR_OF_FIVE
    again = [context.join(a.member_id, instance=i) for a, i in zip(handles[:4], instances, strict=False)]
    again.append(context.join(instance=instances[4]))
    context.advance(4 * DELAY_MS)
    assert errors(again) == FOUR_OF_FIVE


def test_rejected_pending_member_id_is_removed(context: GroupContext) -> None:
    pending = context.join(version=4).member_id
    members = [context.join() for _ in range(4)]
    context.advance(DELAY_MS)
    context.advance(DELAY_MS)
    context.join(members[0].member_id, protocols=[("range", b"changed")])
    for member in members[1:]:
        context.join(member.member_id)
    assert context.state() is PREPARING_REBALANCE  # waits for the pending member id

    assert context.join(pending, version=4).error is ErrorCode.GROUP_MAX_SIZE_REACHED

    assert context.group().pending_joins == set()
    assert context.session_deadline(pending) is None
    assert context.state() is COMPLETING_REBALANCE and context.delayed_count() == 0
    assert context.join(pending, version=4).error is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.conformance("GC-008", "JM-011")
def test_members_that_join_twice_count_once(context: GroupContext) -> None:
    ids = [context.join(version=4).member_id for _ in range(5)]
    first = [context.join(member_id, version=4) for member_id in ids]
    assert context.state() is PREPARING_REBALANCE
    second = [context.join(member_id, version=4) for member_id in ids]
    context.advance(4 * DELAY_MS)
    assert errors(second) == FOUR_OF_FIVE
    # the first request gets an error, so that every request gets a response
    assert {handle.error for handle in first[:4]} == {ErrorCode.REBALANCE_IN_PROGRESS}


@pytest.mark.conformance("GC-009", "JM-012", "JM-005")
def test_last_members_to_rejoin_a_group_over_its_limit_are_rejected() -> None:
    wide = GroupContext(replace(CONFIG, group_max_size=6))
    members = wide.stable(6)
    context = GroupContext(CONFIG, log=wide.log)
    assert context.state() is PREPARING_REBALANCE
    assert len(context.group().members) == 6

    handles = [context.join(member.member_id) for member in members]

    assert [a.error for a in handles[4:]] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
    assert [a.error for a in handles[:4]] == [ErrorCode.NONE] * 4
    assert list(context.group().members) == [member.member_id for member in members[:4]]
    assert handles[0].response.generation_id == 2


# --- a group's first record


@pytest.mark.conformance("JM-002")
def test_new_group_is_stored(context: GroupContext) -> None:
    context.join(version=4)
    assert len(context.log) == 1
    stored = context.shard.store.groups[GROUP]
    assert (stored.protocol_type, stored.generation_id, stored.members) == ("", 0, ())


@pytest.mark.conformance("JM-003", "JM-047")
@pytest.mark.parametrize("version", [3, 4])
def test_new_group_that_cannot_be_stored_is_not_created(context: GroupContext, version: int) -> None:
    context.append_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    handle = context.join(version=version)
    assert handle.error is ErrorCode.NOT_COORDINATOR
    assert context.state() is DEAD
    assert context.timers == {}
    assert (context.describe().group_state, context.list()) == ("Dead", {})


def test_reason_of_the_client_is_logged(context: GroupContext) -> None:
    context.stable()
    context.join(version=9, reason="topic metadata has changed")
    newcomer = context.join(version=9)
    context.join(newcomer.member_id, version=9, reason="need to join")
    assert any("adding new member" in e.text and "client reason: need to join" in e.text for e in context.log_lines)


def test_protocol_bytes_reach_the_leader(context: GroupContext) -> None:
    first = context.join(protocols=[("range", b"one"), ("roundrobin", b"uno")])
    second = context.join(protocols=[("range", b"two"), ("roundrobin", b"due")])
    context.advance(2 * DELAY_MS)
    listed = {m.member_id: m.metadata for m in first.response.members}
    assert listed == {first.member_id: b"one", second.member_id: b"two"}
    assert RANGE[0][0] == first.response.protocol_name
