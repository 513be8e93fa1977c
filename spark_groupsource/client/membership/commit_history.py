"""Earlier commits of one author, read from `__consumer_offsets`."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Collection

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.wire.commit_reports import is_author
from spark_groupsource.wire.group_records import OffsetKey, decode_offset_value

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000
# 1,000 + 10,000 + 100,000 records
_MAX_WINDOWS = 3


def find_last_commits(
    cluster: ClusterClient, group_id: str, partitions: Collection[TopicPartition], metadata: str
) -> dict[TopicPartition, int | None]:
    """Returns the last offset that the author `metadata` committed for each partition, None if there was none.

    A later commit replaces it for OffsetFetch, but it remains in the log until compaction. Partitions are absent where
    this is unknown: the log cannot be read, or is longer than the 111,000 records that are read in about 5 s; or there
    is a tombstone after it, which shows neither whether the topic was deleted or only the offset of the group.
    """
    found: dict[TopicPartition, int | None] = {}
    is_complete = False
    reader = OffsetsTopicReader(cluster, group_id, _TIMEOUT_MS)
    try:
        log = reader.find_partition()
        if log is None:
            return {}
        windows = reader.windows(log, reader.log_end_offset(log))
        for window in islice(windows, _MAX_WINDOWS):
            # the windows before have later commits
            found = _last_commits(reader, window, group_id, metadata) | found
            if found.keys() >= set(partitions):
                break
        else:
            is_complete = next(windows, None) is None and not reader.is_expired
    except GroupSourceError as error:
        _log.debug("[group=%s] Cannot read earlier commits: %s", group_id, error)
    return {p: found.get(p) for p in partitions if (is_complete and p not in found) or found.get(p) is not None}


def _last_commits(
    reader: OffsetsTopicReader, window: OffsetRange, group_id: str, metadata: str
) -> dict[TopicPartition, int | None]:
    """Returns the last commits, None for a tombstone after them."""
    found: dict[TopicPartition, int | None] = {}
    for key, value in reader.records(window):
        if not isinstance(key, OffsetKey) or key.group_id != group_id:
            continue
        commit = None if value is None else decode_offset_value(value)
        if commit is None or is_author(commit.metadata, metadata):
            found[TopicPartition(key.topic, key.partition)] = None if commit is None else commit.offset
    return found
