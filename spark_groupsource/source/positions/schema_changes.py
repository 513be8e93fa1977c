"""Newer versions of subjects: option onSchemaChange, during a query and at restart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Mapping

from spark_groupsource.errors import SchemaChangedError
from spark_groupsource.source.options.reader_schemas import completed
from spark_groupsource.source.options.typed_schema import declared_type
from spark_groupsource.values.format_options import ColumnFormat, ValueOptions
from spark_groupsource.values.registry.subjects import FAIL, IGNORE, RESTART, ReaderSchema

if TYPE_CHECKING:
    from spark_groupsource.source.positions.offset_json import SourceOffset

_log = logging.getLogger(__name__)


class SchemaChanges:
    """Compares the schemas of the columns with those of the checkpoint and of the registry.

    A producer registers a schema before it writes a record of it. So a batch whose end offsets were determined before
    the registry has responded has no record of a version that the response lacks.
    """

    def __init__(self, values: ValueOptions) -> None:
        self._columns = [each for each in values.of_subjects if each.reader is not None]
        self._reaction = values.on_schema_change
        self._has_own_columns = values.has_own_columns
        self.schemas: Mapping[str, ReaderSchema] = {each.column: each.reader for each in self._columns if each.reader}
        self._accepted: Mapping[str, ReaderSchema] = self.schemas

    def check_kept(self, offset: SourceOffset) -> None:
        """Compares the schemas of the checkpoint with those of the columns, which load() has determined.

        Raises: SchemaChangedError if they are not the same and the option does not allow it; NetworkError.
        """
        if offset.schemas == self._accepted or not offset.schemas:
            return
        for given in self._columns:
            kept = offset.schemas.get(given.column)
            if kept is not None and given.reader is not None and kept.schema_id != given.reader.schema_id:
                self._check_column(given, given.reader, kept)
        self._accepted = offset.schemas

    def _check_column(self, given: ColumnFormat, reader: ReaderSchema, kept: ReaderSchema) -> None:
        name = given.column
        other = "" if reader.subject == kept.subject else f" of {reader.subject}"
        change = (
            f"the checkpoint has version {kept.version} of subject {kept.subject}, the columns of load() are those of "
            f"version {reader.version}{other}"
        )
        if self._reaction == RESTART:
            _log.warning("[column=%s] The schema has changed: %s.", name, change)
            return
        if self._reaction == IGNORE and self._has_same_columns(given, kept):
            _log.info("[column=%s] The schema has changed, and its columns are the same: %s.", name, change)
            return
        raise SchemaChangedError(
            f"[SCHEMA_CHANGED] Continuing the query failed: {change}. Set option {name}.schema.version={kept.version}, "
            "or checkpointLocation before load(), to keep the columns, or onSchemaChange=restart for the newer ones."
        )

    def _has_same_columns(self, given: ColumnFormat, kept: ReaderSchema) -> bool:
        """Returns whether the query has the columns of the checkpoint; the columns that it declares do not change."""
        if self._has_own_columns:
            return True
        return declared_type(given) == declared_type(given.with_reader(completed(kept, given)))

    def check_planned(self) -> None:
        """Checks, after the end offsets of a batch are determined, that its records have no newer version.

        Raises: SchemaChangedError; NetworkError if no registry responds in time; AuthenticationError.
        """
        if self._reaction == IGNORE:
            return
        from spark_groupsource.values.registry.registry_client import shared_registry

        for given in self._columns:
            assert given.registry is not None and given.reader is not None
            latest = shared_registry(given.registry, given.column).latest_version(given.reader.subject)
            if latest is None or latest <= given.reader.version:
                continue
            fact = (
                f"[SCHEMA_CHANGED] Reading on failed: subject {given.reader.subject} has version {latest}, the columns "
                f"are those of version {given.reader.version}, and onSchemaChange is {self._reaction}."
            )
            if self._reaction == FAIL:
                raise SchemaChangedError(f"{fact} Set it to ignore to read newer records as these columns, or restart.")
            raise SchemaChangedError(f"{fact} Every batch is committed; start the query again from load().")
