"""The embedded broker's group coordinator against a real Apache Kafka's: the same client code, in one run.

    python benchmarks/coordinator.py
    python benchmarks/coordinator.py --beside ../older   # another checkout's broker in the same run

Measures, on each of the two in turn: seconds until 10, 100 and 1,000 members of one group are stable (from the first
JoinGroup to the last SyncGroup answer of the generation that has them all); the same when one more member comes;
heartbeats and commits per second over eight connections, one request in progress on each, and the processor time
each of them takes the broker, which other work on the machine distorts least; 10,000 groups of one member, and the
broker process's memory before and after. A ratio above 1 says that the embedded broker is better.

Members are raw protocol on one asyncio loop, each with a connection of its own, because a JoinGroup that waits holds
its connection up. A member learns at once, not at the end of a heartbeat interval, that others wait for it, and then
asks the coordinator by a heartbeat. The embedded broker is a process of its own, as Kafka is; the loop shares the
machine with it, so what is measured is the two together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
VERSIONS = {10: 3, 11: 5, 12: 3, 13: 4, 14: 3, 8: 7, 19: 5}
CONNECTIONS = 8
TIMEOUT_S = 120
_RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Link:
    """One connection: a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation_id = 0

    @classmethod
    async def open(cls, address: str) -> Link:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def call(self, request: Any) -> Any:
        """Sends a request and waits for its answer."""
        version = VERSIONS[request.API_KEY]
        self._correlation_id += 1
        frame = encode_request(request, version, self._correlation_id, "benchmark")
        answer = await self.exchange(frame)
        return decode_response(memoryview(answer), request, version, self._correlation_id)

    async def exchange(self, frame: bytes | bytearray) -> bytes:
        """One frame for another, without looking into them."""
        self._writer.write(frame)
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


class Crowd:
    """The members of one group, who tell one another what they would otherwise learn by their next heartbeat."""

    def __init__(self) -> None:
        self.size = 0
        self._joining = 0
        self._generations: dict[Member, int] = {}
        self.wanted = asyncio.Event()  # somebody waits for all the others to join
        self.stable = asyncio.Event()

    def grow(self, size: int) -> None:
        """From now on the group is stable with `size` members."""
        self.size = size
        self.stable.clear()
        self.wanted.clear()

    def joins(self, member: Member) -> None:
        self._generations.pop(member, None)
        self._joining += 1
        self.wanted.set()

    def joined(self) -> None:
        self._joining -= 1
        if not self._joining:
            self.wanted.clear()

    def settled(self, member: Member) -> None:
        self._generations[member] = member.generation
        if len(self._generations) == self.size and len(set(self._generations.values())) == 1:
            self.stable.set()
            self.wanted.set()


