"""The flights data frame and its Avro records."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from fastavro import parse_schema, schemaless_reader
from flights import SCHEMA_FILE, encode_flights, load_flights

if TYPE_CHECKING:
    import pandas


@pytest.fixture(scope="module")
def schema() -> object:
    return parse_schema(json.loads(SCHEMA_FILE.read_text()))


@pytest.fixture(scope="module")
def flights() -> pandas.DataFrame:
    return load_flights()


@pytest.mark.slow
def test_all_rows_and_columns_are_loaded(flights: pandas.DataFrame) -> None:
    assert len(flights) == 336_776
    assert list(flights.columns) == [field["name"] for field in json.loads(SCHEMA_FILE.read_text())["fields"]]


@pytest.mark.slow
def test_records_decode_to_the_original_rows_with_null_for_missing_values(
    flights: pandas.DataFrame, schema: object
) -> None:
    # the slice contains canceled flights
    some = flights.iloc[830:850]
    assert some["arr_delay"].isna().any()
    for row, flight in zip(some.itertuples(index=False), encode_flights(some)):
        record = schemaless_reader(io.BytesIO(flight.value), schema, None)
        assert flight.carrier.decode() == row.carrier == record["carrier"]
        expected = {name: None if value != value else value for name, value in row._asdict().items()}
        assert record == expected
