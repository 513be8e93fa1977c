"""Application that streams a topic to Parquet and records each executor's directory.

cluster_job.py BOOTSTRAP TOPIC GROUP DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from spark_groupsource import run_until_signal

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def with_executor(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    # each executor of a cluster and its Python workers have separate working directories
    import os

    import pyarrow

    for batch in batches:
        executor = pyarrow.array([os.getcwd()] * batch.num_rows, "string")
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, executor], ["partition", "offset", "executor"])


def main(
    bootstrap_servers: str,
    topic: str,
    group: str,
    directory: str,
    mapped: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]] = with_executor,
    column: str = "executor string",
    **options: str,
) -> None:
    """Streams partition, offset and the column that `mapped` adds until it is stopped."""
    spark = SparkSession.builder.getOrCreate()
    stream = (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.group.id", group)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("members", 2)
        .option("maxOffsetsPerTrigger", 40)
        .options(**options)
        .load()
        .select("partition", "offset")
    )
    rows = stream.mapInArrow(mapped, f"partition int, offset bigint, {column}")
    writer = rows.writeStream.format("parquet")
    writer = writer.option("path", f"{directory}/rows").option("checkpointLocation", f"{directory}/checkpoint")
    run_until_signal(writer.trigger(processingTime="200 milliseconds").start())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