class Member:
    """One member that follows its group until it is stable."""

    def __init__(self, link: Link, group: str, crowd: Crowd | None = None) -> None:
        self._link, self._group, self._crowd = link, group, crowd or Crowd()
        self.member_id, self.generation = "", -1

    async def follow(self) -> None:
        """Joins whenever the group asks for it, until all are stable in one generation."""
        if self.generation < 0:
            await self.settle()
        while not self._crowd.stable.is_set():
            await self._crowd.wanted.wait()
            if self._crowd.stable.is_set():
                return
            answer = await self._link.call(self.heartbeat())
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                await self.settle()
            elif answer.error_code:
                raise RuntimeError(f"Heartbeat: {ErrorCode(answer.error_code).name}")
            else:
                await asyncio.sleep(0.005)

    async def settle(self, rounds: int = 1_000) -> None:
        """Joins and syncs until a round is completed."""
        for _ in range(rounds):
            joined = await self._join()
            if joined is None:
                continue
            self.generation = joined.generation_id
            members = [member.member_id for member in joined.members]
            answer = await self._link.call(self._sync(members if joined.leader == self.member_id else []))
            if not answer.error_code:
                self._crowd.settled(self)
                return
            if answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise RuntimeError(f"SyncGroup: {ErrorCode(answer.error_code).name}")
        raise RuntimeError(f"{self._group} does not settle")

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
            self._crowd.joins(self)
        try:
            joined = await self._link.call(request)
        finally:
            if self.member_id:
                self._crowd.joined()
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        elif joined.error_code in _RETRIED:
            await asyncio.sleep(0.05)
        elif joined.error_code:
            raise RuntimeError(f"JoinGroup: {ErrorCode(joined.error_code).name}")
        return None if joined.error_code else joined

    def _sync(self, members: list[str]) -> Any:
        given = messages.SyncGroupRequest.SyncGroupRequestAssignment
        return messages.SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            assignments=[given(member_id=member_id, assignment=ASSIGNMENT) for member_id in members],
        )

    @property
    def group(self) -> str:
        return self._group

    def heartbeat(self) -> Any:
        return messages.HeartbeatRequest(
            group_id=self._group, generation_id=self.generation, member_id=self.member_id, group_instance_id=None
        )

    def commit(self, topic: str, partitions: int) -> Any:
        entry = messages.OffsetCommitRequest.OffsetCommitRequestTopic
        parts = [
            entry.OffsetCommitRequestPartition(
                partition_index=number, committed_offset=42, committed_leader_epoch=-1, committed_metadata=""
            )
            for number in range(partitions)
        ]
        return messages.OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            topics=[entry(name=topic, partitions=parts)],
        )


def leave(members: list[Member]) -> Any:
    """All members of a group go, lest their sessions end while something else is measured."""
    gone = messages.LeaveGroupRequest.MemberIdentity
    identities = [gone(member_id=member.member_id, group_instance_id=None) for member in members]
    return messages.LeaveGroupRequest(group_id=members[0].group, members=identities)


# --- what is measured ---


async def ready(address: str) -> None:
    """Returns when coordinators serve: Kafka makes its offsets topic for the first group."""
    link = await Link.open(address)
    for number in range(200):
        answer = await link.call(messages.FindCoordinatorRequest(key=f"warm-{number}", key_type=0))
        if answer.error_code:
            await asyncio.sleep(0.1)
            continue
        await Member(link, f"warm-{number}").settle()
        if number >= 100:
            break
    link.close()


async def join_to_stable(address: str, group: str, count: int) -> tuple[float, float]:
    """Seconds until `count` members that all come at once are stable; and until one more has been taken in."""
    crowd = Crowd()
    links = [await Link.open(address) for _ in range(count + 1)]
    members = [Member(link, group, crowd) for link in links]
    took = []
    for size in (count, count + 1):
        crowd.grow(size)
        began = time.perf_counter()
        await asyncio.gather(*(member.follow() for member in members[:size]))
        took.append(time.perf_counter() - began)
    first_s, again_s = took
    await links[0].call(leave(members))
    for link in links:
        link.close()
    return first_s, again_s


async def per_second(
    target: Target, group: str, seconds: float, make: Callable[[Member], Any]
) -> tuple[float, float]:
    """Requests answered per second, of `CONNECTIONS` groups of one member that each send theirs again and again; and
    the processor microseconds one of them takes the broker."""
    address = target.address
    members = []
    for number in range(CONNECTIONS):
        link = await Link.open(address)
        member = Member(link, f"{group}-{number}")
        await member.settle()
        members.append((link, member))
    count, ends = 0, time.perf_counter() + seconds

    async def repeat(link: Link, member: Member) -> None:
        nonlocal count
        request = make(member)
        version = VERSIONS[request.API_KEY]
        frame = bytes(encode_request(request, version, 1, "benchmark"))
        decode_response(memoryview(await link.exchange(frame)), request, version, 1)
        while time.perf_counter() < ends:
            await link.exchange(frame)
            count += 1

    began, busy_s = time.perf_counter(), target.busy_s()
    await asyncio.gather(*(repeat(link, member) for link, member in members))
    rate, each_us = count / (time.perf_counter() - began), (target.busy_s() - busy_s) / count * 1e6
    for link, member in members:
        await link.call(leave([member]))
        link.close()
    return rate, each_us


