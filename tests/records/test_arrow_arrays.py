"""Conversions between Arrow arrays and NumPy arrays, without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.records.columns import arrow_arrays

_NUMBERS = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)))
_FLAGS = st.lists(st.one_of(st.none(), st.booleans()))
_TEXTS = st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]))))


def parts(values):
    """Returns values with a zero for each null, and which are not null."""
    return [value or 0 for value in values], np.array([value is not None for value in values], np.bool_)


@given(_NUMBERS)
def test_integers_are_those_of_pyarrow(values):
    numbers, valid = parts(values)
    assert arrow_arrays.integers(numbers, valid).equals(pa.array(values, pa.int64()))
    assert arrow_arrays.integers(numbers).equals(pa.array(numbers, pa.int64()))


@given(_FLAGS)
def test_booleans_are_those_of_pyarrow(values):
    flags, valid = parts(values)
    assert arrow_arrays.booleans(np.array(flags, np.bool_), valid).equals(pa.array(values, pa.bool_()))


@given(_TEXTS)
def test_strings_are_those_of_pyarrow(values):
    assert arrow_arrays.strings(values).equals(pa.array(values, pa.string()))
    encoded = [None if value is None else value.encode() for value in values]
    assert arrow_arrays.byte_strings(encoded).equals(pa.array(encoded, pa.binary()))


@given(_NUMBERS, st.data())
def test_numbers_and_nulls_of_a_slice(values, data):
    first = data.draw(st.integers(0, len(values)))
    sliced = pa.array(values, pa.int64())[first : data.draw(st.integers(first, len(values)))]
    valid = arrow_arrays.is_valid(sliced)
    assert valid.tolist() == [value is not None for value in sliced.to_pylist()]
    assert arrow_arrays.to_numbers(sliced)[valid].tolist() == sliced.drop_null().to_pylist()


@given(_FLAGS, st.data())
def test_a_mask_is_false_for_a_null(values, data):
    first = data.draw(st.integers(0, len(values)))
    sliced = pa.array(values, pa.bool_())[first:]
    assert arrow_arrays.to_mask(sliced).tolist() == [bool(value) for value in values[first:]]


def test_an_array_of_type_null_has_no_valid_value():
    assert arrow_arrays.is_valid(pa.nulls(2)).tolist() == [False, False]


_BLOCK = """
import sys
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow import decode_fetched, kafka_schema
from spark_groupsource.records.encode import Record, encode_batch

headers = (("name", b"value"), ("other", None))
records = [Record(None, b"value", 1), Record(b"key", None, 2, headers)]
log = encode_batch(records)
columns = kafka_schema(include_headers=True).names
block = decode_fetched(
    log, topic_partition=TopicPartition("t", 0), columns=columns, start_offset=0, end_offset=2, read_committed=False
)
assert sum(batch.num_rows for batch in block.batches) == 2
"""

_JSON = """
import sys
import pyarrow as pa
from spark_groupsource.records.columns.arrow_arrays import byte_strings
from spark_groupsource.values.json.json_blocks import JsonDecoder

kind = pa.struct([("number", pa.int64()), ("text", pa.string()), ("flag", pa.bool_()), ("share", pa.float64())])
values = [b'{"number": 1, "text": "a", "flag": true, "share": 0.5}', b"{", None] * 10
decoded = JsonDecoder(kind).decode(byte_strings(values))
assert len(decoded.malformed) == 10 and decoded.values[0].as_py()["text"] == "a"
"""

_AVRO = """
import sys
from support.decoded_values import decode_avro, encode_avro

fields = {"number": "long", "text": ["null", "string"], "flag": "boolean", "list": {"type": "array", "items": "int"}}
schema = {"type": "record", "name": "row", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
value = encode_avro(schema, {"number": 1, "text": None, "flag": True, "list": [1]})
assert len(decode_avro(schema, schema, [value] * 20 + [b""]).malformed) == 1
"""

_PROTOBUF = """
import sys
from support.decoded_values import decode_protobuf
from support.protobuf_messages import Schemas

for seed in range(10):
    schemas = Schemas(seed)
    values = [schemas.value().SerializeToString() for _ in range(20)]
    assert not decode_protobuf(schemas.descriptor_set, "pkg.M0", values).malformed
"""


@pytest.mark.parametrize("code", [_BLOCK, _JSON, _AVRO, _PROTOBUF], ids=["record batch", "JSON", "Avro", "Protobuf"])
def test_pandas_is_not_imported(code, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    printed = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('pandas' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "False"
