"""Streams Avro records of a Kafka topic into Parquet files.

Each instance joins the group and reads its share of the partitions. SIGTERM and Ctrl-C drain it: the current batch is
finished, its offsets are committed, the members leave the group, and no record is read twice.

    spark-submit jobs/flight_delays.py --bootstrap-servers localhost:9092 --topic flights --group flight-delays \\
        --output /data/flights --checkpoint /data/flights.checkpoint --schema conf/flights.avsc
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from job_support import cause_line, start_session

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

_POSITION = ("topic", "partition", "offset")


class SchemaFileError(Exception):
    """The schema file is invalid; the message has one line."""


class ColumnType(NamedTuple):
    """The Spark and Arrow types of an Avro type."""

    spark: str
    arrow: str


COLUMN_TYPES = {
    "boolean": ColumnType("boolean", "bool"),
    "int": ColumnType("int", "int32"),
    "long": ColumnType("bigint", "int64"),
    "float": ColumnType("float", "float"),
    "double": ColumnType("double", "double"),
    "string": ColumnType("string", "string"),
    "bytes": ColumnType("binary", "binary"),
}


def read_schema(path: Path) -> dict[str, Any]:
    """Reads an Avro schema: a record of primitive fields, each of them possibly in a union with null.

    Raises: SchemaFileError.
    """
    try:
        schema = json.loads(path.read_text())
        fastavro.parse_schema(schema)
    except OSError as error:
        raise SchemaFileError(f"Cannot read schema file {path}: {error.strerror}. Check --schema.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SchemaFileError(f"Schema file {path} is not JSON: {error}. Give an Avro schema.") from error
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        raise SchemaFileError(f"Schema file {path} is not an Avro schema: {error}. See conf/flights.avsc.") from error
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        raise SchemaFileError(f"Schema file {path} must contain an Avro record. See conf/flights.avsc.")
    column_types(schema, path)
    return schema


def column_types(schema: dict[str, Any], path: Path) -> dict[str, ColumnType]:
    """The column type of each field.

    Raises: SchemaFileError for a field that is not primitive.
    """
    types = {}
    for field in schema["fields"]:
        declared = field["type"] if isinstance(field["type"], list) else [field["type"]]
        kinds = [kind for kind in declared if kind != "null"]
        if len(kinds) != 1 or not isinstance(kinds[0], str) or kinds[0] not in COLUMN_TYPES:
            raise SchemaFileError(
                f"Schema file {path} has field {field['name']} of type {json.dumps(field['type'])}. "
                f"Use {', '.join(COLUMN_TYPES)}, alone or in a union with null."
            )
        types[field["name"]] = COLUMN_TYPES[kinds[0]]
    return types


def decoder(
    schema: dict[str, Any], types: dict[str, ColumnType]
) -> Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]:
    """A function for `DataFrame.mapInArrow` that replaces column ``value`` by the fields of the Avro record."""

    def decode(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow

        parsed = fastavro.parse_schema(schema)
        for batch in batches:
            values = batch.column("value").to_pylist()
            records: list[Any] = [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in values]
            columns = [
                pyarrow.array([record[name] for record in records], pyarrow.type_for_alias(kind.arrow))
                for name, kind in types.items()
            ]
            columns += [batch.column(name) for name in _POSITION]
            yield pyarrow.RecordBatch.from_arrays(columns, [*types, *_POSITION])

    return decode


def decoded_flights(stream: DataFrame, schema: dict[str, Any], types: dict[str, ColumnType]) -> DataFrame:
    """The stream with decoded values, without tombstones (null values)."""
    fields = ", ".join(f"`{name}` {kind.spark}" for name, kind in types.items())
    output = f"{fields}, topic string, partition int, offset bigint"
    return stream.where("value is not null").mapInArrow(decoder(schema, types), output)


@click.command(context_settings={"show_default": True})
@click.option("--bootstrap-servers", required=True, help="host:port of a Kafka broker, or embedded.")
@click.option("--topic", default="flights")
@click.option("--group", default="flight-delays", help="Consumer group to join.")
@click.option("--members", default="auto", help="Number of group members; each reads in a Spark task of its own.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Directory of the Parquet files.")
@click.option("--checkpoint", required=True, type=click.Path(path_type=Path), help="Checkpoint directory.")
@click.option("--schema", "schema_file", default="conf/flights.avsc", type=click.Path(path_type=Path))
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
    schema_file: Path,
    rebalance_log: Path | None,
    trigger: str,
    available_now: bool,
    log_level: str,
) -> None:
    """Stream Avro records of TOPIC into Parquet files, as members of a consumer group."""
    try:
        schema = read_schema(schema_file)
        types = column_types(schema, schema_file)
    except SchemaFileError as error:
        raise click.ClickException(str(error)) from error
    spark = start_session(log_level)
    # imported here: an invalid schema file is reported before Spark is loaded
    from pyspark.errors import PySparkException

    from spark_groupsource import run_until_signal

    options = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "kafka.group.id": group,
        "kafka.client.id": re.sub(r"[^\w.-]+", "-", str(spark.sparkContext.appName)),
        "members": members,
        "startingOffsets": "earliest",
    }
    if rebalance_log is not None:
        options["rebalanceLog"] = str(rebalance_log.absolute())
    stream = spark.readStream.format("groupsource").options(**options)
    try:
        flights = stream.schema("value binary, topic string, partition int, offset bigint").load()
        writer = decoded_flights(flights, schema, types).writeStream.format("parquet")
        writer = writer.option("path", str(output)).option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        run_until_signal(writer.start())
    except PySparkException as error:
        raise click.ClickException(cause_line(error)) from error
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
