"""EmbeddedBroker: topics and records from Python objects."""

from __future__ import annotations

import inspect
import logging
import rlcompleter
import threading
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

import spark_groupsource as gs
from spark_groupsource.broker.direct_produce import check_records, record_of
from spark_groupsource.errors import ApiError, ConfigurationError, GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.partitioner import partition_of_key


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
        with pytest.raises(ApiError):
            broker.produce("big", ["x"], partition=7)


def test_existing_topics_are_not_filled_again(tmp_path) -> None:
    for _ in range(2):
        with gs.EmbeddedBroker(tmp_path, topics={"people": ["a", "b"]}) as broker:
            end = broker.call(lambda node: node.partitions.partition(*TopicPartition("people", 0)).log.log_end_offset)
            assert end == 2


def test_objects_as_keys_and_values() -> None:
    assert record_of((1, "ä"), 5)[:3] == (b"1", "ä".encode(), 5)
    assert record_of({"a": None}, 5).value == b'{"a":null}'
    assert record_of(bytearray(b"x"), 5).value == b"x" and record_of(None, 5).value is None
    with pytest.raises(ConfigurationError, match="A record must be a value or a tuple"):
        record_of((1, 2, 3), 5)
    with pytest.raises(ConfigurationError, match="type object cannot be encoded as JSON"):
        record_of(object(), 5)


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


@pytest.mark.parametrize(
    "records",
    ["text", b"bytes", bytearray(b"b"), memoryview(b"m"), {"delay": 3}, ("key", "value"), None, 3, 2.5, True, object()],
    ids=lambda value: type(value).__name__,
)
def test_one_record_is_not_a_list_of_records(records: Any) -> None:
    message = "^Argument records must be a list of records, got [^\n]*. Put one record into a list: .record..$"
    with pytest.raises(ConfigurationError, match=message):
        check_records("records", records)
    check_records("records", [records])
    if not isinstance(records, int) or records is True:
        with pytest.raises(ConfigurationError, match=r"^Argument topics\['t'\] must be a list of records"):
            gs.EmbeddedBroker(topics={"t": records})


@pytest.mark.parametrize("table", [pandas.DataFrame({"a": [1]}), pa.table({"a": [1]})], ids=["pandas", "arrow"])
def test_a_table_is_not_a_list_of_records(table: Any) -> None:
    with pytest.raises(ConfigurationError, match="Argument records must be a list of records, got a table"):
        check_records("records", table)


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
