"""Encoding of keys and values of a query as bytes of records."""

from __future__ import annotations

from typing import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import byte_strings, integers, is_valid, to_numbers
from spark_groupsource.records.columns.binary_columns import to_binary
from spark_groupsource.values.avro.avro_schema import avro_schema, parse_avro_schema
from spark_groupsource.values.avro.avro_writer import avro_writer
from spark_groupsource.values.avro.derived_schema import RECORD_NAME, derived_avro_schema
from spark_groupsource.values.format_options import AVRO, BINARY, JSON, PROTOBUF, ColumnFormat
from spark_groupsource.values.json.derived_json_schema import derived_json_schema, title_of
from spark_groupsource.values.json.json_writer import json_writer
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.protobuf.protobuf_writer import protobuf_writer
from spark_groupsource.values.registry.protobuf_indexes import encoded_indexes
from spark_groupsource.values.registry.registry_client import SchemaRegistry, SubjectVersion, shared_registry
from spark_groupsource.values.registry.schema_headers import confluent_prefix
from spark_groupsource.values.registry.subjects import RECORD, TOPIC, WrittenSubject
from spark_groupsource.values.serdes import NUMBERS, number_writer, uuid_writer
from spark_groupsource.values.text_columns import joined
from spark_groupsource.values.text_writer import text_writer

ColumnWriter = Callable[[pa.Array], pa.Array]
"""Typed column -> binary column; a null is a null."""
# keys of the metadata of such fields in Spark's Arrow types
_OPAQUE = ("variant", "geometry", "geography")
# of a binary array
_MAX_BYTES = (1 << 31) - 1
# a column is as deep as its type
_ANY_DEPTH = 1 << 30


def column_writer(given: ColumnFormat, kind: pa.DataType, topic: str | None = None) -> ColumnWriter:
    """Returns the writer of a column, which is not binary.

    Args:
        kind: type of the column.
        topic: topic of the records. None if it is not known: the writer then is for checks, and writes no id.
    Raises: ConfigurationError for a type that the format or the schema does not have; as `SchemaRegistry`.
    """
    if pa.types.is_null(kind):
        return lambda column: pa.nulls(len(column), pa.binary())
    _check_no_variant(kind, given.column)
    if given.format == JSON:
        return _json_writer(given, kind, topic)
    if given.format == AVRO:
        return _avro_writer(given, kind, topic)
    if given.format == PROTOBUF:
        return _protobuf_writer(given, kind, topic)
    if given.format == "string":
        return text_writer(kind, given.column)
    if given.format in NUMBERS:
        return number_writer(given.format, kind, given.column)
    return uuid_writer(kind, given.column)


def _check_no_variant(kind: pa.DataType, path: str) -> None:
    """Raises: ConfigurationError for types that are structs of their bytes in Arrow."""
    for at in range(kind.num_fields):
        field = kind.field(at)
        for name in (each for each in _OPAQUE if (field.metadata or {}).get(each.encode()) == b"true"):
            raise ConfigurationError(f"Column {path} is {name}, which is not written. Cast it, or leave it out.")
        _check_no_variant(field.type, f"{path}.{field.name}")


def needs_topic(given: ColumnFormat) -> bool:
    """Returns whether the schema of a column depends on the topic."""
    return given.registry is not None and given.subject is not None and given.subject.strategy != RECORD


def _json_writer(given: ColumnFormat, kind: pa.DataType, topic: str | None) -> ColumnWriter:
    write = json_writer(kind, given.column)
    registered = _Registered(given, topic)
    if registered.has_version:
        found = registered.version("JSON")
        prefix = b"" if found is None else confluent_prefix(found.schema_id)
    else:
        record = given.subject and given.subject.record or RECORD_NAME
        text = given.schema or derived_json_schema(kind, record)
        prefix = registered.prefix(text, "JSON", title_of(text))
    if not prefix:
        return write
    begin = byte_strings([prefix])[0]
    return lambda column: joined(begin, write(column))


def _avro_writer(given: ColumnFormat, kind: pa.DataType, topic: str | None) -> ColumnWriter:
    registered = _Registered(given, topic)
    if registered.has_version:
        found = registered.version("AVRO")
        if found is None:
            return _unchecked
        schema = parse_avro_schema(f"The schema of subject {found.subject}", found.schema.avro)
        return avro_writer(schema, kind, given.column, confluent_prefix(found.schema_id))
    record = given.subject and given.subject.record or RECORD_NAME
    text = given.schema or derived_avro_schema(kind, given.column, record)
    schema = avro_schema(given) if given.schema else parse_avro_schema("The schema of the column", text)
    return avro_writer(schema, kind, given.column, registered.prefix(text, "AVRO", schema.name))


def _protobuf_writer(given: ColumnFormat, kind: pa.DataType, topic: str | None) -> ColumnWriter:
    registered = _Registered(given, topic)
    option = f"{given.column}.message.name"
    if registered.has_version:
        found = registered.version("PROTOBUF")
        if found is None:
            return _unchecked
        source = f"The schema of subject {found.subject}"
        message = ProtoFiles(source, found.schema.descriptor_set(source)).message(option, given.message, _ANY_DEPTH)
        prefix = confluent_prefix(found.schema_id)
    else:
        files = ProtoFiles(f"Option {given.column}.schema", given.schema or "")
        message = files.message(option, given.message, _ANY_DEPTH)
        text = given.subject.text if isinstance(given.subject, WrittenSubject) else None
        prefix = registered.prefix(text or files.registered_text(), "PROTOBUF", message.name)
    if given.registry is not None:
        # the first path is that in the text of the schema
        prefix += encoded_indexes(message.paths[:1])[-1]
    return protobuf_writer(message, kind, given.column, prefix)


