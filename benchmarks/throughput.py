"""Benchmark of batch reads from a real Kafka, compared with Spark's source.

    python benchmarks/throughput.py

Starts an Apache Kafka, fills two topics of four partitions (100-byte values with Kafka's ProducerPerformance,
uncompressed; JSON with librdkafka, lz4), and reads each to the end with both sources, all columns and the value
alone, on local[1] and on local[2]. Each local[n] has a JVM of its own, warmed up by one short read with each source.
The sources alternate, and the best round of each is reported, because other load on the machine only adds time. On a
busy machine compare the processor seconds (Linux), which are those of the JVM and its Python processes. The sink is
`noop`.

Without the extra `fast` the NumPy parser is measured; with it, the compiled parser after a few million records.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

JOBS = Path(__file__).resolve().parent.parent / "jobs"
sys.path.insert(0, str(JOBS))

from kafka_jars import spark_connector_jars  # noqa: E402
from real_kafka import RealKafka  # noqa: E402

PARTITIONS = 4
SOURCES = ("kafka", "groupsource")


class Case(NamedTuple):
    """One comparison: a topic, its number of records, and the columns to read."""

    title: str
    topic: str
    records: int
    value_only: bool


def create_topic(kafka: RealKafka, topic: str) -> None:
    """Creates a topic of `PARTITIONS` partitions with Kafka's tool."""
    arguments = ("--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", topic)
    run = kafka.tool("org.apache.kafka.tools.TopicCommand", *arguments, "--partitions", str(PARTITIONS))
    if run.returncode:
        raise SystemExit(f"topic {topic} could not be created: {run.stderr[-1000:]}")


def fill_bytes(kafka: RealKafka, topic: str, count: int) -> None:
    """Produces `count` values of 100 bytes with Kafka's producer, in batches of the default size."""
    run = kafka.tool(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        str(count),
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={kafka.bootstrap_servers}",
        timeout_s=600,
    )
    if run.returncode:
        raise SystemExit(f"ProducerPerformance failed: {run.stderr[-1000:]}")


def fill_json(kafka: RealKafka, topic: str, count: int) -> None:
    """Produces `count` JSON values of about 93 bytes with librdkafka, lz4."""
    from confluent_kafka import Producer

    randomness = random.Random(1)
    pool = []
    for number in range(20_000):
        carrier, origin = randomness.choice(("UA", "AA", "B6")), randomness.choice(("EWR", "JFK"))
        dep_delay, arr_delay, distance = (randomness.randrange(999) for _ in range(3))
        pool.append(
            f'{{"flight": {number}, "carrier": "{carrier}", "origin": "{origin}", "dep_delay": {dep_delay}, '
            f'"arr_delay": {arr_delay}, "distance": {distance}}}'
        )
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": "lz4",
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(count):
        value = pool[number % len(pool)]
        while True:
            try:
                producer.produce(topic, value, partition=number // 1000 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit("librdkafka did not deliver all records within 120 s")


def session(cores: int) -> Any:
    """Returns a Spark session with both sources."""
    from pyspark.sql import SparkSession

    jars = ",".join(str(jar) for jar in spark_connector_jars())
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def processor_seconds() -> float:
    """Processor time of this session's processes so far, those that ended included; 0 where there is no /proc."""
    session_id, ticks = os.getsid(0), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile; its parent counts it
            continue
        if int(fields[3]) == session_id:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def read_seconds(
    spark: Any, source: str, bootstrap_servers: str, case: Case, limit: int | None = None
) -> tuple[float, float]:
    """Seconds and processor seconds of one read of a topic to its end, or of `limit` records of each partition."""
    reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap_servers)
    reader = reader.option("subscribe", case.topic)
    if limit is not None:
        ends = {case.topic: {str(partition): limit for partition in range(PARTITIONS)}}
        reader = reader.option("endingOffsets", json.dumps(ends))
    if case.value_only and source == "groupsource":
        reader = reader.schema("value binary")
    frame = reader.load()
    if case.value_only:
        frame = frame.select("value")
    begin, spent = time.perf_counter(), processor_seconds()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin, processor_seconds() - spent


