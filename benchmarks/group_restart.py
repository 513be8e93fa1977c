"""Restart of a broker with 1,000,000 records in __consumer_offsets, beside Apache Kafka.

    python benchmarks/run.py --only group-restart

Each broker is killed and restarted twice: without group records, and with them. The difference of the times until it
serves the committed offsets of every group is what loading takes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator

from bench.context import Context, Measure
from bench.embedded import EmbeddedBroker
from bench.figures import Figure, Rounds
from coordinator import VERSIONS, Connection, commit_request, create_topic, wait_until_ready

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from real_kafka import RealKafka  # noqa: E402

from spark_groupsource.wire import messages  # noqa: E402
from spark_groupsource.wire.frames import encode_request  # noqa: E402

GROUPS, PARTITIONS = 100, 100
SETTINGS = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
VERSIONS[9] = 5
_READY_S = 120
_IN_FLIGHT = 50


def fetch_request(group: str) -> Any:
    topic = messages.OffsetFetchRequest.OffsetFetchRequestTopic
    rows = [topic(name="load", partition_indexes=list(range(PARTITIONS)))]
    return messages.OffsetFetchRequest(group_id=group, topics=rows, require_stable=False)


async def fill(address: str, records: int) -> None:
    """Commits offsets until the topic has about `records` records."""
    connection = await Connection.open(address)
    repeats = max(1, records // (GROUPS * PARTITIONS))
    for number in range(GROUPS):
        request = commit_request(f"restart-{number}", "load", PARTITIONS)
        await connection.call(request)
        frame = bytes(encode_request(request, VERSIONS[8], 1, "benchmark"))
        for begin in range(1, repeats, _IN_FLIGHT):
            await connection.exchange_many(frame, min(_IN_FLIGHT, repeats - begin))
    connection.close()


async def wait_for_offsets(address: str, is_filled: bool) -> None:
    """Returns when the broker serves the committed offsets of every group. Raises: TimeoutError, RuntimeError."""
    deadline = time.monotonic() + _READY_S
    for number in range(GROUPS):
        while True:
            try:
                connection = await Connection.open(address)
                response = await connection.call(fetch_request(f"restart-{number}"))
                connection.close()
                if not response.error_code:
                    break
            except (OSError, asyncio.IncompleteReadError):
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"no committed offsets of group {number} after {_READY_S} s")
            await asyncio.sleep(0.005)
        offsets = [p.committed_offset for topic in response.topics for p in topic.partitions]
        if is_filled and offsets != [42] * PARTITIONS:
            raise RuntimeError(f"group restart-{number} has lost offsets")


def restart_s(broker: Any, is_filled: bool) -> float:
    """Kills and restarts a broker; returns the seconds until it serves the offsets."""
    broker.kill()
    began = time.perf_counter()
    broker.restart()
    asyncio.run(wait_for_offsets(broker.bootstrap_servers, is_filled))
    return time.perf_counter() - began


def load_s(broker: Any, records: int) -> Iterator[float]:
    """Yields the restart without group records, and then restarts with them."""
    address = broker.bootstrap_servers
    asyncio.run(create_topic(address, "load", PARTITIONS))
    asyncio.run(wait_until_ready(address))
    yield restart_s(broker, False)
    asyncio.run(fill(address, records))
    while True:
        yield restart_s(broker, True)


def figures(context: Context) -> Iterator[Figure]:
    records = context.records(1_000_000, GROUPS * PARTITIONS)
    took = Rounds()
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory, RealKafka(SETTINGS) as kafka:
        own = EmbeddedBroker(directory, SETTINGS)
        try:
            runs = {"embedded": load_s(own, records), "Kafka": load_s(kafka, records)}
            empty_s = {name: next(run) for name, run in runs.items()}
            for _ in range(context.rounds):
                for name, run in runs.items():
                    loaded_s = next(run)
                    took.add(name, max(loaded_s - empty_s[name], 0.001))
                    took.add(f"{name}, whole", loaded_s)
        finally:
            own.stop()
    measure = f"restart with {records:,} group records"
    yield took.figure(measure, "longer than without", "s", "embedded", "Kafka", least_ratio=1.0)
    yield took.figure(measure, "whole restart", "s", "embedded, whole", "Kafka, whole")


MEASURES = (Measure("group-restart", figures, 420),)
