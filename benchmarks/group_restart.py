"""Restart of a broker with 1,000,000 records in __consumer_offsets, beside Apache Kafka.

    python benchmarks/run.py --only group-restart

The embedded broker is killed and restarted without group records, and with them; the difference of the times until it
serves the committed offsets of every group is what loading takes. A Kafka node takes longer to start than to load, so
the time of loading is that of its own log.
"""

from __future__ import annotations

import asyncio
import os
import re
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

from real_kafka import LOGGING, RealKafka  # noqa: E402

from spark_groupsource.wire import messages  # noqa: E402
from spark_groupsource.wire.frames import encode_request  # noqa: E402

GROUPS, PARTITIONS = 100, 100
SETTINGS = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
VERSIONS[9] = 5
_READY_S = 120
_LOGGER = """\
logger.coordinator.name = org.apache.kafka.coordinator.common.runtime
logger.coordinator.level = INFO
"""
_LOADED = re.compile(r"Finished loading of metadata from __consumer_offsets-\d+ with epoch (\d+) in (\d+)ms")
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
            await connection.exchange_many([frame] * min(_IN_FLIGHT, repeats - begin))
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


def fill_topic(broker: Any, records: int) -> None:
    asyncio.run(fill(broker.bootstrap_servers, records))


def create_load_topic(broker: Any) -> None:
    asyncio.run(create_topic(broker.bootstrap_servers, "load", PARTITIONS))
    asyncio.run(wait_until_ready(broker.bootstrap_servers))


def last_load_s(log: str) -> float:
    """Returns how long Kafka took after its last start; the partitions are loaded one after another."""
    loaded = [(int(epoch), int(took_ms)) for epoch, took_ms in _LOADED.findall(log)]
    last = max(epoch for epoch, _ in loaded)
    return max(took_ms for epoch, took_ms in loaded if epoch == last) / 1_000


def figures(context: Context) -> Iterator[Figure]:
    records = context.records(1_000_000, GROUPS * PARTITIONS)
    took = Rounds()
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        logging = Path(directory, "log4j2.properties")
        logging.write_text(LOGGING + _LOGGER)
        data = Path(directory, "data")
        data.mkdir()
        os.environ["KAFKA_OPTS"] = f"-Dlog4j2.configurationFile={logging}"
        own = EmbeddedBroker(str(data), SETTINGS)
        try:
            with RealKafka(SETTINGS) as kafka:
                for broker in (own, kafka):
                    create_load_topic(broker)
                empty_s = min(restart_s(own, False) for _ in range(context.rounds))
                for broker in (own, kafka):
                    fill_topic(broker, records)
                for _ in range(context.rounds):
                    for name, broker in (("embedded", own), ("Kafka", kafka)):
                        whole_s = restart_s(broker, True)
                        took.add(f"{name}, whole", whole_s)
                        took.add(name, last_load_s(kafka.log) if broker is kafka else whole_s - empty_s)
        finally:
            own.stop()
    measure = f"restart with {records:,} group records"
    yield took.figure(measure, "Kafka, loading", "s", "embedded", "Kafka")
    yield took.figure(f"{measure}, whole", "Kafka", "s", "embedded, whole", "Kafka, whole")


MEASURES = (Measure("group-restart", figures, 420),)
