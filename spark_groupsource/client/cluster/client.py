"""What to ask a cluster for: log offsets, committed offsets, commits. `routing` knows whom to ask."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterable, Mapping, Sequence

from spark_groupsource.client.cluster.metadata import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ClusterMetadata,
    OffsetAndTimestamp,
    TopicInfo,
)
from spark_groupsource.client.cluster.routing import Router
from spark_groupsource.client.network.retry import Retry
from spark_groupsource.errors import (
    FENCING_ERRORS,
    RETRIABLE,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    NetworkError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.messages import ListOffsetsRequest, Message, OffsetCommitRequest, OffsetFetchRequest

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "Cluster", "ClusterMetadata", "OffsetAndTimestamp", "TopicInfo"]

UNKNOWN_TOPIC_PATIENCE_MS = 3_000
"""How long a topic that a broker does not know is asked for again: a new one takes a moment to be known everywhere."""

_UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Cluster(Router):
    """One Kafka cluster as a client sees it; safe for threads."""

    def __enter__(self) -> Cluster:
        return self

    def describe_topics(self, topics: Iterable[str], *, refresh: bool = False) -> Mapping[str, TopicInfo]:
        """The asked topics, all of which must exist.

        Raises: BrokerError naming the first that cannot be described, and why.
        """
        names = list(topics)
        view = self.metadata(names, refresh=refresh)
        for name in names:
            if name in view.errors:
                raise BrokerError(view.errors[name], _topic_problem(name, view.errors[name]))
        return {name: view.topics[name] for name in names}

    def check_topics(self, topics: Iterable[str]) -> None:
        """Passes topics that can be read, or could be once they exist or have a leader.

        Raises: BrokerError for those that are forbidden or no legal names, with the mend.
        """
        errors = self.metadata(topics).errors
        hopeless = sorted(name for name, code in errors.items() if code not in RETRIABLE)
        if hopeless:
            problems = (_topic_problem(name, errors[name]) for name in hopeless)
            raise BrokerError(errors[hopeless[0]], "; ".join(problems))

    def list_offsets(
        self,
        partitions: Mapping[TopicPartition, int],
        *,
        read_committed: bool | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp, from the leaders.

        Args:
            partitions: what to look for: `EARLIEST`, `LATEST`, `MAX_TIMESTAMP` or epoch milliseconds, which finds the
                first record at or after them.
            read_committed: whether `LATEST` is the last stable offset; None goes by isolation.level.
        Raises: BrokerError naming the partition; NetworkError. Retriable errors raise at the deadline, unknown
            topics and partitions after `UNKNOWN_TOPIC_PATIENCE_MS`.
        """
        committed = self.settings.read_committed if read_committed is None else read_committed
        retry = self.retry(timeout_ms)
        pending = dict(partitions)
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        failure: GroupSourceError | None = None
        while pending:
            if failure is not None:
                _again(retry, failure)
            failure = None
            view = self.metadata({tp.topic for tp in pending}, refresh=retry.attempt > 0)
            for node_id, chosen in self._by_leader(pending, view).items():
                try:
                    if node_id is None:
                        view.leader(chosen[0])
                    else:
                        request = _list_offsets_request({tp: pending[tp] for tp in chosen}, committed, self.settings)
                        floor = 7 if MAX_TIMESTAMP in {pending[tp] for tp in chosen} else 0
                        answer = self.call_node(node_id, request, floor=floor)
                        failure = _take_offsets(answer, pending, found) or failure
                except NetworkError as error:
                    failure = error
                except BrokerError as error:
                    if not error.retriable:
                        raise
                    failure = error
        return found

    def fetch_committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None = None, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets of a group; waits while an open transaction could still change one.

        Args:
            partitions: None asks for all that the group has committed; otherwise every asked partition is in the
                answer, with None where nothing is committed.
        Raises: BrokerError naming group and partition; NetworkError.
        """
        if partitions is not None and not partitions:
            return {}
        request = _offset_fetch_request(group_id, partitions)
        retry = self.retry(timeout_ms)
        while True:
            answer = self.call_coordinator(
                group_id, request, retry.remaining_ms, errors=lambda a: [_fetched_group(a).error_code]
            )
            error = _fetch_error(group_id, answer)
            if error is None:
                break
            if not error.retriable or error.code in _UNKNOWN_TOPIC:
                raise error
            retry.again(error)
        asked: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
        for topic in _fetched_group(answer).topics:
            for p in topic.partitions:
                if p.committed_offset >= 0:
                    committed = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
                    asked[TopicPartition(topic.name, p.partition_index)] = committed
        return asked

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
        """Commits offsets: as a member when generation and member id are given, else as a simple consumer.

        Raises: GenerationMismatchError when the group moved on without the member (its `current_generation` is -1: the
            coordinator does not tell); BrokerError, among them REBALANCE_IN_PROGRESS while the group waits for its
            leader's assignment; NetworkError. Retriable errors raise at the deadline.
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
            hint = ""
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                hint = " (the group has active members; only they may commit)"
            raise BrokerError(code, f"commit by group {group_id}{hint}")

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
        # KIP-345: a static member must be recognised by its instance id
        floor = 7 if group_instance_id is not None else 0
        while True:
            answer = self.call_coordinator(group_id, request, retry.remaining_ms, errors=_commit_errors, floor=floor)
            refused = [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]
            failure = next((entry for entry in refused if entry[2]), None)
            if failure is None:
                return 0
            topic, partition, code = failure
            if code in FENCING_ERRORS or code == ErrorCode.REBALANCE_IN_PROGRESS:
                return int(code)
            error = BrokerError(code, f"commit of {topic}-{partition} by group {group_id}")
            if not error.retriable:
                raise error
            _again(retry, error)

    @staticmethod
    def _by_leader(
        partitions: Iterable[TopicPartition], view: ClusterMetadata
    ) -> Mapping[int | None, list[TopicPartition]]:
        """Partitions by the broker that leads them; None for those without a leader."""
        grouped: dict[int | None, list[TopicPartition]] = defaultdict(list)
        for tp in partitions:
            info = view.topics.get(tp.topic)
            partition = info.partitions.get(tp.partition) if info else None
            led = partition is not None and partition.leader_id in view.nodes
            grouped[partition.leader_id if partition and led else None].append(tp)
        return grouped


