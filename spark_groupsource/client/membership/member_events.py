"""Events of the members of one process, for the record of rebalances.

Pure, not thread-safe: the callers hold `SharedMembership.changed`. Times are epoch milliseconds.

An event is pending until its rebalance ends, and belongs to the generation of the JoinGroup response that followed;
another rebalance may have started before the members were settled. An event after which no member joined belongs to the
generation in which they are settled.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Mapping, Sequence

from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.consumer_protocol import partitions_by_topic
from spark_groupsource.wire.group_events import Cause, EventKind, GroupEvent
from spark_groupsource.wire.member_reasons import bounded_reason, cause_of_join

_MAX_EVENTS = 5_000
_MAX_PENDING = 2_000
# of one member in one rebalance
_EVENTS_OF_A_REBALANCE = 8


class _Pending:
    """An event that waits for its generation, or for the end of its rebalance."""

    __slots__ = ("event",)

    def __init__(self, event: GroupEvent) -> None:
        self.event = event


class MemberEvents:
    """Collects the events of all members of one process and group.

    Args:
        members: number of the members; the events of a rebalance of all of them are kept.

    Attributes:
        recorded: the events of ended rebalances, oldest first, a bounded number.
        generation: generation of the last ended rebalance, -1 before the first.
        recorded_count: number of events so far, for callers that read the new ones.
    """

    def __init__(self, group_id: str, members: int = 1) -> None:
        self._group_id = group_id
        in_rebalance = _EVENTS_OF_A_REBALANCE * members
        # the oldest are dropped: the last rebalance of a storm is that in which the members are settled
        self._pending: deque[_Pending] = deque(maxlen=max(_MAX_PENDING, in_rebalance))
        # client id -> its pending events without a generation, in the same order
        self._unassigned: dict[str | None, deque[_Pending]] = defaultdict(deque)
        self._noticed: set[str] = set()
        self._last_contact_ms: dict[str, int] = {}
        self.recorded: deque[GroupEvent] = deque(maxlen=max(_MAX_EVENTS, in_rebalance))
        self.recorded_count = 0
        self.generation = -1

    def contacted(self, client_id: str, now_ms: int) -> None:
        """Notes a successful response of the coordinator to a member; `now_ms` is of the monotonic clock."""
        self._last_contact_ms[client_id] = now_ms

    def noticed(self, client_id: str, member_id: str, at_ms: int) -> None:
        """Adds that a response notified a member of a rebalance; its batch may be in flight."""
        if client_id not in self._noticed:
            self._noticed.add(client_id)
            self._add(EventKind.BATCH_WAIT_STARTED, at_ms, client_id, member_id)

    def prepared(self, client_id: str, member_id: str, revoked: Sequence[TopicPartition], at_ms: int) -> None:
        """Adds that the positions of a member are committed, so that it may join."""
        if client_id in self._noticed:
            self._noticed.discard(client_id)
            self._add(EventKind.BATCH_WAIT_ENDED, at_ms, client_id, member_id)
        if revoked:
            self._add(EventKind.REVOKED, at_ms, client_id, member_id, partitions=partitions_by_topic(sorted(revoked)))

    def joined(
        self,
        client_id: str,
        member_id: str,
        *,
        reason: str,
        is_new: bool,
        sent_ms: int,
        at_ms: int,
        members: Sequence[tuple[str, str | None, bytes]],
        generation_id: int | None = None,
    ) -> None:
        """Adds a JoinGroup and its response; `members` are those of the group if this member leads it."""
        cause = Cause.JOINED if is_new else cause_of_join(reason)
        if cause is not None:
            self._add(
                EventKind.REBALANCE_STARTED, sent_ms, client_id, member_id, cause=cause.value, reason=_text(reason)
            )
        self._add(EventKind.MEMBER_JOINING, sent_ms, client_id, member_id, reason=_text(reason))
        listed = {listed_id: [None, None, instance_id] for listed_id, instance_id, _ in members}
        self._add(EventKind.JOIN_COMPLETED, at_ms, client_id, member_id, members=listed or None)
        self._assign_generation(client_id, generation_id)

    def synced(
        self,
        client_id: str,
        member_id: str,
        *,
        assignment_ms: int | None,
        partitions: Sequence[TopicPartition],
        sent_ms: int,
        at_ms: int,
        generation_id: int | None = None,
    ) -> None:
        """Adds a SyncGroup and its response; `assignment_ms` is the time of the assignor if this member leads."""
        self._add(EventKind.MEMBER_SYNCING, sent_ms, client_id, member_id, assignment_ms=assignment_ms)
        assignment = {member_id: partitions_by_topic(sorted(partitions))}
        self._add(EventKind.ASSIGNED, at_ms, client_id, member_id, assignment=assignment)
        self._assign_generation(client_id, generation_id)

    def left(self, client_id: str, member_id: str, generation_id: int, cause: Cause, reason: str, at_ms: int) -> None:
        """Adds that a member has left its generation; the rebalance of the group is in the next one."""
        self._noticed.discard(client_id)
        if generation_id >= 0:
            detail = {"cause": cause.value, "reason": _text(reason)}
            self._record(self._event(EventKind.MEMBER_LEFT, at_ms, client_id, member_id, detail, generation_id))

    def removed(
        self, client_id: str, member_id: str, generation_id: int, reason: str, session_ms: int, now_ms: int, at_ms: int
    ) -> None:
        """Adds that the coordinator no longer knows a member.

        Within the session timeout after its last contact, another client has removed it, unless it was late to join.
        """
        silent_ms = now_ms - self._last_contact_ms.get(client_id, now_ms - session_ms)
        if client_id in self._noticed:
            cause = Cause.JOIN_TIMED_OUT
        else:
            cause = Cause.SESSION_EXPIRED if silent_ms >= session_ms else Cause.REMOVED_BY_OPERATOR
        self.left(client_id, member_id, generation_id, cause, reason, at_ms)

    def first_record(self, generation_id: int, at_ms: int) -> None:
        """Adds that the first record of a generation was read."""
        self._record(self._event(EventKind.FIRST_RECORD, at_ms, None, None, {}, generation_id))

    def repeated(self, generation_id: int, records: int, at_ms: int) -> None:
        """Adds records that were delivered in a generation but not committed: the next owner reads them again."""
        self._record(self._event(EventKind.REPEATED, at_ms, None, None, {"records": records}, generation_id))

    def lag(self, generation_id: int, lag: int, at_ms: int) -> None:
        """Adds the lag of partitions that were retained in a rebalance, once before and once after it."""
        self._record(self._event(EventKind.LAG, at_ms, None, None, {"lag": lag}, generation_id))

    def ended(self, generation_id: int) -> list[GroupEvent]:
        """Records the pending events as those of a generation, in which all members are settled; returns them."""
        pending = [each.event for each in self._pending]
        self._pending.clear()
        self._unassigned.clear()
        recorded = []
        # a notice of the next rebalance stays pending
        for event in pending:
            if event.kind is EventKind.BATCH_WAIT_STARTED and event.client_id in self._noticed:
                self._append(event)
            else:
                own = event.generation
                event = event._replace(generation=generation_id if own is None else min(own, generation_id))
                self._record(event)
                recorded.append(event)
        if pending:
            self.generation = generation_id
        return recorded

    def since(self, known_count: int) -> tuple[list[GroupEvent], int]:
        """Returns the recorded events beyond the first `known_count`, as far as they are kept, and their number."""
        new = min(self.recorded_count - known_count, len(self.recorded))
        return list(self.recorded)[len(self.recorded) - new :], self.recorded_count

    def _assign_generation(self, client_id: str, generation_id: int | None) -> None:
        if generation_id is not None:
            for each in self._unassigned.pop(client_id, ()):
                each.event = each.event._replace(generation=generation_id)

    def _record(self, event: GroupEvent) -> None:
        self.recorded.append(event)
        self.recorded_count += 1

    def _add(self, kind: EventKind, at_ms: int, client_id: str | None, member_id: str | None, **detail: Any) -> None:
        self._append(self._event(kind, at_ms, client_id, member_id, detail, None))

    def _append(self, event: GroupEvent) -> None:
        if len(self._pending) == self._pending.maxlen:
            dropped = self._pending.popleft()
            unassigned = self._unassigned[dropped.event.client_id]
            if unassigned and unassigned[0] is dropped:
                unassigned.popleft()
        pending = _Pending(event)
        self._pending.append(pending)
        if event.generation is None:
            self._unassigned[event.client_id].append(pending)

    def _event(
        self,
        kind: EventKind,
        at_ms: int,
        client_id: str | None,
        member_id: str | None,
        detail: Mapping[str, Any],
        generation_id: int | None,
    ) -> GroupEvent:
        return GroupEvent(
            at_ms,
            self._group_id,
            kind,
            generation_id,
            member_id or None,
            client_id,
            detail={name: value for name, value in detail.items() if value is not None},
        )


def _text(reason: str) -> str | None:
    return bounded_reason(reason)
