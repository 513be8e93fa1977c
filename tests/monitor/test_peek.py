"""``Cluster.peek``: last records, timestamps, filters, decoding; plans of offset resets."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any, Iterator

import fastavro
import pytest
from schema_registry import SchemaRegistryServer

import spark_groupsource as gs
from spark_groupsource.errors import BrokerError, ConfigurationError, GroupSourceError
from spark_groupsource.monitor.record_decoding import decoders
from spark_groupsource.monitor.row_filter import parse_filter

SCHEMA = {"type": "record", "name": "Flight", "fields": [{"name": "n", "type": "int"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    flights = [{"n": n, "carrier": "UA" if n % 2 else "DL"} for n in range(50)]
    data = io.BytesIO()
    fastavro.schemaless_writer(data, SCHEMA, {"n": 5})
    topics: dict[str, Any] = {
        "flights": flights, "empty": 2, "mixed": [{"a": 1}, "text", {"a": "x"}], "fields": [{"a": 1}, {"a": "x"}],
        "avro": [("k", data.getvalue()), ("k", b"\0\0\0\0\7" + data.getvalue())], "bytes": [(None, b"\xff\0"), None],
        "framed": [b"\0\0\0\0\7" + b'{"n": 1}', b'{"n": 2}'], "long": [b"\0" * 5 + b"123"],
    }  # fmt: skip
    with gs.EmbeddedBroker(topics=topics) as broker, gs.connect(broker) as opened:
        yield opened


def numbers(result: Any) -> list[int]:
    return [row["value"]["n"] for row in result]


def test_the_last_records(cluster: Any) -> None:
    found = cluster.peek("flights", last=3)
    assert numbers(found) == [47, 48, 49] and list(found.pandas().columns) == found.arrow().column_names
    assert found.arrow().column_names == ["partition", "offset", "timestamp", "key", "value"]
    assert len(cluster.peek("flights")) == 20 and len(cluster.peek("flights", last=100)) == 50
    assert len(cluster.peek("flights", last=0)) == len(cluster.peek("empty")) == 0
    assert {row["group"] for row in cluster.groups()} <= {"reset"}


def test_records_since_a_time(cluster: Any) -> None:
    assert numbers(cluster.peek("flights", last=2, at="-10m")) == [0, 1]
    assert numbers(cluster.peek("flights", 1, timedelta(hours=1))) == [0]
    assert numbers(cluster.peek("flights", 1, "2020-01-01T00:00:00")) == [0]
    assert len(cluster.peek("flights", at=4_000_000_000_000)) == 0
    with pytest.raises(ConfigurationError, match="Argument at must be a time back"):
        cluster.peek("flights", at="soon")


def test_filters(cluster: Any) -> None:
    assert numbers(cluster.peek("flights", last=2, where="n < 10 and carrier == 'UA'")) == [7, 9]
    assert numbers(cluster.peek("flights", where=lambda row: row["offset"] == 3)) == [3]
    assert len(cluster.peek("flights", where="missing > 3")) == 0


@pytest.mark.parametrize("text", ["__import__('os')", "n >", "n.__class__()", "[x for x in y]", "lambda: 1", "2 ** 9"])
def test_other_expressions_are_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Argument where must be a function or an expression"):
        parse_filter(text)


def test_expressions() -> None:
    row = {"value": {"a": 1, "b": {"c": [5, 6]}, "s": "x"}, "key": "k", "partition": 3}
    for text in ("a == 1 and not b.c[1] < 6", "value['s'] in ['x', 'y']", "partition - 1 == 2 or a", "-a < 0 <= 1"):
        assert parse_filter(text)(row), text
    for text in ("s > 1", "b.d == 1", "nothing", "a != 1", "1 > a > 0"):
        assert not parse_filter(text)(row), text


def test_decoding(cluster: Any) -> None:
    found = list(cluster.peek("avro", decode="avro", schema=json.dumps(SCHEMA)))
    assert [(row["key"], row["value"]) for row in found] == [("k", {"n": 5})] * 2
    assert [row["value"] for row in cluster.peek("mixed")] == ['{"a":1}', "text", '{"a":"x"}']
    assert [row["value"] for row in cluster.peek("fields")] == ['{"a": 1}', '{"a": "x"}']
    assert [row["value"] for row in cluster.peek("bytes")] == ["ff00", None]
    assert [row["value"] for row in cluster.peek("bytes", decode={"value": "utf-8"})] == ["\\xff\0", None]
    assert cluster.peek("flights", 1, decode="hex").arrow()["value"][0].as_py().startswith("7b22")
    assert [row["value"] for row in cluster.peek("framed", decode="json")] == [{"n": 1}, {"n": 2}]
    assert [row["value"] for row in cluster.peek("framed", 1, where="offset == 0")] == [{"n": 1}]
    assert [row["value"] for row in cluster.peek("long")] == ["0000000000313233"]
    with pytest.raises(ConfigurationError, match="Decoding column value as JSON failed"):
        cluster.peek("bytes", decode="json")
    with pytest.raises(ConfigurationError, match="as Avro failed"):
        cluster.peek("flights", decode="avro", schema=SCHEMA)


def test_values_of_a_registry(cluster: Any) -> None:
    from decimal import Decimal

    amount = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    fields = [{"name": "total", "type": amount}, {"name": "by", "type": {"type": "map", "values": "bytes"}}]
    with SchemaRegistryServer() as server, gs.EmbeddedBroker(topics={"orders": 1}) as broker, gs.connect(broker) as c:
        schema = {"type": "record", "name": "Order", "fields": fields}
        data = io.BytesIO()
        fastavro.schemaless_writer(data, schema, {"total": Decimal("1.50"), "by": {"a": b"x", "b": b"\xff"}})
        schema_id = server.register("orders-value", schema)
        broker.produce("orders", [("k", b"\0" + schema_id.to_bytes(4, "big") + data.getvalue())])
        registry = {"schema.registry.url": server.url}
        expected = {"total": "1.50", "by": {"a": "x", "b": {"base64": "/w=="}}}
        for decode in ("auto", "avro"):
            (row,) = c.peek("orders", decode=decode, registry=registry)
            assert row["key"] == "k" and json.loads(json.dumps(row["value"])) == expected
        broker.produce("orders", [b"\0\0\0\0\x63"])
        # automatic decoding never fails
        assert {type(row["value"]) for row in c.peek("orders", registry=registry)} == {str}
        with pytest.raises(ConfigurationError, match="as Avro failed: the registry has no Avro schema with id 99"):
            c.peek("orders", decode="avro", registry=registry)
        with pytest.raises(ConfigurationError, match="schema.registry.ulr is unknown. Did you mean schema.regi"):
            c.peek("orders", registry={"schema.registry.ulr": "x"})
        with pytest.raises(ConfigurationError, match="Property format is unknown"):
            c.peek("orders", registry={"schema.registry.url": server.url, "format": "json"})


def test_protobuf() -> None:
    """Bare, with the header of a registry, and as it was written."""
    bare = b"\x0a\2UA"
    schema = 'syntax = "proto3"; package p; message Flight { string carrier = 1; } message Gate { int32 n = 1; }'
    with SchemaRegistryServer() as server, gs.EmbeddedBroker(topics={"flights": 1}) as broker, gs.connect(broker) as c:
        schema_id = server.register("flights-value", schema, "PROTOBUF").to_bytes(4, "big")
        broker.produce("flights", [("k", b"\0" + schema_id + b"\0" + bare)])
        registry = {"schema.registry.url": server.url}
        for given in ({"decode": "protobuf"}, {"decode": "auto"}, {"decode": "protobuf", "schema": schema}):
            (row,) = c.peek("flights", registry=registry, **given)
            assert (row["key"], row["value"]) == ("k", {"carrier": "UA"})
        broker.produce("flights", [b"\x08\5"])
        (row,) = c.peek("flights", 1, decode="protobuf", schema=schema, message="Gate")
        assert row["value"] == {"n": 5}
        with pytest.raises(ConfigurationError, match="as Protobuf failed: it does not begin with a zero byte"):
            c.peek("flights", decode="protobuf", registry=registry)
        with pytest.raises(ConfigurationError, match="Set argument schema to a descriptor set or the text of a .proto"):
            c.peek("flights", decode="protobuf")


def test_invalid_arguments(cluster: Any) -> None:
    with pytest.raises(ConfigurationError, match="Argument decode must be one of auto, utf-8, json, hex, avro"):
        decoders("xml")
    with pytest.raises(ConfigurationError, match="requires a schema"):
        decoders("avro")
    with pytest.raises(ConfigurationError, match="Argument last must be between 0 and 10000"):
        cluster.peek("flights", last=-1)
    with pytest.raises(ConfigurationError, match="one of the 1 partitions of topic flights, got 9"):
        cluster.peek("flights", partition=9)
    with pytest.raises(BrokerError, match="The topic does not exist"):
        cluster.peek("unknown")


def test_a_reset_acts_only_when_it_is_executed(cluster: Any) -> None:
    group = cluster.group("reset")
    plan = group.reset("-1h", topic="flights")
    assert "not executed" in repr(plan) and "Call execute()" in repr(plan) and ">50</td>" in plan._repr_html_()
    assert len(group.offsets()) == 0
    plan.execute()
    assert [row["current_offset"] for row in group.offsets()] == [0] and "not executed" not in repr(plan)
    assert [row["lag"] for row in group.lag(by="time")] == [50]
    assert group.lag(by="bytes").arrow().column_names[-2:] == ["lag", "lag_bytes"]
    with pytest.raises(ConfigurationError, match="Argument by must be one of offsets, time, bytes"):
        group.lag(by="age")
    with pytest.raises(GroupSourceError):
        group.reset("earliest", topic="flights:9")
