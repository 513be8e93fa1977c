"""Spark application of the chaos tests: streams a topic into Parquet.

SIGTERM drains it. It restarts a failed query from its checkpoint, as a supervisor would; with ``--once`` it exits
instead. While the file of ``--gate`` exists, each record waits, so that a test can stop the application within a batch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_groupsource import run_until_signal

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.streaming.query import StreamingQuery

SESSION_TIMEOUT_S = 4
TRIGGER = "300 milliseconds"
COLUMNS = "partition int, offset bigint, value string"


def wait_s() -> float:
    """Returns how long a run waits for an application: 300 s, in proportion to the load of the processors.

    Spark takes 20 s of processor time to start; with 75 other processes per processor, that is 25 minutes.
    """
    return 300 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def gate(path: str) -> Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]:
    """Returns a function that delays each record while `path` exists, and creates ``<path>.waiting`` when one waits."""

    def passing(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            while os.path.exists(path):
                open(f"{path}.waiting", "w").close()
                time.sleep(0.05)
            yield batch

    return passing


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    stream = (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("kafka.group.id", options.group)
        .option("kafka.session.timeout.ms", options.session_timeout_s * 1000)
        .option("kafka.heartbeat.interval.ms", 500)
        .option("kafka.client.id", os.path.basename(options.directory))
        .option("kafka.partition.assignment.strategy", options.assignor)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("members", options.members)
        .option("maxOffsetsPerTrigger", options.max_offsets)
    )
    if options.gate:
        # small fetches, so that a task has not read its last record while the first waits at the gate
        stream = stream.option("kafka.max.partition.fetch.bytes", 10_000)
    rows = stream.load().selectExpr("partition", "offset", "cast(value as string) as value")
    if options.gate:
        rows = rows.mapInArrow(gate(options.gate), COLUMNS).selectExpr("partition", "offset", "trim(value) as value")
    writer = rows.writeStream.format("parquet").option("path", f"{options.directory}/rows")
    writer = writer.option("checkpointLocation", f"{options.directory}/checkpoint")
    return writer.trigger(processingTime=options.trigger).start()


def last_batch(directory: str) -> int:
    """Returns the number of the last planned micro-batch; -1 when there is none."""
    plans = f"{directory}/checkpoint/offsets"
    names = os.listdir(plans) if os.path.exists(plans) else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def log(text: str) -> None:
    print(f"{time.time():.3f} {text}", flush=True)


def run(start_query: Callable[[], StreamingQuery], directory: str, *, once: bool = False) -> int:
    """Runs a query until a signal drains it, and again after each failure unless `once`; returns the exit status."""
    while True:
        query = start_query()
        log(f"started {query.runId}")
        try:
            run_until_signal(query, timeout_s=wait_s())
            log("drained")
            return 0
        except StreamingQueryException as error:
            cause = next((line for line in str(error).splitlines() if "spark_groupsource.errors" in line), str(error))
            log(f"failed in batch {last_batch(directory)}: {cause[:600]}")
            if once:
                return 3


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic", "group", "directory", "max-offsets"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--session-timeout-s", type=int, default=SESSION_TIMEOUT_S)
    parser.add_argument("--assignor", default="range")
    parser.add_argument("--trigger", default=TRIGGER)
    parser.add_argument("--members", default="2")
    parser.add_argument("--gate")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    builder = SparkSession.builder.config("spark.python.unix.domain.socket.enabled", "true")
    if options.gate:
        builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return run(lambda: start(spark, options), options.directory, once=options.once)


if __name__ == "__main__":
    sys.exit(main())
