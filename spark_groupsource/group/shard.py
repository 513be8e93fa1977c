"""The coordinator of the groups in one partition of `__consumer_offsets`: dispatch, replay, load and unload.

Decide, append, replay, reply. `handle` and `expire` decide: they move the soft state (who is parked, whose session
runs until when, which round the group is in) and return an `Outcome`. Only `replay` changes the lasting state, the
ledger. What the caller owes an outcome stands in `outcome.py`.

Knows no clock, no socket, no log and no chance: times and fresh ids come as arguments. Not thread-safe: one writer.

Source: Kafka's GroupCoordinatorShard and GroupCoordinatorService.
"""

from __future__ import annotations

from enum import Enum
from typing import Callable, Collection, Iterator, Mapping, Sequence

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group import admin, join, offsets, rebalance, sessions, sync
from spark_groupsource.group.answers import join_error, leave_answer, sync_error
from spark_groupsource.group.classic import ClassicGroup
from spark_groupsource.group.config import GroupConfig
from spark_groupsource.group.failures import append_error, error_response
from spark_groupsource.group.ledger import Ledger
from spark_groupsource.group.outcome import (
    Outcome,
    Reply,
    RequestContext,
    StoreAssignment,
    StoreNewGroup,
    StoreOffsets,
    StoreRemoval,
    StoreReplacement,
    Turn,
)
from spark_groupsource.group.states import DEAD, EMPTY
from spark_groupsource.group.timers import GroupTimer, JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import GroupValue, OffsetKey
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    Message,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)


class Ownership(Enum):
    """Whether a shard may be asked."""

    LOADING = "loading"
    OWNED = "owned"
    UNLOADED = "unloaded"


# the APIs that take no empty group id
_GROUP_ID_REQUIRED = frozenset(
    api.API_KEY
    for api in (
        JoinGroupRequest,
        SyncGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
        OffsetDeleteRequest,
        TxnOffsetCommitRequest,
    )
)
# Old clients know no loading error in these answers: a heartbeat is simply believed, and a SyncGroup that is told
# REBALANCE_IN_PROGRESS makes its sender join again, by when loading is over.
_LOADING_ANSWERS: Mapping[int, ErrorCode] = {
    HeartbeatRequest.API_KEY: ErrorCode.NONE,
    SyncGroupRequest.API_KEY: ErrorCode.REBALANCE_IN_PROGRESS,
}
_SYNC_NAMES_VERSION = 5
_NOTHING = Outcome()


