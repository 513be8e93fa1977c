"""The ``groupsource consume`` command."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli.commands import command, invalid_values
from spark_groupsource.cli.common import cluster_options, member_settings, open_cluster
from spark_groupsource.cli.console_serdes import READ_FORMATS, serde
from spark_groupsource.cli.decoded_rows import DecodedRows, GivenSchema, block_decoder, parse_properties
from spark_groupsource.cli.effects import Excludes, Needs, check_effects
from spark_groupsource.cli.progress import Progress
from spark_groupsource.cli.record_lines import Row, Writer, encoded, format_writer, json_writer, value_writer
from spark_groupsource.cli.streams import terminates_as_ctrl_c, wait_while_read
from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.config_def import INT32_MAX, INT64_MAX, parse_duration_ms
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition
from spark_groupsource.monitor.arrival_order import arrival_indexes
from spark_groupsource.monitor.near_names import suggests_topics
from spark_groupsource.monitor.offsets.offset_reset import datetime_ms
from spark_groupsource.records.columns.arrow import decode_fetched

_COLUMNS = ("topic", "key", "value", "partition", "offset", "timestamp", "headers")
_POLL_S = 0.2
_JOIN_MS = 1_000
# offsets of a partition that a member reads before it commits and polls
_ROUND_OFFSETS = 10_000
# a partition with few records for its offsets is read backwards in growing spans
_SPAN_GROWTH = 4

# positions of --from and --until
_EARLIEST, _LATEST = ("earliest", "beginning"), ("latest", "end")
_NUMBER = re.compile(r"-?\d+")
# decoded by block
_BLOCK_FORMATS = ("avro", "protobuf")
_TEXT = serde("--value-format", "text", None)

_OTHER_FORMATS = tuple(name for name in READ_FORMATS if name not in _BLOCK_FORMATS)
EFFECTS: tuple[Excludes | Needs, ...] = (
    Excludes("--last", "--from"),
    Excludes("--last", "--until"),
    Excludes("--last", "--follow"),
    Excludes("--last", "--group"),
    Excludes("--partition", "--group"),
    Excludes("--until", "--group"),
    Excludes("--until", "--follow"),
    *(
        Excludes(option, other)
        for other in ("--json", "--format")
        for option in ("--show", "--key-separator", "--null-marker")
    ),
    Excludes("--json", "--format"),
    Excludes("--key-separator", "--show"),
    Needs("--key-format", ("--show", "--json", "--format", "--key-separator")),
    Excludes("--schema", "--value-format", _OTHER_FORMATS),
    Needs("--key-schema", ("--key-format avro|protobuf",)),
    Needs("--message", ("--value-format protobuf",)),
    Needs("--message", ("--schema",)),
    Needs("--key-message", ("--key-format protobuf",)),
    Needs("--key-message", ("--key-schema",)),
    Needs("--schema-header", ("--schema", "--key-schema")),
    *(
        Needs(option, ("--schema", "--value-format avro|protobuf", "--key-format avro|protobuf"))
        for option in ("--property", "--formatter-config")
    ),
)

Positions = dict[TopicPartition, int]


@command()
@cluster_options
@click.option("--topic", required=True, metavar="TOPIC", help="Topic; it must exist.")
@click.option(
    "--partition",
    "numbers",
    type=click.IntRange(0, INT32_MAX),
    multiple=True,
    help="Default: all; may be repeated.",
)
@click.option(
    "--from",
    "begin",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|-N|-TIME|TIME",
    help="First record: an offset; -N, N records before the log end offset of each partition; -10m, a time back (ms, "
    "s, m, h, d); or a time such as 2026-01-31T10:00:00 (UTC without a zone). With --group, for partitions without a "
    "committed offset. Also kcat's beginning, end and s@MS.",
)
@click.option(
    "--until",
    metavar="OFFSET|-N|-TIME|TIME",
    help="End before this record, in the forms of --from. Default: the log end offsets.",
)
@click.option(
    "--last",
    type=click.IntRange(1, INT64_MAX),
    metavar="N",
    help="The last N records of all partitions, by time, those of equal time by arrival.",
)
@click.option(
    "--max-messages", type=click.IntRange(1, INT64_MAX), help="Default: all records up to the log end offsets."
)
@click.option("--follow", is_flag=True, help="Wait for further records at the end, until Ctrl-C.")
@click.option("--group", metavar="GROUP", help="Join this group, start at its committed offsets and commit.")
@click.option("--show", is_flag=True, help="Print timestamp, partition, offset and key before each value.")
@click.option("--json", "as_json", is_flag=True, help="Print an object per record, with headers.")
@click.option(
    "--format",
    "template",
    metavar="TEXT",
    help="Format string of kcat: %s value, %k key, %t topic, %p partition, %o offset, %T timestamp, %h headers, %S and "
    "%K lengths, %R length as int32; \\n is a line end.",
)
@click.option("--key-separator", metavar="TEXT", help="Print the key and this text before each value.")
@click.option("--null-marker", metavar="TEXT", default="", help="Text for null. Default: empty.")
@click.option(
    "--key-format", type=click.Choice(READ_FORMATS), default="text", show_default=True, help="Format of keys."
)
@click.option(
    "--value-format", type=click.Choice(READ_FORMATS), help="Format of values. Default: avro with --schema, else text."
)
@click.option(
    "--schema",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Schema of the values: Avro as JSON; for protobuf a .proto file or a descriptor set of protoc.",
)
@click.option("--key-schema", type=click.Path(dir_okay=False, path_type=Path), help="Schema of the keys.")
@click.option("--message", metavar="NAME", help="Protobuf message of the values. Default: the first one of the schema.")
@click.option("--key-message", metavar="NAME", help="Protobuf message of the keys.")
@click.option("--schema-header", is_flag=True, help="Skip the header of a schema registry before each datum.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of a schema registry, for avro and protobuf: schema.registry.url, basic.auth.user.info and others "
    "of the source without key. and value.; may be repeated. Without --schema, records are printed as they were "
    "written.",
)
@click.option(
    "--formatter-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with properties as of --property.",
)
def consume(bootstrap: str, command_config: Path | None, **given: Any) -> None:
    """Prints the values of the records of a topic, one per line.

    Ends at the log end offsets of its start. Without --group, joins no group and commits nothing.
    """
    check_effects(click.get_current_context(), EFFECTS)
    options = _ConsumeOptions(**given)
    options.check()
    write, rows = _writer(options), options.rows()
    member = None if options.group is None else member_settings(command_config, options.group, options.topic)
    with open_cluster(bootstrap, command_config) as cluster:
        printed: Positions = {}
        records = _records(cluster, options, member, rows, printed)
        is_live = options.follow or member is not None
        try:
            with terminates_as_ctrl_c(is_live):
                _print(islice(records, options.max_messages), write, printed, is_flushed=is_live)
        except KeyboardInterrupt:
            if not options.follow:
                raise
        finally:
            # a member commits what was printed and leaves
            records.close()


@dataclass(frozen=True)
class _ConsumeOptions:
    """The options of the command."""

    topic: str
    numbers: tuple[int, ...]
    begin: str
    until: str | None
    last: int | None
    max_messages: int | None
    follow: bool
    group: str | None
    show: bool
    as_json: bool
    template: str | None
    key_separator: str | None
    null_marker: str
    key_format: str
    value_format: str | None
    schema: Path | None
    key_schema: Path | None
    message: str | None
    key_message: str | None
    schema_header: bool
    properties: tuple[str, ...]
    formatter_config: Path | None

    def check(self) -> None:
        """Raises: InvalidValueError for an invalid position; click.UsageError for format raw with --json."""
        if self.as_json and "raw" in (self.key_format, self.value_format):
            raise click.UsageError("Format raw is not for --json, which has bytes as base64.")
        # the other tokens print lengths of bytes
        formats = (("--key-format", self.key_format, "%k"), ("--value-format", self.value_format, "%s"))
        for option, name, token in formats:
            is_printed = self.template is None or token in self.template.replace("%%", "")
            if not is_printed and name not in (None, "text"):
                raise click.UsageError(f"Option {option} has no effect with --format without {token}.")
        # before a broker is connected, and also if a group has committed offsets
        for option, text in (("--from", self.begin), ("--until", self.until)):
            if text is not None and text not in (*_EARLIEST, *_LATEST) and not _NUMBER.fullmatch(text):
                with invalid_values():
                    _timestamp_ms(0, text, option)

    @property
    def formats(self) -> dict[str, str]:
        """Column -> format."""
        return {"key": self.key_format, "value": self.value_format or ("avro" if self.schema else "text")}

    def rows(self) -> DecodedRows:
        """Returns how records become rows; columns that are not needed would cost as much as the value.

        Raises: ConfigurationError for an invalid schema or property.
        """
        is_plain = not (self.show or self.as_json or self.template is not None or self.key_separator is not None)
        # a member commits offsets, and the last records are sorted
        is_plain = is_plain and self.group is None and self.last is None
        properties = parse_properties(self.properties, self.formatter_config)
        schemas = {
            "key": GivenSchema(self.key_schema, self.key_message, self.schema_header),
            "value": GivenSchema(self.schema, self.message, self.schema_header),
        }
        decoders = {
            column: block_decoder(column, name, schemas[column], properties)
            for column, name in self.formats.items()
            if name in _BLOCK_FORMATS
        }
        return DecodedRows(_COLUMNS if decoders or not is_plain else ("value",), decoders, self.formats)


def _writer(options: _ConsumeOptions) -> Writer:
    key, value = (
        _TEXT if name in _BLOCK_FORMATS else serde(f"--{column}-format", name, None)
        for column, name in options.formats.items()
    )
    if options.template is not None:
        with invalid_values():
            return format_writer(options.template, value, key)
    if options.as_json:
        return json_writer(value, key)
    return value_writer(value, key, options.show, options.null_marker, options.key_separator)


def _records(
    cluster: ClusterClient,
    options: _ConsumeOptions,
    member: GroupSettings | None,
    rows: DecodedRows,
    printed: Positions,
) -> Generator[Row, None, None]:
    """Returns the chosen records; a member commits the offsets in `printed`.

    Raises: ConfigurationError, BrokerError, NetworkError.
    """
    with suggests_topics(cluster, [options.topic]):
        info = cluster.describe_topics([options.topic])[options.topic]
    unknown = sorted(set(options.numbers) - set(info.partitions))
    if unknown:
        raise ConfigurationError(f"Option --partition must be a partition of topic {options.topic}, got {unknown[0]}.")
    partitions = [TopicPartition(options.topic, number) for number in sorted(options.numbers or info.partitions)]
    if member is not None:
        return _read_as_member(cluster, member, options.begin, options.follow, rows, printed)
    if options.last is not None:
        return _read_last(cluster, partitions, options.last, rows)
    ends = None if options.until is None else start_positions(cluster, partitions, options.until, "--until")
    starts = start_positions(cluster, partitions, options.begin)
    return _read_all(cluster, starts, options.follow, rows, ends)


def _print(records: Iterator[Row], write: Writer, printed: Positions, is_flushed: bool) -> None:
    """Prints records; `printed` gets the next offset of each partition, if the records have offsets.

    Args:
        is_flushed: whether each record is visible, and may be committed, at once.
    """
    # bytes: a value need not be text
    out = sys.stdout.buffer
    with Progress("records read", is_shown=not sys.stdout.isatty()) as progress:
        for count, record in enumerate(records, 1):
            out.write(encoded(write(record)))
            if is_flushed:
                out.flush()
            if "offset" in record:
                printed[TopicPartition(record["topic"], record["partition"])] = record["offset"] + 1
            if not count % 1_000:
                progress.update(count)
        out.flush()


def start_positions(
    cluster: ClusterClient, partitions: list[TopicPartition], begin: str, option: str = "--from"
) -> Positions:
    """Returns the offsets of ``--from`` or ``--until``; one outside the log is moved to its nearest end.

    Raises: ConfigurationError, BrokerError, NetworkError.
    """
    starts = _offsets(cluster, partitions, EARLIEST)
    ends = _offsets(cluster, partitions, LATEST)
    if begin in _EARLIEST:
        return starts
    if begin in _LATEST:
        return ends
    if _NUMBER.fullmatch(begin):
        requested = {tp: int(begin) + (ends[tp] if begin.startswith("-") else 0) for tp in partitions}
        return {tp: min(max(requested[tp], starts[tp]), ends[tp]) for tp in partitions}
    found = _offsets(cluster, partitions, _timestamp_ms(cluster.clock.timestamp_ms(), begin, option))
    return {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}


def _timestamp_ms(now_ms: int, begin: str, option: str) -> int:
    if re.fullmatch(r"s@\d{1,18}", begin):
        return int(begin[2:])
    back_ms = parse_duration_ms(begin[1:]) if begin.startswith("-") else None
    if back_ms is not None:
        return max(0, now_ms - back_ms)
    try:
        # brokers give negative timestamps other meanings
        return max(0, datetime_ms(datetime.fromisoformat(begin.replace("Z", "+00:00"))))
    except ValueError:
        raise ConfigurationError(
            f"Option {option} must be earliest, an offset or -N, got {begin!r}. Also allowed are latest, a time back "
            "such as -10m and a time such as 2026-01-31T10:00:00."
        ) from None


def _offsets(cluster: ClusterClient, partitions: list[TopicPartition], timestamp: int) -> Positions:
    return {tp: found.offset for tp, found in cluster.list_offsets(dict.fromkeys(partitions, timestamp)).items()}


def _read_all(
    cluster: ClusterClient,
    positions: Positions,
    follow: bool,
    rows: DecodedRows,
    until: Positions | None = None,
) -> Generator[Row, None, None]:
    """Yields the records from the positions to `until` (None: the log end offsets), one partition after the other."""
    while True:
        ends = until or _offsets(cluster, list(positions), LATEST)
        for tp in sorted(positions):
            if positions[tp] < ends[tp]:
                yield from _read(cluster, OffsetRange(tp, positions[tp], ends[tp]), rows)
        if not follow:
            return
        if all(positions[tp] >= ends[tp] for tp in positions):
            wait_while_read(_POLL_S)
        positions = {tp: max(positions[tp], ends[tp]) for tp in positions}


def _read_last(
    cluster: ClusterClient, partitions: list[TopicPartition], count: int, rows: DecodedRows
) -> Generator[Row, None, None]:
    """Yields the last records of all partitions, sorted by timestamp, those of equal timestamps by arrival."""
    kept: list[tuple[tuple[int, int, int, int], Row]] = []
    starts, ends = _offsets(cluster, partitions, EARLIEST), _offsets(cluster, partitions, LATEST)
    for tp in partitions:
        found = _tail(cluster, tp, starts[tp], ends[tp], count, rows)
        timestamps = [-1 if row["timestamp"] is None else row["timestamp"] for row in found]
        earlier = 0
        if len(partitions) > 1 and found and starts[tp] < found[0]["offset"] and timestamps[0] >= 0:
            earlier = max(0, found[0]["offset"] - _offsets(cluster, [tp], timestamps[0])[tp])
        indexes = arrival_indexes(timestamps, earlier)
        kept += [
            ((timestamp, index, tp.partition, row["offset"]), row)
            for timestamp, index, row in zip(timestamps, indexes, found)
        ]
        kept = sorted(kept, key=lambda entry: entry[0])[-count:]
    yield from (row for _, row in kept)


def _tail(cluster: ClusterClient, tp: TopicPartition, start: int, end: int, count: int, rows: DecodedRows) -> list[Row]:
    """Returns the last records of a partition; offsets without a record, as compaction leaves them, do not count."""
    found: list[Row] = []
    span = count
    while len(found) < count and start < end:
        begin = max(start, end - span)
        found = [*deque(_read(cluster, OffsetRange(tp, begin, end), rows), maxlen=count - len(found)), *found]
        end, span = begin, span * _SPAN_GROWTH
    return found


def _read_as_member(
    cluster: ClusterClient, settings: GroupSettings, begin: str, follow: bool, rows: DecodedRows, printed: Positions
) -> Generator[Row, None, None]:
    """Yields the records of the partitions that the group assigns; commits those in `printed`.

    Ends at the log end offsets, unless `follow`.
    """
    positions: Positions = {}
    with GroupClient(cluster, settings) as group:
        while True:
            view = group.poll(_JOIN_MS)
            if not view.is_stable:
                continue
            owned = sorted(view.partitions)
            positions = _owned_positions(cluster, group, owned, positions, begin)
            ends = _offsets(cluster, owned, LATEST) if owned else {}
            try:
                for tp in owned:
                    end = min(ends[tp], positions[tp] + _ROUND_OFFSETS)
                    if positions[tp] < end:
                        yield from _read(cluster, OffsetRange(tp, positions[tp], end), rows)
                    # also past records that are not delivered, control records for example
                    positions[tp] = max(positions[tp], end)
            finally:
                reached = {tp: max(offset, printed.get(tp, 0)) for tp, offset in positions.items()}
                group.commit({tp: OffsetAndMetadata(offset) for tp, offset in reached.items()})
            is_at_end = all(positions[tp] >= ends[tp] for tp in owned)
            if is_at_end and not follow:
                return
            if is_at_end:
                wait_while_read(_POLL_S)


def _owned_positions(
    cluster: ClusterClient, group: GroupClient, owned: list[TopicPartition], positions: Positions, begin: str
) -> Positions:
    new = [tp for tp in owned if tp not in positions]
    committed = {tp: c.offset for tp, c in group.committed(new).items() if c is not None} if new else {}
    initial = [tp for tp in new if tp not in committed]
    known = {tp: offset for tp, offset in positions.items() if tp in owned}
    return known | committed | (start_positions(cluster, initial, begin) if initial else {})


def _read(cluster: ClusterClient, part: OffsetRange, rows: DecodedRows) -> Iterator[dict[str, Any]]:
    """Yields the records of one range, each as a mapping of column names to values."""
    tp, position = part.topic_partition, part.start
    for block in PartitionFetcher(cluster).fetch_blocks([part]):
        if block.error:
            raise BrokerError(block.error, f"Reading {tp} from offset {position}")
        decoded = decode_fetched(
            block.data,
            topic_partition=tp,
            columns=rows.columns,
            start_offset=position,
            end_offset=part.end,
            read_committed=cluster.settings.read_committed,
            aborted=block.aborted,
        )
        for batch in decoded.batches:
            yield from rows.of(batch)
        position = block.next_offset
