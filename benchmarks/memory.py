"""Peak memory of a read task, by size and compression of batches.

    python benchmarks/memory.py
    python benchmarks/memory.py --only 'expands'   # the rows whose titles contain a text
    python benchmarks/memory.py --compiled   # with the compiled code of the extra fast from the first record on

Starts an embedded broker in this process, and reads each topic in a read task in another process. Prints how far
the resident memory of that process rises above that of an interpreter that has imported the data source. Linux only.
Exits with 1 if a row exceeds its limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, NamedTuple

from bench.context import Context, Measure
from bench.figures import Figure
from rich.console import Console
from rich.table import Table

from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.columns import arrow
from spark_groupsource.records.columns.arrow import COLUMNS
from spark_groupsource.records.compression import codec_number
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.tasks.task_partition import GroupInputPartition
from spark_groupsource.source.tasks.task_reader import read_task

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Broker

MB = 1_000_000
NOW = int(time.time() * 1000)
BROKER = {"message.max.bytes": "110000000", "socket.request.max.bytes": "120000000", "num.partitions": "1"}
LIMIT_MB = 256


class Shape(NamedTuple):
    """`batches` record batches of `records` records of `size` bytes, with `headers` headers each.

    Attributes:
        is_random: the values do not compress.
        small_partitions: number of partitions in the same task that have one small batch each.
    """

    title: str
    codec: str
    batches: int
    records: int
    size: int
    is_random: bool = True
    headers: int = 0
    small_partitions: int = 0


SHAPES = (
    Shape("16 KB batches", "none", 2_000, 150, 100),
    Shape("16 KB batches", "lz4", 2_000, 150, 100),
    Shape("1 MB batches", "lz4", 40, 1_000, 1_000),
    Shape("1 MB batches, 5 headers", "none", 40, 5_000, 100, headers=5),
    Shape("1 MB batch beside 200 small partitions", "zstd", 80, 1_000, 1_000, small_partitions=200),
    *(Shape("expands to 100 MB", codec, 3, 100_000, 1_000, False) for codec in ("gzip", "snappy", "lz4", "zstd")),
    *(Shape("10 B records, expands to 30 MB", codec, 2, 2_000_000, 8, False) for codec in ("gzip", "zstd")),
    *(Shape("batches of 100 MB", codec, 3, 100_000, 990) for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
    Shape("100 MB batch of records of 10 MB", "none", 2, 10, 10 * MB),
    Shape("100 MB batch beside 200 small partitions", "none", 3, 100_000, 990, small_partitions=200),
    *(Shape("record of 100 MB", codec, 1, 1, 100 * MB) for codec in ("none", "lz4")),
    *(Shape("record that expands to 100 MB", codec, 1, 1, 100 * MB, False) for codec in ("gzip", "snappy", "zstd")),
    Shape("record with 1,000,000 headers", "none", 1, 1, 100, headers=1_000_000),
)


def batch(shape: Shape) -> bytes:
    total = shape.records * shape.size
    data = os.urandom(total) if shape.is_random else b"x" * total
    values = (data[at : at + shape.size] for at in range(0, total, shape.size))
    headers = (("name", b"value"),) * shape.headers
    return encode_batch(
        [Record(None, value, NOW + number // 100, headers) for number, value in enumerate(values)],
        codec=codec_number(shape.codec),
    )


def append(running: Broker, topic: str, shape: Shape, data: bytes) -> None:
    partitions = 1 + shape.small_partitions
    run_at_once(running.create_topic(topic, partitions, {"compression.type": "producer"}))
    for _ in range(shape.batches):
        running.partitions.partition(topic, 0).append(data, NOW)
    small = encode_batch([Record(None, b"value", NOW)] * 10)
    for number in range(1, partitions):
        running.partitions.partition(topic, number).append(small, NOW)


def memory_mb(name: str) -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024 / MB


def read(bootstrap_servers: str, topic: str, records: int, small_partitions: int, is_compiled: bool) -> None:
    """Reads a topic in this process; prints the memory that it took, in MB."""
    ranges = [OffsetRange(TopicPartition(topic, 0), 0, records)]
    ranges += [OffsetRange(TopicPartition(topic, number + 1), 0, 10) for number in range(small_partitions)]
    task = GroupInputPartition(
        ranges=ranges,
        settings=ClientSettings(bootstrap=parse_addresses(bootstrap_servers)),
        fail_on_data_loss=True,
    )
    if is_compiled:
        arrow._kernels.compile_after_rows = 0
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_mb("VmRSS")
    found = sum(found.num_rows for found in read_task(task, SelectedColumns(COLUMNS)))
    if found != records + 10 * small_partitions:
        raise SystemExit(f"Topic {topic} has {records} records, read {found}.")
    print(memory_mb("VmHWM") - before)


def peaks(shapes: list[Shape], is_compiled: bool = False) -> Iterator[tuple[Shape, int, float]]:
    """Yields each shape with the size of its batch and the peak memory of the task, in MB."""
    from spark_groupsource.broker.embedded import EmbeddedBroker

    with EmbeddedBroker(config=BROKER) as broker:
        for number, shape in enumerate(shapes):
            topic, data = f"t{number}", batch(shape)
            broker.call(lambda running: append(running, topic, shape, data))
            counts = [str(shape.batches * shape.records), str(shape.small_partitions), str(int(is_compiled))]
            command = [sys.executable, __file__, "--read", broker.bootstrap_servers, topic, *counts]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            yield shape, len(data), float(printed)
            broker.call(lambda running: run_at_once(running.delete_topic(topic)))


def figures(context: Context) -> Iterator[Figure]:
    for shape, _, peak in peaks(list(SHAPES) if context.scale >= 1 else list(SHAPES[:8])):
        title = f"{shape.title}, {shape.codec}, {shape.batches * shape.records:,} records of {shape.size:,} B"
        yield Figure("memory of a read task above the interpreter", title, "MB", [peak], largest_value=LIMIT_MB)


MEASURES = (Measure("memory", figures, 300),)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure only the rows whose titles contain this text")
    parser.add_argument("--compiled", action="store_true", help="load the compiled code before the first record")
    parser.add_argument("--read", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        bootstrap_servers, topic, *numbers = options.read
        records, small_partitions, is_compiled = map(int, numbers)
        read(bootstrap_servers, topic, records, small_partitions, bool(is_compiled))
        return 0
    table = Table("batches", "codec", "records", title="peak memory of a read task above the interpreter")
    for title in ("batch, MB", "peak, MB", "limit"):
        table.add_column(title, justify="right")
    is_exceeded = False
    for shape, size, peak in peaks([shape for shape in SHAPES if options.only in shape.title], options.compiled):
        is_exceeded |= peak > LIMIT_MB
        total = f"{shape.batches * shape.records:,} of {shape.size:,} B"
        print(f"{shape.title}, {shape.codec}: {peak:.0f} MB", file=sys.stderr)
        table.add_row(shape.title, shape.codec, total, f"{size / MB:.2f}", f"{peak:.0f}", str(LIMIT_MB))
    Console(width=120).print(table)
    return int(is_exceeded)


if __name__ == "__main__":
    sys.exit(main())
