"""Benchmark of a read task's peak memory, by size and compression ratio.

    python benchmarks/memory.py

Starts an embedded broker in this process, and reads each topic by a read task in a process of its own. Prints how far
the resident memory of that process rises above that of an interpreter that has imported the data source. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.server import EmbeddedBroker
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.net import parse_addresses
from spark_groupsource.records.arrow import COLUMNS
from spark_groupsource.records.compression import codec_number
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.source.schema import SelectedColumns
from spark_groupsource.source.task_reader import GroupInputPartition, read_task

MB = 1_000_000
NOW = int(time.time() * 1000)
BROKER = {"message.max.bytes": "110000000", "socket.request.max.bytes": "120000000", "num.partitions": "1"}
LIMIT_MB = 256


class Shape(NamedTuple):
    """`batches` record batches of `records` records of `size` bytes."""

    title: str
    codec: str
    batches: int
    records: int
    size: int
    is_random: bool = True


SHAPES = (
    Shape("16 KB batches", "none", 2_000, 150, 100),
    Shape("1 MB batches", "lz4", 40, 1_000, 1_000),
    Shape("expands 100 times and more", "zstd", 5, 100_000, 1_000, False),
    Shape("expands 100 times and more", "gzip", 2, 100_000, 1_000, False),
    Shape("expands 20 times", "snappy", 2, 100_000, 200, False),
    Shape("batches of 100 MB", "none", 3, 100_000, 990),
    Shape("batches of 100 MB", "zstd", 2, 100_000, 990),
    Shape("one record of 100 MB", "none", 1, 1, 100 * MB),
)


def batch(shape: Shape) -> bytes:
    pool = os.urandom(shape.size + 100_000) if shape.is_random else b"x" * (shape.size + 100_000)
    values = (pool[number % 100_000 :][: shape.size] for number in range(shape.records))
    return encode_batch(
        [Record(None, value, NOW + number) for number, value in enumerate(values)],
        codec=codec_number(shape.codec),
    )


def fill(broker: EmbeddedBroker, topic: str, shape: Shape) -> int:
    """Stores the batches; returns the number of records."""
    data = batch(shape)

    def append(running: Broker) -> None:
        running.create_topic(topic, 1, {"compression.type": "producer"})
        for _ in range(shape.batches):
            running.partitions.partition(topic, 0).append(data, NOW)

    broker.call(append)
    return shape.batches * shape.records


def remove(broker: EmbeddedBroker, topic: str) -> None:
    broker.call(lambda running: running.delete_topic(topic))


def peak_mb() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 1024


def read(bootstrap_servers: str, topic: str, records: int) -> None:
    """Reads a topic in this process; prints the memory that it took, in MB."""
    before = peak_mb()
    task = GroupInputPartition(
        ranges=[OffsetRange(TopicPartition(topic, 0), 0, records)],
        settings=ClientSettings(bootstrap=parse_addresses(bootstrap_servers)),
        fail_on_data_loss=True,
    )
    found = sum(found.num_rows for found in read_task(task, SelectedColumns(COLUMNS[:-1])))
    if found != records:
        raise SystemExit(f"Topic {topic} has {records} records, read {found}.")
    print(peak_mb() - before)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    chosen = arguments.parse_args().read
    if chosen:
        read(chosen[0], chosen[1], int(chosen[2]))
        return 0
    table = Table(title=f"peak memory of a read task above the interpreter, limit {LIMIT_MB} MB")
    for name in ("batches", "codec", "records"):
        table.add_column(name)
    table.add_column("MB", justify="right")
    highest = 0.0
    with EmbeddedBroker(config=BROKER) as broker:
        for number, shape in enumerate(SHAPES):
            records = fill(broker, f"t{number}", shape)
            command = [sys.executable, __file__, "--read", broker.bootstrap_servers, f"t{number}", str(records)]
            peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            highest = max(highest, peak)
            table.add_row(shape.title, shape.codec, f"{records:,} of {shape.size:,} B", f"{peak:.0f}")
            remove(broker, f"t{number}")
    Console(width=120).print(table)
    return 0 if highest < LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
