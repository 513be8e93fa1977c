"""The flights data frame and its Avro records."""

from __future__ import annotations

import io
import json

import pytest
from fastavro import parse_schema, schemaless_reader
from flights import ROWS, SCHEMA_FILE, encode_flights, load_flights


@pytest.fixture(scope="module")
def schema() -> object:
    return parse_schema(json.loads(SCHEMA_FILE.read_text()))


def test_all_rows_and_columns_are_loaded(schema: object) -> None:
    flights = load_flights()
    assert len(flights) == ROWS
    assert list(flights.columns) == [field["name"] for field in json.loads(SCHEMA_FILE.read_text())["fields"]]


def test_records_decode_to_the_original_rows_with_null_for_missing_values(schema: object) -> None:
    # the slice contains canceled flights
    flights = load_flights().iloc[830:850]
    assert flights["arr_delay"].isna().any()
    for row, flight in zip(flights.itertuples(index=False), encode_flights(flights)):
        record = schemaless_reader(io.BytesIO(flight.value), schema, None)
        assert flight.carrier.decode() == row.carrier == record["carrier"]
        expected = {name: None if value != value else value for name, value in row._asdict().items()}
        assert record == expected
