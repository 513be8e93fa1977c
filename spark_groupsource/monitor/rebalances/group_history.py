"""Reads group records of `__consumer_offsets`.

Without READ permission on the topic, values from its records are unknown.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field
from typing import Collection

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader
from spark_groupsource.errors import CorruptRecordError, GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition, coordinator_partition
from spark_groupsource.monitor.offsets.lag_history import CommitHistory
from spark_groupsource.monitor.offsets.offsets_log import Corruption, fetch_batches, log_partitions, unread_ranges
from spark_groupsource.monitor.rebalances.epoch_history import EpochRecord, epoch_record
from spark_groupsource.monitor.rebalances.group_steps import CommitTracker, GroupRecord
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.decode import StoredRecord, decode_records
from spark_groupsource.wire.commit_reports import decode_report
from spark_groupsource.wire.group_events import GroupEvent
from spark_groupsource.wire.group_records import (
    OFFSETS_TOPIC,
    GroupKey,
    GroupValue,
    OffsetKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 2_000
# versions of the keys of offsets and groups
_KEYS = frozenset({b"\x00\x00", b"\x00\x01", b"\x00\x02"})
# part of every report; few commits have one
_REPORT = b' {"g":'
_LENGTH = struct.Struct(">h")


def last_group_records(cluster: ClusterClient, group_ids: Collection[str]) -> dict[str, GroupValue]:
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


@dataclass
class GroupLog:
    """What `__consumer_offsets` has of one group, in the order of the log.

    Attributes:
        records: of a classic group, with the commits between them.
        epochs: of a group of the consumer, share or streams protocol.
        reports: events that applications of this package have reported in commits.
        commits: the committed offsets over time, if the reader keeps them.
    """

    records: list[GroupRecord] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    reports: list[GroupEvent] = field(default_factory=list)
    tracker: CommitTracker = field(default_factory=CommitTracker)
    commits: CommitHistory = field(default_factory=CommitHistory)


class GroupLogReader:
    """Reads what is new of the selected groups at each call; the first call reads all.

    Args: `keeps_commits`, whether the committed offsets are kept.
    """

    def __init__(
        self, cluster: ClusterClient, selection: NameSelection | None, keeps_commits: bool = False
    ) -> None:
        self._keeps_commits = keeps_commits
        self._cluster = cluster
        self._selection = selection
        self._ends: dict[TopicPartition, int] = {}
        self._found: dict[str, GroupLog] = {}

    def read(self) -> dict[str, GroupLog]:
        """Returns all groups that have records. Raises: BrokerError, NetworkError."""
        for part in unread_ranges(self._cluster, log_partitions(self._cluster, self._selection), self._ends):
            self._read(part)
        return self._found

    def _read(self, part: OffsetRange) -> None:
        names = None if self._selection is None else self._selection.names
        # a name follows its length in every key
        contained = [_LENGTH.pack(len(name.encode())) + name.encode() for name in names or ()]
        for batch in fetch_batches(self._cluster, part, contained):
            if isinstance(batch, Corruption) or batch.header.is_control:
                continue
            epoch = batch.header.partition_leader_epoch
            for record in decode_records(batch.buffer, batch.header):
                if record.key is None or record.offset < part.start:
                    continue
                try:
                    self._add(record, epoch)
                except CorruptRecordError as error:
                    _log.warning("[partition=%s] %s", part.topic_partition, error)
                # after a failed read, the next one continues here
                self._ends[part.topic_partition] = record.offset + 1

    def _log_of(self, group_id: str) -> GroupLog | None:
        if self._selection is not None and not self._selection.matches(group_id):
            return None
        return self._found.setdefault(group_id, GroupLog())

    def _add(self, record: StoredRecord, epoch: int) -> None:
        key, value = record.key or b"", record.value
        if key[:2] not in _KEYS:
            added = epoch_record(key, value, record.timestamp_ms)
            log = None if added is None else self._log_of(added[0])
            if log is not None and added is not None:
                log.epochs.append(added[1])
            return
        decoded = decode_key(key)
        log = None if isinstance(decoded, UnknownKey) else self._log_of(decoded.group_id)
        if log is None:
            return
        if isinstance(decoded, GroupKey):
            group_value = None if value is None else decode_group_value(value)
            log.records.append(log.tracker.record(record.timestamp_ms, group_value, epoch))
        elif isinstance(decoded, OffsetKey) and value is not None:
            partition = TopicPartition(decoded.topic, decoded.partition)
            log.tracker.commit(partition, record.timestamp_ms)
            if self._keeps_commits:
                log.commits.add(partition, record.timestamp_ms, decode_offset_value(value).offset)
            if _REPORT in value:
                log.reports += decode_report(decoded.group_id, decode_offset_value(value).metadata)


def read_groups(cluster: ClusterClient, selection: NameSelection | None) -> dict[str, GroupLog]:
    """Returns what the log has of the selected groups. Raises: BrokerError, NetworkError."""
    return GroupLogReader(cluster, selection).read()


def _last_in(reader: OffsetsTopicReader, window: OffsetRange, groups: set[str]) -> dict[str, GroupValue | None]:
    found: dict[str, GroupValue | None] = {}
    for key, value in reader.records(window):
        if isinstance(key, GroupKey) and key.group_id in groups:
            found[key.group_id] = None if value is None else decode_group_value(value)
    return found
