"""EmbeddedBroker: topics and records from Python objects."""

from __future__ import annotations

import inspect
import logging
import rlcompleter
import threading
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_groupsource as gs
from spark_groupsource.broker.direct_produce import key_and_value, records_of
from spark_groupsource.broker.node import Broker
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.records.key_partitions import partition_of_key


def test_one_line_is_a_running_broker_with_topics_and_records() -> None:
    broker = gs.EmbeddedBroker(topics={"flights": 4, "airlines": [{"code": "UA"}, "Delta", b"\xff", ("AA", None)]})
    assert repr(broker) == "EmbeddedBroker(not running)"
    broker.start()
    try:
        assert broker.produce("flights", [(f"k{n}", {"n": n}) for n in range(20)]) == 20
        assert broker.produce("new", [1, 2.5, [3]]) == 3
        assert broker.produce("flights", (str(n) for n in range(8))) == 8
        with gs.connect(broker) as cluster:
            counts = {row["topic"]: row["partition_count"] for row in cluster.topics()}
            ends = {(r["topic"], r["partition"]): r["log_end_offset"] for r in cluster.partitions()}
        assert counts == {"airlines": 1, "flights": 4, "new": 1}
        keyed = [partition_of_key(f"k{n}".encode(), 4) for n in range(20)]
        assert ends == {("airlines", 0): 4, ("new", 0): 3} | {("flights", p): keyed.count(p) + 2 for p in range(4)}
        assert repr(broker) == f"EmbeddedBroker({broker.bootstrap_servers!r})"
        with broker:  # already running
            delay = broker.call(lambda node: node.config.group.group_initial_rebalance_delay_ms)
        assert delay == 0
    finally:
        broker.stop()


def test_large_and_many_records_are_divided_into_batches() -> None:
    with gs.EmbeddedBroker() as broker:
        assert broker.produce("big", ["x" * 400_000] * 3 + ["y"] * 2_500, partition=0) == 2_503
        end = broker.call(lambda node: node.partitions.partition(*TopicPartition("big", 0)).log.log_end_offset)
        assert end == 2_503
        message = "Argument partition must be from 0 to 0 for topic big, got 7."
        with pytest.raises(ConfigurationError, match=message):
            broker.produce("big", ["x"], partition=7)


def test_existing_topics_are_not_filled_again(tmp_path) -> None:
    for _ in range(2):
        with gs.EmbeddedBroker(tmp_path, topics={"people": ["a", "b"]}) as broker:
            end = broker.call(lambda node: node.partitions.partition(*TopicPartition("people", 0)).log.log_end_offset)
            assert end == 2


def test_objects_as_keys_and_values() -> None:
    assert key_and_value((1, "ä")) == (b"1", "ä".encode())
    assert key_and_value({"a": None}) == (None, b'{"a":null}')
    assert key_and_value(bytearray(b"x")) == (None, b"x") and key_and_value(None) == (None, None)
    assert key_and_value([date(2020, 1, 2), datetime(2020, 1, 2, 3)]) == (None, b'["2020-01-02","2020-01-02T03:00:00"]')
    with pytest.raises(ConfigurationError, match="A record must be a value or a tuple"):
        key_and_value((1, 2, 3))
    with pytest.raises(ConfigurationError, match="type object cannot be encoded as JSON"):
        key_and_value(object())


def test_only_start_and_with_start_a_broker() -> None:
    broker = gs.EmbeddedBroker(topics={"flights": 1})
    before = threading.active_count()
    names = dict(inspect.getmembers(broker))
    rlcompleter.Completer({"broker": broker}).complete("broker.boot", 0)
    assert "EmbeddedBroker(not running)" in (repr(broker), str(broker), f"{broker}") and "produce" in names
    assert not hasattr(broker, "bootstrap_servers") and broker.__dict__ and dir(broker)
    uses: list[Any] = [
        lambda: broker.bootstrap_servers,
        lambda: broker.address("PLAINTEXT"),
        lambda: broker.produce("flights", [1]),
        lambda: broker.call(print),
        lambda: broker.stop_node(0),
        lambda: gs.connect(broker),
    ]
    for use in uses:
        with pytest.raises(GroupSourceError, match=r"^The embedded broker is not running. Call start\(\), or use"):
            use()
    assert broker.data_dir is None and threading.active_count() == before
    with broker:
        address = broker.bootstrap_servers
    assert broker.bootstrap_servers == address and repr(broker) == "EmbeddedBroker(not running)"


