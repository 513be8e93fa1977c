"""Enriches JSON records and routes them to topics, as JSON or Avro.

An SQL expression names the topic of a record. With --transactional-id, records and the offsets of the group are
published in one transaction for each micro-batch; without it, records of a batch that is repeated are written again.

    spark-submit jobs/route_records.py --bootstrap-servers localhost:9092 --topic flights --group routing \\
        --schema 'carrier STRING, delay INT' --lookup conf/carriers.csv --on carrier \\
        --to "if(delay > 60, 'delayed-flights', 'other-flights')" --checkpoint /data/routing.checkpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from job_support import CONTEXT, Stream, job_session, stream_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def routed(records: DataFrame, to: str, lookup: DataFrame | None = None, on: str | None = None) -> DataFrame:
    """Key, value and topic of the records to write; without tombstones, and those whose topic is null.

    Args:
        records: with a struct as value.
        to: SQL expression for the topic, of the columns of the value and of `lookup`.
        lookup: its columns are added to the values; one row for each value of `on`.
    """
    from pyspark.sql import functions as F

    rows = records.where("value IS NOT NULL").select("value.*", F.col("key").alias("_key"))
    if lookup is not None:
        rows = rows.join(F.broadcast(lookup), on, "left")
    values = F.struct(*(f"`{name}`" for name in rows.columns if name != "_key"))
    found = rows.select(F.col("_key").alias("key"), values.alias("value"), F.expr(to).alias("topic"))
    return found.where("topic IS NOT NULL")


@click.command(context_settings=CONTEXT)
@stream_options
@click.option("--schema", required=True, help="Columns of the JSON values, as in SQL: 'carrier STRING, delay INT'.")
@click.option("--to", required=True, help="SQL expression for the topic of a record; the topics must exist.")
@click.option("--lookup", help="CSV file with a header; its columns are added to the values.")
@click.option("--on", help="Column of the schema and of --lookup to join on.")
@click.option("--format", "value_format", type=click.Choice(["json", "avro"]), default="json", help="Of the values.")
@click.option("--schema-registry", help="Address of the schema registry for --format avro.")
@click.option("--dead-letters", help="Topic for values that do not match --schema; else they are left out.")
@click.option("--transactional-id", help="Publishes exactly once; a name of its own for each running job.")
def main(
    stream: Stream,
    schema: str,
    to: str,
    lookup: str | None,
    on: str | None,
    value_format: str,
    schema_registry: str | None,
    dead_letters: str | None,
    transactional_id: str | None,
    log_level: str,
) -> None:
    """Enrich JSON records, and route each to a topic that an SQL expression names."""
    if (lookup is None) != (on is None):
        raise click.UsageError("--lookup and --on belong together: give both or neither.")
    read = {"value.format": "json", "value.schema": schema, "mode": "DROPMALFORMED"}
    written = {"value.format": value_format}
    if dead_letters is not None:
        read["deadLetterTopic"] = dead_letters
    if schema_registry is not None:
        written["value.schema.registry.url"] = schema_registry
    if transactional_id is not None:
        # the source and the sink of a transaction have the same name
        read["kafka.transactional.id"] = written["kafka.transactional.id"] = transactional_id
    with job_session(log_level) as spark:
        # read again for each batch; one row for each value, otherwise the join would multiply records
        known = None
        if lookup is not None:
            known = spark.read.option("header", True).csv(lookup).dropDuplicates([str(on)])
        rows = routed(stream.load(spark, read), to, known, on)
        client = {name: text for name, text in stream.topic.options().items() if name != "subscribe"}
        stream.run(rows.writeStream.format("groupsource").options(**client, **written))


if __name__ == "__main__":
    main()
