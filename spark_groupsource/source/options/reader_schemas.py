"""Schemas of the columns from a schema registry or the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Callable, Mapping, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.format_options import AVRO, JSON, ColumnFormat
from spark_groupsource.values.registry.subjects import RESTART, ReaderSchema, subject_name

if TYPE_CHECKING:
    from spark_groupsource.source.options.source_options import SourceOptions
    from spark_groupsource.values.registry.registry_client import RegisteredSchema


ReadKept = Callable[[str], Sequence[Mapping[str, ReaderSchema]]]
"""Returns the schemas by column that each source of a checkpoint keeps, given its path."""


def with_reader_schemas(
    options: SourceOptions, known: Mapping[str, ReaderSchema], read_kept: ReadKept, is_declared: bool
) -> SourceOptions:
    """Returns the options with the schemas of subjects.

    Args:
        known: column -> its schema, if it was found before.
        is_declared: whether the query may declare the columns. Then the schema of JSON is not needed.
    Raises: ConfigurationError for a subject that is not determined or does not exist; NetworkError,
        AuthenticationError.
    """
    needed = [
        each
        for each in options.values.of_subjects
        if each.column not in known and not (is_declared and each.format == JSON)
    ]
    found = {**known, **(_find(options, needed, read_kept) if needed else {})}
    return replace(options, values=options.values.with_readers(found))


def _find(options: SourceOptions, columns: Sequence[ColumnFormat], read_kept: ReadKept) -> dict[str, ReaderSchema]:
    values = options.values
    keeps_columns = values.checkpoint is not None and values.on_schema_change != RESTART
    kept = read_kept(str(values.checkpoint)) if keeps_columns else ()
    topics = options.subscribe
    if options.assign is not None:
        topics = tuple(dict.fromkeys(each.topic for each in options.assign))
    found = {}
    for given in columns:
        assert given.subject is not None
        subject = subject_name(given.column, given.subject, topics)
        same = [each[given.column] for each in kept if given.column in each and each[given.column].subject == subject]
        found[given.column] = completed(same[0], given) if same else _requested(given, subject)
    return found


def _requested(given: ColumnFormat, subject: str) -> ReaderSchema:
    # it loads the HTTP client
    from spark_groupsource.values.registry.registry_client import shared_registry

    assert given.registry is not None and given.subject is not None
    found = shared_registry(given.registry, given.column).version(subject, given.subject.version)
    if found is None:
        version = "no version" if given.subject.version is None else f"no version {given.subject.version}"
        raise ConfigurationError(
            f"Reading the schema of column {given.column} failed: the registry has {version} of subject {subject}. "
            f"Register it, or correct {given.column}.subject.name.strategy or {given.column}.schema.version."
        )
    return ReaderSchema(subject, found.version, found.schema_id, _text(given, found.schema, subject))


def completed(kept: ReaderSchema, given: ColumnFormat) -> ReaderSchema:
    """Returns a schema of the checkpoint with its text; one that is too long for it is in the registry."""
    if kept.text is not None:
        return kept
    from spark_groupsource.values.registry.registry_client import shared_registry

    assert given.registry is not None
    found = shared_registry(given.registry, given.column).registered(kept.schema_id)
    if found is None:
        raise ConfigurationError(
            f"Reading the schema of column {given.column} failed: the checkpoint names the schema with id "
            f"{kept.schema_id}, which the registry does not have. Correct {given.column}.schema.registry.url."
        )
    return replace(kept, text=_text(given, found, kept.subject))


def _text(given: ColumnFormat, schema: RegisteredSchema, subject: str) -> str:
    if schema.kind != given.format.upper():
        raise ConfigurationError(
            f"Reading the schema of column {given.column} failed: subject {subject} has schemas of type {schema.kind}. "
            f"Correct {given.column}.format."
        )
    if given.format == JSON:
        from spark_groupsource.values.json.json_schema import struct_of_json_schema

        return str(struct_of_json_schema(schema.text, f"of subject {subject}", schema.references).json())
    return schema.avro if given.format == AVRO else schema.descriptor_set(f"subject {subject}")