def test_a_misspelled_topic_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with gs.EmbeddedBroker(topics={"flights": 2}) as broker, caplog.at_level(logging.WARNING):
        broker.produce("flights", [1])
        assert caplog.text == ""
        broker.produce("fligths", [1])
        broker.produce("fligths", [2])
        (record,) = caplog.records
        text = "Created a topic that did not exist, with num.partitions=1. Did you mean flights?"
        assert record.getMessage() == f"[topic=fligths] {text}"
        broker.produce("weather", [1])
        assert caplog.messages[1].endswith("num.partitions=1. Known names: flights, fligths.")
    with gs.EmbeddedBroker(topics={"flights": 2}, config={"auto.create.topics.enable": "false"}) as broker:
        with pytest.raises(ConfigurationError, match="topic fligths does not exist, and auto.*Did you mean flights"):
            broker.produce("fligths", [1])


@pytest.mark.parametrize("records", [("key", "value"), None, 3, 2.5, True, object()], ids=type)
def test_what_is_not_a_list_of_records(records: Any) -> None:
    message = "^Argument records must be a list of records, got [^\n]*. Put one record into a list: .record..$"
    with pytest.raises(ConfigurationError, match=message):
        records_of("records", records)
    assert records_of("records", [records]) == [records]
    if not isinstance(records, int) or records is True:
        with pytest.raises(ConfigurationError, match=r"^Argument topics\['t'\] must be a list of records"):
            gs.EmbeddedBroker(topics={"t": records})


def written(broker: gs.EmbeddedBroker, topic: str) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    """Returns partition, key, value and headers of all records."""

    def read(node: Broker) -> list[tuple[int, bytes | None, bytes | None, Any]]:
        found = []
        for number in range(node.partitions.topic(topic).partition_count):
            data = node.partitions.partition(topic, number).log.read(0, 1 << 30)
            records = (record for header in iter_batches(data) for record in decode_records(data, header))
            found += [(number, record.key, record.value, record.headers) for record in records]
        return found

    return broker.call(read)


@pytest.mark.parametrize("record", ["text", b"text", bytearray(b"text"), memoryview(b"text")], ids=type)
def test_one_text_is_one_record(record: Any) -> None:
    with gs.EmbeddedBroker(topics={"given": record}) as broker:
        assert broker.produce("t", record) == 1
        assert written(broker, "t") == written(broker, "given") == [(0, None, b"text", ())]


def test_one_mapping_is_one_record() -> None:
    with gs.EmbeddedBroker(topics={"given": {"delay": 3}}) as broker:
        assert broker.produce("t", {"delay": 3}) == 1
        assert written(broker, "t") == written(broker, "given") == [(0, None, b'{"delay":3}', ())]


class SparkFrame:
    """What Spark's data frame, of a classic or a Connect session, has."""

    columns = ["a"]

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._table


def pandas_frame(columns: dict[str, list[Any]], **given: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns, **given)


TABLES = {
    "pandas": pandas_frame,
    "index": lambda columns: pandas_frame(columns, index=["x", "y"]),
    "arrow": pa.table,
    "batch": pa.record_batch,
    "spark": lambda columns: SparkFrame(pa.table(columns)),
}


@pytest.mark.parametrize("kind", TABLES)
def test_rows_of_a_table_are_json_objects(kind: str) -> None:
    table = TABLES[kind]({"a": [1, 2], "when": ["x", None]})
    with gs.EmbeddedBroker(topics={"given": table}) as broker:
        assert broker.produce("t", table) == 2
        expected = [(0, None, b'{"a":1,"when":"x"}', ()), (0, None, b'{"a":2,"when":null}', ())]
        assert written(broker, "t") == written(broker, "given") == expected


