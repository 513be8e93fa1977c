"""The flights and their Avro form."""

from __future__ import annotations

import io
import json

import pytest
from fastavro import parse_schema, schemaless_reader
from flights import ROWS, SCHEMA_FILE, encode_flights, load_flights


@pytest.fixture(scope="module")
def schema() -> object:
    return parse_schema(json.loads(SCHEMA_FILE.read_text()))


def test_every_flight_is_there_with_every_column(schema: object) -> None:
    flights = load_flights()
    assert len(flights) == ROWS
    assert list(flights.columns) == [field["name"] for field in json.loads(SCHEMA_FILE.read_text())["fields"]]


def test_records_read_back_as_they_were_with_null_for_na(schema: object) -> None:
    # the slice holds flights that never left and never arrived
    flights = load_flights().iloc[830:850]
    assert flights["arr_delay"].isna().any()
    for row, flight in zip(flights.itertuples(index=False), encode_flights(flights)):
        record = schemaless_reader(io.BytesIO(flight.value), schema, None)
        assert flight.carrier.decode() == row.carrier == record["carrier"]
        expected = {name: None if value != value else value for name, value in row._asdict().items()}
        assert record == expected
