"""Options of typed keys and values, parsed."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, replace
from typing import Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.registry.registry_address import RegistryAddress
from spark_groupsource.values.registry.subjects import (
    IGNORE,
    RESTART,
    ReaderSchema,
    SubjectOptions,
    WrittenSubject,
)
from spark_groupsource.values.schema_text import decoded_text, has_utf_16_mark, is_path, plain_text

BINARY = "binary"
JSON, AVRO, PROTOBUF = "json", "avro", "protobuf"
FORMATS = (BINARY, "string", JSON, AVRO, PROTOBUF, "short", "int", "long", "float", "double", "uuid")
FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
HEADERS = NO_HEADER, CONFLUENT, GLUE = ("none", "confluent", "glue")
_WITH_SCHEMA = (JSON, AVRO, PROTOBUF)
_CONTROL_CHARACTERS = bytes(set(range(32)) - set(b"\t\n\r\f"))
_MAX_SCHEMA_BYTES = 16 * 1024 * 1024
MAX_RECURSION_DEPTHS: Mapping[str, int] = {AVRO: 15, PROTOBUF: 10}
"""Limits of the option recursive.fields.max.depth, as in Spark's from_avro and from_protobuf."""
Wanted = Mapping[str, "Wanted | None"]
"""Name -> what is wanted of a field, of the `element` of an array, of the `value` of a map; None for all."""


@dataclass(frozen=True)
class ColumnFormat:
    """Format of the column `key` or `value`.

    Attributes:
        format: one of `FORMATS`.
        schema: text of the schema; None if it is not given.
        flatten: whether the fields of the value are columns, in place of the column.
        registry: has the schemas that the headers of the values name.
        header: one of `HEADERS`: where a value names its writer's schema.
        subject: where the schema of the column is, if it is not given.
        reader: the version of the subject whose text is `schema`.
        message: name of the Protobuf message.
        recursion_depth: how often a type may be within itself in the columns, itself included; recursive fields are
            left out if it is 0 or less.
    """

    column: str
    format: str = BINARY
    schema: str | None = None
    flatten: bool = False
    registry: RegistryAddress | None = None
    header: str = NO_HEADER
    subject: SubjectOptions | None = None
    reader: ReaderSchema | None = None
    message: str | None = None
    recursion_depth: int = -1

    def with_reader(self, reader: ReaderSchema) -> ColumnFormat:
        """Returns the format with the schema of a subject."""
        return replace(self, schema=reader.text, reader=reader)


@dataclass(frozen=True)
class ValueOptions:
    """Formats of key and value, and what becomes of a record with a malformed one.

    Attributes:
        on_schema_change: one of `subjects.REACTIONS`.
        checkpoint: directory of the checkpoint that keeps the schemas of the columns.
        dead_letter_topic: topic to which malformed records are written.
        has_own_columns: whether the query declares other columns than those of the schemas.
    """

    key: ColumnFormat = ColumnFormat("key")
    value: ColumnFormat = ColumnFormat("value")
    mode: str = FAILFAST
    on_schema_change: str = IGNORE
    checkpoint: str | None = None
    dead_letter_topic: str | None = None
    has_own_columns: bool = False

    @property
    def is_typed(self) -> bool:
        """True if a column is decoded."""
        return self.key.format != BINARY or self.value.format != BINARY

    @property
    def has_error_column(self) -> bool:
        """True if the query has a column that describes malformed records."""
        return self.is_typed and self.mode == PERMISSIVE

    @property
    def of_subjects(self) -> tuple[ColumnFormat, ...]:
        """The columns whose schema is that of a subject."""
        return tuple(each for each in (self.key, self.value) if each.subject is not None)

    def with_readers(self, readers: Mapping[str, ReaderSchema]) -> ValueOptions:
        """Returns the options with the schemas of subjects, by column."""
        given = {each.column: each for each in (self.key, self.value)}
        given |= {column: given[column].with_reader(reader) for column, reader in readers.items()}
        return replace(self, key=given["key"], value=given["value"])


def check_format(given: ColumnFormat) -> ColumnFormat:
    """Returns the format of a column.

    Raises: ConfigurationError for options that contradict each other.
    """
    name = given.column
    _check_recursion_depth(given)
    _check_has_effect(given)
    if given.format == PROTOBUF:
        return _check_protobuf(given)
    if given.registry is not None and given.header == GLUE:
        raise ConfigurationError(
            f"Option {name}.schema.registry.url has no effect with {name}.schema.header=glue: AWS Glue has another "
            f"interface. Give the schema as {name}.schema."
        )
    if given.flatten and given.format not in _WITH_SCHEMA:
        raise ConfigurationError(
            f"Option {name}.flatten needs values with fields, and {name}.format is {given.format}. Set it to json, "
            "avro or protobuf."
        )
    if given.schema is None and given.format == AVRO and given.registry is None:
        raise ConfigurationError(
            f"Option {name}.schema is missing: {name}.format is avro. Give the Avro schema of the producer, or "
            f"{name}.schema.registry.url."
        )
    return given


def _check_has_effect(given: ColumnFormat) -> None:
    """Raises: ConfigurationError for options that the format does not use."""
    name = given.column
    if given.format not in _WITH_SCHEMA:
        options = {
            f"{name}.schema": given.schema is not None,
            f"{name}.schema.registry.url": given.registry is not None,
            f"{name}.schema.header": given.header != NO_HEADER,
        }
        for option in (option for option, is_given in options.items() if is_given):
            raise ConfigurationError(
                f"Option {option} has no effect with {name}.format={given.format}. Set {name}.format to json, avro or "
                "protobuf."
            )
    if given.message is not None and given.format != PROTOBUF:
        raise ConfigurationError(
            f"Option {name}.message.name has no effect with {name}.format={given.format}. Set {name}.format to "
            "protobuf."
        )


