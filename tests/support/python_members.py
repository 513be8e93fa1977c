"""Group members of kafka-python and aiokafka, each in a thread."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Mapping
from typing import Any

from support.kafka_python import KafkaConsumer
from support.member_thread import MemberThread

from spark_groupsource.model import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import aiokafka
    from aiokafka.abc import ConsumerRebalanceListener as AioListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

# both log every lost connection and every rebalance at warning level or above, on standard error
for _name in ("kafka", "aiokafka"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def _settings(bootstrap_servers: str, group: str, assignor: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap_servers.split(","),
        "group_id": group,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 200,
        "session_timeout_ms": 10_000,
        "heartbeat_interval_ms": 500,
        "metadata_max_age_ms": 1_000,
        "partition_assignment_strategy": [assignor],
        **settings,
    }


class KafkaPythonMember(MemberThread):
    """kafka-python's consumer; `assignor` is range, roundrobin, sticky or cooperative-sticky."""

    ASSIGNORS = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    def __init__(
        self, bootstrap_servers: str, group: str, topic: str, assignor: str = "range", **settings: Any
    ) -> None:
        self._consumer = KafkaConsumer(
            topic, **_settings(bootstrap_servers, group, self.ASSIGNORS[assignor], settings)
        )
        super().__init__(f"{type(self).__name__} {group}")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                # long, because a poll that ends while it joins loses the assignment (kafka-python 3.0.12)
                for tp, records in self._consumer.poll(timeout_ms=1_000).items():
                    self.seen.update((tp.partition, record.offset) for record in records)
                self.partitions = {TopicPartition(tp.topic, tp.partition) for tp in self._consumer.assignment()}
        finally:
            self.partitions = set()
            self._consumer.close()


class AioKafkaMember(MemberThread):
    """aiokafka's consumer in a separate event loop; `assignor` is range, roundrobin or sticky."""

    ASSIGNORS = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def __init__(
        self, bootstrap_servers: str, group: str, topic: str, assignor: str = "range", **settings: Any
    ) -> None:
        self._topic = topic
        self._settings = _settings(bootstrap_servers, group, self.ASSIGNORS[assignor], settings)
        super().__init__(f"{type(self).__name__} {group}")

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(**self._settings)
        consumer.subscribe([self._topic], listener=_Listener(self))
        await consumer.start()
        try:
            while not self._stopping.is_set():
                for tp, records in (await consumer.getmany(timeout_ms=50)).items():
                    self.seen.update((tp.partition, record.offset) for record in records)
        finally:
            self.partitions = set()
            await consumer.stop()


class _Listener(AioListener):  # type: ignore[misc]
    def __init__(self, member: AioKafkaMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.partitions = set()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.partitions = {TopicPartition(tp.topic, tp.partition) for tp in assigned}
