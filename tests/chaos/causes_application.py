"""Spark application of a group member that executes commands.

``slow SECONDS`` makes the next micro-batch that long, ``close`` and SIGTERM drain the query. A failed query is
restarted from its checkpoint, as a supervisor would do.
"""

from __future__ import annotations

import json
import sys
import time
from queue import SimpleQueue
from threading import Thread
from typing import Any

from chaos.causes_member import Commands, read_commands, take
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_groupsource import run_until_signal, stop_gracefully


def main() -> int:
    config: dict[str, Any] = json.loads(sys.argv[1])
    commands: Commands = SimpleQueue()
    Thread(target=read_commands, args=(commands,), daemon=True).start()
    builder = SparkSession.builder.master("local[1]").appName(f"application-{config['client_id']}")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {
        "kafka.bootstrap.servers": config["bootstrap"],
        "subscribe": ",".join(config["topics"]),
        "kafka.group.id": config["group"],
        "kafka.client.id": config["client_id"],
        "kafka.session.timeout.ms": config["session_ms"],
        "kafka.heartbeat.interval.ms": config["heartbeat_ms"],
        "kafka.max.poll.interval.ms": config["poll_ms"] // 12,
        "kafka.metadata.max.age.ms": 1_000,
        "kafka.partition.assignment.strategy": ",".join(config["assignors"]),
        "startingOffsets": "earliest",
        "members": 1,
    }

    def process(rows: DataFrame, number: int) -> None:
        rows.count()
        name, *arguments = take(commands) or [""]
        if name == "slow":
            time.sleep(float(arguments[0]))
        elif name == "close":
            Thread(target=stop_gracefully, args=(query,), daemon=True).start()

    stream = spark.readStream.format("groupsource").options(**options).load()
    writer = stream.writeStream.queryName(f"query-{config['client_id']}").foreachBatch(process)
    writer = writer.option("checkpointLocation", config["checkpoint"]).trigger(processingTime="300 milliseconds")
    while True:
        query = writer.start()
        try:
            run_until_signal(query, timeout_s=60)
            return 0
        except StreamingQueryException as error:
            print(str(error)[:600], file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
