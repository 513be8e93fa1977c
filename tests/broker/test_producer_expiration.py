"""Expiration of idempotent producers by the broker's clock."""

from __future__ import annotations

from support.partition_logs import batch

from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.node import Broker
from spark_groupsource.clock import ManualClock
from spark_groupsource.model import Node
from spark_groupsource.storage.data_directory import DataDirectory


def test_producer_states_expire_by_the_clock_of_the_broker(tmp_path):
    config = broker_config({"producer.id.expiration.ms": "5000", "producer.id.expiration.check.interval.ms": "1"})
    clock = ManualClock()
    broker = Broker(config, DataDirectory(tmp_path), clock, lambda token, response: None, lambda line, level=0: None)
    broker.start()
    broker.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
    broker.create_topic("t", 1, {})
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
