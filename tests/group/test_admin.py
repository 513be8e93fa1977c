"""DescribeGroups, ListGroups, DeleteGroups, and requests during loading and unloading."""

from __future__ import annotations

import pytest
from simulation.invariants import persistent_state
from support.commit_requests import commit_topics
from support.group_context import CONFIG, GROUP, GroupContext

from spark_groupsource.broker.group import GroupShard, RequestContext
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE
from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.common.clock import Instant
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


# --- describe


@pytest.mark.conformance("GC-141", "JM-112")
@pytest.mark.parametrize("version", range(7))
def test_unknown_group_is_described_as_dead(context: GroupContext, version: int) -> None:
    described = context.describe("unknown", version)
    assert (described.group_state, list(described.members)) == ("Dead", [])
    if version >= 6:
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert described.error_message == "Group unknown not found."
    else:
        assert described.error_code == ErrorCode.NONE


@pytest.mark.conformance("GC-140")
def test_describe_where_the_partition_is_not_owned(context: GroupContext) -> None:
    context.shard.on_unloaded(context.clock.instant())
    described = context.describe()
    assert (described.error_code, described.group_state) == (ErrorCode.NOT_COORDINATOR, "")


@pytest.mark.conformance("JM-110")
def test_assignment_that_was_not_stored_is_not_described(context: GroupContext) -> None:
    context.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert context.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.describe().group_state == "Dead"
    context.append_error = None
    leader, follower = context.completing(2)
    context.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    context.sync(leader.member_id, 1, {follower.member_id: b"never"})
    described = context.describe()
    assert described.group_state == "PreparingRebalance"
    assert [member.member_assignment for member in described.members] == [b"", b""]


@pytest.mark.conformance("GC-142", "GC-143", "JM-110", "MB-010")
@pytest.mark.parametrize("instance", [None, "one"])
def test_stable_group_is_described_with_its_members(context: GroupContext, instance: str | None) -> None:
    handle = context.join(instance=instance, protocols=[("range", b"wants")], client_id="app-0")
    context.advance(50)
    context.sync(handle.member_id, 1, {handle.member_id: b"has"}, instance=instance)
    described = context.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.group_instance_id) == (handle.member_id, instance)
    assert (member.client_id, member.client_host) == ("app-0", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"wants", b"has")


@pytest.mark.conformance("GC-144", "JM-111", "MB-009")
def test_rebalancing_group_is_described_without_protocol_and_metadata(context: GroupContext) -> None:
    (member,) = context.stable(protocols=[("range", b"wants")])
    context.join(protocols=[("range", b"wants")])
    assert context.state() is PREPARING_REBALANCE
    described = context.describe()
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in described.members] == [b"", b""]
    assert [m.member_assignment for m in described.members] == [member.member_id.encode(), b""]


def test_authorized_operations_are_described_only_on_request(context: GroupContext) -> None:
    context.stable()
    assert context.describe().authorized_operations is None
    request = DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True)
    (described,) = context.send(request, 5).response.groups
    assert described.authorized_operations == {3, 6, 8, 10, 11}


# --- list


@pytest.mark.conformance("GC-136", "GC-137", "GC-138", "JM-109", "ST-070")
def test_groups_are_listed_by_state(context: GroupContext) -> None:
    def states() -> list[str]:
        names = ("Empty", "preparingrebalance", "COMPLETINGREBALANCE", "stable", "Dead", "Unknown")
        return [name for name in names if GROUP in context.list([name])]

    (member,) = context.completing()
    assert context.state() is COMPLETING_REBALANCE
    assert states() == ["COMPLETINGREBALANCE"]
    context.sync(member.member_id, 1, {})
    assert states() == ["stable"]
    listed = context.list()[GROUP]
    assert (listed.protocol_type, listed.group_state, listed.group_type) == ("consumer", "Stable", "classic")
    context.leave((member.member_id, None))
    assert context.state() is EMPTY
    assert states() == ["Empty"]


