"""Group member process that executes commands from standard input.

``slow SECONDS`` stops polling, ``subscribe A,B`` changes the subscription, ``rejoin`` joins again without a change,
``close`` leaves the group and ends. The client library is that of this package (``own``), confluent-kafka
(``librdkafka``), kafka-python or aiokafka. SIGTERM is ``close``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.settings import ClientSettings, GroupSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.group.rebalance_reports import RebalanceReports
from spark_groupsource.wire.commit_reports import author_metadata

Commands = SimpleQueue[list[str]]


def read_commands(commands: Commands) -> None:
    for line in sys.stdin:
        commands.put(line.split())
    commands.put(["close"])


def take(commands: Commands) -> list[str]:
    try:
        return commands.get_nowait()
    except Empty:
        return []


def follow(commands: Commands, poll: Callable[[], None], actions: Mapping[str, Callable[..., object]]) -> None:
    """Polls, and executes commands between two polls, until ``close`` has been executed."""
    while True:
        poll()
        name, *arguments = take(commands) or [""]
        if name in actions:
            actions[name](*arguments)
        if name == "close":
            return


def slow(seconds: str) -> None:
    time.sleep(float(seconds))


class OwnMember:
    """Member that commits as the session of a query does, with the reports of rebalances in the metadata."""

    def __init__(self, config: dict[str, Any]) -> None:
        settings = {"bootstrap.servers": config["bootstrap"], "client.id": config["client_id"]}
        parsed = ClientSettings.parse({**settings, "metadata.max.age.ms": "1000"})
        group = GroupSettings(
            config["group"],
            topics=tuple(config["topics"]),
            client_id=config["client_id"],
            group_instance_id=config["instance_id"],
            assignors=tuple(config["assignors"]),
            session_timeout_ms=config["session_ms"],
            heartbeat_interval_ms=config["heartbeat_ms"],
            max_poll_interval_ms=config["poll_ms"] // 12,
        )
        self._config = config
        self._cluster = ClusterClient(parsed.bootstrap, parsed)
        self._client = GroupClient(self._cluster, group)
        application = config["client_id"]
        self._reports = RebalanceReports(self._client, group.group_id, self._cluster.clock, application=application)
        self._author = author_metadata(application)
        self._offset, self._committed_at = 0, time.monotonic()
        self._noticed_ms, self._generation = 0, -1

    def poll(self) -> None:
        self._observe()
        for step in (self._commit_if_due, partial(self._client.poll, 100)):
            try:
                step()
            except GroupSourceError as error:
                print(error, file=sys.stderr, flush=True)
        time.sleep(0.05)

    def _observe(self) -> None:
        """Writes when the member noticed the rebalance that led to the present generation."""
        if self._client.rejoin_needed and not self._noticed_ms:
            self._noticed_ms = int(time.time() * 1_000)
        if self._client.view.generation_id == self._generation:
            return
        self._generation = self._client.view.generation_id
        if self._noticed_ms:
            line = {"group": self._config["group"], "generation": self._generation, "noticed_ms": self._noticed_ms}
            with open(self._config["times"], "a") as times:
                times.write(json.dumps(line) + "\n")
        self._noticed_ms = 0

    def _commit_if_due(self) -> None:
        interval_s, owned = self._config["commit_s"], self._client.view.partitions
        is_due = time.monotonic() - self._committed_at >= interval_s
        if not interval_s or not owned or not (is_due or self._client.rejoin_needed):
            return
        self._committed_at, self._offset = time.monotonic(), self._offset + 1
        report = self._reports.pending()
        commits = {tp: OffsetAndMetadata(self._offset, self._author) for tp in owned}
        if report:
            commits[min(commits)] = OffsetAndMetadata(self._offset, f"{self._author} {report}")
        self._client.commit(commits, 0)
        self._reports.committed()

    def subscribe(self, topics: str) -> None:
        shared = self._client.shared
        with shared.changed:
            shared.topics = tuple(sorted(topics.split(",")))
            for member in shared.members:
                member.membership.subscription_changed("subscription has changed")

    def rejoin(self) -> None:
        shared = self._client.shared
        with shared.changed:
            for member in shared.members:
                member.membership.request_rejoin("rebalance enforced by user")

    def close(self) -> None:
        self._client.close()
        self._cluster.close()


def run_own(config: dict[str, Any], commands: Commands) -> None:
    member = OwnMember(config)
    actions: dict[str, Callable[..., object]] = {
        "slow": slow,
        "subscribe": member.subscribe,
        "rejoin": member.rejoin,
        "close": member.close,
    }
    follow(commands, member.poll, actions)


def consumer_actions(consumer: Any) -> dict[str, Callable[..., object]]:
    return {"slow": slow, "subscribe": lambda topics: consumer.subscribe(topics.split(",")), "close": consumer.close}


def run_librdkafka(config: dict[str, Any], commands: Commands) -> None:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": config["bootstrap"],
        "group.id": config["group"],
        "client.id": config["client_id"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": bool(config["commit_s"]),
        "auto.commit.interval.ms": int(config["commit_s"] * 1_000) or 5_000,
        "session.timeout.ms": config["session_ms"],
        "heartbeat.interval.ms": config["heartbeat_ms"],
        "max.poll.interval.ms": config["poll_ms"],
        "partition.assignment.strategy": ",".join(config["assignors"]),
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    if config["instance_id"]:
        settings["group.instance.id"] = config["instance_id"]
    consumer = Consumer(settings)
    consumer.subscribe(config["topics"])

    def poll() -> None:
        message = consumer.poll(0.1)
        if message is not None and message.error():
            print(message.error(), file=sys.stderr, flush=True)

    follow(commands, poll, consumer_actions(consumer))


def _python_settings(config: dict[str, Any], assignors: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the clients that are written in Python; `assignors`, those of the client by name."""
    return {
        "bootstrap_servers": [config["bootstrap"]],
        "group_id": config["group"],
        "client_id": config["client_id"],
        "group_instance_id": config["instance_id"],
        "auto_offset_reset": "earliest",
        "enable_auto_commit": bool(config["commit_s"]),
        "auto_commit_interval_ms": int(config["commit_s"] * 1_000) or 5_000,
        "session_timeout_ms": config["session_ms"],
        "heartbeat_interval_ms": config["heartbeat_ms"],
        "max_poll_interval_ms": config["poll_ms"],
        "metadata_max_age_ms": 1_000,
        "partition_assignment_strategy": [assignors[name] for name in config["assignors"]],
    }


