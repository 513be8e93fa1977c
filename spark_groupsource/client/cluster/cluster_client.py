"""Cluster client: topic descriptions, log offsets, committed offsets, commits."""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Iterable, Mapping, Optional, Sequence
from uuid import UUID

from spark_groupsource.client.cluster.error_rules import (
    DELETE_RECORDS,
    LEADER_EPOCHS,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    UNKNOWN_TOPIC_TIMEOUT_MS,
    is_missing,
)
from spark_groupsource.client.cluster.group_offsets import (
    BY_ID,
    NO_IDS,
    NO_MEMBER,
    CommittingMember,
    TopicIds,
    commit_errors,
    errors_of_commits,
    fetch_error,
    fetched_group,
    first_commit_error,
    ids_of,
    offset_commit_request,
    offset_fetch_request,
    set_names,
    split_commits,
)
from spark_groupsource.client.cluster.leader_requests import (
    delete_records_request,
    epoch_ends,
    leader_epoch_request,
    list_offsets_request,
    listed_offsets,
    move_found,
)
from spark_groupsource.client.cluster.metadata import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ClusterMetadata,
    EpochEndOffset,
    OffsetAndTimestamp,
    TopicInfo,
)
from spark_groupsource.client.cluster.routing import Router
from spark_groupsource.client.network.retry import Retry
from spark_groupsource.errors import (
    RETRIABLE,
    BrokerError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.wire.commit_reports import committed_topic_id
from spark_groupsource.wire.messages import OffsetCommitResponse, OffsetFetchResponse

__all__ = [
    "EARLIEST", "LATEST", "MAX_TIMESTAMP", "UNKNOWN_TOPIC_TIMEOUT_MS", "ClusterClient", "ClusterMetadata",
    "OffsetAndTimestamp", "TopicInfo",
]  # fmt: skip

Failure = Optional[BrokerError]
# (node id, partitions of the node with their values, metadata, timeout in ms) -> the last retriable error
_SendToLeader = Callable[[int, Mapping[TopicPartition, int], ClusterMetadata, int], Failure]
_EPOCH_OF_CONSUMERS_SINCE = 3


class ClusterClient(Router):
    """Client of one Kafka cluster; thread-safe."""

    def __enter__(self) -> ClusterClient:
        return self

    def describe_topics(self, topics: Iterable[str]) -> Mapping[str, TopicInfo]:
        """Describes topics as they are now; all of them must exist.

        Raises: BrokerError for the first topic that cannot be described.
        """
        names = list(topics)
        view = self.metadata(names, refresh=True)
        for name in names:
            if name in view.errors:
                raise _topics_error([name], view.errors[name])
        return {name: view.topics[name] for name in names}

    def check_topics(self, topics: Iterable[str]) -> None:
        """Accepts topics that can be read now, or later when they exist and have a leader.

        Raises: BrokerError for an invalid name or a missing permission.
        """
        errors = self.metadata(topics).errors
        fatal = sorted(name for name, code in errors.items() if code not in RETRIABLE)
        if fatal:
            raise _topics_error(fatal, errors[fatal[0]])

    def list_offsets(
        self,
        partitions: Mapping[TopicPartition, int],
        *,
        read_committed: bool | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Looks up offsets by timestamp at the leaders.

        Args:
            partitions: `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`, or epoch milliseconds to find the first record at or
                after them.
            read_committed: whether `LATEST` is the last stable offset; None for isolation.level.
        Raises: BrokerError, NetworkError; retriable ones after the timeout, unknown topics and partitions after
            `UNKNOWN_TOPIC_TIMEOUT_MS`.
        """
        committed = self.settings.read_committed if read_committed is None else read_committed
        pending = dict(partitions)
        found: dict[TopicPartition, OffsetAndTimestamp] = {}

        def send(node_id: int, chosen: Mapping[TopicPartition, int], view: ClusterMetadata, bound_ms: int) -> Failure:
            request = list_offsets_request(chosen, view, committed, self.settings)
            min_version = 7 if MAX_TIMESTAMP in chosen.values() else 0
            response = self.call_node(node_id, request, bound_ms, min_version=min_version)
            operation = "ListOffsets of {} at timestamp {}"
            return move_found(operation, listed_offsets(response), pending, found, LIST_OFFSETS)

        self._call_leaders(pending, send, timeout_ms)
        return found

    def end_offsets_for_epochs(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, EpochEndOffset]:
        """Returns where each leader epoch ends in the log of the present leader (OffsetForLeaderEpoch, KIP-320).

        A record below an offset that was in the log in an epoch is still there if the epoch ends at or after it.

        Raises: as `list_offsets`; UnsupportedVersionError for brokers before 2.1.
        """
        pending = dict(epochs)
        found: dict[TopicPartition, EpochEndOffset] = {}

        def send(node_id: int, chosen: Mapping[TopicPartition, int], view: ClusterMetadata, bound_ms: int) -> Failure:
            request = leader_epoch_request(chosen, view)
            # earlier versions require CLUSTER_ACTION and have no field for the current leader epoch
            response = self.call_node(node_id, request, bound_ms, min_version=_EPOCH_OF_CONSUMERS_SINCE)
            operation = "OffsetForLeaderEpoch of {} at epoch {}"
            return move_found(operation, epoch_ends(response), pending, found, LEADER_EPOCHS)

        self._call_leaders(pending, send, timeout_ms)
        return found

    def ends_of_former_epochs(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, EpochEndOffset]:
        """As `end_offsets_for_epochs`, without partitions whose log has no epochs: message formats before v2.

        A leader that knows no end of an earlier epoch has no epochs if it knows no end of its own either. Kafka's
        consumer has the epochs of record batches, which these formats lack; those of metadata are not in the log.

        Source: LeaderEpochFileCache.endOffsetFor, UnifiedLog.maybeCreateLeaderEpochCache.
        """
        found = self.end_offsets_for_epochs(epochs, timeout_ms)
        unknown = [p for p, end in found.items() if end.end_offset < 0]
        own = self.end_offsets_for_epochs(self.cached_leader_epochs(unknown), timeout_ms) if unknown else {}
        return {p: end for p, end in found.items() if p not in own or own[p].end_offset >= 0}

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records before the given offset of each partition (-1: all); returns the new log start offsets.

        Raises: as `list_offsets`.
        """
        pending = dict(offsets)
        found: dict[TopicPartition, int] = {}

        def send(node_id: int, chosen: Mapping[TopicPartition, int], view: ClusterMetadata, bound_ms: int) -> Failure:
            response = self.call_node(node_id, delete_records_request(chosen, bound_ms), bound_ms)
            results = (
                (TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark)
                for topic in response.topics
                for p in topic.partitions
            )
            return move_found("Deleting records of {} before offset {}", results, pending, found, DELETE_RECORDS)

        self._call_leaders(pending, send, timeout_ms)
        return found

    def _call_leaders(self, pending: Mapping[TopicPartition, int], send: _SendToLeader, timeout_ms: int | None) -> None:
        """Calls `send` for each leader of the `pending` partitions until it has removed them all.

        Raises: BrokerError, NetworkError; retriable ones after the timeout, unknown topics and partitions after
            `UNKNOWN_TOPIC_TIMEOUT_MS`.
        """
        retry = self.retry(timeout_ms)
        failure: GroupSourceError | None = None
        while pending:
            if failure is not None:
                _backoff_or_raise(retry, failure)
            failure = None
            topics = {tp.topic for tp in pending}
            try:
                view = self.metadata(topics, refresh=retry.attempt > 0, timeout_ms=retry.remaining_ms)
            except RequestTimeoutError as error:
                failure = error
                continue
            for node_id, chosen in self._by_leader(pending, view).items():
                try:
                    if node_id is None:
                        view.leader(chosen[0])
                    else:
                        bound_ms = min(retry.remaining_ms, self.settings.request_timeout_ms)
                        failure = send(node_id, {tp: pending[tp] for tp in chosen}, view, bound_ms) or failure
                except NetworkError as error:
                    failure = error
                except BrokerError as error:
                    if not error.retriable:
                        raise
                    failure = error
            if pending and failure is None:
                names = bounded_names(sorted(pending))
                failure = NetworkError(f"Lookup of {names} failed: the responses of the leaders lack them.")

    def fetch_committed(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None = None,
        timeout_ms: int | None = None,
        *,
        topic_ids: TopicIds = NO_IDS,
        is_in_transaction: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetches committed offsets of a group; waits for transactions with pending offsets (KIP-447).

        Args:
            partitions: None for all committed offsets, of which Kafka leaves out those of partitions whose first
                commit is pending; otherwise the result has every given partition, with None for those without a
                committed offset.
            topic_ids: ids of the topics that are meant; a broker that has another topic of the name fails with
                UNKNOWN_TOPIC_ID, one before version 10 does not check it. A commit whose metadata has the id of another
                topic of this cluster is left out.
            is_in_transaction: whether the caller itself has offsets of the group pending, and does not wait for them.

        A leader with an earlier epoch than a commit that has one of `topic_ids` is not asked from now on: it is cut
        off from its controller, and its log may end before the offset.

        Raises: BrokerError, NetworkError.
        """
        if partitions is not None and not partitions:
            return {}
        ids = None if partitions is None else ids_of(partitions, topic_ids)
        try:
            response = self._fetch_offsets(group_id, partitions, timeout_ms, ids, require_stable=not is_in_transaction)
        except UnsupportedVersionError:
            if ids is None:
                raise
            response = self._fetch_offsets(
                group_id, partitions, timeout_ms, None, require_stable=not is_in_transaction
            )
        fetched: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
        epochs: dict[TopicPartition, int] = {}
        for topic in fetched_group(response).topics:
            for p in topic.partitions:
                committed = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
                topic_id = topic_ids and committed_topic_id(committed.metadata, self.cluster_id or "")
                if committed.offset >= 0 and (not topic_id or topic_ids.get(topic.name, topic_id) == topic_id):
                    tp = TopicPartition(topic.name, p.partition_index)
                    fetched[tp] = committed
                    if topic_id and topic_ids.get(topic.name) == topic_id:
                        epochs[tp] = committed.leader_epoch
        self.forget_earlier_leaders(epochs, topic_ids)
        return fetched

    def await_loaded(self, group_id: str, timeout_ms: int) -> None:
        """Waits until the coordinator has loaded the group; see `has_loaded`.

        Raises: BrokerError, NetworkError.
        """
        if not self.has_loaded(group_id):
            self._fetch_offsets(group_id, (), timeout_ms, None, require_stable=False)

    def _fetch_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        timeout_ms: int | None,
        ids: Mapping[str, UUID] | None,
        *,
        require_stable: bool = True,
    ) -> OffsetFetchResponse:
        """Returns the response, with the names of topics; `ids` None sends names.

        Raises: BrokerError, NetworkError; UnsupportedVersionError for `ids` and an older broker.
        """

        def error_of(_: int, response: OffsetFetchResponse) -> BrokerError | None:
            if ids is not None:
                set_names(response, ids)
            return fetch_error(group_id, response)

        (outcome,) = self.call_coordinator_each(
            group_id,
            [offset_fetch_request(group_id, partitions, ids or {}, require_stable=require_stable)],
            timeout_ms,
            errors=lambda response: [fetched_group(response).error_code],
            error_of=error_of,
            rules=OFFSET_FETCH,
            min_version=0 if ids is None else BY_ID,
        )
        if isinstance(outcome, GroupSourceError):
            raise outcome
        return outcome

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member: CommittingMember = NO_MEMBER,
        timeout_ms: int | None = None,
        topic_ids: TopicIds = NO_IDS,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Commits offsets, as a member in its generation, or as a simple consumer without one; see `commit_each`.

        Args:
            on_lost: called after each request without a response, which the coordinator may receive after later ones.
        Raises: BrokerError; at once with a code of `FENCING_ERRORS`, or with REBALANCE_IN_PROGRESS while the group
            waits for its leader's assignment. NetworkError. Retriable errors after the timeout.
        """
        if offsets:
            (failure,) = self.commit_each(
                group_id,
                [(member, offsets)],
                timeout_ms=timeout_ms,
                topic_ids=topic_ids,
                on_lost=lambda _: None if on_lost is None else on_lost(),
            )
            if failure is not None:
                raise failure

    def commit_each(
        self,
        group_id: str,
        commits: Sequence[tuple[CommittingMember, Mapping[TopicPartition, OffsetAndMetadata]]],
        *,
        timeout_ms: int | None = None,
        topic_ids: TopicIds = NO_IDS,
        on_lost: Callable[[int], None] = lambda index: None,
    ) -> list[GroupSourceError | None]:
        """Commits offsets of several members, whose requests do not wait for each other.

        A commit that is too large for one record batch of the coordinator is sent in several requests.

        Args:
            topic_ids: ids of the topics to which the offsets belong: a topic of the same name that was created later
                fails with UNKNOWN_TOPIC_ID. Where the broker does not serve version 10, its metadata are compared.
            on_lost: called with the index of a commit after each request of it without a response.
        Returns: the error of each commit, as `commit` raises it, or None.
        """
        ids = ids_of({tp for _, offsets in commits for tp in offsets}, topic_ids)
        parts = split_commits(group_id, commits)
        requests = [offset_commit_request(group_id, part.offsets, part.member, ids or {}) for part in parts]
        retry = self.retry(timeout_ms)
        # KIP-345: group.instance.id exists since version 7
        by_name = 7 if any(member.group_instance_id is not None for member, _ in commits) else 0

        def error_of(index: int, response: OffsetCommitResponse) -> BrokerError | None:
            failed = first_commit_error(response, ids or {})
            if failed is None:
                return None
            tp, code = failed
            has_members = code == ErrorCode.UNKNOWN_MEMBER_ID and parts[index].member == NO_MEMBER
            hint = "The group has active members, and only they may commit. Stop them first." if has_members else ""
            return BrokerError(code, f"Commit of {tp} by group '{group_id}'", hint)

        def send(min_version: int) -> list[GroupSourceError | None]:
            outcomes = self.call_coordinator_each(
                group_id,
                requests,
                retry.remaining_ms,
                errors=commit_errors,
                error_of=error_of,
                rules=OFFSET_COMMIT,
                on_lost=lambda index: on_lost(parts[index].commit),
                min_version=min_version,
            )
            return errors_of_commits(parts, outcomes)

        if ids is None:
            return send(by_name)
        try:
            return send(BY_ID)
        except UnsupportedVersionError:
            self._check_topic_ids(group_id, ids, retry.remaining_ms)
            return send(by_name)

    def _check_topic_ids(self, group_id: str, ids: Mapping[str, UUID], timeout_ms: int) -> None:
        """Raises BrokerError if the metadata have another id for one of the topics."""
        found = self.metadata(ids, refresh=True, timeout_ms=timeout_ms).topics
        other = sorted(name for name in ids.keys() & found.keys() if (found[name].topic_id or ids[name]) != ids[name])
        if other:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"Commit of topic {bounded_names(other)} by group '{group_id}'"
            )

    @staticmethod
    def _by_leader(
        partitions: Iterable[TopicPartition], view: ClusterMetadata
    ) -> Mapping[int | None, list[TopicPartition]]:
        """Groups partitions by the id of their leader, None for those without a leader."""
        grouped: dict[int | None, list[TopicPartition]] = defaultdict(list)
        for tp in partitions:
            info = view.topics.get(tp.topic)
            partition = info.partitions.get(tp.partition) if info else None
            led = partition is not None and partition.leader_id in view.nodes
            grouped[partition.leader_id if partition and led else None].append(tp)
        return grouped


def _topics_error(names: Sequence[str], code: int) -> BrokerError:
    hints: Mapping[int, str] = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The topic does not exist. Create it, or correct the name.",
        ErrorCode.INVALID_TOPIC_EXCEPTION: "A topic name has 1 to 249 letters, digits, '.', '_', '-'.",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Grant the user DESCRIBE and READ on the topic.",
    }
    return BrokerError(code, f"Describing topic {bounded_names(names)}", hints.get(code, ""))


def _backoff_or_raise(retry: Retry, error: GroupSourceError) -> None:
    """As `Retry.backoff_or_raise`, with the shorter timeout of unknown topics."""
    if is_missing(error, retry):
        raise error
    retry.backoff_or_raise(error)
