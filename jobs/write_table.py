"""Streams JSON records into a Delta Lake or Iceberg table.

Each record is applied once. Without ``--key``, it is appended as a row with the columns of ``land_parquet.py``, the
date excepted; the streaming sink of the format leaves out a micro-batch that the table already has. With ``--key``,
the last record of a key becomes the row of that key by MERGE, and a tombstone deletes it; a row is not replaced by an
earlier record of its partition, so a micro-batch that is delivered again changes nothing. The records of a key must be
in one partition.

The package of the format and its catalog are settings of spark-submit, so the job is the same on every Spark:

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \\
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \\
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \\
        jobs/write_table.py --bootstrap-servers localhost:9092 --topic flights --group table \\
        --schema 'flight STRING, delay INT' --key flight --format delta --table flights --location /data/flights \\
        --checkpoint /data/flights.checkpoint

On a cluster in deploy mode ``cluster``, add ``jobs/land_parquet.py`` to ``--py-files``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from job_support import CONTEXT, POSITION, Stream, decode_keyed, job_session, stream_options
from land_parquet import landed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Iceberg reserves the name _partition
KAFKA_POSITION = ("kafka_topic", "kafka_partition", "kafka_offset")
_IS_NEWER = (
    "(t.kafka_topic <> s.kafka_topic OR t.kafka_partition <> s.kafka_partition OR t.kafka_offset < s.kafka_offset)"
)


def create_table(spark: SparkSession, table: str, table_format: str, columns: str, location: str | None) -> None:
    """Creates the table unless it exists.

    Args:
        columns: names and types, as in SQL.
        location: directory of the table; None if the catalog decides.
    """
    where = " LOCATION '{}'".format(location.replace("'", r"\'")) if location else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING {table_format}{where}")


def positioned(rows: DataFrame) -> DataFrame:
    """The rows of `decode_keyed` with the position in `KAFKA_POSITION`."""
    names = ("_topic", "_partition", "_offset")
    return rows.withColumnsRenamed(dict(zip(names, KAFKA_POSITION, strict=True)))


def changes_of(rows: DataFrame, key: str) -> DataFrame:
    """The last row of each key, without rows that are not valid or have no key."""
    from pyspark.sql import functions as F

    last = F.max_by(F.struct(*rows.columns), "kafka_offset").alias("row")
    return rows.where(F.col("_valid") & F.col(key).isNotNull()).groupBy(key).agg(last).select("row.*")


def merge_statement(table: str, key: str, columns: list[str]) -> str:
    """The MERGE of the view ``changes`` into the table."""
    quoted = [f"`{name}`" for name in columns]
    updates = ", ".join(f"t.{name} = s.{name}" for name in quoted)
    return (
        f"MERGE INTO {table} AS t USING changes AS s ON t.`{key}` = s.`{key}` "
        f"WHEN MATCHED AND s._deleted AND {_IS_NEWER} THEN DELETE "
        f"WHEN MATCHED AND {_IS_NEWER} THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({', '.join(quoted)}) "
        f"VALUES ({', '.join(f's.{name}' for name in quoted)})"
    )


def batch_merger(table: str, key: str, columns: list[str]) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch` that merges the last record of each key."""
    statement = merge_statement(table, key, columns)

    def merge(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            changes_of(batch, key).createOrReplaceTempView("changes")
            batch.sparkSession.sql(statement)
            rejected = batch.where(f"NOT _valid OR `{key}` IS NULL").count()
        finally:
            batch.unpersist()
        if rejected:
            click.echo(
                f"[batch={batch_id}] Skipped records that have no key or do not match --schema: {rejected:,}.",
                err=True,
            )

    return merge


@click.command(context_settings=CONTEXT)
@stream_options
@click.option("--schema", required=True, help="Columns of the JSON values, as in SQL: 'carrier STRING, delay INT'.")
@click.option("--key", help="Key column to merge by: of the schema, or else the key of the records; appends without.")
@click.option("--format", "table_format", type=click.Choice(["delta", "iceberg"]), required=True)
@click.option("--table", required=True, help="Table to write, with its catalog; created unless it exists.")
@click.option("--location", help="Directory of a table that is created; the catalog decides without.")
def main(
    stream: Stream,
    schema: str,
    key: str | None,
    table_format: str,
    table: str,
    location: str | None,
    log_level: str,
) -> None:
    """Stream JSON records into a table of Delta Lake or Iceberg, each once."""
    with job_session(log_level) as spark:
        records = stream.load(spark)
        if key is None:
            rows = landed(records, schema).drop("date")
            create_table(spark, table, table_format, rows.schema.toDDL(), location)
            stream.run(rows.writeStream.format(table_format), table)
        else:
            rows = positioned(decode_keyed(records, schema, key))
            stored = rows.drop(*POSITION)
            create_table(spark, table, table_format, stored.schema.toDDL(), location)
            stream.run(rows.writeStream.foreachBatch(batch_merger(table, key, stored.columns)))


if __name__ == "__main__":
    main()
