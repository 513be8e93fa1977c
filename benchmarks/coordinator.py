"""Benchmark of the group coordinator, compared with Apache Kafka.

    python benchmarks/coordinator.py
    python benchmarks/coordinator.py --beside ../older   # also measures the broker of another checkout

Measures, on each broker in turn: seconds until 10, 100 and 1,000 members of one group are stable (from the first
JoinGroup to the last SyncGroup response of the generation with all members); the same when one more member joins;
heartbeats and commits per second over eight connections with one outstanding request each, and the broker's processor
time per request, which other load on the machine distorts least; 10,000 groups of one member, and the memory of the
broker process before and after. A ratio above 1 means that the embedded broker is better.

Members use the raw protocol in one asyncio loop, each with its own connection, because a pending JoinGroup blocks its
connection. A member is notified of a rebalance at once instead of at its next heartbeat interval, and then sends a
heartbeat. The embedded broker is a process of its own, as Kafka is; client and broker share the machine, so the
measurements include both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.embedded import EmbeddedBroker
from bench.processor_time import process_seconds
from rich.console import Console
from rich.table import Table

JOBS = Path(__file__).resolve().parent.parent / "jobs"
sys.path.insert(0, str(JOBS))

from real_kafka import RealKafka  # noqa: E402

from spark_groupsource.errors import ErrorCode  # noqa: E402
from spark_groupsource.wire import messages  # noqa: E402
from spark_groupsource.wire.frames import decode_response, encode_request  # noqa: E402

CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "50"}
SUBSCRIPTION = struct.pack(">hih4si", 1, 1, 4, b"load", -1) + struct.pack(">i", 0)
ASSIGNMENT = struct.pack(">hiii", 1, 0, -1, 0)[:10]
VERSIONS = {0: 9, 1: 11, 10: 3, 11: 5, 12: 3, 13: 4, 14: 3, 8: 7, 19: 5}
CONNECTIONS = 8
_COMMITS = 16
TIMEOUT_S = 600  # one measurement; on a loaded machine 10,000 groups take minutes
_RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Connection:
    """A connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation_id = 0

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def call(self, request: Any) -> Any:
        """Sends a request and returns its response."""
        version = VERSIONS[request.API_KEY]
        self._correlation_id += 1
        frame = encode_request(request, version, self._correlation_id, "benchmark")
        response = await self.exchange(frame)
        return decode_response(memoryview(response), request, version, self._correlation_id)

    async def exchange(self, frame: bytes | bytearray) -> bytes:
        """Sends a frame and returns the frame of the response, without decoding."""
        self._writer.write(frame)
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    async def exchange_many(self, frames: list[bytes]) -> None:
        """Sends frames and then reads as many responses."""
        self._writer.write(b"".join(frames))
        for _ in frames:
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


class Group:
    """The members of one group, which notify each other of a rebalance before their next heartbeat."""

    def __init__(self) -> None:
        self.size = 0
        self._joining = 0
        self._generations: dict[Member, int] = {}
        self.rebalancing = asyncio.Event()  # a member waits until all the others have joined
        self.stable = asyncio.Event()

    def grow(self, size: int) -> None:
        """Sets the number of members with which the group is stable."""
        self.size = size
        self.stable.clear()
        self.rebalancing.clear()

    def joins(self, member: Member) -> None:
        self._generations.pop(member, None)
        self._joining += 1
        self.rebalancing.set()

    def joined(self) -> None:
        self._joining -= 1
        if not self._joining:
            self.rebalancing.clear()

    def settled(self, member: Member) -> None:
        self._generations[member] = member.generation
        if len(self._generations) == self.size and len(set(self._generations.values())) == 1:
            self.stable.set()
            self.rebalancing.set()


class Member:
    """One member of a group."""

    def __init__(self, connection: Connection, group: str, shared: Group | None = None) -> None:
        self._connection, self._group, self._shared = connection, group, shared or Group()
        self.member_id, self.generation = "", -1

    async def follow(self) -> None:
        """Takes part in rebalances until all members are stable in one generation."""
        if self.generation < 0:
            await self.settle()
        while not self._shared.stable.is_set():
            await self._shared.rebalancing.wait()
            if self._shared.stable.is_set():
                return
            response = await self._connection.call(self.heartbeat())
            if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                await self.settle()
            elif response.error_code:
                raise RuntimeError(f"Heartbeat: {ErrorCode(response.error_code).name}")
            else:
                await asyncio.sleep(0.005)

    async def settle(self, attempts: int = 1_000) -> None:
        """Joins and syncs until a rebalance completes."""
        for _ in range(attempts):
            joined = await self._join()
            if joined is None:
                continue
            self.generation = joined.generation_id
            members = [member.member_id for member in joined.members]
            response = await self._connection.call(self._sync(members if joined.leader == self.member_id else []))
            if not response.error_code:
                self._shared.settled(self)
                return
            if response.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise RuntimeError(f"SyncGroup: {ErrorCode(response.error_code).name}")
        raise RuntimeError(f"group {self._group} is not stable after {attempts} attempts")

    async def _join(self) -> Any:
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
        request = messages.JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[protocol],
        )
        if self.member_id:
            self._shared.joins(self)
        try:
            joined = await self._connection.call(request)
        finally:
            if self.member_id:
                self._shared.joined()
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        elif joined.error_code in _RETRIED:
            await asyncio.sleep(0.05)
        elif joined.error_code:
            raise RuntimeError(f"JoinGroup: {ErrorCode(joined.error_code).name}")
        return None if joined.error_code else joined

    def _sync(self, members: list[str]) -> Any:
        entry = messages.SyncGroupRequest.SyncGroupRequestAssignment
        return messages.SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            assignments=[entry(member_id=member_id, assignment=ASSIGNMENT) for member_id in members],
        )

    @property
    def group(self) -> str:
        return self._group

    def heartbeat(self) -> Any:
        return messages.HeartbeatRequest(
            group_id=self._group, generation_id=self.generation, member_id=self.member_id, group_instance_id=None
        )

    def commit(self, topic: str, partitions: int) -> Any:
        return commit_request(self._group, topic, partitions, self.member_id, self.generation)


