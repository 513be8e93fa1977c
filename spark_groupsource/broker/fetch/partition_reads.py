"""Reads of one partition for Fetch: lookup, checks, records, response entry.

Most partitions of a fetch have no new records, so a read without records takes few calls.

Source: Kafka `ReplicaManager.readFromLog`; KIP-595 (diverging epochs), KIP-98 (aborted transactions).
"""

from __future__ import annotations

from typing import Any, Callable

from spark_groupsource.broker.fetch.sessions import CachedPartition
from spark_groupsource.broker.leaders import Leader, Leaders
from spark_groupsource.broker.requests import ZERO_UUID
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.header import last_batch
from spark_groupsource.wire.messages import FetchResponse

PartitionData = FetchResponse.FetchableTopicResponse.PartitionData
_AbortedTransaction = PartitionData.AbortedTransaction
_NO_RECORDS = memoryview(b"")


class PartitionReads:
    """Reads partitions on behalf of the nodes that lead them."""

    def __init__(self, partitions: LogManager, leaders: Leaders) -> None:
        self._partitions = partitions
        self._leaders = leaders
        self._lookup: Any = partitions.find

    def idle_entry(
        self, leader: Leader, requested: CachedPartition, committed: bool, found: list[TopicPartition]
    ) -> PartitionData | None:
        """Returns the entry of a readable partition without records from the offset on, and adds it to `found`.

        None in every other case, which `find` and `read` decide. `leader`: of every partition.
        """
        key = requested.topic, requested.number
        partition: Partition | None = self._lookup(key)  # a tuple is equal to a TopicPartition
        epoch = requested.current_leader_epoch
        if partition is None or partition.offline_reason or (epoch >= 0 and epoch != leader.epoch):
            return None
        if requested.topic_id is not None and requested.topic_id != partition.topic_id:
            return None
        end, stable, log_start = partition.offsets
        is_idle = requested.fetch_offset == end and log_start <= end and requested.last_fetched_epoch < 0
        if not is_idle or partition.log.corrupt_ranges:
            return None
        found.append(partition.topic_partition)
        return _empty_entry(requested.number, end, stable, log_start, committed)

    def find(self, node_id: int, requested: CachedPartition, may_read: Callable[[str], bool]) -> Partition:
        """Returns the partition of a request, whose leader is the node. Raises: ApiError."""
        topic = requested.topic
        if topic is None:
            topic = requested.topic = self._partitions.topic_name(requested.topic_id or ZERO_UUID)
        if not may_read(topic):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = self._partitions.partition(topic, requested.number)
        if requested.topic_id is not None and requested.topic_id != partition.topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"Topic {topic} was recreated with another topic id.")
        self._leaders.check_leader(node_id, partition.topic_partition, requested.current_leader_epoch)
        return partition

    def read(
        self, partition: Partition, requested: CachedPartition, left: int, is_first: bool, committed: bool
    ) -> PartitionData:
        """Returns the entry of a partition, with at most `left` bytes unless it is the first one. Raises: ApiError."""
        log, offset = partition.log, requested.fetch_offset
        end, stable, log_start = partition.offsets
        if log_start <= offset == end and requested.last_fetched_epoch < 0 and not log.corrupt_ranges.ranges:
            return _empty_entry(requested.number, end, stable, log_start, committed)
        diverging = _diverging_epoch(partition, requested)
        if diverging is None and not log_start <= offset <= end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        limit = min(requested.max_bytes, left)
        records = _NO_RECORDS
        if diverging is None and (is_first or limit > 0):
            before = stable if committed and stable < end else None
            try:
                records = log.read(offset, limit, before)
            except CorruptRecordError as error:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
            except StorageError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        is_incomplete = len(records) > max(limit, 0) and not is_first
        if is_incomplete:
            records = _NO_RECORDS
        # null for isolation level read_uncommitted, and if Kafka replaces what it has read
        lists_aborted = committed and diverging is None and not is_incomplete
        aborted = _aborted(partition, offset, records) if lists_aborted else None
        entry = _entry(requested.number, end, stable, log_start, aborted, records)
        entry.diverging_epoch = diverging
        return entry


def is_cut_off(requested: CachedPartition, entry: PartitionData, left: int, committed: bool) -> bool:
    """Returns whether a partition has more records, for which the response, with `left` bytes, has no room."""
    records = entry.records or b""
    if entry.error_code or requested.max_bytes - len(records) <= left:
        return False
    last = last_batch(records) if records else None
    following = requested.fetch_offset if last is None else last.next_offset
    return following < (entry.last_stable_offset if committed else entry.high_watermark)


def is_unchanged(partition: Partition, requested: CachedPartition) -> bool:
    """Returns whether the partition has nothing for an incremental response: a fast path for idle partitions."""
    log = partition.log
    return (
        requested.fetch_offset == log.log_end_offset
        and requested.last_fetched_epoch < 0
        and not requested.has_changes(log.high_watermark, log.log_start_offset)
        and not log.corrupt_ranges.ranges
    )


def error_entry(partition: int, code: ErrorCode) -> PartitionData:
    """Returns the entry of a partition that is not read."""
    entry = _entry(partition, -1, -1, -1, None, b"")
    entry.error_code = code
    return entry


def unknown_entry(partition: int, code: ErrorCode) -> PartitionData:
    """Returns an error entry with an empty list of aborted transactions, as in Kafka for unknown partitions."""
    entry = error_entry(partition, code)
    entry.aborted_transactions = []
    return entry


def _empty_entry(number: int, end: int, stable: int, log_start: int, committed: bool) -> PartitionData:
    """Returns the entry of a partition without records from the requested offset on."""
    return _entry(number, end, stable, log_start, [] if committed else None, _NO_RECORDS)


def _entry(
    number: int,
    end: int,
    stable: int,
    log_start: int,
    aborted: list[_AbortedTransaction] | None,
    records: memoryview | bytes,
) -> PartitionData:
    return PartitionData(
        partition_index=number,
        error_code=0,
        high_watermark=end,
        last_stable_offset=stable,
        log_start_offset=log_start,
        aborted_transactions=aborted,
        records=records,
    )


def _diverging_epoch(partition: Partition, requested: CachedPartition) -> PartitionData.EpochEndOffset | None:
    """Where the client's log diverges from this one, None if it does not (KIP-595)."""
    epoch = requested.last_fetched_epoch
    if epoch < 0:
        return None
    try:
        end = partition.end_offset_for_epoch(epoch)
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    if end.end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if end.epoch >= epoch and end.end_offset >= requested.fetch_offset:
        return None
    return PartitionData.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def _aborted(partition: Partition, start: int, records: memoryview) -> list[_AbortedTransaction]:
    """The aborted transactions in `records`, which begin at offset `start`."""
    if not len(partition.transaction_index) or not records:
        return []
    last = last_batch(records)
    assert last is not None  # a read returns whole batches
    try:
        found = partition.transaction_index.overlapping(start, last.next_offset)
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return [_AbortedTransaction(producer_id=row.producer_id, first_offset=row.first_offset) for row in found]
