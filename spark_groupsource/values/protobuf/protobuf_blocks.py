"""Decoding of blocks of Protobuf values.

Source: Confluent wire format (the indexes of the message in its file, after the id of the schema).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import integers, is_valid
from spark_groupsource.values.decoded import Decoded, bounded_reason
from spark_groupsource.values.lanes.binary_blocks import Ints, bounds
from spark_groupsource.values.lanes.lane_blocks import decode_lanes
from spark_groupsource.values.protobuf.protobuf_columns import Message
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles, ProtoMessage, paths_of
from spark_groupsource.values.registry.proto_files import InvalidProtoError
from spark_groupsource.values.registry.protobuf_indexes import encoded_indexes
from spark_groupsource.values.registry.registry_client import SchemaRegistry, UnreadableSchemaError
from spark_groupsource.values.registry.schema_headers import NamedSchemas
from spark_groupsource.values.registry.subjects import ReaderSchema


class WrittenMessages(Protocol):
    """The files by which values were written."""

    def indexes(self, schema_id: int | str) -> list[bytes] | str:
        """Returns the encodings of the indexes of the message in a file, or why its values have no such message."""


class _OneFile:
    """All values were written by the file of the column."""

    def __init__(self, message: ProtoMessage) -> None:
        self._found = encoded_indexes(message.paths)

    def indexes(self, schema_id: int | str) -> list[bytes] | str:
        return self._found


class RegisteredMessages:
    """The files of a registry; finds the message of a column in each, by its full name.

    Args:
        reader: the schema of the column, if it is one of the registry.
    """

    def __init__(self, registry: SchemaRegistry, message: ProtoMessage, reader: ReaderSchema | None) -> None:
        self._registry = registry
        self._name = message.name
        # the schema of the column is not compiled again by each worker
        self._found: dict[int | str, list[bytes] | str] = (
            {} if reader is None else {reader.schema_id: encoded_indexes(message.paths)}
        )

    def indexes(self, schema_id: int | str) -> list[bytes] | str:
        """Returns the encodings of the indexes of the message, or why the file has none.

        Raises: NetworkError, AuthenticationError; ConfigurationError if protoc is missing.
        """
        if schema_id not in self._found:
            self._found[schema_id] = self._indexes(schema_id)
        return self._found[schema_id]

    def _indexes(self, schema_id: int | str) -> list[bytes] | str:
        try:
            files = _written_files(self._registry, schema_id)
        except (InvalidProtoError, UnreadableSchemaError) as error:
            return bounded_reason(str(error))
        if files is None:
            return "the registry has no Protobuf schema with this id"
        paths = paths_of(self._name, files.names)
        return encoded_indexes(paths) if paths else f"its schema has no message {self._name}"


def _written_files(registry: SchemaRegistry, schema_id: int | str) -> ProtoFiles | None:
    """Returns the files of a schema; None if the registry has no Protobuf schema with this id.

    Raises: InvalidProtoError for a schema that does not compile; ConfigurationError if protoc is missing; NetworkError,
        AuthenticationError.
    """
    found = registry.registered(schema_id)
    if found is None or found.kind != "PROTOBUF":
        return None
    return ProtoFiles(f"The schema with id {schema_id}", found.descriptor_set(f"id {schema_id}"))


class ProtobufDecoder:
    """Decodes values of one message.

    Args:
        kind: type of the column, with the selected fields.
        written: the files of the ids; None if all are that of the column.
    """

    def __init__(self, message: ProtoMessage, kind: pa.DataType, written: WrittenMessages | None = None) -> None:
        self._kind = kind
        self._message = Message(message, kind)
        self._name = message.name
        self._written = written or _OneFile(message)

    def decode(self, data: pa.Array) -> Decoded:
        return decode_lanes(data, self._kind, self._message.read)

    def decode_named(self, named: NamedSchemas) -> Decoded:
        """Decodes values with an id of a schema; after the id follow the indexes of the message."""
        data = named.data
        skipped = np.full(len(data), -1, np.int64)
        skipped[~is_valid(data)] = 0
        malformed = dict(named.malformed)
        for schema_id, rows in named.rows.items():
            found = self._written.indexes(schema_id)
            if isinstance(found, str):
                malformed |= dict.fromkeys(rows.tolist(), found)
            else:
                self._skip(named, rows, found, skipped)
        others = np.flatnonzero(skipped < 0)
        for row in others.tolist():
            malformed.setdefault(row, f"its message indexes are not those of {self._name}")
        if len(others):
            places = np.arange(len(data))
            data = data.take(integers(places, skipped >= 0))
        decoded = decode_lanes(data, self._kind, self._message.read, np.maximum(skipped, 0))
        malformed |= decoded.malformed
        schema_ids = {
            int(row): str(schema_id)
            for schema_id, rows in (named.rows if malformed else {}).items()
            for row in rows
            if int(row) in malformed
        }
        return Decoded(decoded.values, malformed, schema_ids)

    def _skip(self, named: NamedSchemas, rows: Ints, indexes: list[bytes], skipped: Ints) -> None:
        """Sets the number of bytes of the indexes of each value, if they are those of the message."""
        payload, starts, ends = bounds(named.data)
        # an id in a record header has the indexes behind it
        headed = [row for row in rows.tolist() if row in named.after_ids] if named.after_ids else []
        for row in headed:
            # without indexes, the value has the only message of the writer
            skipped[row] = 0 if named.after_ids[row] in (b"", *indexes) else -1
        if headed:
            rows = np.setdiff1d(rows, headed)
        for prefix in (np.frombuffer(each, np.uint8) for each in indexes):
            begins = rows[(skipped[rows] < 0) & (ends[rows] - starts[rows] >= len(prefix))]
            same = (payload[starts[begins][:, None] + np.arange(len(prefix))] == prefix).all(axis=1)
            skipped[begins[same]] = len(prefix)