def commit_request(group: str, topic: str, partitions: int, member_id: str = "", generation: int = -1) -> Any:
    """Returns the OffsetCommit of offset 42 in each partition; by default that of a group without members."""
    entry = messages.OffsetCommitRequest.OffsetCommitRequestTopic
    parts = [
        entry.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=42, committed_leader_epoch=-1, committed_metadata=""
        )
        for number in range(partitions)
    ]
    return messages.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        topics=[entry(name=topic, partitions=parts)],
    )


def frames(request: Any, version: int) -> Iterator[bytes]:
    """Returns the frames of a request that is repeated: each commit has other offsets, as those of a consumer."""
    if not isinstance(request, messages.OffsetCommitRequest):
        return itertools.repeat(bytes(encode_request(request, version, 1, "benchmark")))
    found: list[bytes] = []
    rows: list[Any] = [row for topic in request.topics for row in topic.partitions]
    for offset in range(_COMMITS):
        for row in rows:
            row.committed_offset = 1_000 * offset + row.partition_index
        found.append(bytes(encode_request(request, version, 1, "benchmark")))
    return itertools.cycle(found)


def leave(members: list[Member]) -> Any:
    """Returns the LeaveGroup request of all members; otherwise sessions would expire during later measurements."""
    identity = messages.LeaveGroupRequest.MemberIdentity
    identities = [identity(member_id=member.member_id, group_instance_id=None) for member in members]
    return messages.LeaveGroupRequest(group_id=members[0].group, members=identities)


# --- measurements ---


async def wait_until_ready(address: str) -> None:
    """Waits for the coordinators: Kafka creates __consumer_offsets for the first group."""
    connection = await Connection.open(address)
    for number in range(200):
        response = await connection.call(messages.FindCoordinatorRequest(key=f"warm-{number}", key_type=0))
        if response.error_code:
            await asyncio.sleep(0.1)
            continue
        await Member(connection, f"warm-{number}").settle()
        if number >= 100:
            break
    connection.close()


async def join_to_stable(address: str, group: str, count: int) -> tuple[float, float]:
    """Returns the seconds until `count` new members are stable, and until one more member has joined."""
    shared = Group()
    connections = [await Connection.open(address) for _ in range(count + 1)]
    members = [Member(connection, group, shared) for connection in connections]
    took = []
    for size in (count, count + 1):
        shared.grow(size)
        began = time.perf_counter()
        await asyncio.gather(*(member.follow() for member in members[:size]))
        took.append(time.perf_counter() - began)
    first_s, again_s = took
    await connections[0].call(leave(members))
    for connection in connections:
        connection.close()
    return first_s, again_s


async def per_second(
    target: Target, group: str, seconds: float, make: Callable[[Member], Any]
) -> tuple[float, float]:
    """Returns requests per second and processor microseconds of the broker per request.

    `CONNECTIONS` groups of one member each repeat one request.
    """
    address = target.address
    members = []
    for number in range(CONNECTIONS):
        connection = await Connection.open(address)
        member = Member(connection, f"{group}-{number}")
        await member.settle()
        members.append((connection, member))
    count, ends = 0, time.perf_counter() + seconds

    async def repeat(connection: Connection, member: Member) -> None:
        nonlocal count
        request = make(member)
        version = VERSIONS[request.API_KEY]
        sent = frames(request, version)
        decode_response(memoryview(await connection.exchange(next(sent))), request, version, 1)
        while time.perf_counter() < ends:
            await connection.exchange(next(sent))
            count += 1

    began, busy_s = time.perf_counter(), target.busy_s()
    await asyncio.gather(*(repeat(connection, member) for connection, member in members))
    rate, each_us = count / (time.perf_counter() - began), (target.busy_s() - busy_s) / count * 1e6
    for connection, member in members:
        await connection.call(leave([member]))
        connection.close()
    return rate, each_us


