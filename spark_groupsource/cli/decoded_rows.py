"""Rows of consumed records, with Avro and Protobuf decoded by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa

from spark_groupsource.cli.common import key_values, read_properties
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.value_options import registry_format
from spark_groupsource.values.decoded import Malformed
from spark_groupsource.values.format_options import CONFLUENT, PROTOBUF, parse_schema_text
from spark_groupsource.values.plain_values import PlainDecoder, descriptors, plain_decoder
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.python_values import python_rows
from spark_groupsource.values.schema_text import decoded_text

_HEADERS, _TIMESTAMP = "headers", "timestamp"


class DecodedRows(NamedTuple):
    """How batches become rows, with their timestamps in epoch ms.

    Attributes:
        columns: columns of the batches.
        formats: column -> format, for messages.
        decoders: column -> decoder; the decoded value is in the row as ``key_decoded`` or ``value_decoded``.
    """

    columns: Sequence[str]
    decoders: Mapping[str, PlainDecoder] = {}
    formats: Mapping[str, str] = {}

    def of(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Yields the rows of a batch. Raises: ConfigurationError for a malformed value."""
        rows = python_rows(batch)
        if _TIMESTAMP in batch.schema.names:
            for row, timestamp_us in zip(rows, batch.column(_TIMESTAMP).cast(pa.int64()).to_pylist()):
                row[_TIMESTAMP] = None if timestamp_us is None else timestamp_us // 1000
        headers = batch.column(_HEADERS) if _HEADERS in batch.schema.names else None
        for column, decode in self.decoders.items():
            for row, value in zip(rows, decode(batch.column(column), headers)):
                row[f"{column}_decoded"] = value
        for row in rows:
            for column in self.decoders:
                if isinstance(row[f"{column}_decoded"], Malformed):
                    raise ConfigurationError(
                        f"Option --{column}-format is {self.formats[column]}, but a record is not: "
                        f"{row[column][:60]!r} ({row[f'{column}_decoded']})."
                    )
            yield row


class GivenSchema(NamedTuple):
    """The schema of a column.

    Attributes:
        file: Avro schema, descriptor set or .proto text; None for the writers' schemas of the registry.
        message: name of the Protobuf message, None for the first one of the file.
        has_header: whether each value begins with a zero byte and the id of a schema; so with a registry.
    """

    file: Path | None
    message: str | None
    has_header: bool


def block_decoder(column: str, name: str, given: GivenSchema, properties: Mapping[str, str]) -> PlainDecoder:
    """Returns the decoder of a column of Avro or Protobuf.

    Args:
        name: the format.
        properties: options of a schema registry, for example ``schema.registry.url``.
    Raises: ConfigurationError.
    """
    if given.file is None and "schema.registry.url" not in properties:
        raise ConfigurationError(
            f"Format {name} needs a schema. Set --schema or --key-schema to a file, or --property "
            "schema.registry.url=URL."
        )
    options: dict[str, Any] = {"schema_header": CONFLUENT if given.has_header else None}
    if given.file is not None:
        options["schema"] = read_schema(given.file, name)
    if name == PROTOBUF and given.file is not None:
        options["message_name"] = given.message or ProtoFiles(str(given.file), options["schema"]).names.get((0,))
    return plain_decoder(registry_format(column, name, properties, **options))


def read_schema(path: Path, name: str) -> str:
    """Returns the text of a schema, that of a Protobuf schema as a descriptor set. Raises: ConfigurationError."""
    if name == PROTOBUF:
        return descriptors(str(path), parse_schema_text("--schema", str(path.resolve())))
    try:
        return decoded_text(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Reading Avro schema {path} failed: {error}. Check --schema.") from error


def parse_properties(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Returns the properties of a file, and those given as NAME=VALUE, which have precedence.

    Raises: ConfigurationError.
    """
    found = {} if file is None else read_properties(file, "--formatter-config")
    return found | key_values(given, "--property")
