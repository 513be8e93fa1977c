"""Cluster client: topic descriptions, log offsets, committed offsets, commits."""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence, TypeVar

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
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import (
    FENCING_ERRORS,
    RETRIABLE,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    NetworkError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.wire.fast_structs import new_struct
from spark_groupsource.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "Cluster", "ClusterMetadata", "OffsetAndTimestamp", "TopicInfo"]

UNKNOWN_TOPIC_TIMEOUT_MS = 3_000
"""How long to retry an unknown topic: the metadata of a new topic reach the brokers one after another."""

Failure = Optional[BrokerError]
_Found = TypeVar("_Found")
# (node id, partitions of the node with their values, metadata, timeout in ms) -> the last retriable error
_SendToLeader = Callable[[int, Mapping[TopicPartition, int], ClusterMetadata, int], Failure]
_EPOCH_OF_CONSUMERS_SINCE = 3
# as in Kafka's consumer (OffsetFetcherUtils), although it is not retriable elsewhere
_RETRIABLE_LOOKUP_ERRORS = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR})
_UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Cluster(Router):
    """Client of one Kafka cluster; thread-safe."""

    def __enter__(self) -> Cluster:
        return self

    def describe_topics(self, topics: Iterable[str], *, refresh: bool = False) -> Mapping[str, TopicInfo]:
        """Describes topics, all of which must exist.

        Raises: BrokerError for the first topic that cannot be described.
        """
        names = list(topics)
        view = self.metadata(names, refresh=refresh)
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
            request = _list_offsets_request(chosen, view, committed, self.settings)
            min_version = 7 if MAX_TIMESTAMP in chosen.values() else 0
            response = self.call_node(node_id, request, bound_ms, min_version=min_version)
            return _move_found("ListOffsets of {} at timestamp {}", _listed_offsets(response), pending, found)

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
            request = _leader_epoch_request(chosen, view)
            # earlier versions require CLUSTER_ACTION and have no field for the current leader epoch
            response = self.call_node(node_id, request, bound_ms, min_version=_EPOCH_OF_CONSUMERS_SINCE)
            return _move_found("OffsetForLeaderEpoch of {} at epoch {}", _epoch_ends(response), pending, found)

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
            view = self.metadata(topics, refresh=retry.attempt > 0, timeout_ms=retry.remaining_ms)
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
        self, group_id: str, partitions: Sequence[TopicPartition] | None = None, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetches committed offsets of a group; waits for transactions with pending offsets (KIP-447).

        Args:
            partitions: None for all committed offsets; otherwise the result has every given partition, with None
                for those without a committed offset.
        Raises: BrokerError, NetworkError.
        """
        if partitions is not None and not partitions:
            return {}
        request = _offset_fetch_request(group_id, partitions)
        retry = self.retry(timeout_ms)
        while True:
            response = self.call_coordinator(
                group_id, request, retry.remaining_ms, errors=lambda r: [_fetched_group(r).error_code]
            )
            error = _fetch_error(group_id, response)
            if error is None:
                break
            if not error.retriable or error.code in _UNKNOWN_TOPIC:
                raise error
            retry.backoff_or_raise(error)
        fetched: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
        for topic in _fetched_group(response).topics:
            for p in topic.partitions:
                if p.committed_offset >= 0:
                    committed = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
                    fetched[TopicPartition(topic.name, p.partition_index)] = committed
        return fetched

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commits offsets, as a member if `member_id` is given, else as a simple consumer.

        Raises: GenerationMismatchError, without the current generation, if the member is fenced; BrokerError, also
            REBALANCE_IN_PROGRESS while the group waits for its leader's assignment; NetworkError. Retriable errors
            after the timeout.
        """
        code = self.try_commit(
            group_id,
            offsets,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=group_instance_id,
            timeout_ms=timeout_ms,
        )
        if code in FENCING_ERRORS and member_id:
            raise GenerationMismatchError(
                group_id=group_id, member_id=member_id, generation_id=generation_id, cause=FENCING_ERRORS[code]
            )
        if code:
            has_members = code == ErrorCode.UNKNOWN_MEMBER_ID
            hint = "The group has active members, and only they may commit. Stop them first." if has_members else ""
            raise BrokerError(code, f"Commit of group '{group_id}'", hint)

    def try_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> int:
        """As `commit`, but returns a code of `FENCING_ERRORS` or REBALANCE_IN_PROGRESS instead of raising it."""
        if not offsets:
            return 0
        request = _commit_request(group_id, offsets, generation_id, member_id, group_instance_id)
        retry = self.retry(timeout_ms)
        # KIP-345: group.instance.id exists since version 7
        min_version = 7 if group_instance_id is not None else 0
        while True:
            response = self.call_coordinator(
                group_id, request, retry.remaining_ms, errors=_commit_errors, min_version=min_version
            )
            results = [(t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions]
            failure = next((entry for entry in results if entry[2]), None)
            if failure is None:
                return 0
            topic, partition, code = failure
            if code in FENCING_ERRORS or code == ErrorCode.REBALANCE_IN_PROGRESS:
                return int(code)
            error = BrokerError(code, f"Commit of {topic}-{partition} by group '{group_id}'")
            if not error.retriable:
                raise error
            _backoff_or_raise(retry, error)

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
    if isinstance(error, BrokerError) and error.code in _UNKNOWN_TOPIC and retry.elapsed_ms > UNKNOWN_TOPIC_TIMEOUT_MS:
        raise error
    retry.backoff_or_raise(error)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return topics


def _list_offsets_request(
    timestamps: Mapping[TopicPartition, int], view: ClusterMetadata, read_committed: bool, settings: ClientSettings
) -> ListOffsetsRequest:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    rows: dict[str, list[ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition]] = defaultdict(list)
    for tp, timestamp in sorted(timestamps.items()):
        rows[tp.topic].append(
            new_struct(
                topic_class.ListOffsetsPartition,
                partition_index=tp.partition,
                current_leader_epoch=view.leader_epoch(tp),
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[topic_class(name=topic, partitions=partitions) for topic, partitions in rows.items()],
        timeout_ms=settings.request_timeout_ms,
    )


def _move_found(
    operation: str,
    results: Iterable[tuple[TopicPartition, int, _Found]],
    pending: dict[TopicPartition, int],
    found: dict[TopicPartition, _Found],
) -> BrokerError | None:
    """Moves the partitions of a response from `pending` to `found`; returns the last retriable error.

    Args:
        operation: begin of the error text, formatted with the partition and its value in `pending`.
        results: partition, error code and result.
    """
    failure: BrokerError | None = None
    for tp, code, result in results:
        if code:
            error = _lookup_error(code, operation.format(tp, pending.get(tp)))
            if not error.retriable and code not in _RETRIABLE_LOOKUP_ERRORS:
                raise error
            failure = error
        elif pending.pop(tp, None) is not None:
            found[tp] = result
    return failure


def _lookup_error(code: int, operation: str) -> BrokerError:
    """Returns the error of a leader; one whose metadata are behind does not know the partition yet.

    The topic exists in the metadata that name the leader, so this is no deletion: those are requested again.
    """
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return BrokerError(code, operation)
    hint = "The leader in the metadata does not know the partition (UNKNOWN_TOPIC_OR_PARTITION)."
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, operation, hint)


def _listed_offsets(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int, OffsetAndTimestamp]]:
    for topic in response.topics:
        for p in topic.partitions:
            found = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
            yield TopicPartition(topic.name, p.partition_index), p.error_code, found


