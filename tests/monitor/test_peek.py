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
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.tables.record_decoding import decoders
from spark_groupsource.monitor.tables.row_filter import parse_filter

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
    assert numbers(found) == [47, 48, 49]
    assert found.arrow().column_names == ["partition", "offset", "timestamp", "key", "value"]
    assert len(cluster.peek("flights")) == 20 and len(cluster.peek("flights", last=100)) == 50
    assert len(cluster.peek("flights", last=0)) == len(cluster.peek("empty")) == 0
    assert {row["group"] for row in cluster.groups()} <= {"reset", "billing"}


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
    assert len(cluster.peek("empty", where="missing > 3")) == 0
    # the records are not objects
    assert len(cluster.peek("mixed", where="value == 'text'")) == 1


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("carier == 'UA'", "carier", "Did you mean carrier?"), ("Carrier == 'UA'", "Carrier", "Did you mean carrier?"),
        ("n < 0 and ofset > 3", "ofset", "Did you mean offset?"), ("n > 1 or delay > 3", "delay", "Known names: "),
        ("value.carier == 'UA'", "value.carier", "Did you mean carrier?"), ("n == nul", "nul", "Known names: "),
        ("value['m'] == 3", "value.m", "Known names: carrier, n."), ("not missing", "missing", "Known names: "),
        ("[x, n] == [1, 2]", "x", "Known names: carrier, key, n, offset, partition and 3 more."),
    ],
)  # fmt: skip
def test_a_name_that_no_record_has_is_an_error(cluster: Any, text: str, name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        cluster.peek("flights", where=text)
    start = f"Argument where names {name}, which none of the 50 records read has. "
    assert str(raised.value).startswith(start) and hint in str(raised.value) and "\n" not in str(raised.value)


def test_a_name_that_some_record_has_is_accepted() -> None:
    rows = [{"value": {"a": 1, "b": {"c": [1]}}}, {"value": {"d": None, "b": 5}}, {"value": "text", "key": {"k": 1}}]
    for text in ("a == 1", "d == 2", "b.c[0] == 1", "b['c'][0] == 1", "d.e == 1", "k == 1", "value == 'text'", "a.b"):
        parse_filter(text).check_names(rows)
    for text in ("b.e == 1", "b['e'] == 1", "c == 1", "value.k == 1", "key.a"):
        with pytest.raises(ConfigurationError, match="none of the 3 records"):
            parse_filter(text).check_names(rows)
    parse_filter("anything").check_names([])


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
    with pytest.raises(ConfigurationError, match="one of the 1 partitions of topic flights, got 9"):
        cluster.peek("flights", partition=9)
    with pytest.raises(BrokerError, match="The topic does not exist. Create it, or correct the name"):
        cluster.peek("unknown")


class Query:
    """A streaming query."""

    id = "q"

    @property
    def recentProgress(self) -> Any:
        raise AssertionError("Spark sends every report that it has kept")


# the argument, and a call of a cluster or a group
WRONG_TYPES: list[tuple[str, Any]] = [
    ("last", lambda c: c.peek("flights", last="3")), ("last", lambda c: c.peek("flights", last=-1)),
    ("last", lambda c: c.peek("flights", last=None)), ("last", lambda c: c.peek("flights", last=10_001)),
    ("last", lambda c: c.peek("flights", last=True)), ("last", lambda c: c.peek("flights", last=2.0)),
    ("topic", lambda c: c.peek(3)), ("topic", lambda c: c.peek(["flights"])), ("topic", lambda c: c.peek("")),
    ("at", lambda c: c.peek("flights", at=2.5)), ("at", lambda c: c.peek("flights", at=["-10m"])),
    ("at", lambda c: c.peek("flights", at=True)), ("where", lambda c: c.peek("flights", where=3)),
    ("where", lambda c: c.peek("flights", where={"n": 3})), ("decode", lambda c: c.peek("flights", decode=3)),
    ("decode", lambda c: c.peek("flights", decode=["json"])),
    ("decode", lambda c: c.peek("flights", decode={1: "hex"})),
    ("decode", lambda c: c.peek("flights", decode={"value": ["hex"]})),
    ("decode", lambda c: c.peek("flights", decode=None)),
    ("registry", lambda c: c.peek("flights", registry="http://x")),
    ("message", lambda c: c.peek("flights", message=3)), ("partition", lambda c: c.peek("flights", partition="0")),
    ("partition", lambda c: c.peek("flights", partition=-1)), ("partition", lambda c: c.peek("flights", partition=[0])),
    ("topic", lambda c: c.topics(3)), ("topic", lambda c: c.topics(["flights"])),
    ("topic", lambda c: c.partitions(b"f")),
    ("group", lambda c: c.groups(3)), ("name", lambda c: c.group(3)), ("name", lambda c: c.group("")),
    ("name", lambda c: c.group(None)), ("topic", lambda c: c.group("g").lag(3)),
    ("by", lambda c: c.group("g").lag(by="age")), ("by", lambda c: c.group("g").lag(by=["time"])),
    ("by", lambda c: c.group("g").lag(by=3)), ("topic", lambda c: c.group("g").offsets(["flights"])),
    ("last", lambda c: c.group("g").history("3")), ("last", lambda c: c.group("g").history(-1)),
    ("last", lambda c: c.group("g").why("3")), ("last", lambda c: c.group("g").why(2.5)),
    ("to", lambda c: c.group("g").reset(None)), ("to", lambda c: c.group("g").reset(1.5)),
    ("to", lambda c: c.group("g").reset(True)), ("to", lambda c: c.group("g").reset("soon")),
    ("topic", lambda c: c.group("g").reset("latest", topic=["flights"])),
    ("checkpoint", lambda c: c.group("g").reset("latest", checkpoint=3)),
    ("bootstrap", lambda c: gs.connect(None)), ("bootstrap", lambda c: gs.connect(9092)),
    ("interval_s", lambda c: gs.watch(c.group("g"), interval_s="1")),
    ("interval_s", lambda c: gs.watch(c.group("g"), interval_s=0)),
    ("generation", lambda c: gs.timeline(c.group("g"), generation="3")),
    ("group", lambda c: gs.timeline(c.group("g"), group=3)), ("source", lambda c: gs.timeline("no-such-file")),
    ("source", lambda c: gs.watch("g")), ("source", lambda c: gs.watch(3)), ("source", lambda c: gs.timeline(3)),
    ("cluster", lambda c: gs.watch(Query(), cluster="h:1")), ("cluster", lambda c: gs.timeline(Query(), cluster=3)),
    ("column", lambda c: c.topics().sorted_by("partitions")), ("column", lambda c: c.topics().sorted_by(["topic"])),
    ("query", lambda c: gs.stop_gracefully("query")), ("queries", lambda c: gs.run_until_signal("query")),
    ("timeout_s", lambda c: gs.run_until_signal(timeout_s="60")),
    ("callback", lambda c: gs.LagListener("print")), ("spark", lambda c: gs.register("spark")),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(WRONG_TYPES)))
