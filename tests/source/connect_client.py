"""Client of Spark Connect: reads, writes, a table and a drained stream.

connect_client.py REMOTE BOOTSTRAP TOPIC GROUP DIRECTORY
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrameReader, SparkSession
from support.waiting import wait_until

from spark_groupsource import stop_gracefully


def main(remote: str, bootstrap_servers: str, topic: str, group: str, directory: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    found: dict[str, Any] = {}

    def read(**options: str) -> DataFrameReader:
        return spark.read.format("groupsource").options(**{"kafka.bootstrap.servers": bootstrap_servers, **options})

    found["batch"] = read(subscribe=topic).load().count()
    found["typed"] = read(subscribe=topic, **{"value.format": "string"}).load().agg({"value": "max"}).first()[0]
    stream = spark.readStream.format("groupsource").option("kafka.bootstrap.servers", bootstrap_servers)
    stream = stream.option("kafka.group.id", group).option("subscribe", topic).option("members", "2")
    rows = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
    writer = rows.select("partition", "offset").writeStream.format("parquet").queryName("connected")
    writer = writer.option("path", f"{directory}/rows").option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.trigger(processingTime="200 milliseconds").start()
    wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 2, "two batches", 60)
    (row,) = read(table="queries").load().select("query", "state", "group").collect()
    found["query"] = list(row)
    found["members"] = read(table="members", group=group).load().count()
    stop_gracefully(query, 60)
    found["committed"] = read(table="lag", group=group).load().agg({"current_offset": "sum"}).first()[0]
    found["queries_after"] = read(table="queries").load().count()
    found["rows"] = spark.read.parquet(f"{directory}/rows").count()
    written = spark.range(7).selectExpr("string(id) as key", "string(id) as value").write.format("groupsource")
    written.option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic).mode("append").save()
    found["written"] = read(subscribe=topic).load().count() - found["batch"]
    rate = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    stream = rate.selectExpr("string(value) as value").limit(3)
    target = stream.writeStream.format("groupsource").option("kafka.bootstrap.servers", bootstrap_servers)
    target = target.option("topic", topic).option("checkpointLocation", f"{directory}/written")
    query = target.start()
    count = found["batch"] + 7 + 3
    wait_until(lambda: read(subscribe=topic).load().count() == count, "the stream has written", 60, 0.5)
    query.stop()
    exact = {"kafka.bootstrap.servers": bootstrap_servers, "kafka.transactional.id": f"T-{topic}"}
    stream = spark.readStream.format("groupsource").options(**exact, subscribe=topic, members="1")
    rows = stream.option("kafka.group.id", f"{group}-exact").option("startingOffsets", "earliest").load()
    target = rows.select("key", "value").writeStream.format("groupsource").options(**exact, topic=f"{topic}-copy")
    for _ in range(2):
        query = target.option("checkpointLocation", f"{directory}/copied").trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    found["copied"] = read(subscribe=f"{topic}-copy", **{"kafka.isolation.level": "read_committed"}).load().count()
    found["copied"] -= read(subscribe=topic).load().count()
    found["has_jvm"] = SparkContext._gateway is not None
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
