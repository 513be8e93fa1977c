"""Upserts enriched JSON records into PostgreSQL or SQLite exactly once.

The last record of a key becomes the row of that key; a tombstone deletes it. Column ``updates`` counts the records of
the row. Rows and offsets are written in one transaction: a batch that is delivered again, after ``kill -9`` or by
another member of the group, is applied from the first offset that the database does not have.

    spark-submit jobs/upsert_database.py --bootstrap-servers localhost:9092 --topic flights --group upsert \\
        --schema 'flight STRING, carrier STRING, delay INT' --key flight --lookup conf/carriers.csv --on carrier \\
        --database postgresql://localhost/flights --table flights --checkpoint /data/upsert.checkpoint
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from job_database import Changes, Database, TopicPartition, connect
from job_support import CONTEXT, POSITION, Stream, decode_keyed, job_session, stream_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

# the types of a database column; any other value is stored as text
PLAIN_TYPES = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")


def not_applied(next_offsets: dict[TopicPartition, int]) -> Column:
    """True for the rows that are at or above the offsets in the database."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for (topic, partition), offset in next_offsets.items():
        below = (F.col("_topic") == topic) & (F.col("_partition") == partition) & (F.col("_offset") < offset)
        condition = condition & ~below
    return condition


def changes_of(rows: DataFrame, key: str, columns: list[str]) -> Changes:
    """The last row of each key, and the offset after the last row of each partition.

    The keys of a partition are aggregated by Spark; only the last row of each is collected.
    """
    from pyspark.sql import functions as F

    found: Iterable[Row] = (
        rows.withColumn(key, F.when(F.col("_valid"), F.col(key)))
        .groupBy("_topic", "_partition", key)
        .agg(
            F.max("_offset").alias("_offset"),
            F.count("*").alias("_updates"),
            F.max_by("_deleted", "_offset").alias("_deleted"),
            F.max_by(F.struct(*columns) if columns else F.lit(0), "_offset").alias("_row"),
        )
        .collect()
    )
    changes = Changes()
    for row in sorted(found, key=lambda row: (row["_topic"], row["_partition"], row["_offset"])):
        changes.next_offsets[TopicPartition(row["_topic"], row["_partition"])] = row["_offset"] + 1
        if row[key] is None:
            changes.rejected += row["_updates"]
        elif row["_deleted"]:
            changes.rows.append((row[key], None, row["_updates"]))
        else:
            changes.rows.append((row[key], tuple(row["_row"]) if columns else (), row["_updates"]))
    return changes


def batch_writer(database: Database, key: str, columns: list[str]) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch` that applies each record once."""

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            applied = False
            while not applied:
                before = database.next_offsets()
                changes = changes_of(batch.where(not_applied(before)), key, columns)
                # false if another application has written meanwhile
                applied = database.apply(changes, before)
        finally:
            batch.unpersist()
        if changes.rejected:
            click.echo(
                f"[batch={batch_id}] Skipped records that have no key or do not match --schema: {changes.rejected:,}.",
                err=True,
            )

    return write


def storable(rows: DataFrame) -> DataFrame:
    """The rows with columns of a type that any database has; others are converted to text."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    def converted(name: str, kind: Any) -> Column:
        if kind.simpleString() in PLAIN_TYPES:
            return F.col(name)
        nested = isinstance(kind, (StructType, ArrayType, MapType))
        return (F.to_json(name) if nested else F.col(name).cast("string")).alias(name)

    return rows.select(*(converted(field.name, field.dataType) for field in rows.schema))


@click.command(context_settings=CONTEXT)
@stream_options
@click.option("--schema", required=True, help="Columns of the JSON values, as in SQL: 'carrier STRING, delay INT'.")
@click.option("--key", required=True, help="Key column of the table: of the schema, or else the key of the records.")
@click.option("--lookup", help="CSV file with a header; its columns are added to the rows.")
@click.option("--on", help="Column of the schema and of --lookup to join on.")
@click.option("--database", "url", required=True, help="postgresql://... or sqlite:///FILE.")
@click.option("--table", required=True, help="Table to write; created unless it exists.")
def main(
    stream: Stream,
    schema: str,
    key: str,
    lookup: str | None,
    on: str | None,
    url: str,
    table: str,
    log_level: str,
) -> None:
    """Enrich JSON records and upsert them into a database, with the offsets in the same transaction."""
    if (lookup is None) != (on is None):
        raise click.UsageError("--lookup and --on belong together: give both or neither.")
    with job_session(log_level) as spark:
        rows = decode_keyed(stream.load(spark), schema, key)
        if lookup is not None:
            from pyspark.sql import functions as F

            # read again for each batch; one row for each value, otherwise the join would multiply records
            known = spark.read.option("header", True).csv(lookup).dropDuplicates([str(on)])
            rows = rows.join(F.broadcast(known), on, "left")
        rows = storable(rows)
        columns = [field for field in rows.schema if field.name != key and field.name not in POSITION]
        types = {field.name: field.dataType.simpleString() for field in columns}
        with connect(url, table, stream.group, key, types) as database:
            stream.run(rows.writeStream.foreachBatch(batch_writer(database, key, list(types))))


if __name__ == "__main__":
    main()