def check_written_format(given: ColumnFormat) -> ColumnFormat:
    """Returns the format of a column that is written.

    Raises: ConfigurationError for options that contradict each other.
    """
    name = given.column
    _check_has_effect(given)
    if given.format == JSON and given.schema is not None and given.registry is None:
        raise ConfigurationError(
            f"Option {name}.schema has no effect without {name}.schema.registry.url when JSON is written: the text "
            "follows from the column. Remove it."
        )
    if given.format != PROTOBUF:
        return given
    subject = given.subject
    if isinstance(subject, WrittenSubject) and subject.has_version:
        return given
    if given.registry is not None and given.schema is not None and given.message is None:
        # the first one of the schema
        given = replace(given, message=subject.record if subject is not None else None)
    checked = _compiled(given, needs_message=given.registry is None)
    if isinstance(subject, WrittenSubject) and checked.schema != given.schema:
        checked = replace(checked, subject=replace(subject, text=given.schema))
    return checked


def _check_recursion_depth(given: ColumnFormat) -> None:
    option = f"{given.column}.recursive.fields.max.depth"
    limit = MAX_RECURSION_DEPTHS.get(given.format)
    if limit is None and given.recursion_depth != ColumnFormat.recursion_depth:
        raise ConfigurationError(
            f"Option {option} has no effect with {given.column}.format={given.format}. Set {given.column}.format to "
            "avro or protobuf."
        )
    if limit is not None and given.recursion_depth > limit:
        raise ConfigurationError(
            f"Option {option} must be at most {limit} with {given.column}.format={given.format}, got "
            f"{given.recursion_depth}."
        )


def _check_protobuf(given: ColumnFormat) -> ColumnFormat:
    name = given.column
    if given.header == GLUE:
        raise ConfigurationError(
            f"Option {name}.schema.header=glue has no effect with {name}.format=protobuf. Set it to confluent or none."
        )
    if given.subject is not None:
        # a subject of the strategies record and topic-record is that of one message
        return given if given.message is not None else replace(given, message=given.subject.record)
    return _compiled(given)


def _compiled(given: ColumnFormat, needs_message: bool = True) -> ColumnFormat:
    """Returns a format of Protobuf whose schema is a descriptor set.

    Args:
        needs_message: whether the message must be named.
    """
    name = given.column
    if given.schema is None:
        raise ConfigurationError(
            f"Option {name}.schema is missing: {name}.format is protobuf. Give the path of the file that protoc "
            f"--include_imports --descriptor_set_out=FILE writes, or of a .proto file, or {name}.schema.registry.url."
        )
    if given.message is None and needs_message:
        raise ConfigurationError(
            f"Option {name}.message.name is missing: {name}.format is protobuf. Give the full name of the message."
        )
    # the modules of a format are imported with its first use
    from spark_groupsource.values.registry.proto_files import descriptor_set, is_proto_text

    if is_proto_text(given.schema):
        return replace(given, schema=descriptor_set(f"option {name}.schema", given.schema))
    return given


def check_options(given: ValueOptions) -> ValueOptions:
    """Returns the options of a query.

    Raises: ConfigurationError for options that contradict each other.
    """
    if given.on_schema_change != IGNORE and not given.of_subjects:
        raise ConfigurationError(
            f"Option onSchemaChange={given.on_schema_change} needs a schema of a subject. Set "
            "value.schema.registry.url, and leave value.schema out."
        )
    if given.dead_letter_topic is not None and (given.mode == FAILFAST or not given.is_typed):
        reason = "no column is decoded. Set value.format or key.format."
        if given.is_typed:
            reason = "mode is FAILFAST. Set it to PERMISSIVE or DROPMALFORMED."
        raise ConfigurationError(f"Option deadLetterTopic has no effect: {reason}")
    for column in given.of_subjects if given.on_schema_change == RESTART else ():
        if column.subject is not None and column.subject.version is not None:
            raise ConfigurationError(
                f"Option onSchemaChange=restart needs {column.column}.schema.version=latest, got "
                f"{column.subject.version}: each start would have the same columns. Set it to ignore or fail."
            )
    return given


def parse_mode(name: str, text: str) -> str:
    """Parses one of `MODES`, in any case."""
    if text.strip().upper() not in MODES:
        raise ConfigurationError(f"Option {name} must be one of {', '.join(MODES)}, got {text!r}.")
    return text.strip().upper()


def parse_schema_text(name: str, text: str) -> str:
    """Returns the text of a schema; one that begins with ``/`` or ``file:/`` is the path of a file with the schema.

    A text that begins with a comment is no path. A file that is no text, as a descriptor set of Protobuf, is returned
    in base64.
    """
    text = plain_text(text)
    if not is_path(text):
        if not text:
            raise ConfigurationError(f"Option {name} must not be empty. Give it a schema, or the path of a file.")
        return text
    path = "/" + text.removeprefix("file:").lstrip("/")
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_SCHEMA_BYTES + 1)
        # a descriptor set of Protobuf has control characters
        is_text = has_utf_16_mark(data) or data.translate(None, _CONTROL_CHARACTERS) == data
        found = decoded_text(data) if is_text else b64encode(data).decode()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Reading the schema of option {name} failed: {str(error)[:200]}. Give the path of a readable file on the "
            "driver."
        ) from None
    if len(data) > _MAX_SCHEMA_BYTES:
        raise ConfigurationError(f"Option {name} names {path}, which is larger than 16 MiB. Give a smaller schema.")
    if not found:
        raise ConfigurationError(f"Option {name} names {path}, which is empty. Give the path of a file with a schema.")
    return found
