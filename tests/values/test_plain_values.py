"""Keys and values as Python objects for people."""

from __future__ import annotations

import pyarrow as pa
import pytest
from schema_registry import SchemaRegistryServer
from support.decoded_values import parsed_avro

from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.avro.avro_expansion import ExpansionRules, expanded
from spark_groupsource.values.avro.avro_types import spark_type
from spark_groupsource.values.decoded import Malformed
from spark_groupsource.values.format_options import CONFLUENT, ColumnFormat
from spark_groupsource.values.json.framed_json import parse_json
from spark_groupsource.values.plain_values import plain_decoder, plain_type, plain_values
from spark_groupsource.values.registry.registry_address import RegistryAddress


def test_types_are_those_of_spark() -> None:
    named = [
        {"type": "enum", "name": "e", "symbols": ["A"]}, {"type": "fixed", "name": "f", "size": 2},
        {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 5, "scale": 1},
    ]  # fmt: skip
    logical = [
        {"type": kind, "logicalType": name}
        for kind, names in {
            "int": ("date", "time-millis"),
            "long": ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"),
            "string": ("uuid",),
        }.items()
        for name in names
    ]
    kinds = ["boolean", "int", "long", "float", "double", "string", "bytes", *named, *logical]
    kinds += [{"type": "array", "items": ["null", "int"]}, {"type": "map", "values": {"type": "array", "items": "e"}}]
    kinds += [["null", "f"], ["int", "long"], ["double", "null", "float"], ["null", "string", "int"]]
    schema = {"type": "record", "name": "r", "fields": [{"name": f"f{at}", "type": k} for at, k in enumerate(kinds)]}
    avro = expanded(parsed_avro(schema), ExpansionRules("value")).type
    assert plain_type(avro) == arrow_type(spark_type(avro), "value")


def test_values_have_a_form_in_json() -> None:
    kind = pa.struct(
        [("times", pa.list_(pa.timestamp("us", "UTC"))), ("m", pa.map_(pa.string(), pa.struct([("b", pa.binary())])))]
    )
    given = [{"times": [0, None], "m": [("a", {"b": b"x"}), ("n", None), ("z", {"b": b"\xff"})]}, None]
    times, entries = ["1970-01-01 00:00:00+00:00", None], {"a": {"b": "x"}, "n": None, "z": {"b": {"base64": "/w=="}}}
    assert plain_values(pa.array(given, kind)) == [{"times": times, "m": entries}, None]
    assert plain_values(pa.array([1, None])) == [1, None]


def test_times_that_python_does_not_have_are_text() -> None:
    times = pa.array([1_700_000_000_000_000_000, 0, None, -62_135_596_801_000_000]).cast(pa.timestamp("us", "UTC"))
    texts = ["55840-11-08 22:13:20.000000+00:00", "1970-01-01 00:00:00+00:00", None, "0000-12-31 23:59:59.000000+00:00"]
    assert plain_values(times) == texts
    entries = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), times.slice(0, 1))
    listed = pa.ListArray.from_arrays(pa.array([0, 4], pa.int32()), times)
    days = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    nested = pa.StructArray.from_arrays([listed, entries, days], ["times", "map", "day"])
    assert plain_values(nested) == [{"times": texts, "map": {"k": texts[0]}, "day": "10183-09-21"}]


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5_000, b"\xff", b"{", b"\0\0\0\0\1{", b""])
def test_json_of_a_registry_that_is_no_json_is_malformed(data: bytes) -> None:
    with SchemaRegistryServer() as registry:
        schema_id = registry.register("t-value", {"type": "object"}, "JSON")
        given = ColumnFormat("value", "json", registry=RegistryAddress((registry.url,)), header=CONFLUENT)
        prefix = b"\0" + schema_id.to_bytes(4, "big")
        found = plain_decoder(given)(pa.array([prefix + b'{"a": 1}', prefix + data]), None)
    assert found[0] == {"a": 1} and isinstance(found[1], Malformed)
    with pytest.raises(ValueError):
        parse_json(prefix + data)
