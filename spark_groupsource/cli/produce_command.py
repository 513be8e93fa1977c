"""The ``groupsource produce`` command."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from spark_groupsource.cli.commands import InvalidValueError, command, invalid_values
from spark_groupsource.cli.common import cluster_options, open_cluster
from spark_groupsource.cli.console_serdes import FORMATS, Serde, serde
from spark_groupsource.cli.effects import Excludes, Needs, check_effects
from spark_groupsource.cli.input_blocks import BLOCK_BYTES, LineForm, blocks_of, columns_of, lines_of, plain_form
from spark_groupsource.cli.progress import Progress
from spark_groupsource.cli.record_lines import unescaped
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import MAX_BATCH_BYTES, BatchProducer
from spark_groupsource.common.config_def import INT32_MAX, INT64_MAX, closest
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.monitor.near_names import suggests_topics
from spark_groupsource.records.compression import CODECS, codec_number
from spark_groupsource.records.encode import Record

if TYPE_CHECKING:
    import pyarrow as pa

_BUFFER_BYTES = 16 << 20
_JSON_FIELDS = ("key", "value", "headers", "partition", "timestamp")
# fields of consume --json that the broker decides
_SKIPPED_FIELDS = ("topic", "offset")
EFFECTS = (
    Excludes("--key-separator", "--json"),
    Excludes("--null-marker", "--json"),
    Excludes("--key-separator", "--key"),
    Needs("--key-format", ("--key-separator", "--key", "--json")),
    Excludes("--schema", "--value-format", tuple(name for name in FORMATS if name != "avro")),
    Needs("--key-schema", ("--key-format avro",)),
    Needs("--schema-id", ("--schema",)),
)

Headers = tuple[tuple[str, "bytes | None"], ...]
_Parse = Callable[[bytes], "_Line"]
# formats whose lines are the bytes of the record
_PLAIN_FORMATS = frozenset({"text", "raw"})


class _Line(NamedTuple):
    """One record to write; `partition` is None where the key decides, `timestamp_ms` for the present time."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None


class _Lines(NamedTuple):
    """How the input becomes records; `form` is None for lines that only `parse` converts."""

    delimiter: bytes
    parse: _Parse
    form: LineForm | None


@command()
@cluster_options
@click.option("--topic", required=True, metavar="TOPIC", help="Topic; it must exist.")
@click.option(
    "--partition",
    type=click.IntRange(0, INT32_MAX),
    help="Default: by hash of the key; round-robin without a key.",
)
@click.option("--key-separator", metavar="TEXT", help="Text between key and value. Default: no keys.")
@click.option("--key", "fixed_key", metavar="TEXT", help="Key of every record.")
@click.option(
    "--delimiter", default=r"\n", show_default=True, metavar="TEXT", help=r"End of a record, with escapes such as \0."
)
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Header of each record; may be repeated.")
@click.option("--null-marker", metavar="TEXT", help="Text that means null; a null value is a tombstone.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='Each line is an object as consume --json prints it: {"key": ..., "value": ..., "headers": [[NAME, TEXT]], '
    '"partition": N, "timestamp": MS}; each field may be absent.',
)
@click.option("--key-format", type=click.Choice(FORMATS), default="text", show_default=True, help="Format of keys.")
@click.option(
    "--value-format", type=click.Choice(FORMATS), help="Format of values. Default: avro with --schema, else text."
)
@click.option("--schema", type=click.Path(dir_okay=False, path_type=Path), help="Avro schema of the values, as JSON.")
@click.option("--key-schema", type=click.Path(dir_okay=False, path_type=Path), help="Avro schema of the keys.")
@click.option(
    "--schema-id",
    type=click.IntRange(0, INT32_MAX),
    help="Id in a schema registry, written before each Avro value.",
)
@click.option(
    "--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Codec of the record batches."
)
def produce(bootstrap: str, command_config: Path | None, **given: Any) -> None:
    """Writes each line of standard input as one record; keys map to partitions as in Kafka's Java producer.

    Lines are written as they arrive. An invalid line ends the command: the lines before it are written.
    """
    check_effects(click.get_current_context(), EFFECTS)
    options = _ProduceOptions(**given)
    topic, lines, codec = options.topic, _lines_of(options), codec_number(options.compression)
    with open_cluster(bootstrap, command_config) as cluster:
        try:
            count = _write(cluster, topic, options.partition, _standard_input(), lines, codec)
        except BrokerError as error:
            raise _with_permission(error, topic) from error
    click.echo(f"{count} records written to {topic}", err=True)


