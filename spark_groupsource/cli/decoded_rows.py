"""Rows of consumed records, with Avro keys and values decoded by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa

from spark_groupsource.cli.common import key_values, read_properties
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.value_options import avro_format
from spark_groupsource.values.options import CONFLUENT
from spark_groupsource.values.plain_values import Malformed, PlainDecoder, plain_decoder
from spark_groupsource.values.python_values import python_rows

_HEADERS, _TIMESTAMP = "headers", "timestamp"


class DecodedRows(NamedTuple):
    """How batches become rows, with their timestamps in epoch ms.

    Attributes:
        columns: columns of the batches.
        decoders: column -> decoder; the decoded value is in the row as ``key_decoded`` or ``value_decoded``.
    """

    columns: Sequence[str]
    decoders: Mapping[str, PlainDecoder] = {}

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
                        f"Option --{column}-format is avro, but a record is not: {row[column][:60]!r} "
                        f"({row[f'{column}_decoded']})."
                    )
            yield row


def avro_decoder(column: str, schema: Path | None, has_header: bool, properties: Mapping[str, str]) -> PlainDecoder:
    """Returns the decoder of an Avro column.

    Args:
        schema: file of the Avro schema; None for the writers' schemas of the registry.
        has_header: whether each value begins with a zero byte and the id of a schema; so with a registry.
        properties: options of a schema registry, for example ``schema.registry.url``.
    Raises: ConfigurationError.
    """
    if schema is None and "schema.registry.url" not in properties:
        raise ConfigurationError(
            "Format avro needs a schema. Set --schema or --key-schema to a file, or --property schema.registry.url=URL."
        )
    text = None if schema is None else read_schema(schema)
    return plain_decoder(avro_format(column, properties, schema=text, schema_header=CONFLUENT if has_header else None))


def read_schema(path: Path) -> str:
    """Returns the text of a file. Raises: ConfigurationError."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Reading Avro schema {path} failed: {error}. Check --schema.") from error


def parse_properties(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Returns the properties of a file, and those given as NAME=VALUE, which have precedence.

    Raises: ConfigurationError.
    """
    found = {} if file is None else read_properties(file, "--formatter-config")
    return found | key_values(given, "--property")
