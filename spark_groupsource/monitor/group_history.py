"""Reads group records of `__consumer_offsets`.

Without READ permission on the topic, values from its records are unknown.
"""

from __future__ import annotations

import logging
from typing import Collection

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader
from spark_groupsource.errors import CorruptRecordError, GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition, coordinator_partition
from spark_groupsource.monitor.group_steps import CommitTracker, GroupRecord
from spark_groupsource.monitor.offsets_log import OFFSETS_TOPIC, Corruption, fetch_batches, log_partitions, log_ranges
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.decode import decode_records
from spark_groupsource.wire.group_records import GroupKey, GroupValue, UnknownKey, decode_group_value, decode_key

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 2_000
# versions of the keys of offsets and groups
_KEYS = frozenset({b"\x00\x00", b"\x00\x01", b"\x00\x02"})


def last_group_records(cluster: Cluster, group_ids: Collection[str]) -> dict[str, GroupValue]:
    """Returns the last record of groups, as far as it is found within `_TIMEOUT_MS`."""
    found: dict[str, GroupValue | None] = {}
    try:
        partitions = log_partitions(cluster)
        by_partition: dict[TopicPartition, set[str]] = {}
        for group_id in group_ids:
            if partitions:
                number = coordinator_partition(group_id, len(partitions))
                by_partition.setdefault(TopicPartition(OFFSETS_TOPIC, number), set()).add(group_id)
        for partition, groups in by_partition.items():
            reader = OffsetsTopicReader(cluster, "", _TIMEOUT_MS)
            for window in reader.windows(partition, reader.log_end_offset(partition)):
                # the windows before have later records
                found = _last_in(reader, window, groups) | found
                if groups <= found.keys():
                    break
    except GroupSourceError as error:
        _log.debug("[topic=%s] Cannot read group records: %s", OFFSETS_TOPIC, error)
    return {group_id: value for group_id, value in found.items() if value is not None}


def group_records(cluster: Cluster, selection: NameSelection | None) -> dict[str, list[GroupRecord]]:
    """Returns the records of the selected groups in the order of the log, with the commits between them.

    Raises: BrokerError, NetworkError.
    """
    found: dict[str, list[GroupRecord]] = {}
    for part in log_ranges(cluster, log_partitions(cluster, selection)):
        _read_history(cluster, part, selection, found, {})
    return found


class GroupRecordReader:
    """Reads the new records of one group at each call; the first call reads all.

    Raises: BrokerError, NetworkError.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._selection = NameSelection((group_id,))
        self._group_id = group_id
        self._ends: dict[TopicPartition, int] = {}
        self._trackers: dict[str, CommitTracker] = {}
        self._found: dict[str, list[GroupRecord]] = {}

    def read(self) -> list[GroupRecord]:
        """Returns all records of the group so far."""
        for part in log_ranges(self._cluster, log_partitions(self._cluster, self._selection)):
            start = max(part.start, self._ends.get(part.topic_partition, part.start))
            if start < part.end:
                new = part._replace(start=start)
                _read_history(self._cluster, new, self._selection, self._found, self._trackers)
            self._ends[part.topic_partition] = part.end
        return self._found.get(self._group_id, [])

    def committing(self) -> frozenset[str]:
        """Returns the members that have committed since the last group record."""
        tracker = self._trackers.get(self._group_id)
        return frozenset() if tracker is None else tracker.committing


def _read_history(
    cluster: Cluster,
    part: OffsetRange,
    selection: NameSelection | None,
    found: dict[str, list[GroupRecord]],
    trackers: dict[str, CommitTracker],
) -> None:
    """Adds the group records of a range to `found`."""
    for batch in fetch_batches(cluster, part):
        if isinstance(batch, Corruption) or batch.header.is_control:
            continue
        epoch = batch.header.partition_leader_epoch
        for record in decode_records(batch.buffer, batch.header):
            if record.key is None or record.offset < part.start or record.key[:2] not in _KEYS:
                continue
            try:
                key = decode_key(record.key)
                if isinstance(key, UnknownKey) or not (selection is None or selection.matches(key.group_id)):
                    continue
                tracker = trackers.setdefault(key.group_id, CommitTracker())
                if isinstance(key, GroupKey):
                    value = None if record.value is None else decode_group_value(record.value)
                    group_record = tracker.record(record.timestamp_ms, value, epoch)
                    found.setdefault(key.group_id, []).append(group_record)
                elif record.value is not None:
                    tracker.commit(TopicPartition(key.topic, key.partition), record.timestamp_ms)
            except CorruptRecordError as error:
                _log.warning("[partition=%s] %s", part.topic_partition, error)


def _last_in(reader: OffsetsTopicReader, window: OffsetRange, groups: set[str]) -> dict[str, GroupValue | None]:
    found: dict[str, GroupValue | None] = {}
    for key, value in reader.records(window):
        if isinstance(key, GroupKey) and key.group_id in groups:
            found[key.group_id] = None if value is None else decode_group_value(value)
    return found