@dataclass(frozen=True)
class _ProduceOptions:
    """The options of the command."""

    topic: str
    partition: int | None
    key_separator: str | None
    fixed_key: str | None
    delimiter: str
    headers: tuple[str, ...]
    null_marker: str | None
    as_json: bool
    key_format: str
    value_format: str | None
    schema: Path | None
    key_schema: Path | None
    schema_id: int | None
    compression: str


def _lines_of(options: _ProduceOptions) -> _Lines:
    """Returns how the options divide and convert the input. Raises: InvalidValueError, ConfigurationError."""
    separator, fixed_key = options.key_separator, options.fixed_key
    value_format = options.value_format or ("avro" if options.schema else "text")
    key_serde = serde("--key-format", options.key_format, options.key_schema)
    value_serde = serde("--value-format", value_format, options.schema, options.schema_id)
    with invalid_values():
        fixed = _headers(options.headers)
    null = None if options.null_marker is None else options.null_marker.encode()

    def parse(line: bytes) -> _Line:
        if options.as_json:
            return _parse_object(line, key_serde, value_serde, fixed, fixed_key)
        key, value = _key_and_value(line, separator)
        key = fixed_key.encode() if key is None and fixed_key is not None else key
        encoded = [
            None if text is None or text == null else each.encode(text)
            for text, each in ((key, key_serde), (value, value_serde))
        ]
        return _Line(encoded[0], encoded[1], fixed)

    end = unescaped(options.delimiter).encode()
    if not end:
        raise InvalidValueError("Option --delimiter must not be empty.")
    is_changed = options.as_json or fixed_key is not None or null is not None or bool(fixed)
    is_plain = not is_changed and {options.key_format, value_format} <= _PLAIN_FORMATS
    return _Lines(end, parse, plain_form(end, separator) if is_plain else None)


def _with_permission(error: BrokerError, topic: str) -> BrokerError:
    """Returns an error that names the permission to write, if one is missing, else `error`."""
    acl = f"(kafka-acls --add --allow-principal User:NAME --operation WRITE --topic {topic})"
    hints: dict[int, str] = {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: f"Grant the user WRITE on the topic, which contains DESCRIBE {acl}.",
        # InitProducerId: Kafka accepts WRITE on any topic since 2.8
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
            f"Grant the user WRITE on topic {topic} {acl}; brokers before 2.8 require IDEMPOTENT_WRITE on the cluster, "
            "too."
        ),
    }
    return BrokerError(error.code, error.operation, hints[error.code]) if error.code in hints else error


def _write(
    cluster: ClusterClient, topic: str, partition: int | None, stream: BinaryIO, lines: _Lines, codec: int
) -> int:
    """Writes each block of lines; returns their number.

    Raises: ConfigurationError for an invalid line, after the lines before it have been written.
    """
    with suggests_topics(cluster, [topic]):
        count = len(cluster.describe_topics([topic])[topic].partitions)
    if partition is not None and partition >= count:
        raise ConfigurationError(
            f"Option --partition must be between 0 and {count - 1} for topic {topic}, got {partition}."
        )
    writer = _Writer(cluster, topic, partition, count, codec)
    with Progress("records written") as progress:
        for block in blocks_of(stream, lines.delimiter):
            columns = lines.form and columns_of(block, lines.form)
            if columns:
                writer.write(columns)
            else:
                writer.write_lines(block, lines)
            progress.update(writer.written)
    return writer.written


