"""Streams JSON records of a Kafka topic into Parquet files by date.

The columns are those of the schema; ``_corrupt_record``, the text of a value that does not match it; ``kafka_key``,
``kafka_topic``, ``kafka_partition``, ``kafka_offset`` and ``kafka_timestamp`` of the record; and ``date``, the day of
its timestamp in UTC. SIGTERM and Ctrl-C drain the job: the current batch is finished, its offsets are committed, and
the members leave the group.

    spark-submit jobs/land_parquet.py --bootstrap-servers localhost:9092 --topic flights --group landing \\
        --schema 'carrier STRING, delay INT' --output /data/flights --checkpoint /data/flights.checkpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from job_support import CONTEXT, Stream, decode_json, job_session, stream_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def landed(records: DataFrame, schema: str) -> DataFrame:
    """The rows to write; a tombstone becomes a row with null in the columns of the schema."""
    decoded = records.withColumn("decoded", decode_json("value", schema))
    position = [f"{name} AS kafka_{name}" for name in ("topic", "partition", "offset", "timestamp")]
    return decoded.selectExpr(
        "decoded.*", "CAST(key AS STRING) AS kafka_key", *position, "CAST(timestamp AS DATE) AS date"
    )


@click.command(context_settings=CONTEXT)
@stream_options
@click.option("--schema", required=True, help="Columns of the JSON values, as in SQL: 'carrier STRING, delay INT'.")
@click.option("--output", required=True, help="Directory of the Parquet files, one for each running job.")
def main(stream: Stream, schema: str, output: str, log_level: str) -> None:
    """Stream JSON records of a topic into Parquet files, partitioned by date."""
    with job_session(log_level) as spark:
        rows = landed(stream.load(spark), schema)
        stream.run(rows.writeStream.format("parquet").option("path", output).partitionBy("date"))


if __name__ == "__main__":
    main()
