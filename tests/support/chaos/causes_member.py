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
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

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


def run_own(config: dict[str, Any], commands: Commands) -> None:
    from spark_groupsource.client.cluster.client import Cluster
    from spark_groupsource.client.membership.group_client import GroupClient
    from spark_groupsource.client.settings import ClientSettings, GroupSettings
    from spark_groupsource.errors import GroupSourceError
    from spark_groupsource.model import OffsetAndMetadata
    from spark_groupsource.source.rebalance_reports import RebalanceReports
    from spark_groupsource.wire.commit_reports import author_metadata

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
        max_poll_interval_ms=config["poll_ms"],
    )
    offset, committed_at, author = 0, time.monotonic(), author_metadata(config["client_id"])
    noticed_ms, generation = 0, -1
    with Cluster(parsed.bootstrap, parsed) as cluster:
        client = GroupClient(cluster, group)
        # as the session of a query does
        reports = RebalanceReports(client, group.group_id, cluster.clock, application=config["client_id"])
        while True:
            if client.rejoin_needed and not noticed_ms:
                noticed_ms = int(time.time() * 1_000)
            if client.view.generation_id != generation:
                generation = client.view.generation_id
                if noticed_ms:
                    line = {"group": config["group"], "generation": generation, "noticed_ms": noticed_ms}
                    with open(config["times"], "a") as times:
                        times.write(json.dumps(line) + "\n")
                noticed_ms = 0
            try:
                owned = client.view.partitions
                is_due = time.monotonic() - committed_at >= config["commit_s"]
                if config["commit_s"] and owned and (is_due or client.rejoin_needed):
                    committed_at, offset = time.monotonic(), offset + 1
                    report = reports.pending()
                    commits = {tp: OffsetAndMetadata(offset, author) for tp in owned}
                    first = min(commits)
                    commits[first] = OffsetAndMetadata(offset, f"{author} {report}" if report else author)
                    client.commit(commits, 0)
                    reports.committed()
            except GroupSourceError as error:
                print(error, file=sys.stderr, flush=True)
            try:
                client.poll(100)
            except GroupSourceError as error:
                print(error, file=sys.stderr, flush=True)
            name, *arguments = take(commands) or [""]
            shared = client.shared
            if name == "slow":
                time.sleep(float(arguments[0]))
            elif name == "subscribe":
                with shared.changed:
                    shared.topics = tuple(sorted(arguments[0].split(",")))
                    for member in shared.members:
                        member.membership.subscription_changed("subscription has changed")
            elif name == "rejoin":
                with shared.changed:
                    for member in shared.members:
                        member.membership.request_rejoin("rebalance enforced by user")
            elif name == "close":
                client.close()
                return
            time.sleep(0.05)


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
    while True:
        message = consumer.poll(0.1)
        if message is not None and message.error():
            print(message.error(), file=sys.stderr, flush=True)
        name, *arguments = take(commands) or [""]
        if name == "slow":
            time.sleep(float(arguments[0]))
        elif name == "subscribe":
            consumer.subscribe(arguments[0].split(","))
        elif name == "close":
            consumer.close()
            return


def run_kafka_python(config: dict[str, Any], commands: Commands) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    known = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = kafka.KafkaConsumer(
        *config["topics"],
        bootstrap_servers=[config["bootstrap"]],
        group_id=config["group"],
        client_id=config["client_id"],
        group_instance_id=config["instance_id"],
        auto_offset_reset="earliest",
        enable_auto_commit=bool(config["commit_s"]),
        auto_commit_interval_ms=int(config["commit_s"] * 1_000) or 5_000,
        session_timeout_ms=config["session_ms"],
        heartbeat_interval_ms=config["heartbeat_ms"],
        max_poll_interval_ms=config["poll_ms"],
        metadata_max_age_ms=1_000,
        partition_assignment_strategy=[known[name] for name in config["assignors"]],
    )
    while True:
        # long, because a poll that ends while it joins loses the assignment (kafka-python 3.0.12)
        consumer.poll(timeout_ms=1_000)
        name, *arguments = take(commands) or [""]
        if name == "slow":
            time.sleep(float(arguments[0]))
        elif name == "subscribe":
            consumer.subscribe(arguments[0].split(","))
        elif name == "close":
            consumer.close()
            return


def run_aiokafka(config: dict[str, Any], commands: Commands) -> None:
    asyncio.run(_run_aiokafka(config, commands))


async def _run_aiokafka(config: dict[str, Any], commands: Commands) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    known = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=config["bootstrap"],
        group_id=config["group"],
        client_id=config["client_id"],
        group_instance_id=config["instance_id"],
        auto_offset_reset="earliest",
        enable_auto_commit=bool(config["commit_s"]),
        auto_commit_interval_ms=int(config["commit_s"] * 1_000) or 5_000,
        session_timeout_ms=config["session_ms"],
        heartbeat_interval_ms=config["heartbeat_ms"],
        max_poll_interval_ms=config["poll_ms"],
        metadata_max_age_ms=1_000,
        partition_assignment_strategy=[known[name] for name in config["assignors"]],
    )
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
