"""Encoding of keys and values of a query as bytes of records."""

from __future__ import annotations

from typing import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import integers, is_valid, to_numbers
from spark_groupsource.records.columns.binary_columns import to_binary
from spark_groupsource.values.avro.avro_schema import avro_schema, parse_avro_schema
from spark_groupsource.values.avro.avro_writer import avro_writer
from spark_groupsource.values.avro.derived_schema import RECORD_NAME, derived_avro_schema
from spark_groupsource.values.format_options import AVRO, BINARY, JSON, PROTOBUF, ColumnFormat
from spark_groupsource.values.json.json_writer import json_writer
from spark_groupsource.values.registry.registry_client import shared_registry
from spark_groupsource.values.registry.schema_headers import confluent_prefix
from spark_groupsource.values.registry.subjects import RECORD, TOPIC, WrittenSubject
from spark_groupsource.values.serdes import NUMBERS, number_writer, uuid_writer
from spark_groupsource.values.text_writer import text_writer

ColumnWriter = Callable[[pa.Array], pa.Array]
"""Typed column -> binary column; a null is a null."""


def column_writer(given: ColumnFormat, kind: pa.DataType, topic: str | None = None) -> ColumnWriter:
    """Returns the writer of a column, which is not binary.

    Args:
        kind: type of the column.
        topic: topic of the records. None if it is not known: the writer then is for checks, and writes no id.
    Raises: ConfigurationError for a type that the format or the schema does not have; as `SchemaRegistry`.
    """
    if pa.types.is_null(kind):
        return lambda column: pa.nulls(len(column), pa.binary())
    if given.format == JSON:
        return json_writer(kind, given.column)
    if given.format == AVRO:
        return _avro_writer(given, kind, topic)
    if given.format == PROTOBUF:
        raise ConfigurationError(f"Option {given.column}.format=protobuf is not supported when writing. Use avro.")
    if given.format == "string":
        return text_writer(kind, given.column)
    if given.format in NUMBERS:
        return number_writer(given.format, kind, given.column)
    return uuid_writer(kind, given.column)


def needs_topic(given: ColumnFormat) -> bool:
    """Returns whether the schema of a column depends on the topic."""
    return given.registry is not None and given.subject is not None and given.subject.strategy != RECORD


def _avro_writer(given: ColumnFormat, kind: pa.DataType, topic: str | None) -> ColumnWriter:
    subject = given.subject if isinstance(given.subject, WrittenSubject) else WrittenSubject()
    is_named = given.registry is not None and (topic is not None or not needs_topic(given))
    if subject.has_version:
        if not is_named:
            # the schema is not known
            return lambda column: column
        return _version_writer(given, subject, kind, topic or "")
    text = given.schema or derived_avro_schema(kind, given.column, subject.record or RECORD_NAME)
    schema = avro_schema(given) if given.schema else parse_avro_schema("The schema of the column", text)
    if not is_named:
        return avro_writer(schema, kind, given.column)
    assert given.registry is not None
    record = subject.record or schema.name
    if not record and subject.strategy != TOPIC:
        raise ConfigurationError(
            f"Option {given.column}.subject.name.strategy={subject.strategy} needs a record, and the column is {kind}. "
            "Set it to topic."
        )
    name = subject.name(given.column, topic or "", record)
    registry = shared_registry(given.registry, given.column)
    schema_id = registry.schema_id(name, text, "AVRO", subject.registers)
    if schema_id is None:
        raise ConfigurationError(
            f"The schema of column {given.column} is no version of subject {name}. Register it, or set "
            f"{given.column}.auto.register.schemas to true, or {given.column}.schema.version to latest."
        )
    return avro_writer(schema, kind, given.column, confluent_prefix(schema_id))


def _version_writer(given: ColumnFormat, subject: WrittenSubject, kind: pa.DataType, topic: str) -> ColumnWriter:
    assert given.registry is not None
    name = subject.name(given.column, topic, subject.record or "")
    found = shared_registry(given.registry, given.column).recent_version(name, subject.version)
    if found is None or found.schema.kind != "AVRO":
        fact = "does not exist" if found is None else f"is a schema of {found.schema.kind}"
        raise ConfigurationError(
            f"Version {subject.version or 'latest'} of subject {name} {fact}. Correct option "
            f"{given.column}.schema.version, or remove it."
        )
    schema = parse_avro_schema(f"The schema of subject {name}", found.schema.avro)
    return avro_writer(schema, kind, given.column, confluent_prefix(found.schema_id))


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
        try:
            found = self._encoded(batch)
        except pa.ArrowCapacityError:
            if batch.num_rows == 1:
                raise ConfigurationError("A record is larger than 2 GiB. Write smaller records.") from None
            middle = batch.num_rows // 2
            for part in (batch[:middle], batch[middle:]):
                yield from self.encoded(part)
            return
        yield found

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
            parts.append(self._writer(given, column.type, name.decode())(rows))
        parts.append(pa.nulls(len(column) - int(bounds[-1]), pa.binary()))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(integers(places))

    def _writer(self, given: ColumnFormat, kind: pa.DataType, topic: str) -> ColumnWriter:
        key = given, kind, topic
        if key not in self._writers:
            self._writers[key] = column_writer(given, kind, topic)
        return self._writers[key]
