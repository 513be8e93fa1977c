"""Expiration of idempotent producers by the broker's clock."""

from __future__ import annotations

import pytest
from support.partition_logs import batch

from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.model import Node


def test_producer_states_expire_by_the_clock_of_the_broker(tmp_path):
    config = broker_config({"producer.id.expiration.ms": "5000", "producer.id.expiration.check.interval.ms": "1"})
    clock = ManualClock()
    broker = Broker(config, DataDirectory(tmp_path), clock, lambda token, response: None, lambda line, level=0: None)
    broker.start()
    broker.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
    run_at_once(broker.create_topic("t", 1, {}))
    partition = broker.partitions.partition("t", 0)
    now = clock.timestamp_ms()
    partition.append(batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, timestamp_ms=now), now)

    def known_after(waited_ms: int) -> list[int]:
        clock.advance_ms(waited_ms)
        broker.run_timers()
        return list(partition.last_data_offsets())

    assert known_after(4_999) == [7]
    assert known_after(1) == []
    broker.stop()


@pytest.mark.conformance("PS-024")
def test_producers_that_expired_while_the_broker_was_stopped_are_not_loaded(tmp_path):
    config = broker_config({"producer.id.expiration.ms": "5000"})
    clock = ManualClock()

    def started() -> tuple[Broker, Partition]:
        data = DataDirectory(tmp_path)
        broker = Broker(config, data, clock, lambda token, response: None, lambda line, level=0: None)
        broker.start()
        broker.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
        if "t" not in broker.partitions.topics:
            run_at_once(broker.create_topic("t", 1, {}))
        return broker, broker.partitions.partition("t", 0)

    broker, partition = started()
    for producer_id, age_ms, transactional in ((7, 10, False), (8, 0, False), (9, 10, True)):
        timestamp_ms = clock.timestamp_ms() - age_ms
        values = {"producer_epoch": 0, "base_sequence": 0, "timestamp_ms": timestamp_ms, "transactional": transactional}
        partition.append(batch(b"x", producer_id=producer_id, **values), timestamp_ms)
    broker.stop()
    clock.advance_ms(4_995)
    broker, partition = started()
    assert set(partition.producers()) == {8, 9}  # an open transaction is kept
    broker.stop()
