"""Several members of one group in one process, behind one owner: join, hand over, commit, leave.

The owner's thread calls `poll`: only there do partitions change hands, so what the owner has committed before is what a
next owner starts from. Each member's own thread (`member_thread`) keeps it alive in between.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import Callable, Mapping, Protocol, Sequence

from spark_groupsource.assign import load_assignor
from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.membership.assignment import snapshot
from spark_groupsource.client.membership.fencing import find_generation, mismatch
from spark_groupsource.client.membership.group_view import GroupView, MemberView, view_member
from spark_groupsource.client.membership.member_thread import MemberThread
from spark_groupsource.client.membership.rebalance_log import RebalanceEvent
from spark_groupsource.client.membership.shared_membership import SharedMembership
from spark_groupsource.client.membership.state_machine import MemberConfig, Membership, ReleasedPartitions
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.clock import Clock
from spark_groupsource.errors import (
    FENCING_ERRORS,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    UnsupportedVersionError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.messages import LeaveGroupRequest

__all__ = ["GroupClient", "GroupView", "MemberView", "RebalanceEvent", "RebalanceListener"]

_log = logging.getLogger(__name__)

# while one of our members joins, the others ask this often whether the group rebalances
_SIBLING_GAP_MS = 100
_LONGEST_WAIT_MS = 100
_LEAVE_TIMEOUT_MS = 5_000


class RebalanceListener(Protocol):
    """Told in the owner's thread, inside `poll`; partitions are of all our members together, sorted."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """About to be given up; they may still be committed."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Newly owned, possibly none."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Gone already, probably to someone else; they must not be committed."""


