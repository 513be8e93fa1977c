"""``groupsource offsets-log``: what stands in `__consumer_offsets`, of files on disk or of a running broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from spark_groupsource.cli.common import HELP, open_cluster
from spark_groupsource.cli.offsets_log_formats import (
    Entry,
    batch_line,
    entries,
    json_line,
    record_line,
    table_header,
    table_row,
)
from spark_groupsource.client.cluster.client import EARLIEST, LATEST, Cluster
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.errors import BrokerError, ConfigurationError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.batch import BatchHeader, check_crc, iter_batches

TOPIC = "__consumer_offsets"
_PARTITION_NAME = re.compile(rf"{TOPIC}-(\d+)")
_FORMATS = ("dump", "table", "json")


class Batch(NamedTuple):
    """A sound batch: where it is from, and its place there (-1 where it came from a broker)."""

    partition: int
    header: BatchHeader
    buffer: bytes | memoryview
    position: int


class Damage(NamedTuple):
    """Bytes of a file that are no sound batch; `text` names the file and the position."""

    text: str


class Source(NamedTuple):
    """One file, or one partition of a running broker."""

    title: str
    read: Callable[[], Iterable[Batch | Damage]]


@click.command(context_settings=HELP)
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--bootstrap-server", "bootstrap", default=None, metavar="HOST:PORT[,...]", help="Read a running broker.")
@click.option(
    "--command-config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Properties file with client settings, as kafka-consumer-groups takes it.",
)
@click.option("--group", default=None, metavar="GROUP", help="Only records about this group.")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="dump",
    show_default=True,
    help="dump: as Kafka's DumpLogSegments prints it; table: a line for each record; json: an object for each.",
)
def offsets_log(
    paths: tuple[Path, ...], bootstrap: str | None, command_config: Path | None, group: str | None, form: str
) -> None:
    """Decodes the records of __consumer_offsets.

    PATHS are segment files, directories of partitions, or a whole data directory, of this package's broker or of Apache
    Kafka; nothing is changed there. What is damaged is named once the rest is printed, and the exit status is then 1.
    """
    if bool(paths) == bool(bootstrap):
        raise click.UsageError("give either PATHS or --bootstrap-server")
    if form == "table":
        click.echo(table_header())
    if bootstrap is None:
        damages = _show(_file_sources(paths), group, form)
    else:
        with open_cluster(bootstrap, command_config) as cluster:
            damages = _show(_live_sources(cluster), group, form)
    if damages:
        for text in damages[:-1]:
            click.echo(f"Error: {text}", err=True)
        raise CorruptRecordError(damages[-1])


def _show(sources: Iterable[Source], group: str | None, form: str) -> list[str]:
    """Prints what is whole; returns what is not, each in a line."""
    damages = []
    for source in sources:
        if form == "dump":
            click.echo(source.title)
        for found in source.read():
            if isinstance(found, Damage):
                damages.append(found.text)
                continue
            where = f"{source.title.splitlines()[0].removeprefix('Dumping ')}: byte {found.position}"
            try:
                told = list(entries(found.partition, found.buffer, found.header))
            except CorruptRecordError as error:
                damages.append(f"{where}: {error}")
                continue
            damages += [f"{where}: offset {each.record.offset}: {each.problem}" for each in told if each.problem]
            _print([each for each in told if group is None or each.group == group], found, form, group is None)
    return damages


def _print(told: list[Entry], batch: Batch, form: str, whole: bool) -> None:
    if form == "dump" and (told or whole):
        click.echo(batch_line(batch.header, batch.position))
    write = {"dump": record_line, "json": json_line, "table": table_row}[form]
    for entry in told:
        click.echo(write(entry))


# --- files ---


def _file_sources(paths: Iterable[Path]) -> list[Source]:
    return [_file_source(path) for given in paths for path in _segment_files(given)]


def _file_source(path: Path) -> Source:
    title = f"Dumping {path}\nLog starting offset: {int(path.stem)}"
    return Source(title, partial(_read_file, path))


def _segment_files(path: Path) -> list[Path]:
    """The segments that a path stands for, in order.

    Raises: ConfigurationError where there are none.
    """
    if path.is_file():
        if path.suffix != ".log" or not path.stem.isdigit():
            raise ConfigurationError(f"{path} is no segment of a log: its name is not NUMBER.log")
        return [path]
    directories = sorted(
        (each for each in path.iterdir() if each.is_dir() and _PARTITION_NAME.fullmatch(each.name)),
        key=lambda each: int(each.name.rpartition("-")[2]),
    )
    found = [
        segment
        for directory in directories or [path]
        for segment in sorted(directory.glob("*.log"))
        if segment.stem.isdigit()
    ]
    if not found:
        raise ConfigurationError(f"{path} holds no segment of {TOPIC}, nor a directory {TOPIC}-N with one")
    return found


def _read_file(path: Path) -> Iterator[Batch | Damage]:
    # the other commands need no broker
    from spark_groupsource.storage.files import FileCache
    from spark_groupsource.storage.segment import Segment, UnreadableBytes

    name = _PARTITION_NAME.fullmatch(path.absolute().parent.name)
    partition = int(name[1]) if name else -1
    files = FileCache(read_only=True)
    segment = Segment(path.parent, int(path.stem), files, 0, contiguous=False)
    try:
        segment.size = path.stat().st_size
        position: int | None = 0
        while position is not None and position < segment.size:
            try:
                for stored in segment.scan(position, segment.size):
                    segment.next_offset = stored.header.next_offset
                    yield Batch(partition, stored.header, stored.buffer, stored.position)
                position = None
            except UnreadableBytes as error:
                behind = segment.next_good_batch(error.position, segment.next_offset)
                position = None if behind is None else behind.position
                lost = segment.size - error.position if behind is None else behind.position - error.position
                yield Damage(f"{path} is damaged at byte {error.position} ({error.reason}): {lost} bytes are left out")
    except (StorageError, OSError) as error:
        yield Damage(f"{path} cannot be read: {error}")
    finally:
        files.close()


# --- a running broker ---


def _live_sources(cluster: Cluster) -> Iterator[Source]:
    """Each partition from its begin to where it ends now, whether or not transactions there are decided.

    Raises: BrokerError.
    """
    try:
        partitions = sorted(cluster.describe_topics([TOPIC], refresh=True)[TOPIC].partitions)
    except BrokerError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        click.echo(f"{TOPIC} does not exist yet: no group has come to this cluster", err=True)
        return
    asked = [TopicPartition(TOPIC, number) for number in partitions]
    starts = cluster.list_offsets({tp: EARLIEST for tp in asked}, read_committed=False)
    ends = cluster.list_offsets({tp: LATEST for tp in asked}, read_committed=False)
    for tp in asked:
        part = OffsetRange(tp, starts[tp].offset, ends[tp].offset)
        if part.start < part.end:
            yield Source(f"Dumping {tp}\nLog starting offset: {part.start}", partial(_fetch, cluster, part))


def _fetch(cluster: Cluster, part: OffsetRange) -> Iterator[Batch | Damage]:
    settings = replace(cluster.settings, isolation_level="read_uncommitted")
    position = part.start
    for block in PartitionFetcher(cluster, settings).fetch_blocks([part]):
        if block.error:
            raise BrokerError(block.error, f"read {part.topic_partition} from offset {position}")
        for header in iter_batches(block.data):
            if header.last_offset < position:
                continue
            try:
                check_crc(block.data, header)
            except CorruptRecordError as error:
                yield Damage(f"{part.topic_partition}: {error}")
                continue
            yield Batch(part.topic_partition.partition, header, block.data, -1)
        position = block.next_offset
