"""The application under fire: streams a topic into Parquet as two members of a group until SIGTERM drains it.

A query that fails is started again from its checkpoint, as a supervisor of the user's would do it.
"""

from __future__ import annotations

import sys
import time

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_groupsource import run_until_signal

SESSION_TIMEOUT_S = 4


def main(bootstrap_servers: str, topic: str, group: str, directory: str, max_offsets: str) -> None:
    spark = SparkSession.builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.group.id", group)
        .option("kafka.session.timeout.ms", SESSION_TIMEOUT_S * 1000)
        .option("kafka.heartbeat.interval.ms", 500)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("members", 2)
        .option("maxOffsetsPerTrigger", max_offsets)
        .load()
        .selectExpr("partition", "offset", "cast(value as string) as value")
    )
    writer = rows.writeStream.format("parquet").option("path", f"{directory}/rows")
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(processingTime="300 milliseconds")
    while True:
        query = writer.start()
        print(f"{time.time():.3f} started {query.runId}", flush=True)
        try:
            run_until_signal(query)
            print(f"{time.time():.3f} drained", flush=True)
            return
        except StreamingQueryException as error:
            cause = next((line for line in str(error).splitlines() if "spark_groupsource.errors" in line), str(error))
            print(f"{time.time():.3f} failed: {cause[:600]}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
