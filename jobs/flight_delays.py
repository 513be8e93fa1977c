"""Streams Avro records of a topic into Parquet or another topic.

Each instance joins the group and reads its share of the partitions. SIGTERM and Ctrl-C drain it: the current batch is
finished, its offsets are committed, the members leave the group, and no record is read twice. Parquet files have each
record once; a topic has, with --transactional-id, also if the application is killed.

    spark-submit jobs/flight_delays.py --bootstrap-servers localhost:9092 --topic flights --group flight-delays \\
        --output /data/flights --checkpoint /data/flights.checkpoint --schema-registry http://localhost:8081
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from job_support import cause_line, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def avro_options(schema: Path | None, registry: str | None, checkpoint: Path) -> dict[str, str]:
    """Options of the values: bare Avro of a schema file, or Avro with the schemas of a registry."""
    options = {"value.format": "avro"}
    if schema is not None:
        options["value.schema"] = str(schema.absolute())
    if registry is not None:
        options["value.schema.registry.url"] = registry
        if schema is None:
            # a restart has the columns of the first start
            options["checkpointLocation"] = str(checkpoint.absolute())
    return options


def parquet_writer(records: DataFrame, output: Path) -> Any:
    """Writes the columns of the values, and the positions of the records."""
    flights = records.select("value.*", "topic", "partition", "offset")
    return flights.writeStream.format("parquet").option("path", str(output))


def topic_writer(records: DataFrame, topic: str, application: str, options: dict[str, str]) -> Any:
    """Writes Avro records with the columns of the values, the position of the record, and who has read it."""
    from pyspark.sql import functions as F

    read = (F.col("partition").alias("source_partition"), F.col("offset").alias("source_offset"))
    value = F.struct("value.*", *read, F.lit(application).alias("application"))
    written = records.select("key", value.alias("value"))
    return written.writeStream.format("groupsource").options(**options, topic=topic)


def check_options(options: dict[str, str]) -> None:
    """Reports invalid options, and an invalid schema, before Spark starts.

    Raises: ClickException.
    """
    from spark_groupsource.errors import GroupSourceError
    from spark_groupsource.source.spark.datasource import GroupDataSource

    try:
        GroupDataSource(options).schema()
    except GroupSourceError as error:
        raise click.ClickException(" ".join(str(error).split())) from error


@click.command(context_settings={"show_default": True})
@click.option("--bootstrap-servers", required=True, help="host:port of a Kafka broker, or embedded.")
@click.option("--topic", default="flights")
@click.option("--group", default="flight-delays", help="Consumer group to join.")
@click.option("--members", default="auto", help="Number of group members; each reads in a Spark task of its own.")
@click.option("--output", type=click.Path(path_type=Path), help="Directory of the Parquet files.")
@click.option("--to-topic", help="Topic to write to, as Avro with the schema registry, instead of Parquet files.")
@click.option("--transactional-id", help="Writes to --to-topic exactly once; a name of its own for each running job.")
@click.option("--checkpoint", required=True, type=click.Path(path_type=Path), help="Checkpoint directory.")
@click.option("--schema", "schema_file", type=click.Path(path_type=Path), help="File with the Avro schema.")
@click.option("--schema-registry", help="Address of a schema registry; without --schema, it has the schema, too.")
@click.option("--rebalance-log", type=click.Path(path_type=Path), help="File that receives a JSON line per rebalance.")
@click.option("--trigger", default="1 second", help="Time between micro-batches.")
@click.option("--available-now", is_flag=True, help="Read the records that exist now, then stop.")
@click.option("--log-level", default="ERROR", help="Log level of Spark.")
def main(
    bootstrap_servers: str,
    topic: str,
    group: str,
    members: str,
    output: Path | None,
    to_topic: str | None,
    transactional_id: str | None,
    checkpoint: Path,
    schema_file: Path | None,
    schema_registry: str | None,
    rebalance_log: Path | None,
    trigger: str,
    available_now: bool,
    log_level: str,
) -> None:
    """Stream Avro records of TOPIC into Parquet files or another topic, as members of a consumer group."""
    if (output is None) == (to_topic is None):
        raise click.UsageError("Give either --output or --to-topic.")
    if to_topic is not None and schema_registry is None:
        raise click.UsageError("--to-topic needs --schema-registry.")
    if transactional_id is not None and to_topic is None:
        raise click.UsageError("--transactional-id needs --to-topic.")
    options = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "kafka.group.id": group,
        "members": members,
        "startingOffsets": "earliest",
        # nothing of a transaction that is aborted
        "kafka.isolation.level": "read_committed",
        **avro_options(schema_file, schema_registry, checkpoint),
    }
    if rebalance_log is not None:
        options["rebalanceLog"] = str(rebalance_log.absolute())
    written = {"kafka.bootstrap.servers": bootstrap_servers, "value.format": "avro"}
    if schema_registry is not None:
        written["value.schema.registry.url"] = schema_registry
    if transactional_id is not None:
        # the source and the sink of a transaction have the same name
        options["kafka.transactional.id"] = written["kafka.transactional.id"] = transactional_id
    check_options(options)
    spark = start_session(log_level)
    from pyspark.errors import PySparkException

    from spark_groupsource import run_until_signal

    application = str(spark.sparkContext.appName)
    options["kafka.client.id"] = re.sub(r"[^\w.-]+", "-", application)
    try:
        stream = spark.readStream.format("groupsource").options(**options).load()
        # without tombstones
        records = stream.where("value is not null")
        if output is not None:
            writer = parquet_writer(records, output)
        else:
            writer = topic_writer(records, str(to_topic), application, written)
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        run_until_signal(writer.start())
    except PySparkException as error:
        raise click.ClickException(cause_line(error)) from error
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
