"""Result of a table read: Arrow, pandas, Spark, text and HTML."""

from __future__ import annotations

import html
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.common.arguments import near_names, shown
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.tables.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.tables.definitions import TableDefinition
from spark_groupsource.monitor.tables.table_rows import Row
from spark_groupsource.values.python_values import python_rows

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

_SHOWN_ROWS = 20
_CELL_CHARS = 80
# notebooks differ in what they add to a table
_LEFT, _RIGHT = ' style="text-align:left;padding:2px 8px"', ' style="text-align:right;padding:2px 8px"'


class Result:
    """Rows of one table, as they were at the call. Iterates over dictionaries.

    `docs/tables.md` describes the columns.
    """

    def __init__(self, table: TableDefinition, rows: Iterable[Row]) -> None:
        schema = arrow_schema(table)
        self._title = table.name
        self._table = pa.Table.from_batches(record_batches(rows, schema), schema)

    @classmethod
    def of_table(cls, title: str, table: pa.Table) -> Result:
        """Returns a result with the rows of an Arrow table."""
        result = cls.__new__(cls)
        result._title, result._table = title, table
        return result

    def sorted_by(self, column: str) -> Result:
        """Returns the rows with the largest values of a column first, nulls last.

        Raises: ConfigurationError for a column that the table does not have.
        """
        names = self._table.column_names
        if column not in names:
            hint = near_names(str(column), names)
            raise ConfigurationError(f"Argument column must be a column of the table, got {shown(column)}. {hint}")
        order = pc.sort_indices(self._table, sort_keys=[(column, "descending")])
        return self.of_table(self._title, self._table.take(order))

    def last(self, count: int) -> Result:
        """Returns the last `count` rows."""
        return self.of_table(self._title, self._table.slice(max(len(self) - count, 0)))

    def arrow(self) -> pa.Table:
        """Returns the rows as an Arrow table."""
        return self._table

    def pandas(self) -> pandas.DataFrame:
        """Returns the rows as a pandas data frame.

        Raises: ModuleNotFoundError if pandas is not installed.
        """
        try:
            frame: pandas.DataFrame = self._table.to_pandas()
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Converting to pandas failed: pandas is not installed. Run: pip install 'spark-groupsource[notebook]'.",
                name="pandas",
            ) from error
        return frame

    def spark(self, session: SparkSession | None = None) -> DataFrame:
        """Returns the rows as a Spark DataFrame.

        Args:
            session: None for the active session.
        Raises: ConfigurationError if there is no active session.
        """
        from pyspark.sql import SparkSession

        chosen = session or SparkSession.getActiveSession()
        if chosen is None:
            raise ConfigurationError(
                "Converting to a DataFrame failed: no Spark session is active. Create one, or pass it to spark()."
            )
        return chosen.createDataFrame(self._table)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches():
            yield from python_rows(batch)

    def __repr__(self) -> str:
        names, rows = self._table.column_names, self._shown()
        lines = [names, *rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
        texts = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*texts, *self._rest()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th{_LEFT}>{html.escape(name)}</th>" for name in self._table.column_names)
        styles = [_RIGHT if _is_number(field.type) else _LEFT for field in self._table.schema]
        body = "".join(
            f"<tr>{''.join(f'<td{style}>{html.escape(cell)}</td>' for style, cell in zip(styles, row))}</tr>"
            for row in self._shown()
        )
        rest = "".join(f"<p>{html.escape(text)}</p>" for text in self._rest())
        caption = f"<caption>{html.escape(self._title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _shown(self) -> list[list[str]]:
        return [[_cell(value) for value in row.values()] for row in python_rows(self._table.slice(0, _SHOWN_ROWS))]

    def _rest(self) -> list[str]:
        omitted = len(self) - _SHOWN_ROWS
        if omitted > 0:
            return [f"and {omitted:,} more rows"]
        return [] if len(self) else ["no rows"]


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        value = value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return escaped(shortened(f"{value:.1f}" if isinstance(value, float) else str(value), _CELL_CHARS))
