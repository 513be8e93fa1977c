"""EmbeddedBroker: topics and records from Python objects."""

from __future__ import annotations

import pytest

import spark_groupsource as gs
from spark_groupsource.broker.direct_produce import record_of
from spark_groupsource.errors import ApiError, ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.partitioner import partition_of_key


def test_one_line_is_a_running_broker_with_topics_and_records() -> None:
    broker = gs.EmbeddedBroker(topics={"flights": 4, "airlines": [{"code": "UA"}, "Delta", b"\xff", ("AA", None)]})
    assert repr(broker) == "EmbeddedBroker(not running)"
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