def _topic_problem(name: str, code: int) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {name} does not exist; create it, or correct the name"
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return f"{name!r} is not a legal topic name (1 to 249 letters, digits, '.', '_', '-')"
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"topic {name} may not be described by this user; grant DESCRIBE and READ"
    return f"topic {name} cannot be described"


def _again(retry: Retry, error: GroupSourceError) -> None:
    """As `Retry.again`, with less patience for topics that nobody knows."""
    if isinstance(error, BrokerError) and error.code in _UNKNOWN_TOPIC and retry.elapsed_ms > UNKNOWN_TOPIC_PATIENCE_MS:
        raise error
    retry.again(error)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return topics


def _list_offsets_request(timestamps: Mapping[TopicPartition, int], read_committed: bool, settings: Any) -> Message:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            topic_class(
                name=topic,
                partitions=[
                    topic_class.ListOffsetsPartition(
                        partition_index=number, timestamp=timestamps[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(timestamps).items()
        ],
        timeout_ms=settings.request_timeout_ms,
    )


def _take_offsets(
    answer: Message, pending: dict[TopicPartition, int], found: dict[TopicPartition, OffsetAndTimestamp]
) -> BrokerError | None:
    """Moves what was answered from `pending` to `found`; the last retriable error among the rest."""
    failure: BrokerError | None = None
    for topic in answer.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                error = BrokerError(p.error_code, f"offset of {tp} at timestamp {pending.get(tp)}")
                if not error.retriable:
                    raise error
                failure = error
            elif pending.pop(tp, None) is not None:
                found[tp] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
    return failure


def _offset_fetch_request(group_id: str, partitions: Sequence[TopicPartition] | None) -> Message:
    one, many = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None if partitions is None else _by_topic(partitions)
    # up to version 7 the request holds one group, later a list of groups; both are filled, one is sent
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


def _fetched_group(answer: Message) -> Message:
    """The part of an OffsetFetch answer that belongs to the one group asked for."""
    return answer.groups[0] if answer.groups else answer


def _fetch_error(group_id: str, answer: Message) -> BrokerError | None:
    """The error of the group, of all topics that may not be read, or of the first partition that has one."""
    group = _fetched_group(answer)
    if group.error_code:
        return BrokerError(group.error_code, f"committed offsets of group {group_id}")
    failed = [(topic.name, p) for topic in group.topics for p in topic.partitions if p.error_code]
    forbidden = sorted({name for name, p in failed if p.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    if forbidden:
        context = f"committed offsets of topics {', '.join(forbidden)} of group {group_id} (grant DESCRIBE)"
        return BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, context)
    for name, p in failed:
        return BrokerError(p.error_code, f"committed offset of {name}-{p.partition_index}, group {group_id}")
    return None


def _commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    generation_id: int,
    member_id: str,
    group_instance_id: str | None,
) -> Message:
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


def _commit_errors(answer: Message) -> list[int]:
    codes = [p.error_code for topic in answer.topics for p in topic.partitions]
    # REQUEST_TIMED_OUT of an append may mean that the coordinator lost its place (E.12): look it up again
    return [int(ErrorCode.NOT_COORDINATOR) if code == ErrorCode.REQUEST_TIMED_OUT else code for code in codes]
