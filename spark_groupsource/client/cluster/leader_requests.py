"""Requests to the leaders of partitions and the contents of their responses."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, TypeVar

from spark_groupsource.client.cluster.error_rules import Action, ErrorRules
from spark_groupsource.client.cluster.metadata import ClusterMetadata, EpochEndOffset, OffsetAndTimestamp
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import TopicPartition, by_topic
from spark_groupsource.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

if TYPE_CHECKING:
    from spark_groupsource.wire.messages import DeleteRecordsRequest

Found = TypeVar("Found")
_NO_OFFSET = OffsetAndTimestamp(-1, -1, -1)


def list_offsets_request(
    timestamps: Mapping[TopicPartition, int], view: ClusterMetadata, read_committed: bool, settings: ClientSettings
) -> ListOffsetsRequest:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    rows: dict[str, list[ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition]] = defaultdict(list)
    for tp, timestamp in sorted(timestamps.items()):
        rows[tp.topic].append(
            topic_class.ListOffsetsPartition(
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


def move_found(
    operation: str,
    results: Iterable[tuple[TopicPartition, int, Found]],
    pending: dict[TopicPartition, int],
    found: dict[TopicPartition, Found],
    rules: ErrorRules,
) -> BrokerError | None:
    """Moves the partitions of a response from `pending` to `found`; returns the last error that is retried.

    Args:
        operation: begin of the error text, formatted with the partition and its value in `pending`.
        results: partition, error code and result.
    """
    failure: BrokerError | None = None
    for tp, code, result in results:
        action = rules.action(code) if code else Action.NO_RESULT
        if action is Action.RAISE:
            raise BrokerError(code, operation.format(tp, pending.get(tp)))
        if action is Action.RETRY:
            failure = _lookup_error(code, operation.format(tp, pending.get(tp)))
        elif pending.pop(tp, None) is not None:
            found[tp] = result
    return failure


def _lookup_error(code: int, operation: str) -> BrokerError:
    """Returns the error of a leader; one whose metadata are behind does not know the partition yet.

    The topic exists in the metadata that name the leader, so this is no deletion: those are requested again.
    """
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return BrokerError(code, operation, is_retried=True)
    hint = "The leader in the metadata does not know the partition (UNKNOWN_TOPIC_OR_PARTITION)."
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, operation, hint)


def delete_records_request(offsets: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    # not at the start of every read task
    from spark_groupsource.wire.messages import DeleteRecordsRequest

    row = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        topics=[
            row(
                name=topic,
                partitions=[
                    row.DeleteRecordsPartition(partition_index=n, offset=offsets[TopicPartition(topic, n)])
                    for n in numbers
                ],
            )
            for topic, numbers in by_topic(offsets).items()
        ],
        timeout_ms=timeout_ms,
    )


def listed_offsets(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int, OffsetAndTimestamp]]:
    for topic in response.topics:
        for p in topic.partitions:
            # some error responses have other values
            found = _NO_OFFSET if p.error_code else OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
            yield TopicPartition(topic.name, p.partition_index), p.error_code, found


def leader_epoch_request(epochs: Mapping[TopicPartition, int], view: ClusterMetadata) -> OffsetForLeaderEpochRequest:
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
            for topic, numbers in by_topic(epochs).items()
        ],
    )


def epoch_ends(response: OffsetForLeaderEpochResponse) -> Iterator[tuple[TopicPartition, int, EpochEndOffset]]:
    for topic in response.topics:
        for p in topic.partitions:
            yield TopicPartition(topic.topic, p.partition), p.error_code, EpochEndOffset(p.leader_epoch, p.end_offset)