@pytest.mark.conformance("JM-001", "SM-066")
def test_groups_are_counted_by_state(context: GroupContext) -> None:
    def counts() -> list[int]:
        names = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
        return [len(context.list([name])) for name in names]

    members = {}
    for number in range(4):
        (members[number],) = context.completing(group=f"g{number}")
    assert counts() == [0, 0, 4, 0, 0]
    for number in range(3):
        context.sync(members[number].member_id, 1, {}, group=f"g{number}")
    assert counts() == [0, 0, 1, 3, 0]
    context.join(group="g0")
    assert counts() == [0, 1, 1, 2, 0]
    context.leave((members[1].member_id, None), group="g1")
    context.commit(1, group="simple")
    assert counts() == [2, 1, 1, 1, 0]
    context.delete_groups("g1")
    assert counts() == [1, 1, 1, 1, 0]


@pytest.mark.conformance("GC-139", "JM-109")
def test_groups_are_listed_by_type(context: GroupContext) -> None:
    context.stable()
    found = {name: GROUP in context.list(types=[name]) for name in ("classic", "Classic", "consumer", "unknown")}
    assert found == {"classic": True, "Classic": True, "consumer": False, "unknown": False}
    assert GROUP in context.list()


def test_groups_with_offsets_only_are_listed(context: GroupContext) -> None:
    context.commit(1, group="simple")
    again = GroupContext(log=context.log)
    assert again.list()["simple"].protocol_type == ""
    assert again.list()["simple"].group_state == "Empty"


# --- delete


@pytest.mark.conformance("GC-145", "ST-067")
def test_group_with_members_is_not_deleted(context: GroupContext) -> None:
    context.stable()
    assert context.delete_groups(GROUP) == {GROUP: ErrorCode.NON_EMPTY_GROUP}


@pytest.mark.conformance("GC-146")
def test_delete_of_a_null_group_id_is_rejected(context: GroupContext) -> None:
    request = DeleteGroupsRequest(groups_names=[None])
    outcome = context.shard.handle(request, RequestContext("t", 2, "c", "/h", "id"), Instant(0, 0))
    (result,) = outcome.replies[0].response.results
    assert result.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.conformance("GC-147")
def test_delete_where_the_partition_is_not_owned(context: GroupContext) -> None:
    context.shard.on_unloaded(context.clock.instant())
    assert context.delete_groups(GROUP) == {GROUP: ErrorCode.NOT_COORDINATOR}


@pytest.mark.conformance("ST-067")
def test_unknown_and_dead_groups_are_not_found(context: GroupContext) -> None:
    assert context.delete_groups(GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}
    context.kill()
    assert context.delete_groups(GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}


@pytest.mark.conformance("GC-148", "JM-129")
def test_empty_group_is_deleted_with_one_tombstone(context: GroupContext) -> None:
    (member,) = context.stable()
    context.leave((member.member_id, None))
    records = len(context.log)
    assert context.delete_groups(GROUP, GROUP) == {GROUP: ErrorCode.NONE}
    assert [value for _, value in context.log[records:]] == [None]
    assert context.describe().group_state == "Dead"
    assert context.join("made-up").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_before_a_deletion_is_durable_creates_a_new_group(context: GroupContext) -> None:
    (member,) = context.stable()
    context.leave((member.member_id, None))
    context.hold_appends = True
    context.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    topics = commit_topics(OffsetCommitRequest, {"topic": {0: 5}})
    context.send(OffsetCommitRequest(group_id=GROUP, topics=topics), 8)
    context.release_appends()
    assert context.fetch() == {("topic", 0): 5}
    live, loaded = context.group(), context.restarted().group()
    assert (live.state, live.generation_id, live.protocol_type) == (EMPTY, 0, None)
    assert persistent_state(live) == persistent_state(loaded)


@pytest.mark.conformance("GC-149", "OM-046")
def test_empty_group_is_deleted_with_its_offsets(context: GroupContext) -> None:
    (member,) = context.stable()
    context.commit(1, member.member_id, 1, partitions=(0, 1))
    context.leave((member.member_id, None))
    records = len(context.log)
    assert context.delete_groups(GROUP, "unknown") == {GROUP: ErrorCode.NONE, "unknown": ErrorCode.GROUP_ID_NOT_FOUND}
    assert len(context.log) == records + 3
    assert context.fetch() == {}
    assert context.describe().group_state == "Dead"
    assert GroupContext(log=context.log).list() == {}


