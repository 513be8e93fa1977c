"""Consumer group client: several members of one process with one owner.

Partitions change in `poll` only, in the owner's thread: the offsets committed before are the start offsets of the next
owner. An event loop sends heartbeats between polls. `client.membership` states which thread may use which field.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Callable, Iterator, Mapping, Protocol, Sequence

from spark_groupsource.assign import Configurable, load_assignor
from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.cluster.group_offsets import NO_IDS, TopicIds
from spark_groupsource.client.cluster.routing import COORDINATOR_MOVED
from spark_groupsource.client.membership.assignment import metadata_snapshot
from spark_groupsource.client.membership.member_commits import MemberCommits
from spark_groupsource.client.membership.member_loop import MemberLoop
from spark_groupsource.client.membership.membership_values import MemberConfig, ReleasedPartitions
from spark_groupsource.client.membership.rebalance_log import RebalanceEvent, describe_rebalance
from spark_groupsource.client.membership.shared_membership import (
    GroupView,
    LocalMember,
    MemberView,
    SharedMembership,
)
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import (
    FENCING_ERRORS,
    ConfigurationError,
    GroupSourceError,
    NetworkError,
    UnsupportedVersionError,
    error_name,
)
from spark_groupsource.model import Node, OffsetAndMetadata, TopicPartition, bounded_names, topic_matches
from spark_groupsource.wire.group_events import Cause
from spark_groupsource.wire.member_reasons import METADATA_CHANGED, SUBSCRIPTION_CHANGED
from spark_groupsource.wire.messages import LeaveGroupRequest

if TYPE_CHECKING:
    from spark_groupsource.client.records.transactions import Transactions

__all__ = ["GroupClient", "GroupView", "MemberView", "RebalanceEvent", "RebalanceListener"]

_log = logging.getLogger(__name__)

# interval of heartbeats while another member of this process rejoins: the group is about to rebalance
_TRIGGERED_HEARTBEAT_MS = 100
_MAX_WAIT_MS = 100
# a rebalance waits so many times as long as the longest pause between two polls
_PAUSE_FACTOR = 2
_LEAVE_TIMEOUT_MS = 5_000
# the caller of poll may hold a lock
_METADATA_WAIT_MS = 2_000


class RebalanceListener(Protocol):
    """Called in the owner's thread from `poll` and `leave`, with the sorted partitions of all members together."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before partitions are revoked; they may still be committed."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called after an assignment with the partitions that were added, possibly none."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Called after partitions were lost; another member may own them, so they must not be committed."""


