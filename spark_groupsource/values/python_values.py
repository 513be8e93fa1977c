"""Arrow values as Python objects.

Dates and times that Python does not have are included.

Python's dates are those of the years 1 to 9999. Records of other times are common: a producer that writes microseconds
instead of milliseconds is in the year 55,840.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns Python objects; a date or time that Python does not have is text."""
    try:
        listed: list[Any] = values.to_pylist()
    except OverflowError:
        return [_value(each) for each in values]
    return listed


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns the rows of a table, with values as of `python_values`."""
    names = table.schema.names
    return [dict(zip(names, row)) for row in zip(*map(python_values, table.columns))]


def time_text(timestamp_us: int) -> str:
    """Returns a UTC time as Python's `str(datetime)` shows it, of any year."""
    return str(_value(pa.scalar(timestamp_us, pa.int64()).cast(pa.timestamp("us", "UTC"))))


def _value(found: pa.Scalar) -> Any:
    try:
        return found.as_py()
    except OverflowError:
        pass
    kind = found.type
    if pa.types.is_struct(kind):
        return {name: _value(each) for name, each in found.items()}
    if pa.types.is_map(kind):
        return [(_value(entry["key"]), _value(entry["value"])) for entry in found.values]
    if pa.types.is_list(kind):
        return [_value(each) for each in found.values]
    unit: Any = "D" if pa.types.is_date(kind) else kind.unit
    zone = "+00:00" if pa.types.is_timestamp(kind) and kind.tz else ""
    return str(np.datetime64(found.value, unit)).replace("T", " ") + zone