def test_columns_of_records_in_a_table() -> None:
    kind = pa.list_(pa.struct({"key": "string", "value": "binary"}))
    headers = pa.array([[("h", b"1"), ("h", None)], None, []], kind)
    columns = {
        "key": ["k", None, "other"], "value": [b"v", None, b""], "headers": headers,
        "partition": pa.array([2, 0, None], pa.int32()), "offset": [7, 8, 9],
    }  # fmt: skip
    keyed = partition_of_key(b"other", 3)
    with gs.EmbeddedBroker(topics={"t": 3, "given": 3}) as broker:
        assert broker.produce("t", pa.table(columns)) == 3
        expected = [(2, b"k", b"v", (("h", b"1"), ("h", None))), (0, None, None, ()), (keyed, b"other", b"", ())]
        assert sorted(written(broker, "t"), key=str) == sorted(expected, key=str)
        broker.produce("given", pa.table(columns), partition=1)
        assert [row[0] for row in written(broker, "given")] == [1] * 3
        with pytest.raises(ConfigurationError, match="Column partition is 3 in a row of topic t, which has 3"):
            broker.produce("t", pa.table({"value": ["v"], "partition": [3]}))
        assert broker.produce("json", pa.table({"key": [1, None], "value": [{"a": 1}, None]})) == 2
        assert written(broker, "json") == [(0, b"1", b'{"a":1}', ()), (0, None, None, ())]
        # a column that records do not have: it would be lost
        broker.produce("rows", pa.table({"value": [0.5], "sensor": ["s"], "when": [datetime(2020, 1, 2)]}))
        assert written(broker, "rows") == [(0, None, b'{"value":0.5,"sensor":"s","when":"2020-01-02T00:00:00"}', ())]
        assert broker.produce("none", pa.table({"value": pa.array([], pa.string())})) == 0
        assert broker.produce("many", pa.table({"n": range(25_000)})) == 25_000
        assert len(written(broker, "many")) == 25_000


def test_a_table_without_an_interface_of_arrow_is_named() -> None:
    class Frame:
        columns = ["a"]

    with pytest.raises(ConfigurationError, match="must be a list of records or a table that PyArrow reads, got a"):
        records_of("records", Frame())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("brokers", {"brokers": "3"}), ("brokers", {"brokers": 0}), ("brokers", {"brokers": True}),
        ("port", {"port": "9092"}), ("port", {"port": 70_000}), ("port", {"port": None}), ("host", {"host": 5}),
        ("config", {"config": "a=b"}), ("config", {"config": {1: "b"}}), ("topics", {"topics": ["flights"]}),
        ("topics", {"topics": "flights"}), ("topics", {"topics": {1: 2}}), ("topics", {"topics": {"flights": 0}}),
    ],
)  # fmt: skip
def test_invalid_arguments_are_named(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Argument {name}[^\n]* must be [^\n]*, got [^\n]*\.$"):
        gs.EmbeddedBroker(**arguments)


def test_errors_do_not_show_what_may_be_a_password() -> None:
    for arguments in ({"config": "sasl.password=secret"}, {"config": {1: "secret"}}, {"topics": ["secret"]}):
        with pytest.raises(ConfigurationError) as raised:
            gs.EmbeddedBroker(**arguments)
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="^Argument bootstrap must be HOST:PORT or an EmbeddedBroker, got a"):
        gs.connect({"sasl.password": "secret"})


def test_integers_of_numpy_are_integers() -> None:
    with gs.EmbeddedBroker(brokers=np.int64(1), topics={"flights": 2}) as broker, gs.connect(broker) as cluster:
        broker.produce("flights", [1, 2], partition=np.int64(1))
        assert [r["offset"] for r in cluster.peek("flights", last=np.int32(1), partition=np.int16(1))] == [1]


def test_invalid_arguments_of_produce() -> None:
    with gs.EmbeddedBroker(topics={"flights": 1}) as broker:
        for name, arguments in (
            ("topic", ([1], "flights")), ("topic", ("", [1])), ("partition", ("flights", [1], "0")),
            ("partition", ("flights", [1], -1)), ("partition", ("flights", [1], 1.0)),
        ):  # fmt: skip
            with pytest.raises(ConfigurationError, match=rf"^Argument {name} must be [^\n]*, got [^\n]*\.$"):
                broker.produce(*arguments)
