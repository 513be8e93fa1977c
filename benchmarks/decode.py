"""Benchmark of record decoding: records per second, compared with kafka-python.

    python benchmarks/decode.py

The input is record batches in memory, the output Arrow record batches (kafka-python: Python objects, without checksum
verification). The variants are measured in turn, and the best round of each counts, because other load on the machine
only slows a round down. To compare two commits, run both within the same minute.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from typing import Callable, Iterable, Iterator

from rich.console import Console
from rich.table import Table

from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow import COLUMNS, decode_fetched
from spark_groupsource.records.columns.numpy_kernel import read_numpy
from spark_groupsource.records.columns.record_kernel import RecordKernel
from spark_groupsource.records.compression import codec_number
from spark_groupsource.records.encode import Record, encode_batch

NOW = 1_700_000_000_000
RECORDS = 40_000
ALL_COLUMNS = COLUMNS[:-1]
rng = random.Random(20261121)


def fixed(number: int) -> Record:
    return Record(None, bytes(rng.choices(range(97, 123), k=100)), NOW + number // 7)


def json(number: int) -> Record:
    text = '{"flight": %d, "carrier": "%s", "note": "%s"}' % (number, rng.choice("AB"), "x" * rng.randrange(110))
    return Record(None, text.encode(), NOW + number // 7)


def binary(number: int) -> Record:
    return Record(b"key-%d" % (number % 900), rng.randbytes(rng.randrange(200)), NOW + number // 7)


def headers(number: int) -> Record:
    return Record(None, rng.randbytes(100), NOW + number // 7, (("trace", rng.randbytes(16)),))


SHAPES: tuple[tuple[str, Callable[[int], Record], int, str], ...] = (
    ("100 B, null key, 16 KB batches", fixed, 150, "none"),
    ("100 B, null key, 1 MB batches", fixed, 10_000, "none"),
    ("JSON 40-150 B, 16 KB batches", json, 150, "none"),
    ("JSON 40-150 B, 1 MB batches", json, 10_000, "none"),
    ("JSON 40-150 B, 1 MB batches", json, 10_000, "lz4"),
    ("JSON 40-150 B, 1 MB batches", json, 10_000, "zstd"),
    ("key and binary 0-200 B", binary, 1_000, "none"),
    ("100 B, one header each", headers, 1_000, "none"),
)


def log(record: Callable[[int], Record], batch_records: int, codec: str) -> bytes:
    """Returns `RECORDS` records in batches of `batch_records`."""
    return b"".join(
        encode_batch([record(n) for n in range(at, at + batch_records)], base_offset=at, codec=codec_number(codec))
        for at in range(0, RECORDS - batch_records + 1, batch_records)
    )


def groupsource(kernel: RecordKernel, columns: tuple[str, ...]) -> Callable[[bytes], int]:
    topic_partition = TopicPartition("benchmark", 0)

    def run(buffer: bytes) -> int:
        block = decode_fetched(
            buffer,
            topic_partition=topic_partition,
            columns=columns,
            start_offset=0,
            end_offset=1 << 62,
            kernel=kernel,
        )
        return sum(batch.num_rows for batch in block.batches)

    return run


def kafka_python(buffer: bytes) -> int:
    from kafka.record.memory_records import MemoryRecords

    records = MemoryRecords(buffer)
    count = 0
    while (batch := records.next_batch()) is not None:
        for record in batch:
            _ = record.offset, record.timestamp, record.key, record.value, record.headers
            count += 1
    return count


def best_seconds(runs: dict[str, Callable[[bytes], int]], buffer: bytes, rounds: int) -> dict[str, tuple[float, int]]:
    """Returns the seconds of the best round of each, and the number of records."""
    best: dict[str, tuple[float, int]] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            rows = run(buffer)
            seconds = time.perf_counter() - begin
            if name not in best or seconds < best[name][0]:
                best[name] = seconds, rows
    return best


def cells(runs: Iterable[str], rates: dict[str, float]) -> Iterator[str]:
    """Yields a cell per run: its rate and its ratio to kafka-python."""
    base = rates.get("kafka-python")
    for name in runs:
        if name not in rates:
            yield "-"
        else:
            yield f"{rates[name]:.2f}" + (f" ({rates[name] / base:.0f}x)" if base else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore", DeprecationWarning)  # of kafka-python
    runs = {"numpy": groupsource(read_numpy, ALL_COLUMNS), "numpy, value": groupsource(read_numpy, ("value",))}
    try:
        from spark_groupsource.records.columns.compiled_kernel import read_compiled
    except ImportError:
        print("numba is not installed: pip install 'spark-groupsource[fast]' to measure the compiled kernel")
    else:
        runs |= {
            "numba": groupsource(read_compiled, ALL_COLUMNS),
            "numba, value": groupsource(read_compiled, ("value",)),
        }
    runs["kafka-python"] = kafka_python

    table = Table(title="million records per second on one core (times kafka-python)")
    table.add_column("batches")
    table.add_column("codec")
    for name in runs:
        table.add_column(name, justify="right")
    for shape, record, batch_records, codec in SHAPES:
        buffer = log(record, batch_records, codec)
        measured = runs
        if codec == "zstd":  # kafka-python needs another library for it
            measured = {name: run for name, run in runs.items() if name != "kafka-python"}
        best = best_seconds(measured, buffer, rounds)
        assert len({rows for _, rows in best.values()}) == 1, best
        rates = {name: rows / seconds / 1e6 for name, (seconds, rows) in best.items()}
        table.add_row(shape, codec, *cells(runs, rates))
    Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