def _leader_epoch_request(epochs: Mapping[TopicPartition, int], view: ClusterMetadata) -> OffsetForLeaderEpochRequest:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            topic_class(
                topic=topic,
                partitions=[
                    topic_class.OffsetForLeaderPartition(
                        partition=number,
                        current_leader_epoch=view.leader_epoch(TopicPartition(topic, number)),
                        leader_epoch=epochs[TopicPartition(topic, number)],
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(epochs).items()
        ],
    )


def _epoch_ends(response: OffsetForLeaderEpochResponse) -> Iterator[tuple[TopicPartition, int, EpochEndOffset]]:
    for topic in response.topics:
        for p in topic.partitions:
            yield TopicPartition(topic.topic, p.partition), p.error_code, EpochEndOffset(p.leader_epoch, p.end_offset)


def _offset_fetch_request(group_id: str, partitions: Sequence[TopicPartition] | None) -> OffsetFetchRequest:
    one, many = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None if partitions is None else _by_topic(partitions)
    # versions up to 7 encode the group, later ones the list of groups
    return OffsetFetchRequest(
        group_id=group_id,
        topics=None if topics is None else [one(name=t, partition_indexes=n) for t, n in topics.items()],
        groups=[
            many(
                group_id=group_id,
                topics=None
                if topics is None
                else [many.OffsetFetchRequestTopics(name=t, partition_indexes=n) for t, n in topics.items()],
            )
        ],
        require_stable=True,
    )


def _fetched_group(response: OffsetFetchResponse) -> OffsetFetchResponse | OffsetFetchResponse.OffsetFetchResponseGroup:
    """Returns the part of the response about the group; versions up to 7 have one group at the top level."""
    return response.groups[0] if response.groups else response


def _fetch_error(group_id: str, response: OffsetFetchResponse) -> BrokerError | None:
    """Returns the error of the group, of the topics without permission, or of the first partition with one."""
    group = _fetched_group(response)
    if group.error_code:
        return BrokerError(group.error_code, f"OffsetFetch of group '{group_id}'")
    failed = [(topic.name, p) for topic in group.topics for p in topic.partitions if p.error_code]
    forbidden = sorted({name for name, p in failed if p.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    if forbidden:
        hint = f"Grant the user DESCRIBE on {bounded_names(forbidden)}."
        return BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"OffsetFetch of group '{group_id}'", hint)
    for name, p in failed:
        return BrokerError(p.error_code, f"OffsetFetch of {name}-{p.partition_index} of group '{group_id}'")
    return None


def _commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    generation_id: int,
    member_id: str,
    group_instance_id: str | None,
) -> OffsetCommitRequest:
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = []
    for topic, numbers in _by_topic(offsets).items():
        partitions = []
        for number in numbers:
            committed = offsets[TopicPartition(topic, number)]
            if committed.offset < 0:
                raise ValueError(f"offset {committed.offset} of {topic}-{number} cannot be committed")
            partitions.append(
                topic_class.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        topics.append(topic_class(name=topic, partitions=partitions))
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=topics,
    )


def _commit_errors(response: OffsetCommitResponse) -> list[int]:
    codes = [p.error_code for topic in response.topics for p in topic.partitions]
    # a coordinator that lost its log fails the append with REQUEST_TIMED_OUT: the client must look it up again
    return [int(ErrorCode.NOT_COORDINATOR) if code == ErrorCode.REQUEST_TIMED_OUT else code for code in codes]
