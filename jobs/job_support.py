"""Options, Spark session and error messages of the jobs.

On a cluster in deploy mode ``cluster``, add ``--py-files jobs/job_support.py`` to spark-submit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_groupsource.cli.common import HELP, client_properties, one_line
from spark_groupsource.errors import GroupSourceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CONTEXT = {**HELP, "show_default": True}
# column of `decode_json` with the text of a value that does not match the schema
CORRUPT_RECORD = "_corrupt_record"
# columns of `decode_keyed` beside those of the schema
POSITION = ("_topic", "_partition", "_offset", "_valid", "_deleted")

Function = Callable[..., Any]


@dataclass(frozen=True)
class Topic:
    """What a job reads: one topic or several, separated by commas, of a cluster."""

    bootstrap_servers: str
    topic: str
    command_config: Path | None

    def options(self) -> dict[str, str]:
        """Options of ``groupsource``: the settings of the properties file, the address and the topics.

        Raises: ConfigurationError for an unreadable file.
        """
        settings = client_properties(self.command_config)
        settings["bootstrap.servers"] = self.bootstrap_servers
        return {**{f"kafka.{name}": value for name, value in settings.items()}, "subscribe": self.topic}


@dataclass(frozen=True)
class Stream:
    """A streaming query that reads `topic` as `members` members of `group`."""

    topic: Topic
    group: str
    checkpoint: str
    members: str
    starting_offsets: str
    max_offsets: int | None
    trigger: str
    available_now: bool

    def load(self, spark: SparkSession, more: Mapping[str, str] | None = None) -> DataFrame:
        """The records, with the columns of Spark's Kafka source.

        Args:
            more: further options of ``groupsource``.
        """
        options = {
            **(more or {}),
            **self.topic.options(),
            "kafka.group.id": self.group,
            "members": self.members,
            "startingOffsets": self.starting_offsets,
        }
        if self.max_offsets is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets)
        return spark.readStream.format("groupsource").options(**options).load()

    def run(self, writer: DataStreamWriter, table: str | None = None) -> None:
        """Runs the query until it ends, or until SIGTERM or Ctrl-C, which drain it.

        Args:
            table: the table that it appends to; None if `writer` has the destination.
        """
        from spark_groupsource import run_until_signal

        trigger: dict[str, Any] = {"availableNow": True} if self.available_now else {"processingTime": self.trigger}
        prepared = writer.option("checkpointLocation", self.checkpoint).trigger(**trigger)
        run_until_signal(prepared.toTable(table) if table else prepared.start())


def topic_options(command: Function) -> Function:
    """Adds the options of a `Topic`, which the command receives as `topic`."""

    @click.option("--bootstrap-servers", required=True, help="host:port of Kafka brokers, separated by commas.")
    @click.option("--topic", required=True, help="Topic to read, or several, separated by commas.")
    @click.option(
        "--command-config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Properties file with client settings, as for Kafka's tools.",
    )
    @click.option("--log-level", default="ERROR", help="Log level of Spark.")
    @wraps(command)
    def with_topic(bootstrap_servers: str, topic: str, command_config: Path | None, **given: Any) -> Any:
        return command(topic=Topic(bootstrap_servers, topic, command_config), **given)

    return with_topic


def stream_options(command: Function) -> Function:
    """Adds the options of a `Stream`, which the command receives as `stream`."""

    @topic_options
    @click.option("--group", required=True, help="Consumer group to join.")
    @click.option("--checkpoint", required=True, help="Checkpoint directory, one for each running job.")
    @click.option("--members", default="auto", help="Number of group members; each reads in a Spark task of its own.")
    @click.option("--starting-offsets", default="earliest", help="Start of a partition without a committed offset.")
    @click.option("--max-offsets", type=click.IntRange(1), help="Maximum number of offsets per micro-batch.")
    @click.option("--trigger", default="1 second", help="Time between micro-batches.")
    @click.option("--available-now", is_flag=True, help="Read the records that exist now, then stop.")
    @wraps(command)
    def with_stream(
        topic: Topic,
        group: str,
        checkpoint: str,
        members: str,
        starting_offsets: str,
        max_offsets: int | None,
        trigger: str,
        available_now: bool,
        **given: Any,
    ) -> Any:
        stream = Stream(topic, group, checkpoint, members, starting_offsets, max_offsets, trigger, available_now)
        return command(stream=stream, **given)

    return with_stream


def start_session(log_level: str) -> SparkSession:
    """The Spark session; settings of spark-submit take precedence."""
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.log.level": log_level,
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.config(map=settings).getOrCreate()


@contextmanager
def job_session(log_level: str) -> Iterator[SparkSession]:
    """A Spark session with times in UTC; it is stopped at exit, unless it existed before.

    Raises: click.ClickException with the cause, in one line, of an error of Spark or of groupsource.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    existed = SparkSession.getActiveSession() is not None
    spark = start_session(log_level)
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        yield spark
    except GroupSourceError as error:
        raise click.ClickException(one_line(error)) from error
    except PySparkException as error:
        raise click.ClickException(cause_line(error)) from error
    finally:
        if not existed:
            spark.stop()


def cause_line(error: Exception) -> str:
    """The line of a Spark error that states the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("spark_groupsource.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]


def decode_json(value: str | Column, schema: str) -> Column:
    """A column with the struct that a JSON value contains.

    Its last field is `CORRUPT_RECORD`, null for a value that matches the schema. The struct is null for a tombstone.

    Args:
        schema: columns and types as in SQL, for example ``carrier STRING, delay INT``.
    """
    from pyspark.sql import functions as F

    text = F.col(value) if isinstance(value, str) else value
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_RECORD}
    return F.from_json(text.cast("string"), f"{schema}, {CORRUPT_RECORD} STRING", options)


def decode_keyed(records: DataFrame, schema: str, key: str) -> DataFrame:
    """The columns of the schema, `key` included, with position and validity of the record.

    The key is the column of the schema; where there is none, and for a tombstone, it is the key of the record.
    """
    from pyspark.sql import functions as F

    rows = records.withColumn("decoded", decode_json("value", schema))
    record_key = F.col("key").cast("string").alias("_key")
    valid = F.col(f"decoded.{CORRUPT_RECORD}").isNull().alias("_valid")
    position = [F.col(name).alias(f"_{name}") for name in ("topic", "partition", "offset")]
    rows = rows.select("decoded.*", record_key, valid, F.col("value").isNull().alias("_deleted"), *position)
    own = F.col(key).cast("string") if key in rows.columns else F.lit(None)
    return rows.withColumn(key, F.coalesce(own, "_key")).drop("_key", CORRUPT_RECORD)
