"""CPU time of an append with validation, by batch size and codec.

    python benchmarks/produce.py
    python benchmarks/produce.py --base ../older   # beside another checkout: the ratio of each time to that of `older`

A partition takes the same batch again and again, in a process of its own per checkout; with --base the two processes
take turns of some milliseconds, because other load on the machine changes the speed of its processors. Prints medians.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, NamedTuple

from rich.console import Console
from rich.table import Table

from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compression import codec_number
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage.files import FileCache
from spark_groupsource.storage.log import PartitionLog
from spark_groupsource.storage.partition import Partition
from spark_groupsource.storage.topic_config import TopicConfig

NOW = 1_700_000_000_000
TURN_NS = 30_000_000
MAX_TURN_BYTES = 64_000_000
CHECKOUT = Path(__file__).resolve().parent.parent


class Shape(NamedTuple):
    """A batch of `records` records; value sizes are from `sizes[0]` to `sizes[1]`."""

    title: str
    records: int
    sizes: tuple[int, int]
    codec: str = "none"
    key_bytes: int = 0
    headers: int = 0


SHAPES = (
    Shape("1 record of 100 B", 1, (100, 100)),
    Shape("10 records of 100 B", 10, (100, 100)),
    Shape("10 records of 50 to 150 B", 10, (50, 150)),
    Shape("10 records of 100 B", 10, (100, 100), "lz4"),
    Shape("150 records of 100 B", 150, (100, 100)),
    Shape("150 records of 50 to 150 B", 150, (50, 150)),
    Shape("150 records of 50 to 150 B, key", 150, (50, 150), key_bytes=8),
    Shape("150 records of 100 B, 2 headers", 150, (100, 100), headers=2),
    Shape("150 records of 50 to 150 B", 150, (50, 150), "lz4"),
    Shape("10,000 records of 100 B", 10_000, (100, 100)),
    Shape("10,000 records of 50 to 150 B", 10_000, (50, 150)),
    Shape("10,000 records of 50 to 150 B", 10_000, (50, 150), "lz4"),
    Shape("1,000 records of 1,000 B", 1_000, (1_000, 1_000)),
    Shape("1,000 records of 500 to 1,500 B", 1_000, (500, 1_500)),
    Shape("1 record of 1 MB", 1, (1_000_000, 1_000_000)),
)


def batch(shape: Shape) -> bytes:
    rng = random.Random(shape.records)
    text = "".join(rng.choices('abcdefghijklmnopqrstuvwxyz0123456789 {}":,', k=1_100_000))
    headers = tuple((f"header-{number}", b"value") for number in range(shape.headers))
    records = []
    for number in range(shape.records):
        size, at = rng.randint(*shape.sizes), rng.randrange(50_000)
        key = b"%0*d" % (shape.key_bytes, number) if shape.key_bytes else None
        records.append(Record(key, text[at : at + size].encode(), NOW + number // 20, headers))
    return encode_batch(records, codec=codec_number(shape.codec))


def append_ns(data: bytes) -> float:
    """Processor nanoseconds of one append, over a turn."""
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        config = TopicConfig(max_message_bytes=2_000_000)
        log = PartitionLog(Path(directory) / "t-0", TopicPartition("t", 0), config, FileCache(), print)
        log.create()
        partition = Partition(uuid.uuid4(), log, print)
        partition.append(data, NOW)
        count, step = 0, max(1, 20_000 // len(data))
        began = time.process_time_ns()
        while (took := time.process_time_ns() - began) < TURN_NS and count * len(data) < MAX_TURN_BYTES:
            for _ in range(step):
                partition.append(data, NOW)
            count += step
        partition.close()
    return took / count


def serve() -> None:
    """Measures a turn of each shape whose index is read from the standard input."""
    batches: dict[int, bytes] = {}
    for line in sys.stdin:
        number = int(line)
        if number not in batches:
            batches = {number: batch(SHAPES[number])}
            append_ns(batches[number])
        print(append_ns(batches[number]), len(batches[number]), flush=True)


@contextmanager
def measuring(checkout: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
    )
    with process:
        yield process


def turn(process: subprocess.Popen[str], number: int) -> tuple[float, int]:
    assert process.stdin is not None and process.stdout is not None
    print(number, file=process.stdin, flush=True)
    took, size = process.stdout.readline().split()
    return float(took), int(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    table = Table("batch", "codec", title="processor time of one append")
    for title in ("us", "MB/s", *(("us before", "ratio") if options.base else ())):
        table.add_column(title, justify="right")
    with ExitStack() as stack:
        checkouts = [CHECKOUT, options.base] if options.base else [CHECKOUT]
        processes = [stack.enter_context(measuring(checkout)) for checkout in checkouts]
        for number, shape in enumerate(SHAPES):
            rounds = [[turn(process, number) for process in processes] for _ in range(options.rounds)]
            times = [statistics.median(took for took, _ in turns) / 1000 for turns in zip(*rounds)]
            row = [f"{times[0]:,.1f}", f"{rounds[0][0][1] / times[0]:,.0f}"]
            if options.base:
                ratio = statistics.median(own / base for (own, _), (base, _) in rounds)
                row += [f"{times[1]:,.1f}", f"{ratio:.2f}"]
            table.add_row(shape.title, shape.codec, *row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