class GroupClient:
    """Runs `settings.members` members; the first `poll` sends the first request. One calling thread at a time.

    Attributes:
        shared: state of the members; hold `shared.changed` to read it.
        loop: sends the requests of the members, from the first `poll` on.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        settings: GroupSettings,
        clock: Clock | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock or cluster.clock
        self._settings = settings
        self._listener = listener
        self._is_started = False
        self._is_closed = False
        # when the last poll ended
        self._polled_ms: int | None = None
        self.shared = SharedMembership(settings)
        self._commits = MemberCommits(cluster, self.shared, settings.group_id, self._clock)
        now_ms = self._clock.now_ms()
        self.shared.members += [
            _create_member(cluster, settings, index, now_ms) for index in range(settings.members)
        ]
        self.loop = MemberLoop(cluster, self.shared, self._commits)

    def __enter__(self) -> GroupClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- membership --------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> GroupView:
        """Joins or rejoins the group where that is needed.

        The caller must have committed its positions, because partitions may be revoked. Waits until all members are
        settled, at most `timeout_ms`; a rebalance in progress continues after that and a later poll completes it.

        Raises: the error that stopped a member: BrokerError, GenerationMismatchError for a static member that was
            replaced, AuthenticationError, an assignor's exception. The next poll joins again.
        """
        if self._is_closed:
            raise RuntimeError("The group client is closed.")
        shared, deadline_ms = self.shared, self._clock.now_ms() + timeout_ms
        self._expect_pauses()
        try:
            self._complete_rebalances()
            self._check_metadata()
            if not self._is_started:
                self._is_started = True
                self.loop.start()
            while not self._advance():
                with shared.changed:
                    left_ms = deadline_ms - self._clock.now_ms()
                    if left_ms <= 0:
                        break
                    if not shared.needs_owner() and not shared.is_settled():
                        self._trigger_heartbeats()
                        shared.changed.wait(min(left_ms, _MAX_WAIT_MS) / 1000)
            return self.view
        finally:
            self._polled_ms = self._clock.now_ms()

    def _expect_pauses(self) -> None:
        """Makes rebalances wait for pauses between two polls as long as the one that ends now."""
        if self._polled_ms is not None:
            pause_ms = self._clock.now_ms() - self._polled_ms
            with self.shared.changed:
                for member in self.shared.members:
                    member.membership.expect_pause(_PAUSE_FACTOR * pause_ms)

    @property
    def view(self) -> GroupView:
        """The members now; their partitions change in `poll` only."""
        with self.shared.changed:
            return self.shared.view()

    @property
    def rejoin_needed(self) -> bool:
        """True where the next `poll` moves partitions, or raises; the caller commits before it."""
        with self.shared.changed:
            return self.shared.rejoin_needed()

    @property
    def events(self) -> list[RebalanceEvent]:
        """The rebalances so far, the oldest first."""
        with self.shared.changed:
            return list(self.shared.rebalance_log.rebalances)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the members together; see `CoordinatorMetrics.values`."""
        with self.shared.changed:
            owned = sum(len(member.membership.owned) for member in self.shared.members)
            return self.shared.metrics.values(self._clock.now_ms(), owned)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None = None,
        topic_ids: TopicIds = NO_IDS,
    ) -> None:
        """Commits each offset by the member that owns the partition, in that member's generation.

        If one member cannot commit, the others still do. While the coordinator moves or loads, the commit
        is retried for as long as a call may take, see `Router.retry`.

        Args:
            max_rebalance_wait_ms: how long to retry while the group waits for its leader's assignment, in which no
                member can commit; None for the last commit, which is retried up to default.api.timeout.ms in any case.
            topic_ids: as in `ClusterClient.commit`.

        Raises: BrokerError, also REBALANCE_IN_PROGRESS after `max_rebalance_wait_ms`. NetworkError.
            GenerationMismatchError when a member is fenced: none of its offsets was committed; of several members with
            errors, another error than this one is raised, a fatal one first. ValueError for a partition that no member
            of this client owns.
        """
        self._commits.commit(self._by_member(offsets), max_rebalance_wait_ms, topic_ids)

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], transactions: Transactions
    ) -> None:
        """Adds each offset to a transaction, by the member that owns the partition, in that member's generation.

        Raises: GenerationMismatchError when a member is fenced, after which the transaction must be aborted;
            BrokerError, NetworkError; ValueError as `commit`.
        """
        self._commits.commit_in_transaction(self._by_member(offsets), transactions)

    def _by_member(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Iterator[tuple[LocalMember, dict[TopicPartition, OffsetAndMetadata]]]:
        unowned = offsets.keys() - {tp for member in self.shared.members for tp in member.membership.owned}
        if unowned:
            raise ValueError(f"partitions are not owned by members of this client: {bounded_names(sorted(unowned))}")
        for member in self.shared.members:
            chosen = {tp: offsets[tp] for tp in member.membership.owned if tp in offsets}
            if chosen:
                yield member, chosen

    def committed(
        self, partitions: Sequence[TopicPartition], topic_ids: TopicIds = NO_IDS
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetches the group's committed offsets; None for partitions without one; see `ClusterClient.fetch_committed`.

        A broker that is cut off from its controller responds for a group that another one has now, with the offsets of
        earlier. It does not know the members, so the one that responded has to accept the Heartbeat of a member.

        Raises: BrokerError, NetworkError.
        """
        group_id, retry = self._settings.group_id, self._cluster.retry()
        while True:
            node = self._cluster.find_coordinator(group_id, retry.remaining_ms)
            found = self._cluster.fetch_committed(group_id, partitions, retry.remaining_ms, topic_ids=topic_ids)
            try:
                self._check_coordinator(node)
                return found
            except NetworkError as error:
                retry.backoff_or_raise(error)

    def _check_coordinator(self, node: Node) -> None:
        """Raises: NetworkError unless the node is the coordinator of the members, as far as that can be known."""
        group_id, cluster = self._settings.group_id, self._cluster
        # it may have been looked up again during the request
        is_moved = cluster.cached_coordinator(group_id) != node
        with self.shared.changed:
            known = (m.membership for m in self.shared.members if m.membership.accepts_commits)
            request = next((each.probe_request() for each in known), None)
        if not is_moved and request is not None:
            code = cluster.call_address(cluster.node_address(node), request, _METADATA_WAIT_MS).error_code
            if code in COORDINATOR_MOVED:
                cluster.invalidate_coordinator(group_id, node)
                is_moved = True
            elif code in FENCING_ERRORS:
                # a member that was removed learns of it from its own requests
                is_moved = cluster.find_other_coordinator(group_id, {node}, _METADATA_WAIT_MS)
        if is_moved:
            raise NetworkError(f"{node} is no longer the coordinator of group '{group_id}'.")

    # -- leaving -----------------------------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        """Stops every member: dynamic members leave the group, static members remain until the session timeout.

        The caller must have committed its positions. Takes about 10 s at most; if LeaveGroup fails, the coordinator
        removes the members after the session timeout. Further calls do nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._notify_leaving()
        finally:
            self._stop_members(reason)

    def step_back(self, reason: str) -> None:
        """Leaves the group until the next `poll`, which joins again; static members leave, too.

        The caller must have committed its positions. Takes about 5 s at most.
        """
        if self._is_started and not self._is_closed:
            try:
                self._notify_leaving()
            finally:
                self._send_leave(reason, is_static_leaving=True)
                self._forget_membership(reason)

    def close(self) -> None:
        """Leaves the group; does not close the cluster."""
        self.leave("the consumer is being closed")

    def _notify_leaving(self) -> None:
        """Calls the listener while the partitions can still be committed."""
        with self.shared.changed:
            members = [member.membership for member in self.shared.members]
            lost = sorted(tp for m in members if m.loses_partitions for tp in m.owned)
            revoked = sorted(tp for m in members if not m.loses_partitions for tp in m.owned)
        self._notify_listener([ReleasedPartitions(tuple(revoked), tuple(lost))])

    def _stop_members(self, reason: str) -> None:
        shared = self.shared
        with shared.changed:
            shared.is_closing = True
        self.loop.stop(_LEAVE_TIMEOUT_MS)
        self._send_leave(reason)
        self._forget_membership(reason)

    def _forget_membership(self, reason: str) -> None:
        shared = self.shared
        with shared.changed:
            for member in shared.members:
                shared.record_left(member, Cause.LEFT, reason, self._clock.timestamp_ms())
                member.membership.on_leave(reason)
                member.membership.owned = ()
                member.keep_owned_commits()

    def _send_leave(self, reason: str, *, is_static_leaving: bool = False) -> None:
        """Sends one LeaveGroup for all members where the broker supports it, so that the group rebalances once."""
        group_id = self._settings.group_id
        memberships = [member.membership for member in self.shared.members]
        leaving = [m.leave_request(reason, is_static_leaving=is_static_leaving) for m in memberships]
        requests = [request for request in leaving if request is not None]
        if not requests:
            return
        combined = LeaveGroupRequest(group_id=group_id, members=[row for r in requests for row in r.members])
        _log.info("[group=%s] Leaving the group (%s): %d members.", group_id, reason, len(requests))
        try:
            try:
                responses = [self._cluster.call_coordinator(group_id, combined, _LEAVE_TIMEOUT_MS, min_version=3)]
            except UnsupportedVersionError:
                responses = [
                    self._cluster.call_coordinator(group_id, request, _LEAVE_TIMEOUT_MS) for request in requests
                ]
        except GroupSourceError as error:
            _log.warning("[group=%s] LeaveGroup failed, the members remain until session timeout: %s", group_id, error)
            return
        failed = [error_name(r.error_code) for r in responses if r.error_code]
        rows = [row for r in responses for row in r.members or ()]
        failed += [f"member {row.member_id}: {error_name(row.error_code)}" for row in rows if row.error_code]
        if failed:
            _log.warning("[group=%s] The coordinator rejected LeaveGroup: %s.", group_id, bounded_names(failed))

    # -- the owner's part of a rebalance -----------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Performs the owner's part of pending rebalances; returns True once all members are settled."""
        shared = self.shared
        self._complete_rebalances()
        with shared.changed:
            self._raise_failure()
            preparing = [member for member in shared.members if member.membership.needs_prepare]
            released = [member.membership.released_partitions(shared.topics) for member in preparing]
        _run_all(lambda: self._notify_listener(released), lambda: self._prepare(preparing))
        with shared.changed:
            is_settled = shared.is_settled()
            events = self._record_rebalances() if is_settled else []
        for event in events:
            _log.info("%s", describe_rebalance(self._settings.group_id, event))
        return is_settled

    def _prepare(self, members: Sequence[LocalMember]) -> None:
        with self.shared.changed:
            for member in members:
                if member.membership.needs_prepare:
                    released = member.membership.prepare(self.shared.topics)
                    member_id = member.membership.generation.member_id
                    self.shared.events.prepared(
                        member.client_id, member_id, released.revoked, self._clock.timestamp_ms()
                    )
            if members:
                self.shared.wake()

    def _raise_failure(self) -> None:
        for member in self.shared.members:
            failure, member.failure = member.failure, None
            if failure is not None:
                raise failure

    def _complete_rebalances(self) -> None:
        """Applies the received assignments, after the listener was called for revoked partitions.

        Raises: the first exception of the user's listener or assignor; everything else is done nevertheless.
        """
        with self.shared.changed:
            waiting = [m for m in self.shared.members if m.membership.needs_complete]
            is_subscribed = self._subscription()
            changes = [m.membership.assignment_change(is_subscribed) for m in waiting]
        if not waiting:
            return
        revoked = [ReleasedPartitions(revoked=change.revoked) for change in changes if change is not None]
        _run_all(lambda: self._notify_listener(revoked), lambda: self._apply_assignments(waiting))

    def _apply_assignments(self, waiting: Sequence[LocalMember]) -> None:
        steps: list[Callable[[], object]] = []
        gained: list[TopicPartition] = []
        with self.shared.changed:
            is_subscribed = self._subscription()
            for member in waiting:
                assignment, generation = member.membership.assignment, member.membership.generation
                change = member.membership.complete(is_subscribed)
                if change is None or assignment is None:
                    continue
                gained += change.gained
                steps.append(partial(member.record_assignment, assignment, generation))
                if self._settings.pattern is not None:
                    # the leader's metadata may be newer; its new topics do not require another rebalance
                    found = {*self.shared.topics, *(tp.topic for tp in assignment.partitions)}
                    self.shared.topics = tuple(sorted(found))
        if steps:
            _log.info(
                "[group=%s] Adding newly assigned partitions (%s): %s.",
                self._settings.group_id,
                bounded_names(sorted(gained)) or "none",
                f"{len(gained):,}",
            )
        listener = self._listener
        if steps and listener is not None:
            steps.append(lambda: listener.assigned(sorted(gained)))
        _run_all(*steps)

    def _notify_listener(self, released: Sequence[ReleasedPartitions]) -> None:
        lost = sorted(tp for partitions in released for tp in partitions.lost)
        revoked = sorted(tp for partitions in released for tp in partitions.revoked)
        for kind, partitions in (("lost", lost), ("revoked", revoked)):
            if partitions:
                names, count = bounded_names(partitions), len(partitions)
                _log.info("[group=%s] Partitions %s (%s): %s.", self._settings.group_id, kind, names, f"{count:,}")
        listener = self._listener
        if listener is not None:
            calls = ((listener.lost, lost), (listener.revoked, revoked))
            _run_all(*(partial(method, partitions) for method, partitions in calls if partitions))

    def _trigger_heartbeats(self) -> None:
        """While one member rejoins, the others send heartbeats early; the responses announce the rebalance."""
        if any(not member.membership.is_settled for member in self.shared.members):
            now_ms = self._clock.now_ms()
            for member in self.shared.members:
                member.membership.expedite_heartbeat(now_ms, _TRIGGERED_HEARTBEAT_MS)
            self.shared.wake()

    def _record_rebalances(self) -> list[RebalanceEvent]:
        members = self.shared.members
        owned = [tp for member in members for tp in member.membership.owned]
        generation_id = max(member.membership.generation.generation_id for member in members)
        return self.shared.rebalance_log.record(self.shared.events.ended(generation_id), owned)

    # -- subscription and metadata -----------------------------------------------------------------------------------

    def _subscription(self) -> Callable[[str], bool]:
        """Returns whether a topic is subscribed to now; it is asked for the topic of each assigned partition."""
        topics, pattern = frozenset(self.shared.topics), self._settings.pattern
        return lambda topic: topic in topics or (pattern is not None and topic_matches(pattern, topic))

    def _check_metadata(self) -> None:
        """Finds topics that match the pattern; requests a rebalance if the leader's metadata have changed.

        Raises: BrokerError for a subscribed topic that cannot become readable by waiting.
        """
        shared = self.shared
        with shared.changed:
            is_joining = any(member.membership.needs_prepare for member in shared.members)
            subscribed = shared.topics
        if self._settings.pattern is not None:
            self._match_topics(self._settings.pattern, refresh=is_joining)
        elif is_joining:
            self._cluster.check_topics(subscribed)
        with shared.changed:
            leader = next((m for m in shared.members if m.membership.is_leader and m.membership.is_settled), None)
            topics, assigned_on = shared.group_topics, shared.snapshot
        if leader is None:
            return
        try:
            view = self._cluster.metadata(topics, timeout_ms=_METADATA_WAIT_MS)
        except NetworkError as error:
            # as in Kafka's consumer, the assignment remains valid meanwhile; the next poll requests the metadata again
            _log.info("[group=%s] Metadata of the group's topics are not updated: %s", self._settings.group_id, error)
            return
        if metadata_snapshot(view, topics, bool(self._settings.client_rack)) != assigned_on:
            with shared.changed:
                leader.membership.request_rejoin(METADATA_CHANGED)

    def _match_topics(self, pattern: str, refresh: bool) -> None:
        view = self._cluster.metadata(None, refresh=refresh)
        found = tuple(view.matching_topics(pattern, exclude_internal=self._settings.exclude_internal_topics))
        with self.shared.changed:
            if found != self.shared.topics:
                self.shared.topics = found
                for member in self.shared.members:
                    member.membership.subscription_changed(SUBSCRIPTION_CHANGED)


class _GroupOffsets:
    """What assignors of users may request; see `assign.GroupOffsets`."""

    def __init__(self, cluster: ClusterClient, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        fetched = self._cluster.fetch_committed(self._group_id, list(partitions))
        return {tp: commit.offset for tp, commit in fetched.items() if commit is not None}

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._listed(partitions, EARLIEST)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._listed(partitions, LATEST)

    def _listed(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        listed = self._cluster.list_offsets(dict.fromkeys(partitions, at))
        return {tp: found.offset for tp, found in listed.items()}


def _create_member(cluster: ClusterClient, settings: GroupSettings, index: int, now_ms: int) -> LocalMember:
    assignors = [load_assignor(name) for name in settings.assignors]
    for assignor in assignors:
        if isinstance(assignor, Configurable):
            assignor.configure(_GroupOffsets(cluster, settings.group_id))
    names = [assignor.name for assignor in assignors]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"Option kafka.partition.assignment.strategy names assignors with equal names: {', '.join(names)}. "
            "Remove or rename one of them."
        )
    config = MemberConfig(
        group_id=settings.group_id,
        assignors=tuple(assignor.name for assignor in assignors),
        # KIP-429: one assignor without cooperative support makes the member eager
        cooperative=all(assignor.cooperative for assignor in assignors),
        group_instance_id=settings.instance_id(index),
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        heartbeat_offset_ms=settings.heartbeat_interval_ms * index // settings.members,
    )
    by_name = {assignor.name: assignor for assignor in assignors}
    return LocalMember(index, settings.member_client_id(index), Membership(config, now_ms), by_name)


def _run_all(*steps: Callable[[], object]) -> None:
    """Runs every step, and raises the first exception afterwards."""
    failure: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
