"""Streams Avro records of a Kafka topic into Parquet files.

Each instance joins the group and reads its share of the partitions. SIGTERM and Ctrl-C drain it: the current batch is
finished, its offsets are committed, the members leave the group, and no record is read twice.

    spark-submit jobs/flight_delays.py --bootstrap-servers localhost:9092 --topic flights --group flight-delays \\
        --output /data/flights --checkpoint /data/flights.checkpoint --schema-registry http://localhost:8081
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from job_support import cause_line, start_session


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
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Directory of the Parquet files.")
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
    output: Path,
    checkpoint: Path,
    schema_file: Path | None,
    schema_registry: str | None,
    rebalance_log: Path | None,
    trigger: str,
    available_now: bool,
    log_level: str,
) -> None:
    """Stream Avro records of TOPIC into Parquet files, as members of a consumer group."""
    options = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "kafka.group.id": group,
        "members": members,
        "startingOffsets": "earliest",
        **avro_options(schema_file, schema_registry, checkpoint),
    }
    if rebalance_log is not None:
        options["rebalanceLog"] = str(rebalance_log.absolute())
    check_options(options)
    spark = start_session(log_level)
    from pyspark.errors import PySparkException

    from spark_groupsource import run_until_signal

    options["kafka.client.id"] = re.sub(r"[^\w.-]+", "-", str(spark.sparkContext.appName))
    try:
        stream = spark.readStream.format("groupsource").options(**options).load()
        # without tombstones
        flights = stream.where("value is not null").select("value.*", "topic", "partition", "offset")
        writer = flights.writeStream.format("parquet")
        writer = writer.option("path", str(output)).option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        run_until_signal(writer.start())
    except PySparkException as error:
        raise click.ClickException(cause_line(error)) from error
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