def test_group_with_pending_member_ids_is_deleted(context: GroupContext) -> None:
    pending = context.join(version=4)
    assert context.delete_groups(GROUP) == {GROUP: ErrorCode.NONE}
    assert context.state() is DEAD
    assert context.timers == {}
    assert context.join(pending.member_id, version=4).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_is_kept_if_its_tombstones_cannot_be_stored(context: GroupContext) -> None:
    context.commit(1)
    context.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert context.delete_groups(GROUP) == {GROUP: ErrorCode.NOT_COORDINATOR}
    context.append_error = None
    assert context.fetch() == {("topic", 0): 1}
    assert context.state() is EMPTY


# --- loading


@pytest.mark.conformance("GC-001")
def test_requests_during_loading_get_a_loading_error() -> None:
    shard = GroupShard(0, CONFIG)

    def error(request: object, version: int) -> int:
        context = RequestContext("token", version, "client", "/127.0.0.1", "id")
        (reply,) = shard.handle(request, context, Instant(0, 0)).replies
        response = reply.response
        for field in ("groups", "results", "topics"):
            entries = getattr(response, field, None) or ()
            for entry in entries:
                return int(entry.partitions[0].error_code if field == "topics" else entry.error_code)
        return int(response.error_code)

    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    commit = OffsetCommitRequest(group_id=GROUP, topics=commit_topics(OffsetCommitRequest, {"t": {0: 1}}))
    assert error(JoinGroupRequest(group_id=GROUP, session_timeout_ms=500), 4) == loading
    assert error(commit, 8) == loading
    assert error(DescribeGroupsRequest(groups=[GROUP]), 5) == loading
    assert error(DeleteGroupsRequest(groups_names=[GROUP]), 2) == loading
    assert error(ListGroupsRequest(), 5) == loading
    assert error(LeaveGroupRequest(group_id=GROUP, member_id="m"), 2) == loading
    assert error(OffsetDeleteRequest(group_id=GROUP), 0) == loading
    assert error(OffsetFetchRequest(group_id=GROUP, topics=None), 7) == loading
    sync = SyncGroupRequest(group_id=GROUP, member_id="m", protocol_type="consumer", protocol_name="range")
    assert error(sync, 5) == ErrorCode.REBALANCE_IN_PROGRESS
    assert error(HeartbeatRequest(group_id=GROUP, member_id="m"), 4) == ErrorCode.NONE
    shard.on_loaded(Instant(0, 0))
    assert error(DescribeGroupsRequest(groups=[GROUP]), 5) == ErrorCode.NONE


# --- unloading


@pytest.mark.conformance("JM-133", "ST-071")
def test_unloading_responds_to_delayed_joins(context: GroupContext) -> None:
    leader, follower, silent = context.stable(3)
    members = [leader, follower]
    delayed = [context.join(member.member_id, protocols=[("range", b"other")]) for member in members]
    elsewhere = context.join(group="other")
    groups = list(context.shard.groups.values())
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    for handle, member in zip(delayed, members, strict=True):
        assert (handle.error, handle.member_id) == (ErrorCode.NOT_COORDINATOR, member.member_id)
    assert elsewhere.error is ErrorCode.NOT_COORDINATOR
    assert [group.state for group in groups] == [DEAD, DEAD]
    assert context.heartbeat(silent.member_id, 1) is ErrorCode.NOT_COORDINATOR


@pytest.mark.conformance("SM-016")
def test_unloading_removes_groups_and_offsets(context: GroupContext) -> None:
    (member,) = context.stable()
    context.commit(5, member.member_id, 1)
    assert list(context.shard.groups) == [GROUP] and list(context.shard.store.offsets) == [GROUP]
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    assert context.shard.groups == {} and context.shard.store == GroupStore()
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NOT_COORDINATOR


@pytest.mark.conformance("JM-134", "ST-072")
def test_unloading_responds_to_delayed_syncs(context: GroupContext) -> None:
    _, *followers = context.completing(3)
    delayed = [context.sync(follower.member_id, 1) for follower in followers]
    records = len(context.log)
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    assert [handle.error for handle in delayed] == [ErrorCode.NOT_COORDINATOR] * 2
    assert len(context.log) == records  # no tombstones: the next coordinator loads everything
    assert context.state() is DEAD
