"""Result of a table read: Arrow, pandas, Spark, text and HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Iterable, Iterator

import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.definitions import TableDefinition
from spark_groupsource.monitor.tables import Row

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

_SHOWN_ROWS = 20
_CELL_CHARS = 80


class Result:
    """Rows of one table, as they were at the call. Iterates over dictionaries.

    `docs/tables.md` describes the columns.
    """

    def __init__(self, table: TableDefinition, rows: Iterable[Row]) -> None:
        schema = arrow_schema(table)
        self._title = table.name
        self._table = pa.Table.from_batches(record_batches(rows, schema), schema)

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
                "Converting to pandas failed: pandas is not installed. Run: pip install pandas.", name="pandas"
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
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        names, rows = self._table.column_names, self._shown()
        lines = [names, *rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
        texts = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*texts, *self._rest()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._table.column_names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self._shown()
        )
        rest = "".join(f"<p>{html.escape(text)}</p>" for text in self._rest())
        caption = f"<caption>{html.escape(self._title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _shown(self) -> list[list[str]]:
        return [[_cell(value) for value in row.values()] for row in self._table.slice(0, _SHOWN_ROWS).to_pylist()]

    def _rest(self) -> list[str]:
        omitted = len(self) - _SHOWN_ROWS
        if omitted > 0:
            return [f"and {omitted:,} more rows"]
        return [] if len(self) else ["no rows"]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return escaped(shortened(f"{value:.1f}" if isinstance(value, float) else str(value), _CELL_CHARS))
