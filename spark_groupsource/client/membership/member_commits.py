"""OffsetCommit and TxnOffsetCommit of group members, each in its generation.

Source: ConsumerCoordinator.OffsetCommitResponseHandler.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import CommittingMember, TopicIds
from spark_groupsource.client.cluster.routing import COORDINATOR_UNAVAILABLE
from spark_groupsource.client.membership.fencing import CurrentGeneration, follow_downgrade, generation_mismatch
from spark_groupsource.client.membership.membership_values import Generation
from spark_groupsource.client.membership.shared_membership import LocalMember, SharedMembership
from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import (
    FENCING_ERRORS,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    NetworkError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from spark_groupsource.client.records.transactions import Transactions

_log = logging.getLogger(__name__)

# the owner's commit waits for a repetition
_REPEAT_TIMEOUT_MS = 2_000


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_Commit = tuple[LocalMember, Generation, Offsets]


class MemberCommits:
    """Commits offsets of the members of one process; called by the owner's thread, `repeat` by another."""

    def __init__(self, cluster: ClusterClient, shared: SharedMembership, group_id: str, clock: Clock) -> None:
        self._cluster = cluster
        self._shared = shared
        self._group_id = group_id
        self._clock = clock
        # for the errors of one commit
        self._current = CurrentGeneration(cluster, group_id)
        # a repetition must not arrive after a later commit
        self._sending = threading.Lock()

    def commit(
        self,
        commits: Iterable[tuple[LocalMember, Offsets]],
        max_rebalance_wait_ms: int | None,
        topic_ids: TopicIds,
    ) -> None:
        """Commits offsets of several members; retries as `GroupClient.commit`, and raises its errors."""
        self._current = CurrentGeneration(self._cluster, self._group_id)
        is_last = max_rebalance_wait_ms is None
        retry = self._cluster.retry(self._cluster.settings.default_api_timeout_ms if is_last else None)
        rebalance_deadline_ms = None if max_rebalance_wait_ms is None else self._clock.now_ms() + max_rebalance_wait_ms
        failures: list[GroupSourceError] = []
        pending = list(commits)
        while pending:
            pending = self._commit_once(pending, retry.remaining_ms, topic_ids, failures)
            if pending:
                operation = f"Commit by member {pending[0][0].client_id} of group '{self._group_id}'"
                error = BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, operation)
                if rebalance_deadline_ms is not None and self._clock.now_ms() >= rebalance_deadline_ms:
                    failures.append(error)
                    break
                try:
                    retry.backoff_or_raise(error)
                except GroupSourceError as expired:
                    failures.append(expired)
                    break
        if failures:
            raise _deciding(failures)

    def _commit_once(
        self,
        commits: Sequence[tuple[LocalMember, Offsets]],
        timeout_ms: int,
        topic_ids: TopicIds,
        failures: list[GroupSourceError],
    ) -> list[tuple[LocalMember, Offsets]]:
        """Commits in the present generations; returns the commits that their members may send in the next one."""
        sent: dict[int, _Commit] = {}
        for index, (member, offsets) in enumerate(commits):
            try:
                sent[index] = member, self._generation(member), offsets
            except GenerationMismatchError as mismatch:
                failures.append(mismatch)
                continue
            with self._shared.changed:
                # also if there is no response: the coordinator may have received them
                member.keep_commits_of(topic_ids)
                member.commits = member.commits | dict(offsets)
        with self._sending:
            errors = self._send(list(sent.values()), timeout_ms, topic_ids)
        repeated: list[tuple[LocalMember, Offsets]] = []
        for (index, (member, generation, offsets)), error in zip(sent.items(), errors):
            if not isinstance(error, BrokerError):
                failures += [] if error is None else [error]
            elif error.code not in FENCING_ERRORS and error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                failures.append(error)
                if error.code not in COORDINATOR_UNAVAILABLE:
                    with self._shared.changed:
                        member.commits = {tp: each for tp, each in member.commits.items() if tp not in offsets}
            else:
                try:
                    self._rejected(member, generation, error.code)
                    repeated.append((member, offsets))
                except GenerationMismatchError as mismatch:
                    failures.append(mismatch)
        return repeated

    def commit_in_transaction(
        self, commits: Iterable[tuple[LocalMember, Offsets]], transactions: Transactions
    ) -> None:
        """Adds offsets of several members to a transaction, each in its member's generation.

        They are never repeated: a request that arrives late is of a transaction that has ended.

        Raises: GenerationMismatchError if a member has lost its partitions; BrokerError, NetworkError.
        """
        self._current = CurrentGeneration(self._cluster, self._group_id)
        retry = self._cluster.retry()
        pending = [(member, self._generation(member), offsets) for member, offsets in commits]
        while pending:
            errors = transactions.commit_offsets_each(self._group_id, [_row(commit) for commit in pending])
            fenced: list[tuple[_Commit, BrokerError]] = []
            for commit, error in zip(pending, errors):
                if isinstance(error, BrokerError) and error.code in FENCING_ERRORS:
                    self._rejected(commit[0], commit[1], error.code)
                    fenced.append((commit, error))
                elif error is not None:
                    raise error
            if fenced:
                # the partitions were left to the members in a new generation
                retry.backoff_or_raise(fenced[0][1])
            pending = [(member, self._generation(member), offsets) for (member, _, offsets), _ in fenced]

    def _rejected(self, member: LocalMember, sent: Generation, code: int) -> None:
        """Takes note of an error code of FENCING_ERRORS, or REBALANCE_IN_PROGRESS.

        Raises: GenerationMismatchError unless the member may commit in the next generation.
        """
        membership = member.membership
        try:
            if code == ErrorCode.ILLEGAL_GENERATION and follow_downgrade(
                self._cluster, self._shared, membership, sent, _REPEAT_TIMEOUT_MS
            ):
                code = ErrorCode.REBALANCE_IN_PROGRESS
        except (BrokerError, NetworkError) as error:
            _log.info("%s Cannot find the generation of the member, retrying: %s", member.log_prefix, error)
            code = ErrorCode.REBALANCE_IN_PROGRESS
        with self._shared.changed:
            # true if a rebalance ended meanwhile that left the partitions to the member, in a new generation
            is_current = sent == membership.generation
            can_retry = membership.on_commit_response(code, sent)
            if code == ErrorCode.UNKNOWN_MEMBER_ID and is_current:
                self._shared.record_removed(member, sent, self._clock.instant())
            if code == ErrorCode.REBALANCE_IN_PROGRESS and membership.rejoin_needed:
                self._shared.events.noticed(member.client_id, sent.member_id, self._clock.timestamp_ms())
            self._shared.wake()
        if code != ErrorCode.REBALANCE_IN_PROGRESS and not can_retry:
            raise self._fenced(member, sent, code)

    def _send(
        self, commits: Sequence[_Commit], timeout_ms: int, topic_ids: TopicIds
    ) -> list[GroupSourceError | None]:
        """Returns the error of each commit, or None."""

        def on_lost(index: int) -> None:
            member, sent, _ = commits[index]
            with self._shared.changed:
                if member.membership.commit_generation == sent:
                    member.membership.repetition.start(self._clock.now_ms())
                    self._shared.wake()

        rows = [_row(commit) for commit in commits]
        sent_ms = self._clock.now_ms()
        errors = self._cluster.commit_each(
            self._group_id, rows, timeout_ms=timeout_ms, topic_ids=topic_ids, on_lost=on_lost
        )
        with self._shared.changed:
            now_ms = self._clock.now_ms()
            for error in errors:
                if error is None or isinstance(error, BrokerError):
                    self._shared.metrics.committed(now_ms - sent_ms, now_ms)
        return errors

    def repeat(self, members: Sequence[LocalMember]) -> None:
        """Commits the last offsets of members again; does nothing while the owner commits.

        An error is left to the next repetition, and to the heartbeats of the member.
        """
        if not self._sending.acquire(blocking=False):
            return
        try:
            # topic ids -> commits of the members that have committed with them last
            commits: dict[tuple[tuple[str, str], ...], list[_Commit]] = defaultdict(list)
            with self._shared.changed:
                for member in members:
                    if member.commits and member.membership.accepts_commits:
                        row = member, member.membership.commit_generation, member.commits
                        commits[tuple(sorted(member.topic_ids.items()))].append(row)
            for topic_ids, rows in commits.items():
                errors: Sequence[GroupSourceError | None]
                try:
                    errors = self._send(rows, _REPEAT_TIMEOUT_MS, dict(topic_ids))
                except GroupSourceError as failure:
                    errors = [failure] * len(rows)
                for (member, _, _), error in zip(rows, errors):
                    if error is None:
                        _log.debug("%s Repeated the last commit.", member.log_prefix)
                    else:
                        _log.debug("%s Repeating the last commit failed: %s", member.log_prefix, error)
        finally:
            self._sending.release()

    def _generation(self, member: LocalMember) -> Generation:
        """Returns the generation to commit in.

        Raises: GenerationMismatchError if the coordinator no longer accepts that of the member's partitions.
        """
        membership = member.membership
        with self._shared.changed:
            current, is_fenced = membership.commit_generation, membership.is_fenced
            since, cause = membership.owned_since, membership.loss_cause
        if not is_fenced:
            return current
        raise GenerationMismatchError(
            group_id=self._group_id,
            member_id=since.member_id,
            generation_id=since.generation_id,
            current_generation=self._current.find(since.generation_id),
            cause=cause,
        )

    def _fenced(self, member: LocalMember, sent: Generation, code: int) -> GenerationMismatchError:
        error = generation_mismatch(
            self._current,
            group_id=self._group_id,
            member_id=sent.member_id,
            generation_id=sent.generation_id,
            code=code,
        )
        if code == ErrorCode.FENCED_INSTANCE_ID:
            # the next poll raises it: a JoinGroup of this member would fence the process that replaced it
            with self._shared.changed:
                member.failure = error
        return error


def _deciding(failures: Sequence[GroupSourceError]) -> GroupSourceError:
    """Returns the error that the owner handles: one that ends the query, then one after which it commits again.

    After a fence it would drop the offsets of all members; the next commit of a fenced member is rejected again.
    """

    def rank(error: GroupSourceError) -> int:
        if isinstance(error, GenerationMismatchError):
            return 2
        is_repeated = isinstance(error, NetworkError) or (
            isinstance(error, BrokerError) and (error.retriable or error.code == ErrorCode.REBALANCE_IN_PROGRESS)
        )
        return 1 if is_repeated else 0

    return min(failures, key=rank)


def _row(commit: _Commit) -> tuple[CommittingMember, Offsets]:
    member, sent, offsets = commit
    return CommittingMember(sent.generation_id, sent.member_id, member.membership.config.group_instance_id), offsets
