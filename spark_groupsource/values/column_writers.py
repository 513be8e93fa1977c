"""Encoding of keys and values of a query as bytes of records."""

from __future__ import annotations

from typing import Callable, Sequence

import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.format_options import BINARY, JSON, ColumnFormat
from spark_groupsource.values.json.json_writer import json_writer
from spark_groupsource.values.serdes import NUMBERS, number_writer, uuid_writer
from spark_groupsource.values.text_writer import text_writer

ColumnWriter = Callable[[pa.Array], pa.Array]
"""Typed column -> binary column; a null is a null."""


def column_writer(given: ColumnFormat, kind: pa.DataType) -> ColumnWriter:
    """Returns the writer of a column, which is not binary.

    Args:
        kind: type of the column.
    Raises: ConfigurationError for a type that the format does not have.
    """
    write = _writer(given, kind)
    return lambda column: _bounded(write, column, given.column)


def _writer(given: ColumnFormat, kind: pa.DataType) -> ColumnWriter:
    if given.format == JSON:
        return json_writer(kind, given.column)
    if given.format == "string":
        return text_writer(kind, given.column)
    if given.format in NUMBERS:
        return number_writer(given.format, kind, given.column)
    return uuid_writer(kind, given.column)


def _bounded(write: ColumnWriter, column: pa.Array, name: str) -> pa.Array:
    """Writes a column; in parts if its bytes are more than a binary array has."""
    try:
        return write(column)
    except pa.ArrowCapacityError:
        if len(column) == 1:
            raise ConfigurationError(f"A {name} is larger than 2 GiB. Write smaller records.") from None
    middle = len(column) // 2
    halves = [_bounded(write, part, name).cast(pa.large_binary()) for part in (column[:middle], column[middle:])]
    return pa.concat_arrays(halves)


class ColumnWriters:
    """Encodes the columns with a format, for one task."""

    def __init__(self, formats: Sequence[ColumnFormat]) -> None:
        self._formats = {each.column: each for each in formats if each.format != BINARY}
        self._writers: dict[tuple[ColumnFormat, pa.DataType], ColumnWriter] = {}

    def encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with key and value as bytes.

        Raises: ConfigurationError for a value that the format does not have.
        """
        names = batch.schema.names
        columns = dict(zip(names, batch.columns))
        for name, given in self._formats.items():
            if name in columns:
                columns[name] = self._writer(given, columns[name].type)(columns[name])
        return pa.RecordBatch.from_arrays(list(columns.values()), names)

    def _writer(self, given: ColumnFormat, kind: pa.DataType) -> ColumnWriter:
        if (given, kind) not in self._writers:
            self._writers[given, kind] = column_writer(given, kind)
        return self._writers[given, kind]
