"""Processor time of reads and writes by JVM thread and Python process.

    python benchmarks/processor_split.py [--cores 1] [--records 4000000] [--rounds 4] [--json CODEC | --write BYTES]

Reads 100 B records, or JSON of 93 B, with groupsource, the ceiling of PySpark (prebuilt Arrow batches) and Spark's
Kafka source, in alternating rounds, and prints processor seconds per million records. The first rounds compile code in
the JVM. With --write, records of that size are written by groupsource, a Python sink that discards them, and Spark's
Kafka sink.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable

from batch_write import written
from bench.children import checkout_environment
from bench.processor_time import SessionTimes, read_stat, thread_seconds
from bench.spark import CEILING, KAFKA, OWN, Read, register_ceiling, session, timed
from bench.topics import PARTITIONS, Topic, client, create, ensure, json

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "jobs"))

from real_kafka import RealKafka  # noqa: E402

KINDS = ("tasks", "compiler", "collector", "rest of the JVM", "Python workers", "total")
_CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
_PREFIXES = {"Executor task": "tasks", "C1 ": "compiler", "C2 ": "compiler", "G1 ": "collector", "GC ": "collector"}


def split(times: SessionTimes, jvm: int, seen: dict[tuple[str, int], float]) -> dict[str, float]:
    """Returns the processor seconds of a JVM and its Python workers so far, by kind.

    Args: `seen`, the times by kind and thread or process, updated; those of ended ones remain.
    """
    for pid, seconds in times.by_process().items():
        if pid == jvm:
            for thread, name, spent in thread_seconds(pid):
                kinds = (kind for prefix, kind in _PREFIXES.items() if name.startswith(prefix))
                seen[next(kinds, "rest of the JVM"), thread] = spent
        elif is_descendant(pid, jvm):
            seen["Python workers", pid] = seconds
    found: dict[str, float] = defaultdict(float)
    for (kind, _), spent in seen.items():
        found[kind] += spent
    return {**found, "total": sum(found.values())}


def is_descendant(pid: int, ancestor: int) -> bool:
    """Returns whether a process was started by another, or by one of its children."""
    while pid != ancestor and (stat := read_stat(pid)) is not None:
        pid = stat.parent
    return pid == ancestor


def measure_writes(bootstrap_servers: str, cores: int, records: int, rounds: int, size: int, codec: str) -> None:
    with client(bootstrap_servers) as cluster:
        create(cluster, "split-writes", PARTITIONS)
    options = {"kafka.compression.type": codec}
    with session(cores) as spark:
        register_ceiling(spark)

        def write(sink: str) -> None:
            written(spark, sink, bootstrap_servers, "split-writes", records, size, options)

        print_split(spark, rounds, records, write)


def measure(bootstrap_servers: str, cores: int, records: int, rounds: int, codec: str | None) -> None:
    topic = Topic("split", records // 600 * 600)
    if codec:
        topic = Topic(f"split-{codec}", records // 4_000 * 4_000, json, batch_records=1_000, codec=codec)
    ensure(bootstrap_servers, topic)
    ceiling = {"records": topic.records, "tasks": PARTITIONS, "valueBytes": 93 if codec else 100, "batchRows": 40_000}
    read = Read(topic.name, ceiling={key: str(value) for key, value in ceiling.items()})
    with session(cores) as spark:
        print_split(spark, rounds, topic.records, lambda source: timed(spark, source, bootstrap_servers, read))


def print_split(spark: Any, rounds: int, records: int, run: Callable[[str], object]) -> None:
    """Prints the processor seconds of groupsource, the ceiling and Spark's connector, per million records."""
    times = SessionTimes(os.getsid(0))
    print(f"{'source':<14}" + "".join(f"{kind:>17}" for kind in KINDS))
    # spark-submit replaces its shell by the JVM
    jvm = spark.sparkContext._gateway.proc.pid
    seen: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        for source in (OWN, CEILING, KAFKA):
            before = split(times, jvm, seen)
            run(source)
            spent = split(times, jvm, seen)
            values = ((spent.get(kind, 0) - before.get(kind, 0)) / records * 1e6 for kind in KINDS)
            print(f"{source:<14}" + "".join(f"{value:>17.3f}" for value in values), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=1, help="of local[N]")
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Kafka; default: one is started")
    parser.add_argument("--json", metavar="CODEC", choices=_CODECS)
    parser.add_argument("--write", metavar="BYTES", type=int, help="size of the records that are written")
    parser.add_argument("--codec", default="none", choices=_CODECS, help="of --write")
    options = parser.parse_args()
    os.environ.update(checkout_environment(ROOT))

    def run(servers: str) -> None:
        if options.write:
            measure_writes(servers, options.cores, options.records, options.rounds, options.write, options.codec)
        else:
            measure(servers, options.cores, options.records, options.rounds, options.json)

    if options.kafka:
        run(options.kafka)
    else:
        with RealKafka() as kafka:
            run(kafka.bootstrap_servers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