def measure(cores: int, bootstrap_servers: str, cases: list[Case], rounds: int) -> None:
    """Runs in a process of its own; prints one JSON line for each measured read."""
    spark = session(cores)
    try:
        for source in SOURCES:
            read_seconds(spark, source, bootstrap_servers, cases[0], limit=min(100_000, cases[0].records // 20))
        for number, case in enumerate(cases):
            for _ in range(rounds):
                for source in SOURCES:
                    seconds = read_seconds(spark, source, bootstrap_servers, case)
                    print(json.dumps([number, source, *seconds]), flush=True)
    finally:
        spark.stop()


Measured = dict[tuple[int, str], list[tuple[float, float]]]
"""(number of the case, source) -> (seconds, processor seconds) of each round."""


def child(cores: int, bootstrap_servers: str, cases: list[Case], rounds: int) -> Measured:
    """What a process of its own measured on local[`cores`]."""
    script = Path(__file__).resolve()
    command = [sys.executable, str(script), "--cores", str(cores), "--bootstrap-servers", bootstrap_servers]
    command += ["--rounds", str(rounds), "--cases", json.dumps(cases)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    found: Measured = {}
    # a session of its own, so that its processes are told from all others
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            number, source, seconds, spent = json.loads(line)
            found.setdefault((number, source), []).append((seconds, spent))
            title = cases[number].title
            print(f"local[{cores}]  {title:<30} {source:<11} {seconds:6.2f} s {spent:6.2f} cpu", flush=True)
    if process.returncode:
        raise SystemExit(f"the measuring process ended with {process.returncode}")
    return found


def cells(case: Case, found: Measured, number: int) -> list[str]:
    """The numbers of one line: best seconds, their ratio, our rate; best processor seconds and their ratio."""
    theirs, ours = (min(seconds for seconds, _ in found[number, source]) for source in SOURCES)
    spent = [min(spent for _, spent in found[number, source]) for source in SOURCES]
    rate = case.records / ours / 1e6
    cells = [f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.2f}", f"{rate:.2f}"]
    return cells + [f"{spent[0]:.1f} : {spent[1]:.1f}", f"{spent[0] / max(spent[1], 0.01):.2f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8_000_000, help="100-byte records; half as many JSON records")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--local", default="1,2", help="numbers of cores")
    for hidden in ("--cores", "--bootstrap-servers", "--cases"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cores:
        cases = [Case(*row) for row in json.loads(arguments.cases)]
        measure(int(arguments.cores), arguments.bootstrap_servers, cases, arguments.rounds)
        return 0

    count = arguments.records
    cases = [
        Case(f"{count / 1e6:g} M x 100 B, all columns", "bytes", count, False),
        Case(f"{count / 1e6:g} M x 100 B, value", "bytes", count, True),
        Case(f"{count / 2e6:g} M JSON, lz4, all columns", "json", count // 2, False),
    ]
    table = Table(title="batch read to noop, best round")
    columns = ("cores", "data", "Spark's source", "groupsource", "ratio", "M records/s", "processor s", "ratio")
    for column in columns:
        table.add_column(column, justify="left" if column == "data" else "right")
    with RealKafka() as kafka:
        print(f"Kafka runs at {kafka.bootstrap_servers}; filling it", flush=True)
        for topic in ("bytes", "json"):
            create_topic(kafka, topic)
        fill_bytes(kafka, "bytes", count)
        fill_json(kafka, "json", count // 2)
        for cores in (int(number) for number in arguments.local.split(",")):
            found = child(cores, kafka.bootstrap_servers, cases, arguments.rounds)
            for number, case in enumerate(cases):
                table.add_row(str(cores), case.title, *cells(case, found, number))
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
