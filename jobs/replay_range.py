"""Replays a time range of a topic into Parquet or another topic.

The range is read in slices, each by its timestamps (``startingTimestamp``, ``endingTimestamp``). The file
``slices.json`` in the checkpoint directory, a directory of the driver, names the slices that are done: the same command
continues a replay that was stopped or killed. SIGTERM and Ctrl-C stop it after the slice in progress. A Parquet slice
that is repeated replaces its files; one that is repeated to a topic appends its records again.

    spark-submit jobs/replay_range.py --bootstrap-servers localhost:9092 --topic flights \\
        --from 2026-01-01T00:00Z --until 2026-01-02T00:00Z --output /data/replay --checkpoint /data/replay.checkpoint

Writing to a topic requires Spark's Kafka connector:
``--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`` of spark-submit.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from job_support import CONTEXT, Topic, cause_line, job_session, topic_options

from spark_groupsource.source.process.signals import jvm_held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Slice(NamedTuple):
    """The records from the first one at or after `start` to before the first one at or after `end`; epoch ms."""

    start: int
    end: int

    @property
    def name(self) -> str:
        """The start in UTC, for directory names."""
        return datetime.fromtimestamp(self.start / 1000, timezone.utc).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"


def slices(start: datetime, end: datetime, length: timedelta) -> Iterator[Slice]:
    """Consecutive slices of the range; the last one may be shorter."""
    first, last, step = (round(value / timedelta(milliseconds=1)) for value in (start - EPOCH, end - EPOCH, length))
    for at in range(first, last, step):
        yield Slice(at, min(at + step, last))


class Progress:
    """The slices that are done, in a file.

    Raises: click.ClickException if the file is of a replay with other arguments.
    """

    def __init__(self, directory: Path, arguments: dict[str, Any]) -> None:
        self._file, self._arguments = directory / "slices.json", arguments
        self._done: list[str] = []
        directory.mkdir(parents=True, exist_ok=True)
        if self._file.exists():
            found = json.loads(self._file.read_text())
            if found["arguments"] != arguments:
                raise click.ClickException(
                    f"{self._file} is of another replay: {json.dumps(found['arguments'])}. Give each --checkpoint."
                )
            self._done = found["done"]

    def is_done(self, part: Slice) -> bool:
        return part.name in self._done

    def add(self, part: Slice) -> None:
        """Records a slice; the file is replaced in one step."""
        self._done.append(part.name)
        temporary = self._file.with_suffix(".tmp")
        with temporary.open("w") as out:
            json.dump({"arguments": self._arguments, "done": self._done}, out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self._file)


def records_of(spark: SparkSession, topic: Topic, part: Slice) -> DataFrame:
    """The records of a slice, with the columns of Spark's Kafka source."""
    options = {
        **topic.options(),
        "startingTimestamp": str(part.start),
        "endingTimestamp": str(part.end),
        # a partition may have no record after the start
        "startingOffsetsByTimestampStrategy": "latest",
        "includeHeaders": "true",
    }
    return spark.read.format("groupsource").options(**options).load()


def parquet_writer(output: str) -> Callable[[DataFrame, Slice], None]:
    """Writes each slice to a directory of its own, which it replaces."""
    return lambda records, part: records.write.mode("overwrite").parquet(f"{output}/slice={part.name}")


def topic_writer(topic: Topic, target: str) -> Callable[[DataFrame, Slice], None]:
    """Appends key, value and headers to a topic of the same cluster, with Spark's sink."""
    settings = {name: value for name, value in topic.options().items() if name.startswith("kafka.")}

    def write(records: DataFrame, part: Slice) -> None:
        rows = records.select("key", "value", "headers")
        rows.write.format("kafka").options(**settings, topic=target, includeHeaders="true").save()

    return write


def utc_time(text: str) -> datetime:
    """A time in ISO 8601; in UTC unless it has an offset. Raises: click.BadParameter."""
    try:
        # fromisoformat of Python 3.10 does not accept Z
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a time in ISO 8601, for example 2026-01-01T00:00Z.") from error
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


@click.command(context_settings=CONTEXT)
@topic_options
@click.option("--from", "start", required=True, type=utc_time, metavar="TIME", help="Start of the range, in ISO 8601.")
@click.option("--until", "end", required=True, type=utc_time, metavar="TIME", help="End of the range, exclusive.")
@click.option("--slice-minutes", default=60, type=click.IntRange(1), help="Length of a slice.")
@click.option("--output", help="Directory of the Parquet files.")
@click.option("--to-topic", help="Topic of the same cluster to append to, instead of --output.")
@click.option("--checkpoint", required=True, type=click.Path(path_type=Path), help="Directory of the progress file.")
def main(
    topic: Topic,
    start: datetime,
    end: datetime,
    slice_minutes: int,
    output: str | None,
    to_topic: str | None,
    checkpoint: Path,
    log_level: str,
) -> None:
    """Replay the records of a time range into Parquet files or to a topic."""
    if start >= end:
        raise click.UsageError("--from must be before --until.")
    if (output is None) == (to_topic is None):
        raise click.UsageError("Give one of --output and --to-topic.")
    if to_topic in topic.topic.split(","):
        raise click.UsageError(f"--to-topic must not be a topic that is read, got {to_topic}.")
    parts = list(slices(start, end, timedelta(minutes=slice_minutes)))
    target = output or to_topic
    arguments = {"topic": topic.topic, "from": start.isoformat(), "until": end.isoformat(), "to": target}
    progress = Progress(checkpoint, {**arguments, "slice_minutes": slice_minutes})
    signals: list[int] = []
    # spark-submit, and every process of a terminal with Ctrl-C, receives the signal in the JVM too
    with job_session(log_level) as spark, jvm_held(lambda: signals.append(signal.SIGTERM)):
        write = parquet_writer(output) if output else topic_writer(topic, str(to_topic))
        restore = handle_signals(signals)
        try:
            for part in parts:
                if not signals and not progress.is_done(part):
                    write_slice(lambda: write(records_of(spark, topic, part), part), part, signals)
                    progress.add(part)
        finally:
            restore()
        # the JVM of spark-submit prints it
        done = sum(map(progress.is_done, parts))
        click.echo(f"Slices done: {done:,} of {len(parts):,}.", err=True)
        if done < len(parts):
            click.echo("Stopped by a signal: run the same command to continue.", err=True)
            raise SystemExit(128 + signals[0])


def write_slice(write: Callable[[], None], part: Slice, signals: list[int]) -> None:
    """Calls `write`, once more if it fails after a signal.

    A signal to all processes also ends the programs that Hadoop starts to create a directory or a file.
    """
    try:
        write()
    except Exception as error:
        if not signals:
            raise
        click.echo(f"Writing slice {part.name} again: {cause_line(error)}", err=True)
        write()


def handle_signals(received: list[int]) -> Callable[[], None]:
    """Appends SIGTERM and SIGINT to `received` instead of ending the process; returns a function that restores this."""

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    return restore


if __name__ == "__main__":
    main()