def _unchecked(column: pa.Array) -> pa.Array:
    """Writer for a check without the schema, which depends on the topic."""
    raise AssertionError("no schema")


class _Registered:
    """The schema of a column in the registry; without a registry, or without the topic, nothing is requested."""

    def __init__(self, given: ColumnFormat, topic: str | None) -> None:
        self._given, self._topic = given, topic
        self._subject = given.subject if isinstance(given.subject, WrittenSubject) else WrittenSubject()
        self._registry: SchemaRegistry | None = None
        if given.registry is not None and (topic is not None or not needs_topic(given)):
            self._registry = shared_registry(given.registry, given.column)

    @property
    def has_version(self) -> bool:
        return self._subject.has_version

    def version(self, kind: str) -> SubjectVersion | None:
        """Returns the version of the subject that is the schema; None if nothing is requested."""
        if self._registry is None:
            return None
        subject = self._subject
        name = subject.name(self._given.column, self._topic or "", subject.record or "")
        found = self._registry.recent_version(name, subject.version)
        if found is None or found.schema.kind != kind:
            fact = "does not exist" if found is None else f"is a schema of {found.schema.kind}"
            raise ConfigurationError(
                f"Version {subject.version or 'latest'} of subject {name} {fact}. Correct option "
                f"{self._given.column}.schema.version, or remove it."
            )
        return found

    def prefix(self, text: str, kind: str, record: str) -> bytes:
        """Returns the bytes before each value, with the id of a schema; empty if nothing is requested.

        Args:
            record: full name of the record or message of the schema; empty if it has none.
        """
        if self._registry is None:
            return b""
        given, subject = self._given, self._subject
        record = subject.record or record
        if not record and subject.strategy != TOPIC:
            raise ConfigurationError(
                f"Option {given.column}.subject.name.strategy={subject.strategy} needs a record, and the schema of "
                f"column {given.column} is none. Set it to topic."
            )
        name = subject.name(given.column, self._topic or "", record)
        schema_id = self._registry.schema_id(name, text, kind, subject.registers)
        if schema_id is None:
            raise ConfigurationError(
                f"The schema of column {given.column} is no version of subject {name}. Register it, or set "
                f"{given.column}.auto.register.schemas to true, or {given.column}.schema.version to latest."
            )
        return confluent_prefix(schema_id)


class ColumnWriters:
    """Encodes the columns with a format, for one task.

    Args:
        topic: of all records; None if the column `topic` has that of each.
    """

    def __init__(self, formats: Sequence[ColumnFormat], topic: str | None) -> None:
        self._formats = [each for each in formats if each.format != BINARY]
        self._topic = topic
        self._writers: dict[tuple[ColumnFormat, pa.DataType, str], ColumnWriter] = {}

    def encoded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields a batch with key and value as bytes; in parts if they are more than a binary array has.

        Raises: ConfigurationError for a value that the format does not have; as `SchemaRegistry`.
        """
        found = None
        if batch.nbytes < _MAX_BYTES or batch.num_rows == 1:
            try:
                found = self._encoded(batch)
            except pa.ArrowCapacityError:
                if batch.num_rows == 1:
                    raise ConfigurationError("A record is larger than 2 GiB. Write smaller records.") from None
        if found is not None:
            yield found
            return
        middle = batch.num_rows // 2
        for part in (batch[:middle], batch[middle:]):
            yield from self.encoded(part)

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns))
        for given in self._formats:
            column = columns.get(given.column)
            if column is None:
                continue
            if self._topic is not None or not needs_topic(given) or "topic" not in columns:
                columns[given.column] = self._writer(given, column.type, self._topic or "")(column)
            else:
                columns[given.column] = self._by_topic(given, column, to_binary(columns["topic"]))
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _by_topic(self, given: ColumnFormat, column: pa.Array, topics: pa.Array) -> pa.Array:
        """Encodes the records of each topic by its schema; those without a topic are null."""
        names = topics.dictionary_encode()
        numbers = np.where(is_valid(names.indices), to_numbers(names.indices), len(names.dictionary))
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(names.dictionary) + 1))
        parts = [pa.nulls(0, pa.binary())]
        for number, name in enumerate(names.dictionary.to_pylist()):
            rows = column.take(integers(order[bounds[number] : bounds[number + 1]]))
            parts.append(self._writer(given, column.type, name.decode("utf-8", "replace"))(rows))
        parts.append(pa.nulls(len(column) - int(bounds[-1]), pa.binary()))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(integers(places))

    def _writer(self, given: ColumnFormat, kind: pa.DataType, topic: str) -> ColumnWriter:
        key = given, kind, topic
        if key not in self._writers:
            self._writers[key] = column_writer(given, kind, topic)
        return self._writers[key]
