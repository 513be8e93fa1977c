"""Foreign group members: Java and librdkafka consumers in processes and threads."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from child_processes import stop_process
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from real_kafka import popen_tool
from support.member_thread import MemberThread
from support.waiting import wait_until

from spark_groupsource.model import TopicPartition

Event = dict[str, Any]


class JavaTool:
    """One of Kafka's Verifiable tools; `events` are the JSON lines it printed so far. A context manager."""

    def __init__(self, main_class: str, *arguments: str) -> None:
        self._process = popen_tool(main_class, *arguments)
        self.events: list[Event] = []
        self._other_lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name=main_class, daemon=True)
        self._reader.start()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def of(self, name: str) -> list[Event]:
        """The events of one name so far."""
        return [event for event in list(self.events) if event.get("name") == name]

    def wait_for(self, name: str, condition: Callable[[Event], bool] = lambda _: True, timeout_s: float = 40) -> Event:
        """The first event of `name` that meets `condition`."""

        def found() -> Event | None:
            hit = next((event for event in self.of(name) if condition(event)), None)
            assert hit or self.running, f"the tool ended without {name}: {self._other_lines[-10:]} {self.events[-5:]}"
            return hit

        hit = wait_until(found, f"event {name}", timeout_s)
        assert hit is not None
        return hit

    @property
    def running(self) -> bool:
        return self._process.poll() is None or self._reader.is_alive()

    def stop(self) -> None:
        """SIGTERM: a Java consumer commits and leaves its group."""
        if self._process.poll() is None:
            self._process.terminate()
        self._reader.join(30)
        stop_process(self._process, 10)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT afterwards: the member is slow for so long."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: the member is lost without a word."""
        self._process.kill()
        self._reader.join(30)
        stop_process(self._process, 10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))
            else:
                self._other_lines.append(line.rstrip())


class JavaMember(JavaTool):
    """``VerifiableConsumer``: a member of Kafka's own Java client, which commits the offsets of consumed records.

    `assignor` is the Java class name, for example ``org.apache.kafka.clients.consumer.RangeAssignor``; `protocol` is
    classic, or consumer (KIP-848), which has neither an assignor nor a session timeout of the member.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        topic: str,
        *arguments: str,
        assignor: str | None = None,
        session_timeout_ms: int = 10_000,
        group_instance_id: str | None = None,
        protocol: str = "classic",
    ) -> None:
        options = ["--bootstrap-server", bootstrap_servers, "--group-id", group, "--topic", topic]
        options += ["--group-protocol", protocol, "--reset-policy", "earliest", *arguments]
        if protocol == "classic":
            options += ["--session-timeout", str(session_timeout_ms)]
        if assignor:
            options += ["--assignment-strategy", assignor]
        if group_instance_id:
            options += ["--group-instance-id", group_instance_id]
        super().__init__("org.apache.kafka.tools.VerifiableConsumer", *options)

    @property
    def partitions(self) -> set[TopicPartition]:
        """What the member owns now, by the assignments and revocations it reported."""
        owned: set[TopicPartition] = set()
        for event in list(self.events):
            named = {TopicPartition(p["topic"], p["partition"]) for p in event.get("partitions") or ()}
            if event.get("name") == "partitions_assigned":
                owned |= named
            elif event.get("name") in ("partitions_revoked", "partitions_lost"):
                owned -= named
        return owned

    @property
    def positions(self) -> list[tuple[int, int]]:
        """Partition and offset of each consumed record."""
        parts = [part for event in self.of("records_consumed") for part in event["partitions"]]
        return [(part["partition"], n) for part in parts for n in range(part["minOffset"], part["maxOffset"] + 1)]

    @property
    def consumed(self) -> int:
        """Records consumed so far."""
        return sum(event["count"] for event in self.of("records_consumed"))

    def wait_for_partitions(self, count: int, timeout_s: float = 40) -> set[TopicPartition]:
        """What the member owns, once that is `count` partitions."""
        wait_until(
            lambda: len(self.partitions) == count or not self.running,
            f"the Java member owns {count} partitions",
            timeout_s,
        )
        assert len(self.partitions) == count, f"it ended: {self.events[-5:]} {self._other_lines[-10:]}"
        return self.partitions


class JavaProducer(JavaTool):
    """``VerifiableProducer``: `count` records, values 0, 1, 2, … as text; each acknowledgement is an event."""

    def __init__(self, bootstrap_servers: str, topic: str, count: int, *arguments: str) -> None:
        super().__init__(
            "org.apache.kafka.tools.VerifiableProducer",
            *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--max-messages", str(count)),
            *("--acks", "-1", *arguments),
        )

    def finish(self, timeout_s: float = 60) -> list[Event]:
        """Waits for its end; the acknowledgements, each with partition and offset."""
        wait_until(lambda: not self.running, "the Java producer's end", timeout_s)
        return self.of("producer_send_success")


class LibrdkafkaMember(MemberThread):
    """A member of librdkafka, whose partitions are those of its last rebalance callback.

    Attributes:
        rebalances: number of assignments.
        errors: what the consumer has reported.
    """

    def __init__(self, bootstrap_servers: str, group: str, topic: str, **settings: object) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 200,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        config.update({name.replace("_", "."): value for name, value in settings.items()})
        self._topic = topic
        self._consumer = Consumer(config)
        self.rebalances = 0
        self.errors: list[str] = []
        super().__init__(f"librdkafka {group}")

    def _run(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                self.seen[partition, offset] += 1
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[LibrdkafkaPartition]) -> None:
        self.partitions |= {TopicPartition(p.topic, p.partition) for p in partitions}
        self.rebalances += 1

    def _revoked(self, consumer: Consumer, partitions: list[LibrdkafkaPartition]) -> None:
        self.partitions -= {TopicPartition(p.topic, p.partition) for p in partitions}