def test_an_argument_of_a_wrong_type_is_named_in_one_line(cluster: Any, case: int) -> None:
    name, call = WRONG_TYPES[case]
    with pytest.raises(ConfigurationError, match=rf"^Argument {name}\b[^\n]*(, got [^\n]*|\))[.?]$"):
        call(cluster)


def test_a_group_that_does_not_exist_is_the_same_error_everywhere(cluster: Any) -> None:
    # private: the interface of notebooks commits nothing
    cluster._client.commit("billing", {TopicPartition("flights", 0): OffsetAndMetadata(3)})
    group = cluster.group("biling")
    methods = (group.lag, group.members, group.offsets, group.history, group.why, lambda: group.lag(by="time"))
    for call in (*methods, lambda: group.reset("latest"), lambda: gs.timeline(group)):
        with pytest.raises(GroupSourceError, match="^Consumer group 'biling' does not exist. Did you mean .?billing"):
            call()
    with pytest.raises(GroupSourceError, match="^Consumer group 'zzz' does not exist. Run: groupsource groups list.$"):
        cluster.group("zzz").why()
    planned = group.reset("earliest", topic="flights")
    assert "'biling' does not exist. Did you mean " in repr(planned)
    assert "execute() creates the group." in repr(planned)
    existing = cluster.group("billing")
    calls = (existing.lag, existing.members, existing.offsets, existing.history)
    assert [len(call()) for call in calls] == [1, 0, 1, 0]
    assert "no rebalance is recorded" in repr(existing.why()) and existing.reset("latest").warnings == ()


def test_a_topic_that_does_not_exist_is_named_with_near_names(cluster: Any) -> None:
    group = cluster.group("billing")
    cluster._client.commit("billing", {TopicPartition("flights", 0): OffsetAndMetadata(3)})
    for call in (
        cluster.peek, cluster.topics, cluster.partitions, group.lag, group.offsets,
        lambda topic: group.reset("latest", topic=topic), lambda topic: group.reset("latest", topic=f"{topic}:0"),
    ):  # fmt: skip
        with pytest.raises(BrokerError, match="fligths failed: .* not exist. Did you mean 'flights'. Create it"):
            call("fligths")


def test_a_reset_acts_only_when_it_is_executed(cluster: Any) -> None:
    group = cluster.group("reset")
    plan = group.reset("-1h", topic="flights")
    assert "not executed" in repr(plan) and "Call execute()" in repr(plan) and ">50</td>" in plan._repr_html_()
    with pytest.raises(GroupSourceError, match="'reset' does not exist"):
        group.offsets()
    assert plan.execute() is plan and repr(plan).startswith("Reset of group 'reset', executed")
    assert [row["current_offset"] for row in group.offsets()] == [0] and "not executed" not in repr(plan)
    assert [row["lag"] for row in group.lag(by="time")] == [50]
    assert group.lag(by="bytes").arrow().column_names[-2:] == ["lag", "lag_bytes"]
    with pytest.raises(ConfigurationError, match="Argument by must be one of offsets, time, bytes"):
        group.lag(by="age")
    with pytest.raises(GroupSourceError):
        group.reset("earliest", topic="flights:9")


def test_the_rows_are_a_pandas_frame(cluster: Any) -> None:
    pytest.importorskip("pandas")
    found = cluster.peek("flights", last=3)
    frame = found.pandas()
    assert list(frame.columns) == found.arrow().column_names and len(frame) == 3