async def many_groups(address: str, count: int) -> float:
    """Returns the seconds until `count` groups of one member are stable, over `CONNECTIONS` connections."""
    connections = [await Connection.open(address) for _ in range(CONNECTIONS)]
    numbers = iter(range(count))

    async def join_some(connection: Connection) -> None:
        for number in numbers:
            await Member(connection, f"many-{number}").settle()

    began = time.perf_counter()
    await asyncio.gather(*(join_some(connection) for connection in connections))
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return seconds


async def create_topic(address: str, topic: str, partitions: int) -> None:
    connection = await Connection.open(address)
    wanted = messages.CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    request = messages.CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False)
    code = (await connection.call(request)).topics[0].error_code
    connection.close()
    if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise RuntimeError(f"topic {topic}: {ErrorCode(code).name}")


# --- brokers ---


class Target(NamedTuple):
    """A running broker and its process."""

    name: str
    address: str
    pid: int

    def memory_mb(self) -> float:
        """Returns the resident memory, 0 without /proc."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return 0.0
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def busy_s(self) -> float:
        """Returns the processor time in seconds, nan without /proc."""
        return process_seconds(self.pid)


@contextmanager
def embedded(checkout: Path | None = None) -> Iterator[Target]:
    """Runs the embedded broker, of another checkout if one is given, in a process of its own."""
    name, environment = "embedded", dict(os.environ)
    if checkout is not None:
        name, environment["PYTHONPATH"] = checkout.name, str(checkout.resolve())
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as data_dir:
        broker = EmbeddedBroker(data_dir, CONFIG, environment)
        try:
            yield Target(name, broker.bootstrap_servers, broker.pid)
        finally:
            broker.stop()


@contextmanager
def kafka() -> Iterator[Target]:
    """Runs a real Kafka."""
    with RealKafka(CONFIG) as running:
        assert running.process_id is not None
        yield Target("kafka", running.bootstrap_servers, running.process_id)


def measure(target: Target, sizes: list[int], groups: int, seconds: float, rounds: int) -> dict[str, float]:
    """Returns title -> figure: the best of all rounds, because other load on the machine can only slow one down."""
    found: dict[str, float] = {}
    numbers = itertools.count()

    def run(work: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(work, TIMEOUT_S)

        return asyncio.run(bounded())

    run(create_topic(target.address, "load", 10))
    run(wait_until_ready(target.address))
    for size in sizes:
        took = [run(join_to_stable(target.address, f"join-{size}-{n}", size)) for n in range(rounds)]
        found[f"{size:,} members: join to stable, s"] = min(first for first, _ in took)
        found[f"{size:,} members: one more joins, s"] = min(again for _, again in took)
    rates: dict[str, Callable[[Member], Any]] = {
        "heartbeats": Member.heartbeat,
        "commits of 1 partition": lambda member: member.commit("load", 1),
        "commits of 10 partitions": lambda member: member.commit("load", 10),
    }
    for title, make in rates.items():
        took = [run(per_second(target, f"rate-{next(numbers)}", seconds, make)) for _ in range(rounds)]
        found[f"{title} per second"] = max(rate for rate, _ in took)
        found[f"{title}: processor time of the broker per request, us"] = min(each_us for _, each_us in took)
    found["memory before many groups, MB"] = target.memory_mb()
    found[f"{groups:,} groups of one member: stable, s"] = run(many_groups(target.address, groups))
    found[f"memory with {groups:,} groups, MB"] = target.memory_mb()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--members", default="10,100,1000", help="group sizes, separated by commas")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5, help="duration of each rate measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("embedded", "kafka"), help="measure one broker only, to profile it")
    parser.add_argument("--beside", type=Path, help="another checkout whose broker is measured too")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sizes = [int(size) for size in options.members.split(",")]
    brokers: dict[str, Callable[[], AbstractContextManager[Target]]] = {"embedded": embedded, "kafka": kafka}
    if options.only:
        brokers = {options.only: brokers[options.only]}
    if options.beside:
        brokers[options.beside.name] = partial(embedded, options.beside)
    figures = {}
    for name, start in brokers.items():
        with start() as target:
            figures[name] = measure(target, sizes, options.groups, options.seconds, options.rounds)
    Console(width=130).print(table_of(figures))


def table_of(figures: dict[str, dict[str, float]]) -> Table:
    """Returns a table with a row per figure and the ratio of the first broker to each of the others."""
    first, *others = figures
    table = Table("", *figures, *(f"{first} : {other}" for other in others))
    for title, own in figures[first].items():
        ratios = []
        for other in others:
            theirs = figures[other][title]
            ratios.append(own / theirs if title.endswith("per second") else theirs / own)
        row = [figures[name][title] for name in figures]
        shown = [f"{value:,.3f}" if value < 100 else f"{value:,.0f}" for value in row]
        table.add_row(title, *shown, *(f"{ratio:.2f}" for ratio in ratios))
    return table


if __name__ == "__main__":
    main()
