"""Earlier commits of one author, read from `__consumer_offsets`."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Collection

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, decode_offset_value

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000
# 1,000 + 10,000 + 100,000 records
_MAX_WINDOWS = 3


def find_last_commits(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition], metadata: str
) -> dict[TopicPartition, int]:
    """Returns the last offset that was committed with `metadata` for each partition.

    A later commit replaces it for OffsetFetch, but it remains in the log until compaction. Partitions without one are
    absent, as are all where the log cannot be read. Reads at most 111,000 records in about 5 s.
    """
    found: dict[TopicPartition, int] = {}
    reader = OffsetsTopicReader(cluster, group_id, _TIMEOUT_MS)
    try:
        log = reader.find_partition()
        if log is None:
            return {}
        for window in islice(reader.windows(log, reader.log_end_offset(log)), _MAX_WINDOWS):
            # the windows before have later commits
            found = _last_commits(reader, window, group_id, metadata) | found
            if found.keys() >= set(partitions):
                break
    except GroupSourceError as error:
        _log.debug("[group=%s] Cannot read earlier commits: %s", group_id, error)
    return {p: offset for p, offset in found.items() if p in partitions}


def _last_commits(
    reader: OffsetsTopicReader, window: OffsetRange, group_id: str, metadata: str
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for key, value in reader.records(window):
        if isinstance(key, OffsetKey) and key.group_id == group_id and value is not None:
            commit = decode_offset_value(value)
            if commit.metadata == metadata:
                found[TopicPartition(key.topic, key.partition)] = commit.offset
    return found
