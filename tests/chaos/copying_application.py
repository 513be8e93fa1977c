"""Spark application that copies a topic, or counts windows, exactly once.

Each has a group, a checkpoint and a transactional id of its own. A copy is in the partition of the same number, with
the offset of its record as key. SIGTERM drains it. It restarts a failed query from its checkpoint, as a supervisor
would.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from chaos.streaming_application import run
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW_MS = 10_000
"""Length of the windows of event time whose records are counted."""


def read(spark: SparkSession, options: argparse.Namespace, group: str, transactional_id: str) -> DataFrame:
    return (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("kafka.group.id", group)
        .option("kafka.transactional.id", transactional_id)
        .option("kafka.session.timeout.ms", 6000)
        .option("kafka.heartbeat.interval.ms", 500)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("members", 2)
        .option("maxOffsetsPerTrigger", options.max_offsets)
        .load()
    )


def write(
    frame: DataFrame, options: argparse.Namespace, topic: str, transactional_id: str, mode: str = "append"
) -> StreamingQuery:
    writer = frame.writeStream.format("groupsource").outputMode(mode)
    writer = writer.option("kafka.bootstrap.servers", options.bootstrap_servers).option("topic", topic)
    writer = writer.option("kafka.transactional.id", transactional_id)
    writer = writer.option("checkpointLocation", f"{options.directory}/{topic}")
    return writer.trigger(processingTime="300 milliseconds").start()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic", "group", "directory", "max-offsets"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--counts", action="store_true", help="counts by window and partition, instead of the copy")
    options = parser.parse_args()
    spark = SparkSession.builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    # histories compare the offsets of all micro-batches with the copies
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1000000")
    name = os.path.basename(options.directory)

    def start() -> StreamingQuery:
        if options.counts:
            rows = read(spark, options, f"{options.group}-counts", f"counts-{name}")
            rows = rows.groupBy(F.window("timestamp", f"{WINDOW_MS} milliseconds"), "partition").count()
            key = "concat(partition, ' ', unix_millis(window.start)) as key"
            rows = rows.selectExpr(key, "string(count) as value")
            return write(rows, options, f"{options.topic}-counts", f"counts-{name}", "complete")
        rows = read(spark, options, options.group, f"copy-{name}")
        rows = rows.selectExpr("string(offset) as key", "value", "partition")
        return write(rows, options, f"{options.topic}-copy", f"copy-{name}")

    return run(start, options.directory)


if __name__ == "__main__":
    sys.exit(main())
