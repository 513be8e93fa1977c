"""Reader of one group's partition of `__consumer_offsets`, with one deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, NamedTuple

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition, coordinator_partition
from spark_groupsource.records.decode import CONTROL_COMMIT, control_type, decode_records
from spark_groupsource.records.header import BatchHeader, iter_batches
from spark_groupsource.wire.group_records import OFFSETS_TOPIC, GroupKey, OffsetKey, UnknownKey, decode_key

# number of records that are read first from the end of the log; each further window has ten times as many
_FIRST_RECORDS = 1_000


class OffsetsTopicRecord(NamedTuple):
    """One record; `value` is None for a tombstone."""

    key: OffsetKey | GroupKey | UnknownKey
    value: bytes | None


class OffsetsTopicReader:
    """Reads the partition of `__consumer_offsets` that has the records of one group.

    A client may have no READ permission on it. Each method raises BrokerError or NetworkError, also after the deadline.
    """

    def __init__(self, cluster: ClusterClient, group_id: str, timeout_ms: int) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._deadline_ms = cluster.clock.now_ms() + timeout_ms
        # whether the first transaction marker of a producer after what is read next is a commit
        self._is_committed: dict[tuple[TopicPartition, int], bool] = {}

    @property
    def left_ms(self) -> int:
        """Time until the deadline, at least 1."""
        return max(self._deadline_ms - self._cluster.clock.now_ms(), 1)

    @property
    def is_expired(self) -> bool:
        """True after the deadline."""
        return self._cluster.clock.now_ms() >= self._deadline_ms

    def find_partition(self) -> TopicPartition | None:
        """Returns the partition; None where the topic does not exist."""
        found = self._cluster.metadata([OFFSETS_TOPIC], timeout_ms=self.left_ms).partitions_of(OFFSETS_TOPIC)
        return TopicPartition(OFFSETS_TOPIC, coordinator_partition(self._group_id, len(found))) if found else None

    def log_end_offset(self, partition: TopicPartition) -> int:
        """Returns the end of the partition, records of open transactions included."""
        requested = {partition: LATEST}
        return self._cluster.list_offsets(requested, read_committed=False, timeout_ms=self.left_ms)[partition].offset

    def windows(self, partition: TopicPartition, end: int) -> Iterator[OffsetRange]:
        """Yields ranges from `end` back to the log start offset, each ten times as long as the previous one."""
        start = self._cluster.list_offsets({partition: EARLIEST}, timeout_ms=self.left_ms)[partition].offset
        count = _FIRST_RECORDS
        while end > start and not self.is_expired:
            begin = max(start, end - count)
            yield OffsetRange(partition, begin, end)
            end, count = begin, count * 10

    def records(self, window: OffsetRange) -> Iterator[OffsetsTopicRecord]:
        """Yields the records of a range in the order of the log; records of the same batch may precede the range.

        Records of transactions count once they are committed. So the ranges are read from the end of the log back, as
        `windows` yields them.
        """
        settings = replace(
            self._cluster.settings,
            isolation_level="read_uncommitted",
            # every request of the fetcher ends at the deadline
            default_api_timeout_ms=self.left_ms,
            request_timeout_ms=self.left_ms,
            fetch_max_wait_ms=min(100, self.left_ms),
        )
        # the data of a block are valid until the next one
        blocks = [bytes(block.data) for block in PartitionFetcher(self._cluster, settings).fetch_blocks([window])]
        batches = [(data, header) for data in blocks for header in iter_batches(data)]
        kept: list[tuple[bytes, BatchHeader]] = []
        for data, header in reversed(batches):
            producer = window.topic_partition, header.producer_id
            if header.is_control:
                self._is_committed[producer] = control_type(data, header) == CONTROL_COMMIT
            elif not header.is_transactional or self._is_committed.get(producer, False):
                kept.append((data, header))
        for data, header in reversed(kept):
            for record in decode_records(data, header):
                if record.key is not None:
                    yield OffsetsTopicRecord(decode_key(record.key), record.value)
