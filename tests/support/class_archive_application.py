"""Spark application whose loaded classes form the class archive of the tests."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession


def main(servers: str, directory: str) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    reader = spark.readStream.format("groupsource").option("kafka.bootstrap.servers", servers)
    frame = reader.option("kafka.group.id", "classes").option("subscribe", "classes").load()

    def stream(rows: Any, name: str) -> None:
        writer = rows.writeStream.option("checkpointLocation", f"{directory}/{name}").trigger(availableNow=True)
        writer.format("parquet").option("path", f"{directory}/rows-{name}").start().awaitTermination()

    stream(frame.selectExpr("partition", "offset", "cast(value as string) as value"), "plain")
    spark.read.parquet(f"{directory}/rows-plain").groupBy("partition").count().orderBy("partition").collect()
    spark.createDataFrame([(1, "a")], "a int, b string").createOrReplaceTempView("v")
    spark.sql("select b, count(*) from v group by b").toPandas()
    spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
