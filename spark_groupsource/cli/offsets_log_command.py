"""The ``groupsource offsets-log`` command: decodes `__consumer_offsets` of files or a broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.cli.common import open_cluster
from spark_groupsource.cli.effects import Excludes, Needs, check_effects
from spark_groupsource.cli.offsets_log_formats import (
    batch_line,
    json_line,
    record_line,
    table_header,
    table_row,
)
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import ConfigurationError, CorruptRecordError, GroupSourceError, StorageError
from spark_groupsource.monitor.near_names import suggestion
from spark_groupsource.monitor.offsets.offsets_log import (
    Batch,
    Corruption,
    Entry,
    entries,
    fetch_batches,
    log_partitions,
    log_ranges,
)
from spark_groupsource.wire.group_records import OFFSETS_TOPIC

_PARTITION_NAME = re.compile(rf"{OFFSETS_TOPIC}-(\d+)")
_FORMATS = ("dump", "table", "json")


class Source(NamedTuple):
    """One segment file, or one partition of a running broker."""

    title: str
    read: Callable[[], Iterable[Batch | Corruption]]


@command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--bootstrap-server", "bootstrap", default=None, metavar="HOST:PORT[,...]", help="Read from a cluster.")
@click.option(
    "--command-config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Properties file with client settings, as for kafka-consumer-groups.",
)
@click.option("--group", default=None, metavar="GROUP", help="Show only the records of this group.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    default="dump",
    show_default=True,
    help="dump: the output of Kafka's DumpLogSegments; table: one line per record; json: one object per record.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def offsets_log(
    paths: tuple[Path, ...],
    bootstrap: str | None,
    command_config: Path | None,
    group: str | None,
    output_format: str,
    as_json: bool,
) -> None:
    """Decodes the records of __consumer_offsets.

    PATHS are segment files, partition directories or a data directory of the embedded broker or of Apache Kafka. Files
    are only read. Corrupt batches and records are reported after the output, and the exit status is then 1.
    """
    if bool(paths) == bool(bootstrap):
        raise click.UsageError("Give either PATHS or --bootstrap-server.")
    check_effects(
        click.get_current_context(),
        (Needs("--command-config", ("--bootstrap-server",)), Excludes("--json", "--format", ("dump", "table"))),
    )
    if as_json:
        output_format = "json"
    if output_format == "table":
        click.echo(table_header())
    groups: set[str] = set()
    if bootstrap is None:
        corruptions = _show(_file_sources(paths), group, output_format, groups)
    else:
        with open_cluster(bootstrap, command_config) as cluster:
            corruptions = _show(_live_sources(cluster), group, output_format, groups)
    if corruptions:
        for text in corruptions[:-1]:
            click.echo(f"Error: {text}", err=True)
        raise CorruptRecordError(corruptions[-1])
    if group is not None and group not in groups:
        near = suggestion(group, groups)
        raise GroupSourceError(f"Consumer group {group!r} has no record in {OFFSETS_TOPIC}. {near}".rstrip())


def _show(sources: Iterable[Source], group: str | None, output_format: str, groups: set[str]) -> list[str]:
    """Prints the valid records; returns one line per corruption. Adds the groups that have records to `groups`."""
    corruptions = []
    for source in sources:
        if output_format == "dump":
            click.echo(source.title)
        for found in source.read():
            if isinstance(found, Corruption):
                corruptions.append(found.text)
                continue
            location = f"{source.title.splitlines()[0].removeprefix('Dumping ')}: byte {found.position}"
            try:
                decoded = list(entries(found.partition, found.buffer, found.header))
            except CorruptRecordError as error:
                corruptions.append(f"{location}: {error}")
                continue
            corruptions += [f"{location}: offset {e.record.offset}: {e.problem}" for e in decoded if e.problem]
            groups.update(entry.group for entry in decoded if entry.group is not None)
            shown = [entry for entry in decoded if group is None or entry.group == group]
            _print(shown, found, output_format, with_empty=group is None)
    return corruptions


def _print(shown: list[Entry], batch: Batch, output_format: str, with_empty: bool) -> None:
    if output_format == "dump" and (shown or with_empty):
        click.echo(batch_line(batch.header, batch.position))
    write = {"dump": record_line, "json": json_line, "table": table_row}[output_format]
    for entry in shown:
        click.echo(write(entry))


# --- files ---


def _file_sources(paths: Iterable[Path]) -> list[Source]:
    return [_file_source(path) for given in paths for path in _segment_files(given)]


def _file_source(path: Path) -> Source:
    title = f"Dumping {path}\nLog starting offset: {int(path.stem)}"
    return Source(title, partial(_read_file, path))


def _segment_files(path: Path) -> list[Path]:
    """Returns the segment files of a path, in order.

    Raises: ConfigurationError if there are none.
    """
    if path.is_file():
        if path.suffix != ".log" or not path.stem.isdigit():
            raise ConfigurationError(f"{path} is not a log segment: the name is not OFFSET.log. Give a segment file.")
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
        raise ConfigurationError(
            f"{path} contains no segment of {OFFSETS_TOPIC} and no directory {OFFSETS_TOPIC}-N. "
            "Give a data directory or a partition directory."
        )
    return found


def _read_file(path: Path) -> Iterator[Batch | Corruption]:
    # imported here: reading from a cluster does not need the storage package
    from spark_groupsource.broker.storage.files import FileCache
    from spark_groupsource.broker.storage.segment import LogSegment
    from spark_groupsource.broker.storage.segment_scan import InvalidBatchError

    name = _PARTITION_NAME.fullmatch(path.absolute().parent.name)
    partition = int(name[1]) if name else -1
    files = FileCache(read_only=True)
    segment = LogSegment(path.parent, int(path.stem), files, 0, is_contiguous=False)
    try:
        segment.size = path.stat().st_size
        position: int | None = 0
        while position is not None and position < segment.size:
            try:
                for stored in segment.scan(position, segment.size):
                    segment.next_offset = stored.header.next_offset
                    yield Batch(partition, stored.header, stored.buffer, stored.position)
                position = None
            except InvalidBatchError as error:
                next_batch = segment.next_valid_batch(error.position, segment.next_offset)
                position = None if next_batch is None else next_batch.position
                end = segment.size if next_batch is None else next_batch.position
                skipped = f"{end - error.position} bytes are skipped."
                yield Corruption(f"{path} is corrupt at byte {error.position} ({error.reason}): {skipped}")
    except (StorageError, OSError) as error:
        yield Corruption(f"Cannot read {path}: {error}")
    finally:
        files.close()


# --- a running cluster ---


def _live_sources(cluster: ClusterClient) -> Iterator[Source]:
    """Yields each partition from its log start offset to its current log end offset, open transactions included.

    Raises: BrokerError.
    """
    partitions = log_partitions(cluster)
    if not partitions:
        click.echo(f"{OFFSETS_TOPIC} does not exist: no group has used this cluster yet.", err=True)
    for part in log_ranges(cluster, partitions):
        yield Source(
            f"Dumping {part.topic_partition}\nLog starting offset: {part.start}", partial(fetch_batches, cluster, part)
        )
