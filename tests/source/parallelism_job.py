"""Application that prints the number of tasks of stream and batch.

parallelism_job.py BOOTSTRAP TOPIC GROUP DIRECTORY [MASTER]
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id


def tasks(rows: DataFrame) -> int:
    return rows.select("task").distinct().count()


def main(bootstrap_servers: str, topic: str, group: str, directory: str, master: str = "") -> None:
    builder = SparkSession.builder
    if master:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    spark = builder.getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("groupsource").options(**options).load()
    found = {"batch": tasks(batch.withColumn("task", spark_partition_id()))}
    stream = spark.readStream.format("groupsource").options(**options).option("kafka.group.id", group).load()
    writer = stream.select(spark_partition_id().alias("task")).writeStream.format("parquet")
    writer = writer.option("path", f"{directory}/tasks").option("checkpointLocation", f"{directory}/tasks-checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    found["stream"] = tasks(spark.read.parquet(f"{directory}/tasks"))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
