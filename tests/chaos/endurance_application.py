"""Spark application of the endurance run, with a report every five seconds."""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

from pyspark.sql import SparkSession

from spark_groupsource import run_until_signal

REPORT_S = 5.0
# Spark's status of past batches reaches its limit early, so that it does not look like a leak
RETAINED = {
    "spark.ui.retainedJobs": 50,
    "spark.ui.retainedStages": 50,
    "spark.ui.retainedTasks": 200,
    "spark.sql.ui.retainedExecutions": 20,
    "spark.sql.streaming.minBatchesToRetain": 20,
}


def report(spark: SparkSession, query: Any, ended: threading.Event) -> None:
    """Prints the number of the last batch and the used bytes of the driver's heap."""
    assert spark._jvm is not None
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    while not ended.wait(REPORT_S):
        runtime.gc()
        used = runtime.totalMemory() - runtime.freeMemory()
        last = query.lastProgress
        line = {"time": time.time(), "batch": last["batchId"] if last else -1, "heap_bytes": used}
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic", "group", "directory"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    settings: dict[str, Any] = {"spark.python.unix.domain.socket.enabled": "true", **RETAINED}
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    stream = (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("kafka.group.id", options.group)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("members", 2)
        .load()
    )
    writer = stream.writeStream.format("noop").option("checkpointLocation", f"{options.directory}/checkpoint")
    query = writer.trigger(processingTime="0 seconds").start()
    ended = threading.Event()
    reporter = threading.Thread(target=report, args=(spark, query, ended), daemon=True)
    reporter.start()
    try:
        run_until_signal(query)
    finally:
        ended.set()
        reporter.join(30)


if __name__ == "__main__":
    main()
