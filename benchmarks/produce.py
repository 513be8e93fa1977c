"""Appends with validation: processor time by batch size and codec.

A partition takes the same batch again and again. `compare.py` measures two checkouts with them.
"""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compression import codec_number
from spark_groupsource.records.encode import Record, encode_batch

NOW = 1_700_000_000_000
SLICE_NS = 30_000_000
MAX_SLICE_BYTES = 64_000_000


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
    """Processor nanoseconds of one append, repeated for a slice."""
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        config = TopicConfig(max_message_bytes=2_000_000)
        log = PartitionLog(Path(directory) / "t-0", TopicPartition("t", 0), config, FileCache(), print)
        log.create()
        partition = Partition(uuid.uuid4(), log, print)
        partition.append(data, NOW)
        count, step = 0, max(1, 20_000 // len(data))
        began = time.process_time_ns()
        while (took := time.process_time_ns() - began) < SLICE_NS and count * len(data) < MAX_SLICE_BYTES:
            for _ in range(step):
                partition.append(data, NOW)
            count += step
        partition.close()
    return took / count
