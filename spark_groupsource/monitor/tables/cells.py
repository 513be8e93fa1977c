"""Text of the cells of a table: separators, durations, shortened ids."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NamedTuple

from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.tables.definitions import TableColumn

_CELL_CHARS, _TITLE_CHARS = 80, 2_000
# member ids, query ids: the first digits distinguish them
_UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UNITS = ((1_000, 120_000, "s"), (60_000, 7_200_000, "min"), (3_600_000, 172_800_000, "h"))
_DAY_MS = 86_400_000


class Cell(NamedTuple):
    """Attributes: `short`, with the first digits of ids; `title`, the whole text if `short` is not, else empty."""

    text: str
    short: str
    title: str


def cell(value: Any, column: TableColumn | None) -> Cell:
    """Returns the text of a value; only a count or an offset of a defined column has separators."""
    whole = escaped(shortened(_text(value, column), _TITLE_CHARS))
    text = shortened(whole, _CELL_CHARS)
    short = _UUID.sub(r"\1…", text)
    return Cell(text, short, "" if short == whole else whole)


def header(name: str, column: TableColumn | None) -> str:
    """Returns the name of a column; a duration has its unit in the cells."""
    if column is None:
        return name
    return column.label or (name.removesuffix("_ms") if column.unit == "ms" else name)


def duration_text(ms: float) -> str:
    """Returns a duration with a unit that fits."""
    if abs(ms) < 1_000:
        return f"{ms:.0f} ms"
    for size_ms, limit_ms, unit in _UNITS:
        if abs(ms) < limit_ms:
            return f"{ms / size_ms:.3g} {unit}"
    return f"{ms / _DAY_MS:,.1f} d"


def _text(value: Any, column: TableColumn | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    if column is not None and column.unit == "ms":
        return duration_text(value)
    if isinstance(value, float):
        return f"{value:.1f}" if column is None else f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool) and column is not None and column.type == "bigint":
        return f"{value:,}"
    return str(value)