class _Writer:
    """Writes records to a topic; `written` is their number.

    Args:
        partition: of records that name none; None for that of the key.
    """

    def __init__(self, cluster: ClusterClient, topic: str, partition: int | None, count: int, codec: int) -> None:
        # other commands do not need PyArrow, whose import takes 100 ms
        from spark_groupsource.records.columns.batch_encoder import BatchEncoder, TopicPartitions

        self._topic, self._partition, self._count = topic, partition, count
        self._clock, self._producer = cluster.clock, BatchProducer(cluster)
        self._encoder = BatchEncoder(
            lambda *_: TopicPartitions(count),
            topic=topic,
            codec=codec,
            batch_bytes=MAX_BATCH_BYTES,
            buffer_bytes=_BUFFER_BYTES,
            timestamp_ms=cluster.clock.timestamp_ms,
            sticky_bytes=0,
        )
        self.written = 0

    def write(self, columns: pa.RecordBatch) -> None:
        """Writes records and waits until they are acknowledged. Raises: BrokerError, NetworkError."""
        from spark_groupsource.records.columns.record_lists import with_partition

        if self._partition is not None and "partition" not in columns.schema.names:
            columns = with_partition(columns, self._partition)
        self._producer.send(chain(self._encoder.add(columns), self._encoder.finish()))
        self.written += columns.num_rows

    def write_lines(self, block: bytes, lines: _Lines) -> None:
        """Writes a block line by line. Raises: ConfigurationError for an invalid line; as `write`."""
        from spark_groupsource.records.columns.record_lists import record_columns

        timestamp_ms = self._clock.timestamp_ms()
        records, partitions, invalid = [], [], None
        for text in lines_of(block, lines.delimiter):
            try:
                line = lines.parse(text)
                partitions.append(self._chosen(line))
            except ConfigurationError as error:
                invalid = error
                break
            record_ms = timestamp_ms if line.timestamp_ms is None else line.timestamp_ms
            records.append(Record(line.key, line.value, record_ms, line.headers))
        if records:
            self.write(record_columns(records, partitions))
        if invalid is not None:
            raise ConfigurationError(
                f"Line {self.written + 1} of the input is invalid: {invalid} The {self.written} lines before it are "
                "written."
            ) from invalid

    def _chosen(self, line: _Line) -> int | None:
        """Returns the partition that a line names. Raises: ConfigurationError for one that does not exist."""
        if self._partition is not None or line.partition is None:
            return self._partition
        if line.partition >= self._count:
            raise ConfigurationError(
                f"Field partition must be between 0 and {self._count - 1} for topic {self._topic}, got "
                f"{line.partition}."
            )
        return line.partition


def _parse_object(line: bytes, key_serde: Serde, value_serde: Serde, fixed: Headers, fixed_key: str | None) -> _Line:
    """Parses a line of ``--json``. Raises: ConfigurationError."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"it is of type {type(found).__name__}")
        unknown = next((name for name in found if name not in (*_JSON_FIELDS, *_SKIPPED_FIELDS)), None)
        if unknown is not None:
            near = closest(unknown, _JSON_FIELDS)
            raise ValueError(f"field {unknown!r} is unknown{f', did you mean {near!r}' if near else ''}")
        key = found.get("key", fixed_key)
        value, partition, timestamp_ms = found.get("value"), found.get("partition"), found.get("timestamp")
        headers = tuple((str(name), _header_value(text)) for name, text in _pairs(found.get("headers")))
        for number in (partition, timestamp_ms):
            if number is not None and (type(number) is not int or not 0 <= number <= INT64_MAX):
                raise ValueError(f"{number!r} is not a number from 0")
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"Each line must be a JSON object with the fields {', '.join(_JSON_FIELDS)}, got {line[:60]!r}: {error}."
        ) from error
    return _Line(
        None if key is None else key_serde.encode(key),
        None if value is None else value_serde.encode(value),
        fixed + headers,
        partition,
        timestamp_ms,
    )


def _pairs(headers: Any) -> Iterator[Any]:
    """Yields the headers of an object or of an array of pairs."""
    return iter(headers.items() if isinstance(headers, dict) else headers or ())


def _header_value(value: Any) -> bytes | None:
    return None if value is None else serde("headers", "text", None).encode(value)


def _headers(texts: tuple[str, ...]) -> Headers:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"Option --header must be NAME=TEXT, got {text!r}.")
        found.append((name, value.encode()))
    return tuple(found)


def _key_and_value(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        shown = line[:60].decode("utf-8", "backslashreplace")
        raise ConfigurationError(f"Option --key-separator must occur in each line, got {shown!r}.")
    return key, value


def _standard_input() -> BinaryIO:
    with suppress(OSError, AttributeError, ValueError):
        # a pipe of Linux contains 64 KiB at first; larger blocks are cheaper
        fcntl.fcntl(sys.stdin.fileno(), fcntl.F_SETPIPE_SZ, BLOCK_BYTES)
    return sys.stdin.buffer
