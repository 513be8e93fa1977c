"""Result of a table read: Arrow, pandas, Spark, text and HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Sequence, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.common.arguments import near_names, shown
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.tables.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.tables.cells import Cell, cell, header
from spark_groupsource.monitor.tables.definitions import TableDefinition
from spark_groupsource.monitor.tables.table_rows import Row
from spark_groupsource.values.python_values import python_rows

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

_SHOWN_ROWS = 20
# notebooks differ in what they add to a table
_STYLE = "padding:2px 8px"
_NOWRAP_CHARS = 40
_Rows = TypeVar("_Rows", bound="Result")


class Result:
    """Rows of one table, as they were at the call. Iterates over dictionaries.

    `docs/tables.md` describes the columns. A notebook or terminal shows the most important ones, with separators,
    durations and shortened ids; rows and data frames have every column with its own value.
    """

    def __init__(self, table: TableDefinition, rows: Iterable[Row]) -> None:
        schema = arrow_schema(table)
        self._title = table.name
        self._columns = {column.name: column for column in table.columns}
        self._shown_names: Sequence[str] = table.shown or schema.names
        self._table = pa.Table.from_batches(record_batches(rows, schema), schema)

    @classmethod
    def of_table(cls, title: str, table: pa.Table) -> Result:
        """Returns a result with the rows of an Arrow table."""
        result = cls.__new__(cls)
        result._title, result._table, result._columns, result._shown_names = title, table, {}, table.column_names
        return result

    def _with(self: _Rows, **changes: Any) -> _Rows:
        result = self.__class__.__new__(self.__class__)
        result.__dict__.update(self.__dict__, **changes)
        return result

    def all(self: _Rows) -> _Rows:
        """Returns the same rows; a notebook shows every column."""
        return self._with(_shown_names=self._table.column_names)

    def sorted_by(self: _Rows, column: str) -> _Rows:
        """Returns the rows with the largest values of a column first, nulls last.

        Raises: ConfigurationError for a column that the table does not have.
        """
        names = self._table.column_names
        if column not in names:
            hint = near_names(str(column), names)
            raise ConfigurationError(f"Argument column must be a column of the table, got {shown(column)}. {hint}")
        order = pc.sort_indices(self._table, sort_keys=[(column, "descending")])
        return self._with(_table=self._table.take(order))

    def last(self: _Rows, count: int) -> _Rows:
        """Returns the last `count` rows."""
        return self._with(_table=self._table.slice(max(len(self) - count, 0)))

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
        numbers = self._are_numbers()
        lines = [self._headers(), *([each.text for each in row] for row in self._cells())]
        widths = [max(len(line[at]) for line in lines) for at in range(len(numbers))]
        texts = [
            "  ".join(
                f"{text:>{width}}" if is_number else f"{text:<{width}}"
                for text, width, is_number in zip(line, widths, numbers)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*texts, *self._rest()])

    def _repr_html_(self) -> str:
        numbers = self._are_numbers()
        head = "".join(_html_cell("th", Cell(name, name, ""), n) for name, n in zip(self._headers(), numbers))
        body = "".join(
            f"<tr>{''.join(_html_cell('td', each, n) for each, n in zip(row, numbers))}</tr>" for row in self._cells()
        )
        rest = "".join(f"<p>{html.escape(text)}</p>" for text in self._rest())
        caption = f"<caption>{html.escape(self._title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _headers(self) -> list[str]:
        return [header(name, self._columns.get(name)) for name in self._shown_names]

    def _are_numbers(self) -> list[bool]:
        return [_is_number(self._table.schema.field(name).type) for name in self._shown_names]

    def _cells(self) -> list[list[Cell]]:
        shown = self._table.select(self._shown_names).slice(0, _SHOWN_ROWS)
        return [[cell(value, self._columns.get(name)) for name, value in row.items()] for row in python_rows(shown)]

    def _rest(self) -> list[str]:
        omitted = len(self) - _SHOWN_ROWS
        rows = [f"and {omitted:,} more rows"] if omitted > 0 else [] if len(self) else ["no rows"]
        columns = len(self._table.column_names) - len(self._shown_names)
        return [*rows, f"{columns} more columns: .all()"] if columns else rows


def _html_cell(tag: str, each: Cell, is_number: bool) -> str:
    style = f"text-align:{'right' if is_number else 'left'};{_STYLE}"
    if len(each.short) <= _NOWRAP_CHARS:
        # a duration or a time in two lines is hard to read
        style += ";white-space:nowrap"
    title = f' title="{html.escape(each.title)}"' if each.title else ""
    return f'<{tag} style="{style}"{title}>{html.escape(each.short)}</{tag}>'


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))