async def many_groups(address: str, count: int) -> float:
    """Seconds until `count` groups of one member are stable, over `CONNECTIONS` connections."""
    links = [await Link.open(address) for _ in range(CONNECTIONS)]
    numbers = iter(range(count))

    async def settle_some(link: Link) -> None:
        for number in numbers:
            await Member(link, f"many-{number}").settle()

    began = time.perf_counter()
    await asyncio.gather(*(settle_some(link) for link in links))
    seconds = time.perf_counter() - began
    for link in links:
        link.close()
    return seconds


async def create_topic(address: str, topic: str, partitions: int) -> None:
    link = await Link.open(address)
    wanted = messages.CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    request = messages.CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False)
    code = (await link.call(request)).topics[0].error_code
    link.close()
    if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise RuntimeError(f"topic {topic}: {ErrorCode(code).name}")


# --- the two brokers ---


class Target(NamedTuple):
    """A running broker and its process."""

    name: str
    address: str
    pid: int

    def memory_mb(self) -> float:
        """Resident memory, 0 where there is no /proc."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return 0.0
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def busy_s(self) -> float:
        """Processor seconds it has used, nan where there is no /proc."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        except FileNotFoundError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def embedded(checkout: Path | None = None) -> Iterator[Target]:
    """The embedded broker in a process of its own; of another checkout, if one is given."""
    name, environment = "embedded", dict(os.environ)
    if checkout is not None:
        name, environment["PYTHONPATH"] = checkout.name, str(checkout.resolve())
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as data_dir:
        command = [str(Path(sys.executable).with_name("groupsource")), "broker", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", data_dir, *(f"--config={key}={value}" for key, value in CONFIG.items())]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                raise SystemExit(f"the embedded broker did not start: {line}")
            yield Target(name, line.split()[-1], process.pid)
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def kafka() -> Iterator[Target]:
    """A real Kafka."""
    with RealKafka(CONFIG) as running:
        assert running._process is not None
        yield Target("kafka", running.bootstrap_servers, running._process.pid)


def measure(target: Target, sizes: list[int], groups: int, seconds: float, rounds: int) -> dict[str, float]:
    """title -> figure; the best of the rounds, because other work on the machine only slows down."""
    found: dict[str, float] = {}
    numbers = itertools.count()

    def run(work: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(work, TIMEOUT_S)

        return asyncio.run(bounded())

    run(create_topic(target.address, "load", 10))
    run(ready(target.address))
    for size in sizes:
        took = [run(join_to_stable(target.address, f"join-{size}-{n}", size)) for n in range(rounds)]
        found[f"{size:,} members: join to stable, s"] = min(first for first, _ in took)
        found[f"{size:,} members: one more comes, s"] = min(again for _, again in took)
    rates: dict[str, Callable[[Member], Any]] = {
        "heartbeats": Member.heartbeat,
        "commits of 1 partition": lambda member: member.commit("load", 1),
        "commits of 10 partitions": lambda member: member.commit("load", 10),
    }
    for title, make in rates.items():
        took = [run(per_second(target, f"rate-{next(numbers)}", seconds, make)) for _ in range(rounds)]
        found[f"{title} per second"] = max(rate for rate, _ in took)
        found[f"{title}: processor time of the broker for one, us"] = min(each_us for _, each_us in took)
    found["memory before many groups, MB"] = target.memory_mb()
    found[f"{groups:,} groups of one member: stable, s"] = run(many_groups(target.address, groups))
    found[f"memory with {groups:,} groups, MB"] = target.memory_mb()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--members", default="10,100,1000", help="sizes of groups, by commas")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5, help="of each rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("embedded", "kafka"), help="one of the two, to profile it")
    parser.add_argument("--beside", type=Path, help="another checkout, whose broker is measured too")
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
    """A row for each figure; a ratio of the first broker to each of the others."""
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