class GroupClient:
    """`settings.members` members; nothing is sent before the first `poll`. One owner's thread at a time."""

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        clock: Clock | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock or cluster.clock
        self._settings = settings
        self._listener = listener
        self.shared = SharedMembership(settings)
        self._matches = re.compile(settings.pattern).fullmatch if settings.pattern is not None else None
        self._started = False
        self._closed = False
        now_ms = self._clock.now_ms()
        for index in range(settings.members):
            assignors = [load_assignor(name) for name in settings.assignors]
            config = MemberConfig(
                group_id=settings.group_id,
                assignors=tuple(assignor.name for assignor in assignors),
                # the highest protocol that all of them support: one eager assignor makes the member eager
                cooperative=all(assignor.cooperative for assignor in assignors),
                group_instance_id=settings.instance_id(index),
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
            )
            membership = Membership(config, now_ms)
            self.shared.members.append(MemberThread(index, membership, assignors, cluster, self.shared))

    def __enter__(self) -> GroupClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- membership --------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> GroupView:
        """Says that the owner is alive, and joins or rejoins where that is needed.

        The caller must have committed what it has read: partitions may change hands here. Waits until every member is
        settled, at most `timeout_ms`; what is not done then goes on by itself and is finished by a later poll.

        Raises: whatever stopped a member for good: BrokerError with its mend, GenerationMismatchError for a static
            member that was replaced, AuthenticationError, an assignor's own exception. Polling again joins afresh.
        """
        if self._closed:
            raise RuntimeError("this group client is closed")
        deadline_ms = self._clock.now_ms() + timeout_ms
        with self.shared.changed:
            now_ms = self._clock.now_ms()
            for member in self.shared.members:
                member.membership.on_poll(now_ms)
        self._complete_rebalances()
        self._check_metadata()
        self._start()
        while not self._advance():
            with self.shared.changed:
                left_ms = deadline_ms - self._clock.now_ms()
                if left_ms <= 0:
                    break
                if not self._needs_owner() and not self._settled():
                    self._trigger_heartbeats()
                    self.shared.changed.wait(min(left_ms, _LONGEST_WAIT_MS) / 1000)
        return self.view

    @property
    def view(self) -> GroupView:
        """Our members as they are; partitions change in `poll` only."""
        with self.shared.changed:
            members = tuple(view_member(m.index, m.client_id, m.membership) for m in self.shared.members)
            settled = self._settled()
            return GroupView(members, settled, settled or self._retains_partitions())

    @property
    def rejoin_needed(self) -> bool:
        """True where the next `poll` is going to move partitions, or to raise: commit first."""
        with self.shared.changed:
            return any(
                member.failure is not None or member.membership.rejoin_needed or member.membership.needs_complete
                for member in self.shared.members
            )

    @property
    def events(self) -> list[RebalanceEvent]:
        """Every rebalance so far, the oldest first."""
        with self.shared.changed:
            return list(self.shared.recorder.events)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], max_rebalance_wait_ms: int | None = None
    ) -> None:
        """Commits positions, each by the member that owns the partition, in its generation.

        Members that can commit do so even when another one cannot. A coordinator that moves or loads is waited for, up
        to default.api.timeout.ms.

        Args:
            max_rebalance_wait_ms: how long at most to wait for the assignment of the leader; after
                that it is BrokerError REBALANCE_IN_PROGRESS. None: as long as for a coordinator.

        Raises: GenerationMismatchError, naming both generations where that can be found out, when a member is fenced:
            nothing of its partitions was committed; ValueError for a partition that none of ours owns; BrokerError and
            NetworkError.
        """
        unowned = set(offsets) - set(self.view.partitions)
        if unowned:
            raise ValueError(f"partitions that no member of ours owns cannot be committed: {sorted(map(str, unowned))}")
        failure: GroupSourceError | None = None
        for member in self.shared.members:
            chosen = {tp: offsets[tp] for tp in member.membership.owned if tp in offsets}
            if chosen:
                try:
                    self._commit_for(member, chosen, max_rebalance_wait_ms)
                except GroupSourceError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where nothing is committed.

        Raises: BrokerError, NetworkError.
        """
        return self._cluster.fetch_committed(self._settings.group_id, list(partitions))

    def _commit_for(
        self,
        member: MemberThread,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None,
    ) -> None:
        group_id = self._settings.group_id
        retry = self._cluster.retry()
        rebalance_deadline_ms = None if max_rebalance_wait_ms is None else self._clock.now_ms() + max_rebalance_wait_ms
        while True:
            with self.shared.changed:
                membership = member.membership
                sent, fenced = membership.generation, membership.is_fenced
                since, cause = membership.owned_since, membership.loss_cause
            if fenced:
                raise GenerationMismatchError(
                    group_id=group_id,
                    member_id=since.member_id,
                    generation_id=since.generation_id,
                    current_generation=find_generation(self._cluster, group_id, newer_than=since.generation_id),
                    cause=cause,
                )
            code = self._cluster.try_commit(
                group_id,
                offsets,
                generation_id=sent.generation_id,
                member_id=sent.member_id,
                group_instance_id=membership.config.group_instance_id,
                timeout_ms=retry.remaining_ms,
            )
            if not code:
                return
            with self.shared.changed:
                # a round that was on its way has ended meanwhile: still ours, in the generation it brought
                overtaken = membership.on_commit_response(code, sent)
                self.shared.changed.notify_all()
            if code in FENCING_ERRORS and not overtaken:
                raise mismatch(
                    self._cluster,
                    group_id=group_id,
                    member_id=sent.member_id,
                    generation_id=sent.generation_id,
                    code=code,
                )
            # else the group waits for its leader's assignment, for which it has already counted us in
            if code in FENCING_ERRORS:
                code = ErrorCode.REBALANCE_IN_PROGRESS
            error = BrokerError(code, f"commit by member {member.client_id} of group {group_id}")
            is_between = code == ErrorCode.REBALANCE_IN_PROGRESS
            if is_between and rebalance_deadline_ms is not None and self._clock.now_ms() >= rebalance_deadline_ms:
                raise error
            retry.again(error)

    # -- leaving -----------------------------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        """Ends every member: dynamic ones leave the group at once, static ones keep their place for a session time-out.

        The caller must have committed what it has read. Takes at most about 10 s; a group that does not hear of it
        finds out by the session time-out. Calling it again does nothing.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._notify_leaving()
        finally:
            self._end_members(reason)

    def _notify_leaving(self) -> None:
        """The listener hears of it first, while its partitions may still be committed."""
        with self.shared.changed:
            members = [member.membership for member in self.shared.members]
            lost = sorted(tp for m in members if m.is_fenced or m.rejoin_needed for tp in m.owned)
            revoked = sorted(tp for m in members if not (m.is_fenced or m.rejoin_needed) for tp in m.owned)
        self._tell([ReleasedPartitions(tuple(revoked), tuple(lost))])

    def _end_members(self, reason: str) -> None:
        shared = self.shared
        with shared.changed:
            shared.closing = True
            shared.changed.notify_all()
        for member in shared.members:
            member.stop(_LEAVE_TIMEOUT_MS // len(shared.members) if self._started else 0)
        self._send_leave(reason)
        with shared.changed:
            for member in shared.members:
                member.membership.on_leave(reason)
                member.membership.owned = ()

    def close(self) -> None:
        """As `leave`; the cluster stays open, it is the caller's."""
        self.leave("the consumer is being closed")

    def _send_leave(self, reason: str) -> None:
        """One request for all of ours where the broker takes several, so that the group rebalances once."""
        requests = [request for m in self.shared.members if (request := m.membership.leave_request(reason)) is not None]
        if not requests:
            return
        together = LeaveGroupRequest(
            group_id=self._settings.group_id, members=[row for request in requests for row in request.members]
        )
        group_id = self._settings.group_id
        try:
            try:
                answers = [self._cluster.call_coordinator(group_id, together, _LEAVE_TIMEOUT_MS, floor=3)]
            except UnsupportedVersionError:
                answers = [
                    self._cluster.call_coordinator(group_id, request, _LEAVE_TIMEOUT_MS, cap=2) for request in requests
                ]
        except GroupSourceError as error:
            _log.warning("leaving group %s failed, its session time-out will do it: %s", group_id, error)
            return
        refused = [(f"member {row.member_id}", row.error_code) for answer in answers for row in answer.members or ()]
        for who, code in [*(("all members", answer.error_code) for answer in answers), *refused]:
            if code:
                _log.warning("leaving group %s was refused: %s", group_id, BrokerError(code, who))

    # -- the owner's side of a rebalance -----------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for member in self.shared.members:
                member.start()

    def _advance(self) -> bool:
        """Does what waits for the owner; True once all members are settled."""
        self._complete_rebalances()
        with self.shared.changed:
            self._raise_failure()
            preparing = [member for member in self.shared.members if member.membership.needs_prepare]
            giving_up = [member.membership.released_partitions(self.shared.topics) for member in preparing]
        _run_all(lambda: self._tell(giving_up), lambda: self._prepare(preparing))
        with self.shared.changed:
            settled = self._settled()
            if settled:
                self._record()
            return settled

    def _prepare(self, members: Sequence[MemberThread]) -> None:
        with self.shared.changed:
            for member in members:
                if member.membership.needs_prepare:
                    member.membership.prepare(self.shared.topics)
            if members:
                self.shared.changed.notify_all()

    def _raise_failure(self) -> None:
        for member in self.shared.members:
            failure, member.failure = member.failure, None
            if failure is not None:
                raise failure

    def _complete_rebalances(self) -> None:
        """Hands over the assignments that have come; the listener hears of those of all members together.

        It hears of what goes before it goes, so that it may commit it. Where code of the user's fails, the rest is done
        all the same.

        Raises: what was raised first.
        """
        with self.shared.changed:
            waiting = [m for m in self.shared.members if m.membership.needs_complete]
            outcomes = [m.membership.assignment_change(self._is_subscribed) for m in waiting]
        if not waiting:
            return
        revoked = [ReleasedPartitions(revoked=outcome.revoked) for outcome in outcomes if outcome is not None]
        _run_all(lambda: self._tell(revoked), lambda: self._take(waiting))

    def _take(self, waiting: Sequence[MemberThread]) -> None:
        steps: list[Callable[[], object]] = []
        gained: list[TopicPartition] = []
        with self.shared.changed:
            for member in waiting:
                assignment, generation = member.membership.assignment, member.membership.generation
                completed = member.membership.complete(self._is_subscribed)
                if completed is None or assignment is None:
                    continue
                gained += completed.gained
                steps.append(partial(member.record_assignment, assignment, generation))
                if self._matches is not None:
                    # a leader may have found topics before we did; they are no reason to join again
                    found = {*self.shared.topics, *(tp.topic for tp in assignment.partitions)}
                    self.shared.topics = tuple(sorted(found))
        listener = self._listener
        if steps and listener is not None:
            steps.append(lambda: listener.assigned(sorted(gained)))
        _run_all(*steps)

    def _tell(self, giving_up: Sequence[ReleasedPartitions]) -> None:
        listener = self._listener
        if listener is None:
            return
        lost = sorted(tp for prepared in giving_up for tp in prepared.lost)
        revoked = sorted(tp for prepared in giving_up for tp in prepared.revoked)
        _run_all(*(partial(tell, tps) for tell, tps in ((listener.lost, lost), (listener.revoked, revoked)) if tps))

    def _settled(self) -> bool:
        generations = {member.membership.generation.generation_id for member in self.shared.members}
        return len(generations) == 1 and all(
            member.membership.is_settled and member.failure is None for member in self.shared.members
        )

    def _retains_partitions(self) -> bool:
        members = [member.membership for member in self.shared.members]
        return (
            any(m.owned for m in members)
            and all(m.config.cooperative and not m.is_fenced for m in members)
            and all(member.failure is None for member in self.shared.members)
        )

    def _needs_owner(self) -> bool:
        return any(
            member.failure is not None or member.membership.needs_prepare or member.membership.needs_complete
            for member in self.shared.members
        )

    def _trigger_heartbeats(self) -> None:
        """While some of ours join, the rest should hear of the rebalance soon, not at their next regular heartbeat."""
        if any(not member.membership.is_settled for member in self.shared.members):
            now_ms = self._clock.now_ms()
            for member in self.shared.members:
                member.membership.expedite_heartbeat(now_ms, _SIBLING_GAP_MS)
            self.shared.changed.notify_all()

    def _record(self) -> None:
        owned = [tp for member in self.shared.members for tp in member.membership.owned]
        generation_id = max(member.membership.generation.generation_id for member in self.shared.members)
        known = len(self.shared.recorder.events)
        self.shared.recorder.record(generation_id, owned)
        for event in self.shared.recorder.events[known:]:
            _log.info("group %s: %s", self._settings.group_id, event)

    # -- subscription and metadata -----------------------------------------------------------------------------------

    def _is_subscribed(self, topic: str) -> bool:
        return topic in self.shared.topics or (self._matches is not None and self._matches(topic) is not None)

    def _check_metadata(self) -> None:
        """Finds topics that match the pattern; where one of ours leads, also compares what it assigned upon.

        Raises: BrokerError for a subscribed topic that no waiting makes readable.
        """
        with self.shared.changed:
            joining = any(member.membership.needs_prepare for member in self.shared.members)
        if self._matches is not None:
            self._match_topics(self._matches, refresh=joining)
        elif joining:
            self._cluster.check_topics(self.shared.topics)
        with self.shared.changed:
            leader = next((m for m in self.shared.members if m.membership.is_leader and m.membership.is_settled), None)
            topics, taken = self.shared.group_topics, self.shared.snapshot
        if leader is None:
            return
        view = self._cluster.metadata(topics)
        if snapshot(view, topics, bool(self._settings.client_rack)) != taken:
            with self.shared.changed:
                leader.membership.request_rejoin("cached metadata has changed")

    def _match_topics(self, matches: Callable[[str], object], refresh: bool) -> None:
        view = self._cluster.metadata(None, refresh=refresh)
        found = tuple(
            sorted(
                name
                for name, info in view.topics.items()
                if matches(name) and not (self._settings.exclude_internal_topics and info.is_internal)
            )
        )
        with self.shared.changed:
            if found != self.shared.topics:
                self.shared.topics = found
                for member in self.shared.members:
                    member.membership.subscription_changed("subscription has changed")


def _run_all(*steps: Callable[[], object]) -> None:
    """Takes every step, whichever fails, and raises what was raised first."""
    failure: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
