"""A look at records of a topic: bounded, without a group."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.monitor.arrival_order import arrival_indexes
from spark_groupsource.monitor.tables.record_decoding import Decoder
from spark_groupsource.monitor.tables.row_filter import RowFilter
from spark_groupsource.records.columns.arrow import decode_fetched
from spark_groupsource.values.python_values import python_values

MAX_RECORDS, MAX_BYTES = 10_000, 64 << 20
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
_FETCH_BYTES = 4 << 20
_GROWTH = 8

Row = dict[str, Any]
# timestamp in epoch microseconds, and the row
_TimedRow = tuple[int, Row]
Filter = Callable[[Row], Any]


class PeekQuery(NamedTuple):
    """Which records are looked at.

    Attributes:
        limit: number of records.
        timestamp_ms: the first records at or after this time, None for the last ones of the topic.
        partition: None for all.
        matches: selects decoded rows.
    """

    topic: str
    limit: int
    timestamp_ms: int | None
    partition: int | None
    matches: Filter | None


def peek(cluster: ClusterClient, query: PeekQuery, decoders: Mapping[str, Decoder]) -> pa.Table:
    """Reads records of a topic in the order of their timestamps; joins no group and commits nothing.

    At most `MAX_RECORDS` records and about `MAX_BYTES` bytes are read, which bounds a filter, too.

    Raises: ConfigurationError for an unknown partition, records that a decoder rejects, and a filter expression with a
        name that no record has; BrokerError, NetworkError.
    """
    info = cluster.describe_topics([query.topic])[query.topic]
    if query.partition is not None and query.partition not in info.partitions:
        raise ConfigurationError(
            f"Argument partition must be one of the {len(info.partitions)} partitions of topic {query.topic}, "
            f"got {query.partition}."
        )
    numbers = sorted(info.partitions) if query.partition is None else [query.partition]
    partitions = [TopicPartition(query.topic, number) for number in numbers]
    starts = {tp: found.offset for tp, found in cluster.list_offsets(dict.fromkeys(partitions, EARLIEST)).items()}
    ends = {tp: found.offset for tp, found in cluster.list_offsets(dict.fromkeys(partitions, LATEST)).items()}
    if query.timestamp_ms is not None:
        found = cluster.list_offsets(dict.fromkeys(partitions, query.timestamp_ms))
        starts = {tp: ends[tp] if found[tp].offset < 0 else found[tp].offset for tp in partitions}
    span = MAX_RECORDS if query.matches is not None else max(query.limit, 1)
    while True:
        rows = _rows(cluster, query, _ranges(starts, ends, span, query.timestamp_ms is None), decoders)
        is_whole = all(ends[tp] - starts[tp] <= span for tp in partitions)
        # compaction, transaction markers and the filter leave fewer records than offsets
        if len(rows) >= query.limit or is_whole or span >= MAX_RECORDS:
            return _table(_chosen(rows, query))
        span = min(span * _GROWTH, MAX_RECORDS)


def _ranges(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], span: int, is_last: bool
) -> list[OffsetRange]:
    ranges = []
    for tp, end in ends.items():
        start = starts[tp]
        first, last = (max(start, end - span), end) if is_last else (start, min(end, start + span))
        if first < last:
            ranges.append(OffsetRange(tp, first, last))
    return ranges


def _rows(
    cluster: ClusterClient, query: PeekQuery, ranges: Sequence[OffsetRange], decoders: Mapping[str, Decoder]
) -> list[_TimedRow]:
    batches = list(_batches(cluster, ranges))
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    columns = {name: python_values(table.column(name)) for name in _COLUMNS}
    for name, decoder in decoders.items():
        columns[name] = decoder(name, columns[name])
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    if isinstance(query.matches, RowFilter):
        query.matches.check_names(rows)
    timed = zip(table.column("timestamp").cast(pa.int64()).to_pylist(), rows)
    return [(time, row) for time, row in timed if query.matches is None or query.matches(row)]


def _batches(cluster: ClusterClient, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    by_partition = {part.topic_partition: part for part in ranges}
    positions = {part.topic_partition: part.start for part in ranges}
    settings = replace(cluster.settings, fetch_max_bytes=_FETCH_BYTES, max_partition_fetch_bytes=_FETCH_BYTES // 4)
    size = 0
    for block in PartitionFetcher(cluster, settings).fetch_blocks(ranges):
        tp = block.topic_partition
        if block.error:
            raise BrokerError(block.error, f"Reading {tp} from offset {positions[tp]}")
        decoded = decode_fetched(
            block.data,
            topic_partition=tp,
            columns=_COLUMNS,
            start_offset=positions[tp],
            end_offset=by_partition[tp].end,
            read_committed=settings.read_committed,
            aborted=block.aborted,
        )
        for batch in decoded.batches:
            size += batch.nbytes
            yield batch
            if size > MAX_BYTES:
                return
        positions[tp] = block.next_offset


def _chosen(rows: list[_TimedRow], query: PeekQuery) -> list[_TimedRow]:
    rows.sort(key=lambda timed: (timed[1]["partition"], timed[1]["offset"]))
    indexes = [
        index
        for _, found in groupby(rows, key=lambda timed: timed[1]["partition"])
        for index in arrival_indexes([time for time, _ in found])
    ]
    ordered = sorted(zip(rows, indexes), key=lambda entry: (entry[0][0], entry[1]))
    rows = [timed for timed, _ in ordered]
    if query.timestamp_ms is not None:
        return rows[: query.limit]
    return rows[-query.limit :] if query.limit else []


def _table(rows: list[_TimedRow]) -> pa.Table:
    columns = {name: _column([row[name] for _, row in rows]) for name in _ORDER}
    return pa.table({**columns, "timestamp": pa.array([time for time, _ in rows], pa.timestamp("us", "UTC"))})


_ORDER = ("partition", "offset", "timestamp", "key", "value")


def _column(values: list[Any]) -> pa.Array:
    if not any(isinstance(value, (dict, list)) for value in values):
        try:
            return pa.array(values, None if any(value is not None for value in values) else pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array([None if value is None else str(value) for value in values])
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # objects with different types of a field have no Arrow type
        return pa.array([None if value is None else json.dumps(value, default=str) for value in values])
