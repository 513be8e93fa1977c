"""Join of 100 to 1,000 foreign members, beside Apache Kafka.

    python benchmarks/run.py --only joins

Each member does what a client does that is started on its own: it connects to the bootstrap server (ApiVersions,
Metadata), looks the coordinator up, connects to it (ApiVersions), joins and syncs, and fetches its committed offset.
The time ends when all members are stable in one generation and have their offsets. The members are tasks of one
asyncio loop, so that the brokers differ and the clients do not.
"""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import ExitStack
from typing import Any, Iterator

from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from broker import both, run
from coordinator import VERSIONS, Connection, Group, Member, leave

from spark_groupsource.wire import messages

SIZES = (10, 100, 300, 1_000)
MEASURE = "embedded broker, join of foreign members"
VERSIONS.update({18: 3, 3: 9, 9: 5})


async def open_as_client(address: str, group: str) -> tuple[Connection, Connection]:
    """Returns the connections to the bootstrap server and to the coordinator that it names."""
    first = await Connection.open(address)
    await first.call(api_versions())
    topic = messages.MetadataRequest.MetadataRequestTopic
    await first.call(messages.MetadataRequest(topics=[topic(name="load")], allow_auto_topic_creation=False))
    while True:
        found = await first.call(messages.FindCoordinatorRequest(key=group, key_type=0))
        if not found.error_code:
            break
        await asyncio.sleep(0.1)
    connection = await Connection.open(f"{found.host}:{found.port}")
    await connection.call(api_versions())
    return first, connection


def api_versions() -> Any:
    return messages.ApiVersionsRequest(client_software_name="benchmark", client_software_version="1")


def offset_fetch(group: str) -> Any:
    topic = messages.OffsetFetchRequest.OffsetFetchRequestTopic
    return messages.OffsetFetchRequest(
        group_id=group, topics=[topic(name="load", partition_indexes=[0])], require_stable=False
    )


async def join(address: str, group: str, count: int) -> float:
    """Returns the seconds until `count` members are stable and have their committed offsets."""
    shared = Group()
    shared.grow(count)
    members: list[Member] = []
    connections: list[Connection] = []

    async def one() -> None:
        first, connection = await open_as_client(address, group)
        member = Member(connection, group, shared)
        connections.extend((connection, first))
        members.append(member)
        await member.follow()
        await connection.call(offset_fetch(group))

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    took = time.perf_counter() - began
    await connections[0].call(leave(members))
    for connection in connections:
        connection.close()
    return took


def figures(context: Context) -> Iterator[Figure]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sizes = [size for size in SIZES if context.scale >= 0.1 or size <= 100]
    with ExitStack() as stack:
        targets = both(stack)
        for size in sizes:
            took, spent = Rounds(), Rounds()
            # the first round lets the JVM's optimizing compiler work
            for number in range(context.rounds + 1):
                for target in targets:
                    busy_s = target.busy_s()
                    seconds = run(join(target.address, f"join-{size}-{number}", size))
                    if number:
                        took.add(target.name, seconds)
                        spent.add(target.name, target.busy_s() - busy_s)
            least_ratio = 1.0 if size >= 100 else None
            yield took.figure(MEASURE, f"{size:,} members", "s", "embedded", "kafka", least_ratio=least_ratio)
            case = f"{size:,} members, processor time of the broker"
            yield spent.figure(MEASURE, case, "s", "embedded", "kafka")


MEASURES = (Measure("joins", figures, 300),)
