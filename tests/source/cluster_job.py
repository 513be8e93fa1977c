"""Streams a topic into Parquet as two members, each record with the directory of the executor that read it.

cluster_job.py BOOTSTRAP TOPIC GROUP DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from spark_groupsource import run_until_signal

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def placed(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    # an executor of a cluster works in a directory of its own, and its Python workers with it
    import os

    import pyarrow

    for batch in batches:
        where = pyarrow.array([os.getcwd()] * batch.num_rows, "string")
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, where], ["partition", "offset", "executor"])


def main(bootstrap_servers: str, topic: str, group: str, directory: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    stream = (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.group.id", group)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("members", 2)
        .option("maxOffsetsPerTrigger", 40)
        .load()
        .select("partition", "offset")
    )
    writer = stream.mapInArrow(placed, "partition int, offset bigint, executor string").writeStream.format("parquet")
    writer = writer.option("path", f"{directory}/rows").option("checkpointLocation", f"{directory}/checkpoint")
    run_until_signal(writer.trigger(processingTime="200 milliseconds").start())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
