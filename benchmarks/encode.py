"""Benchmark of the encoder of columns: million records per second and core.

    python benchmarks/encode.py

Records of 100 bytes with a key, in 6 partitions, beside kafka-python's builder of record batches without compression.
The variants are measured in turn, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from typing import Callable

import pyarrow as pa

from spark_groupsource.records.columns import batch_encoder
from spark_groupsource.records.columns.batch_encoder import BatchEncoder, TopicPartitions, compiled_writer
from spark_groupsource.records.columns.record_payloads import NUMPY_WRITER, RecordWriter
from spark_groupsource.records.compression import codec_number

NOW = 1_700_000_000_000
PARTITIONS, BATCH_ROWS, BATCH_BYTES = 6, 10_000, 500_000
WORDS = 500


class Fixed:
    """Selects the same functions for any rows."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def next(self, _rows: int, _size: int) -> RecordWriter:
        return self._writer


def rows() -> pa.RecordBatch:
    """Returns keys, and values of 100 bytes of text."""
    rng = random.Random(20261128)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(2, 9))) for _ in range(WORDS)]
    values = [" ".join(rng.choices(words, k=60))[:100].encode() for _ in range(BATCH_ROWS)]
    keys = [b"key%05d" % rng.randrange(100_000) for _ in range(BATCH_ROWS)]
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"])


def groupsource(writer: RecordWriter, codec: str, batch: pa.RecordBatch, count: int) -> None:
    batch_encoder._selector = Fixed(writer)  # type: ignore[assignment]
    encoder = BatchEncoder(
        lambda *_: TopicPartitions(PARTITIONS),
        topic="benchmark",
        codec=codec_number(codec),
        level=None,
        batch_bytes=BATCH_BYTES,
        max_record_bytes=1 << 20,
        buffer_bytes=32 << 20,
        timestamp_ms=lambda: NOW,
    )
    found = sum(each.record_count for _ in range(count // BATCH_ROWS) for each in encoder.add(batch))
    assert found + sum(each.record_count for each in encoder.finish()) == count


def kafka_python(batch: pa.RecordBatch, count: int) -> None:
    from kafka.record.memory_records import MemoryRecordsBuilder

    keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
    for _ in range(count // BATCH_ROWS):
        builder = MemoryRecordsBuilder(2, 0, 1 << 30)
        for key, value in zip(keys, values):
            builder.append(NOW, key, value)
        builder.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # of kafka-python
    batch, runs = rows(), dict[str, tuple[Callable[[int], None], int]]()
    for codec in ("none", "lz4", "zstd"):
        for name, writer in (("numpy", NUMPY_WRITER), ("numba", compiled_writer())):
            if writer is not None:
                runs[f"{name}, {codec}"] = (
                    lambda count, used=writer, codec=codec: groupsource(used, codec, batch, count),  # type: ignore[misc]
                    arguments.rows,
                )
    # it is slow, and has no partitions to choose
    runs["kafka-python, none"] = lambda count: kafka_python(batch, count), min(arguments.rows, 100_000)
    best: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for name, (run, count) in runs.items():
            run(BATCH_ROWS)
            begin = time.process_time()
            run(count)
            best[name] = max(best.get(name, 0), count / (time.process_time() - begin) / 1e6)
    for name, rate in best.items():
        print(f"{name:20} {rate:6.2f} million records per second and core")


if __name__ == "__main__":
    main()
