"""Time, bytes and rates of lag, of many partitions with few requests."""

from __future__ import annotations

import logging
from typing import AbstractSet, Any, Collection, Container, Iterator, Mapping, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import CorruptRecordError, GroupSourceError, UnsupportedVersionError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.monitor.offsets.cluster_reads import (
    first_batches,
    log_sizes,
    log_start_offsets,
    newest_timestamps,
    offsets_at,
)
from spark_groupsource.monitor.offsets.lag import (
    FirstBatch,
    LagRow,
    LogSpan,
    catch_up_ms,
    growth_per_second,
    lag_bytes,
    lag_ms,
    log_end_lag_ms,
)
from spark_groupsource.monitor.offsets.offsets_log import Corruption, fetch_batches, log_partitions, log_ranges
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.decode import decode_records
from spark_groupsource.wire.group_records import OffsetKey, decode_key, decode_offset_value

_log = logging.getLogger(__name__)

ESTIMATES = ("lag_ms", "lag_bytes", "records_per_second", "catch_up_ms", "log_end_lag_ms")
"""The columns of table lag that need further requests."""
_TIMES = frozenset({"lag_ms", "log_end_lag_ms"})
_WINDOW_MS = 60_000
# of the history of commits; a group with 10,000 partitions commits them in one second
_MAX_COMMITS = 50_000

# (group, partition) -> (offset, time of the commit in epoch ms)
_Commits = dict[tuple[str, TopicPartition], tuple[int, int]]


def estimates(
    cluster: ClusterClient, lags: Mapping[str, Sequence[LagRow]], columns: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yields the requested columns of each row of each group, in the order of `lags`.

    Raises: BrokerError, NetworkError.
    """
    timestamp_ms = cluster.clock.timestamp_ms()
    wanted = set(columns)
    pairs = [(group_id, row) for group_id, rows in lags.items() for row in rows]
    lagging = {row.topic_partition for _, row in pairs if (row.lag or 0) > 0}
    sizes = log_sizes(cluster, lagging) if "lag_bytes" in wanted else {}
    batches = _first_batches(cluster, lags, wanted, sizes)
    starts = {tp: first.log_start_offset for found in batches.values() for tp, first in found.items()}
    starts |= log_start_offsets(cluster, lagging & sizes.keys() - starts.keys())
    rates = bool({"records_per_second", "catch_up_ms"} & wanted)
    commits = _commits_since(cluster, timestamp_ms - _WINDOW_MS, set(lags)) if rates else None
    consumed = [
        _consumed(row, commits.get((group_id, row.topic_partition)), timestamp_ms) if commits is not None else None
        for group_id, row in pairs
    ]
    # the lag of a group that does not progress does not decrease
    progressing = {row.topic_partition for (_, row), rate in zip(pairs, consumed) if rate and (row.lag or 0) > 0}
    produced = offsets_at(cluster, progressing, timestamp_ms - _WINDOW_MS) if "catch_up_ms" in wanted else {}
    newest = _newest(cluster, lags, batches) if "log_end_lag_ms" in wanted else {}
    for (group_id, row), rate in zip(pairs, consumed):
        tp, lag, end = row.topic_partition, row.lag, row.log_end_offset
        first = batches[group_id].get(tp)
        log = LogSpan(starts[tp], end, sizes.get(tp)) if tp in starts and end is not None else None
        yield {
            "lag_ms": lag_ms(lag, first, timestamp_ms),
            "lag_bytes": lag_bytes(lag, log, first),
            "records_per_second": rate,
            "catch_up_ms": catch_up_ms(lag, rate, _appended(produced.get(tp), end)),
            "log_end_lag_ms": log_end_lag_ms(lag, first, newest.get(tp)),
        }


def _first_batches(
    cluster: ClusterClient,
    lags: Mapping[str, Sequence[LagRow]],
    columns: AbstractSet[str],
    sizes: Container[TopicPartition],
) -> dict[str, dict[TopicPartition, FirstBatch]]:
    """Reads the first record that is not read, by group and partition, where a column needs it.

    Without permission for the sizes, the batch of that record shows the bytes of a record.
    """
    return {
        group_id: first_batches(
            cluster,
            {
                row.topic_partition: row.committed.offset
                for row in rows
                if row.committed is not None
                and (row.lag or 0) > 0
                and (_TIMES & columns or ("lag_bytes" in columns and row.topic_partition not in sizes))
            },
        )
        for group_id, rows in lags.items()
    }


def _newest(
    cluster: ClusterClient,
    lags: Mapping[str, Sequence[LagRow]],
    batches: Mapping[str, Mapping[TopicPartition, FirstBatch]],
) -> dict[TopicPartition, int]:
    """Returns the largest timestamp of each log; that of the batch which was read if it is the last one.

    Empty for brokers before 3.0.
    """
    ends = {row.topic_partition: row.log_end_offset or 0 for rows in lags.values() for row in rows}
    read = [(tp, first) for found in batches.values() for tp, first in found.items()]
    newest = {tp: first.max_timestamp_ms for tp, first in read if first.next_offset >= ends[tp]}
    try:
        found = newest_timestamps(cluster, {tp for tp, _ in read} - newest.keys())
    except UnsupportedVersionError:
        return newest
    return newest | found


def _consumed(row: LagRow, first: tuple[int, int] | None, timestamp_ms: int) -> float | None:
    """Returns the growth of the committed offset since the first commit of the window."""
    if row.committed is None:
        return None
    return 0.0 if first is None else growth_per_second(*first, row.committed.offset, timestamp_ms)


def _appended(at_start: int | None, end: int | None) -> float | None:
    """Records per second that were appended in the window; 0 if the last record is older."""
    if at_start is None or end is None:
        return None
    return 0.0 if at_start < 0 else max(0, end - at_start) * 1_000 / _WINDOW_MS


def _commits_since(cluster: ClusterClient, since_ms: int, group_ids: set[str]) -> _Commits | None:
    """Returns the first commit of each group and partition since a time; None if the log cannot be read."""
    found: _Commits = {}
    try:
        partitions = log_partitions(cluster, NameSelection(tuple(group_ids)))
        begins = offsets_at(cluster, partitions, since_ms)
        left = _MAX_COMMITS
        for tp, start, end in log_ranges(cluster, partitions):
            if begins[tp] >= 0 and left > 0:
                left -= _read_commits(cluster, OffsetRange(tp, max(start, begins[tp]), end), group_ids, found, left)
    except GroupSourceError as error:
        _log.debug("[topic=__consumer_offsets] Cannot read the commits of the last %d ms: %s", _WINDOW_MS, error)
        return None
    return found


def _read_commits(cluster: ClusterClient, part: OffsetRange, group_ids: set[str], found: _Commits, limit: int) -> int:
    """Adds the first commit of each partition to `found`; returns the number of records read."""
    count = 0
    for batch in fetch_batches(cluster, part) if part.start < part.end else ():
        if isinstance(batch, Corruption) or batch.header.is_control:
            continue
        for record in decode_records(batch.buffer, batch.header):
            count += 1
            if record.key is None or record.value is None:
                continue
            try:
                key = decode_key(record.key)
                if not isinstance(key, OffsetKey) or key.group_id not in group_ids:
                    continue
                at = (key.group_id, TopicPartition(key.topic, key.partition))
                if at not in found:
                    found[at] = decode_offset_value(record.value).offset, record.timestamp_ms
            except CorruptRecordError:
                # offsets-log reports it
                continue
        if count >= limit:
            break
    return count