def run_kafka_python(config: dict[str, Any], commands: Commands) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    known = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = kafka.KafkaConsumer(*config["topics"], **_python_settings(config, known))

    def poll() -> None:
        try:
            # long, because a poll that ends while it joins loses the assignment (kafka-python 3.0.12)
            consumer.poll(timeout_ms=1_000)
        except kafka.errors.KafkaConnectionError as error:
            # the broker is down: poll raises what its thread for heartbeats has met
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.5)

    follow(commands, poll, consumer_actions(consumer))


def run_aiokafka(config: dict[str, Any], commands: Commands) -> None:
    asyncio.run(_run_aiokafka(config, commands))


async def _run_aiokafka(config: dict[str, Any], commands: Commands) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    known = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = aiokafka.AIOKafkaConsumer(**_python_settings(config, known))
    consumer.subscribe(config["topics"])
    await consumer.start()
    while True:
        await consumer.getmany(timeout_ms=100)
        name, *arguments = take(commands) or [""]
        if name == "slow":
            await asyncio.sleep(float(arguments[0]))
        elif name == "subscribe":
            consumer.subscribe(arguments[0].split(","))
        elif name == "close":
            await consumer.stop()
            return


RUNNERS = {
    "own": run_own,
    "librdkafka": run_librdkafka,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


def main() -> None:
    for name in ("kafka", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = json.loads(sys.argv[1])
    commands: Commands = SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: commands.put(["close"]))
    Thread(target=read_commands, args=(commands,), daemon=True).start()
    RUNNERS[config["library"]](config, commands)


if __name__ == "__main__":
    main()
