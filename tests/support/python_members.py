"""Group members of kafka-python and aiokafka, each in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections import Counter
from typing import Any

from support.kafka_python import KafkaConsumer
from support.waiting import wait_until

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


class _Member:
    """Shared state: `partitions` owned now, `seen` by (partition, offset), `errors`. A context manager."""

    def __init__(self, group: str) -> None:
        self.partitions: set[TopicPartition] = set()
        self.seen: Counter[tuple[int, int]] = Counter()
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"{type(self).__name__} {group}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Commits, leaves the group and ends the thread."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self._thread.name} did not close within 30 s"

    def wait_for_partitions(self, count: int, timeout_s: float = 40) -> set[TopicPartition]:
        """What the member owns, once that is `count` partitions."""
        wait_until(
            lambda: len(self.partitions) == count or self.errors,
            f"{self._thread.name} owns {count} partitions",
            timeout_s,
        )
        assert not self.errors, self.errors
        return set(self.partitions)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # `wait_for_partitions` asserts that there is none
            self.errors.append(repr(error))

    def _run(self) -> None:
        raise NotImplementedError


class KafkaPythonMember(_Member):
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
            topic,
            **{
                "bootstrap_servers": bootstrap_servers.split(","),
                "group_id": group,
                "auto_offset_reset": "earliest",
                "auto_commit_interval_ms": 200,
                "session_timeout_ms": 10_000,
                "heartbeat_interval_ms": 500,
                "metadata_max_age_ms": 1_000,
                "partition_assignment_strategy": [self.ASSIGNORS[assignor]],
                **settings,
            },
        )
        super().__init__(group)

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


class AioKafkaMember(_Member):
    """aiokafka's consumer in a separate event loop; `assignor` is range, roundrobin or sticky."""

    ASSIGNORS = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def __init__(
        self, bootstrap_servers: str, group: str, topic: str, assignor: str = "range", **settings: Any
    ) -> None:
        self._topic = topic
        self._settings = {
            "bootstrap_servers": bootstrap_servers,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 200,
            "session_timeout_ms": 10_000,
            "heartbeat_interval_ms": 500,
            "metadata_max_age_ms": 1_000,
            "partition_assignment_strategy": [self.ASSIGNORS[assignor]],
            **settings,
        }
        super().__init__(group)

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
