"""Earlier commits of one author, read from `__consumer_offsets`."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Collection

from spark_groupsource.client.cluster.client import EARLIEST, LATEST, Cluster
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.group.request_splitting import coordinator_partition
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.group_records import OffsetKey, decode_key, decode_offset_value

_log = logging.getLogger(__name__)

_OFFSETS_TOPIC = "__consumer_offsets"
_TIMEOUT_MS = 5_000
# number of records that are read first from the end of the log; each further attempt reads ten times as many
_FIRST_RECORDS = 1_000
_MAX_RECORDS = 100_000


def find_last_commits(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition], metadata: str
) -> dict[TopicPartition, int]:
    """Returns the last offset that was committed with `metadata` for each partition.

    A later commit replaces it for OffsetFetch, but it remains in the log until compaction. Partitions without one are
    absent, as are all where the log cannot be read: a client may have no READ permission on it. Reads at most 111,000
    records in about 5 s.
    """
    clock = cluster.clock
    deadline_ms = clock.now_ms() + _TIMEOUT_MS

    def left_ms() -> int:
        return max(deadline_ms - clock.now_ms(), 1)

    found: dict[TopicPartition, int] = {}
    try:
        log = cluster.metadata([_OFFSETS_TOPIC], timeout_ms=left_ms()).partitions_of(_OFFSETS_TOPIC)
        if not log:
            return {}
        tp = TopicPartition(_OFFSETS_TOPIC, coordinator_partition(group_id, len(log)))
        start = cluster.list_offsets({tp: EARLIEST}, timeout_ms=left_ms())[tp].offset
        end = cluster.list_offsets({tp: LATEST}, read_committed=False, timeout_ms=left_ms())[tp].offset
        count = _FIRST_RECORDS
        while end > start and count <= _MAX_RECORDS and len(found) < len(partitions) and left_ms() > 1:
            begin = max(start, end - count)
            settings = replace(
                cluster.settings,
                isolation_level="read_uncommitted",
                default_api_timeout_ms=left_ms(),
                fetch_max_wait_ms=100,
            )
            # a later commit was found before
            tail = _commits(cluster, settings, OffsetRange(tp, begin, end), group_id, metadata)
            found = {p: offset for p, offset in tail.items() if p in partitions} | found
            end, count = begin, count * 10
    except GroupSourceError as error:
        _log.debug("[group=%s] Cannot read earlier commits: %s", group_id, error)
    return found


def _commits(
    cluster: Cluster, settings: ClientSettings, records: OffsetRange, group_id: str, metadata: str
) -> dict[TopicPartition, int]:
    """Returns the last offsets that were committed with `metadata` in a range of the log."""
    found: dict[TopicPartition, int] = {}
    for block in PartitionFetcher(cluster, settings).fetch_blocks([records]):
        for header in iter_batches(block.data):
            if header.is_control:
                continue
            for record in decode_records(block.data, header):
                key = None if record.key is None or record.value is None else decode_key(record.key)
                if isinstance(key, OffsetKey) and key.group_id == group_id:
                    value = decode_offset_value(record.value or b"")
                    if value.metadata == metadata:
                        found[TopicPartition(key.topic, key.partition)] = value.offset
    return found
