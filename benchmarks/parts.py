"""Processor time of a read task by part, per record.

    python benchmarks/run.py --only parts

Each part is repeated alone on the same fetched records, with the compiled kernel if the extra `fast` is installed; the
minimum of the rounds counts. What PySpark adds is the row of the ceiling in `batch_read.py`.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator

import numpy as np
from bench.context import Context, Measure
from bench.figures import Figure
from bench.topics import Topic, client, end_offsets, ensure, json

from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.columns import arrow
from spark_groupsource.records.columns.arrow_columns import MAX_ROWS, record_batch
from spark_groupsource.records.columns.batch_selection import select_batches
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.columns.numpy_kernel import read_numpy
from spark_groupsource.records.columns.record_groups import BatchGroupReader
from spark_groupsource.records.columns.record_kernel import Layout, RecordArrays, RecordGroup

_REPEATS = 5
_NO_RECORDS = RecordArrays(np.empty(0, np.int64), np.empty(0, np.int64), None, None, None, 0, 0, 0, 0)


def least_ns(work: Callable[[], Any]) -> int:
    """Returns the processor time of the fastest of some calls."""
    took = []
    for _ in range(_REPEATS):
        began = time.process_time_ns()
        work()
        took.append(time.process_time_ns() - began)
    return min(took)


def figures(context: Context) -> Iterator[Figure]:
    count = context.records(1_200_000, 4_000)
    shapes = (
        ("100 B, 16 KB batches", Topic("parts", count // 600 * 600)),
        ("JSON, lz4", Topic("parts-lz4", count, make=json, batch_records=1_000, codec="lz4")),
    )
    for title, topic in shapes:
        ensure(context.bootstrap_servers, topic)
        for part, each_ns in parts(context.bootstrap_servers, topic):
            yield Figure(f"processor time of a read task, {title}", part, "ns/record", [each_ns])


def parts(bootstrap_servers: str, topic: Topic) -> Iterator[tuple[str, float]]:
    """Yields the parts, in the order of the data."""
    ends = end_offsets(bootstrap_servers, topic.name)
    ranges = [OffsetRange(tp, 0, end) for tp, end in ends.items()]
    with client(bootstrap_servers) as cluster:

        def fetch() -> list[bytes]:
            return [bytes(block.data[:0]) for block in PartitionFetcher(cluster).fetch_blocks(ranges)]

        yield "fetch: requests, system calls, batch lengths", least_ns(fetch) / topic.records
        one = next(PartitionFetcher(cluster).fetch_blocks(ranges))
        view = memoryview(bytearray(one.data))
        yield from decoding(view, one.topic_partition)


def decoding(view: memoryview, topic_partition: TopicPartition) -> Iterator[tuple[str, float]]:
    """Yields the parts of decoding one fetched block: the steps of `decode_fetched`, each alone."""
    kernel = arrow.compiled_kernel() or read_numpy
    columns = arrow.COLUMNS[:-1]
    layout = Layout(topic_partition, columns, 0, 1 << 62, MAX_ROWS)

    def select() -> HeaderColumns:
        return select_batches(view, layout.start_offset, layout.end_offset, None)[0]

    headers = select()
    rows = int(headers.record_count.sum())
    groups: list[RecordGroup] = []

    def read(names: tuple[str, ...]) -> list[RecordArrays]:
        return [kernel(group, layout._replace(columns=names)) for group in groups]

    def collect(group: RecordGroup, _: Layout) -> RecordArrays:
        groups.append(group)
        return _NO_RECORDS

    def decompress() -> None:
        groups.clear()
        for _ in BatchGroupReader(view, layout, collect, 1 << 28).read(headers):
            pass

    yield "headers and checksums", least_ns(select) / rows
    yield "decompression, grouping", least_ns(decompress) / rows
    none_ns = least_ns(lambda: read(()))
    yield "record boundaries, fields and offsets", none_ns / rows
    for name in ("key", "value", "timestamp"):
        yield f"column {name}", (least_ns(lambda: read((name,))) - none_ns) / rows
    yield "boundaries, fields, offsets and these columns in one pass", least_ns(lambda: read(columns)) / rows
    found = read(columns)
    built = least_ns(lambda: [record_batch(*each, layout) for each in zip([group.headers for group in groups], found)])
    yield "Arrow batches", built / rows


MEASURES = (Measure("parts", figures, 120),)