class GroupShard:
    """Groups of one partition; begins as loading: `replay` the log, then call `loaded`.

    Attributes: `ledger` (the lasting state; read only), `ownership`.
    """

    def __init__(self, partition: int, config: GroupConfig | None = None) -> None:
        self.partition = partition
        self.config = config or GroupConfig()
        self.ledger = Ledger()
        self.ownership = Ownership.LOADING
        self._groups: dict[str, ClassicGroup] = {}
        self._handlers: Mapping[int, Callable[[Turn, Message, RequestContext], None]] = {
            JoinGroupRequest.API_KEY: self._join,
            SyncGroupRequest.API_KEY: self._sync,
            HeartbeatRequest.API_KEY: self._heartbeat,
            LeaveGroupRequest.API_KEY: self._leave,
            OffsetCommitRequest.API_KEY: self._commit,
            TxnOffsetCommitRequest.API_KEY: self._commit_transactional,
            OffsetFetchRequest.API_KEY: self._fetch,
            OffsetDeleteRequest.API_KEY: self._delete_offsets,
            DescribeGroupsRequest.API_KEY: self._describe,
            ListGroupsRequest.API_KEY: self._list,
            DeleteGroupsRequest.API_KEY: self._delete_groups,
        }

    # --- decisions

    def handle(self, request: Message, context: RequestContext, now_ms: int) -> Outcome:
        """Decides one request of a group API; its answer is in this outcome or comes in a later one.

        Every group the request names belongs to this shard (`fanout.split` sees to that).

        Args: `now_ms` monotonic. Raises: KeyError for a request of another API; RuntimeError on a bug.
        """
        turn = self._turn(now_ms, context.timestamp_ms)
        error = self._check(request, context)
        if error is not None:
            turn.reply(context.token, error_response(request, error, context.api_version))
        else:
            self._handlers[request.API_KEY](turn, request, context)
        return turn.outcome()

    def expire(self, timer: GroupTimer, now_ms: int, timestamp_ms: int) -> Outcome:
        """Handles an expired timer; a timer of a removed group or member has no effect."""
        turn = self._turn(now_ms, timestamp_ms)
        group = self._groups.get(timer.group_id)
        if group is None or self.ownership is not Ownership.OWNED:
            return turn.outcome()
        if isinstance(timer, JoinTimer):
            rebalance.expire_join(turn, group)
        elif isinstance(timer, SyncTimer):
            rebalance.expire_sync(turn, group)
        else:
            sessions.expire_session(turn, group, timer.member_id)
        return turn.outcome()

    def append_done(self, outcome: Outcome, now_ms: int, timestamp_ms: int) -> Outcome:
        """Goes on after the records of `outcome` were replayed and are durable; its replies are the caller's."""
        stored = outcome.after_append
        if stored is None or isinstance(stored, StoreOffsets):
            return _NOTHING
        turn = self._turn(now_ms, timestamp_ms)
        if isinstance(stored, StoreRemoval):
            for group_id in stored.group_ids:
                self._drop_if_gone(turn, group_id)
        elif isinstance(stored, (StoreAssignment, StoreReplacement)):
            group = self._groups.get(stored.group_id)
            if group is None:
                return turn.outcome()
            if isinstance(stored, StoreReplacement):
                join.replacement_stored(turn, group, stored)
            elif stored.group_id in self.ledger.groups:  # else it has emptied and was deleted meanwhile
                sync.assignment_stored(turn, group, stored, self.ledger.groups[stored.group_id])
        return turn.outcome()

    def append_failed(self, outcome: Outcome, error_code: int, now_ms: int, timestamp_ms: int) -> Outcome:
        """Goes on after the records of `outcome` could not be appended, and were not replayed.

        The outcome returned stands in for the replies of `outcome`, which must not be sent.
        """
        turn = self._turn(now_ms, timestamp_ms)
        error = append_error(error_code)
        stored = outcome.after_append
        turn.event("append_failed", "", f"Appending to __consumer_offsets-{self.partition} failed: {error.name}")
        if isinstance(stored, StoreOffsets):
            for reply in outcome.replies:
                turn.reply(reply.token, offsets.commit_failed(reply.response, error))
            return turn.outcome()
        if isinstance(stored, StoreNewGroup):
            self._new_group_failed(turn, stored, error)
            return turn.outcome()
        for reply in outcome.replies:
            turn.reply(reply.token, _failed(reply, error) if isinstance(stored, StoreRemoval) else reply.response)
        if isinstance(stored, (StoreAssignment, StoreReplacement)):
            group = self._groups.get(stored.group_id)
            if group is not None and isinstance(stored, StoreAssignment):
                sync.assignment_failed(turn, group, stored, error)
            elif group is not None and isinstance(stored, StoreReplacement):
                join.replacement_failed(turn, group, stored, error)
        return turn.outcome()

    # --- lasting state

    def replay(self, key: bytes, value: bytes | None, *, timestamp_ms: int, producer_id: int = -1) -> None:
        """Takes one record of the log over, at load and after each append: the only change of lasting state.

        `producer_id` is that of the transaction the record belongs to, -1 for none.

        Raises: CorruptRecordError on bytes that cannot be understood; the partition must not be served then.
        """
        del timestamp_ms  # every value carries the times that matter
        if producer_id < 0:
            self.ledger.replay(key, value)
        else:
            self.ledger.replay_transactional(producer_id, key, value)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Takes over the marker of a transaction, at load and after each append."""
        self.ledger.end_transaction(producer_id, committed)

    def loaded(self, now_ms: int, timestamp_ms: int = -1) -> Outcome:
        """Begins to serve after the log was replayed: every member gets a full session from now."""
        self.ownership = Ownership.OWNED
        turn = self._turn(now_ms, timestamp_ms)
        for group_id, value in self.ledger.groups.items():
            if not value.members:
                continue
            group = self._find(group_id)
            assert group is not None
            for member in group.members.values():
                turn.set_timer(SessionTimer(group_id, member.member_id), member.session_timeout_ms)
            if len(group.members) > self.config.group_max_size:
                rebalance.prepare_rebalance(turn, group, "freshly-loaded group is over capacity")
        skipped = self.ledger.unknown_records
        turn.event(
            "loaded",
            "",
            f"Finished loading offsets and group metadata from __consumer_offsets-{self.partition}"
            + (f", skipping {skipped} records of unknown types" if skipped else ""),
        )
        return turn.outcome()

    def unload(self, now_ms: int, timestamp_ms: int = -1) -> Outcome:
        """Ends serving: every parked request is answered NOT_COORDINATOR. All timers of this shard are void."""
        turn = self._turn(now_ms, timestamp_ms)
        for group in self._groups.values():
            for member in group.members.values():
                parked = group.take_join(member)
                if parked is not None:
                    error = join_error(ErrorCode.NOT_COORDINATOR, member.member_id, parked.api_version)
                    turn.reply(parked.token, error)
                if member.parked_sync is not None:
                    turn.reply(member.parked_sync.token, sync_error(ErrorCode.NOT_COORDINATOR))
                    member.parked_sync = None
            group.transition(DEAD, timestamp_ms)
        self._groups.clear()
        self.ledger = Ledger()
        self.ownership = Ownership.UNLOADED
        turn.event("unloaded", "", f"Finished unloading __consumer_offsets-{self.partition}")
        return turn.outcome()

    def partitions_deleted(
        self, topic_partitions: Collection[TopicPartition], timestamp_ms: int, now_ms: int = 0
    ) -> Outcome:
        """Tombstones for the offsets of deleted partitions in every group, whatever their age."""
        turn = self._turn(now_ms, timestamp_ms)
        deleted = set(topic_partitions)
        for group_id in self.ledger.group_ids():
            for topic, partition in sorted(deleted & self.ledger.partitions_of(group_id)):
                turn.store_offset(OffsetKey(group_id, topic, partition), None)
        return turn.outcome()

    def expire_offsets(self, timestamp_ms: int, now_ms: int = 0) -> Outcome:
        """Tombstones for offsets whose time is over, and for Empty groups that have none left. O(offsets).

        To be called every `offsets.retention.check.interval.ms`.
        """
        turn = self._turn(now_ms, timestamp_ms)
        removed = []
        count = 0
        for group in self._all_groups():
            stored = self.ledger.offsets_of(group.group_id)
            pending = self.ledger.pending.of(group.group_id)
            over = offsets.expired(group, stored, self.config.offsets_retention_ms, timestamp_ms)
            gone = [topic_partition for topic_partition in over if topic_partition not in pending]
            count += len(gone)
            unused = group.state is EMPTY and not group.pending_joins and not pending
            if unused and len(gone) == len(stored):
                admin.remove_group(turn, group.group_id, stored.keys(), group.group_id in self.ledger.groups)
                removed.append(group.group_id)
            else:
                for topic, partition in sorted(gone):
                    turn.store_offset(OffsetKey(group.group_id, topic, partition), None)
        if count:
            turn.event("offsets_expired", "", f"Removed {count} expired offsets.")
        self._remove_when_stored(turn, removed)
        return turn.outcome()

    # --- groups

    def _turn(self, now_ms: int, timestamp_ms: int) -> Turn:
        return Turn(self.config, self.partition, now_ms, timestamp_ms)

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        if group is None and self.ledger.knows(group_id):
            group = ClassicGroup.from_value(group_id, self.ledger.groups.get(group_id))
            self._groups[group_id] = group
        return group

    def _all_groups(self) -> Iterator[ClassicGroup]:
        ids = dict.fromkeys(self._groups)
        ids.update(dict.fromkeys(self.ledger.group_ids()))
        for group_id in ids:
            group = self._find(group_id)
            if group is not None:
                yield group

    def _remove_when_stored(self, turn: Turn, group_ids: Sequence[str]) -> None:
        if turn.records:
            turn.after_append = StoreRemoval(tuple(group_ids))
            return
        for group_id in group_ids:  # the log knows nothing of them any more
            self._drop_if_gone(turn, group_id)

    def _drop_if_gone(self, turn: Turn, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is None or group_id in self.ledger.groups or group.state is not EMPTY:
            return
        # where somebody has committed meanwhile, it comes back as what its offsets make it: a group without a past
        for member_id in sorted(group.pending_joins):  # they will be told to begin again
            turn.cancel_timer(SessionTimer(group_id, member_id))
        group.transition(DEAD, turn.timestamp_ms)
        del self._groups[group_id]

    # --- requests

    def _check(self, request: Message, context: RequestContext) -> ErrorCode | None:
        """The checks before every group request, in Kafka's order; None lets it through."""
        key = request.API_KEY
        if key == SyncGroupRequest.API_KEY and context.api_version >= _SYNC_NAMES_VERSION:
            if request.protocol_type is None or request.protocol_name is None:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if key in _GROUP_ID_REQUIRED and not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if key == OffsetCommitRequest.API_KEY and request.group_id is None:
            return ErrorCode.INVALID_GROUP_ID
        if self.ownership is Ownership.LOADING:
            return _LOADING_ANSWERS.get(key, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.ownership is Ownership.UNLOADED:
            return ErrorCode.NOT_COORDINATOR
        return None

    def _join(self, turn: Turn, request: Message, context: RequestContext) -> None:
        config = self.config
        low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return self._refuse(turn, request, context, ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._find(request.group_id)
        if group is not None:
            return join.join(turn, group, request, context)
        if request.member_id:
            return self._refuse(turn, request, context, ErrorCode.UNKNOWN_MEMBER_ID)
        group = ClassicGroup(request.group_id, turn.timestamp_ms)
        join.join(turn, group, request, context)
        if not group.members and not group.pending_joins:
            return  # refused: nothing has come into being
        self._groups[request.group_id] = group
        turn.store_group(request.group_id, GroupValue("", 0, None, None, turn.timestamp_ms))
        first = next(iter(group.pending_joins or group.members))
        turn.after_append = StoreNewGroup(request.group_id, first, context.token, context.api_version)

    def _new_group_failed(self, turn: Turn, stored: StoreNewGroup, error: ErrorCode) -> None:
        group = self._groups.get(stored.group_id)
        turn.reply(stored.token, join_error(error, "", stored.api_version))
        if group is None:
            return
        join.new_group_failed(turn, group, stored.member_id)
        if group.state is DEAD:
            del self._groups[stored.group_id]

    def _sync(self, turn: Turn, request: Message, context: RequestContext) -> None:
        group = self._find(request.group_id)
        if group is None:
            return self._refuse(turn, request, context, ErrorCode.UNKNOWN_MEMBER_ID)
        sync.sync(turn, group, request, context)

    def _heartbeat(self, turn: Turn, request: Message, context: RequestContext) -> None:
        group = self._find(request.group_id)
        if group is None:
            return self._refuse(turn, request, context, ErrorCode.UNKNOWN_MEMBER_ID)
        sessions.heartbeat(turn, group, request, context)

    def _leave(self, turn: Turn, request: Message, context: RequestContext) -> None:
        group = self._find(request.group_id)
        if group is not None:
            return sessions.leave(turn, group, request, context)
        unknown = [(who, ErrorCode.UNKNOWN_MEMBER_ID) for who in sessions.identities(request, context.api_version)]
        turn.reply(context.token, leave_answer(unknown, context.api_version))

    def _commit(self, turn: Turn, request: Message, context: RequestContext) -> None:
        offsets.commit(turn, self._find(request.group_id), request, context)

    def _commit_transactional(self, turn: Turn, request: Message, context: RequestContext) -> None:
        offsets.commit_transactional(turn, self._find(request.group_id), request, context)

    def _fetch(self, turn: Turn, request: Message, context: RequestContext) -> None:
        ledger = self.ledger
        unstable_of = ledger.pending.of if request.require_stable else lambda group_id: ()
        groups = [
            offsets.fetch(
                self._find(group_id), group_id, ledger.offsets_of(group_id), topics, unstable_of(group_id)
            )
            for group_id, topics in offsets.requested_groups(request, context.api_version)
        ]
        turn.reply(context.token, offsets.fetch_answer(groups, context.api_version))

    def _delete_offsets(self, turn: Turn, request: Message, context: RequestContext) -> None:
        stored = self.ledger.partitions_of(request.group_id)
        offsets.delete(turn, self._find(request.group_id), stored, request, context)

    def _describe(self, turn: Turn, request: Message, context: RequestContext) -> None:
        include = bool(context.api_version >= 3 and request.include_authorized_operations)
        groups = [
            admin.describe(self._find(group_id), group_id, context.api_version, include) for group_id in request.groups
        ]
        turn.reply(context.token, DescribeGroupsResponse(throttle_time_ms=0, groups=groups))

    def _list(self, turn: Turn, request: Message, context: RequestContext) -> None:
        listed = admin.list_groups(self._all_groups(), request.states_filter, request.types_filter)
        turn.reply(context.token, ListGroupsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, groups=listed))

    def _delete_groups(self, turn: Turn, request: Message, context: RequestContext) -> None:
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            error = ErrorCode.INVALID_GROUP_ID
            if group_id is not None:
                stored = self.ledger.partitions_of(group_id)
                error = admin.delete_group(turn, self._find(group_id), stored, group_id in self.ledger.groups)
            results.append((group_id, error))
        turn.reply(context.token, admin.delete_answer(results))
        self._remove_when_stored(turn, [group_id for group_id, error in results if error is ErrorCode.NONE])

    def _refuse(self, turn: Turn, request: Message, context: RequestContext, error: ErrorCode) -> None:
        turn.reply(context.token, error_response(request, error, context.api_version))


def _failed(reply: Reply, error: ErrorCode) -> Message:
    """A DeleteGroups answer whose tombstones were not stored."""
    return admin.delete_answer((r.group_id, ErrorCode(r.error_code) or error) for r in reply.response.results)
