"""Application that appends records of a topic with the batch number.

yarn_job.py DIRECTORY BATCH_SECONDS [OPTION=VALUE ...]

The options are those of the source; ``kafka.sasl.password`` may be ``file NAME``, a file whose text is the password. A
batch takes BATCH_SECONDS after it is written. The application ends once the topic is read, or drains at SIGTERM.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_groupsource as gs

_PASSWORD = "kafka.sasl.password"


def append(directory: str, seconds: float, batch: DataFrame, number: int) -> None:
    rows = batch.select("partition", "offset", F.lit(number).alias("batch"))
    rows.write.mode("append").parquet(f"{directory}/rows")
    print(f"batch {number} is written, driver {os.getpid()}", flush=True)
    time.sleep(seconds)


def main(directory: str, seconds: str, *given: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    options = dict(entry.split("=", 1) for entry in given)
    if options[_PASSWORD].startswith("file "):
        options[_PASSWORD] = Path(options[_PASSWORD].removeprefix("file ")).read_text()
    records = spark.readStream.format("groupsource").options(startingOffsets="earliest", **options).load()
    writer = records.writeStream.foreachBatch(partial(append, directory, float(seconds)))
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    gs.run_until_signal(writer.trigger(availableNow=True).start())


if __name__ == "__main__":
    main(*sys.argv[1:])
