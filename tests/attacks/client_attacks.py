"""Attacks of one client on a broker, and effects on other clients.

    PYTHONPATH=jobs:tests python tests/attacks/client_attacks.py [--broker HOST:PORT --pid PID] [--only NAME ...]

Each attack runs while a neighbor sends a heartbeat every 10 ms. Printed are the worst response time of the neighbor,
and the largest resident memory of the broker process during the attack. Without `--broker`, an embedded broker is
started in a process of its own for each attack.
"""

from __future__ import annotations

import argparse
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, NamedTuple

from attacks.attack_frames import (
    create_topics,
    describe_broker_configs,
    describe_group,
    empty_headers_batch,
    fetch,
    fetch_many,
    half_sent,
    header_tags,
    heartbeat,
    init_producer_id,
    join_group,
    list_offsets_at,
    metadata_of,
    metadata_of_all_topics,
    metadata_of_empty_names,
    produce,
    produce_to_many,
    unknown_tags,
)
from support.raw_broker import BrokerProcess

from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import SyncGroupRequest

_TIMEOUT_S = 60
_INTERVAL_S = 0.01
_CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}


# --- connections ---


class Target:
    """A broker under attack. `process_id` None: its memory is not measured; `tls_address` None: it has no TLS."""

    def __init__(self, address: str, process_id: int | None, tls_address: tuple[str, int] | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.tls_address = tls_address
        self.process_id = process_id

    def connect(self, *, receive_bytes: int = 0) -> Client:
        return Client(self.address, receive_bytes)

    def memory_mb(self) -> float:
        """Resident memory of the broker process."""
        if self.process_id is None:
            return 0.0
        return int(Path(f"/proc/{self.process_id}/statm").read_text().split()[1]) * 4096 / 2**20


class Client:
    """A connection that sends frames and reads responses. `receive_bytes`: size of its receive buffer."""

    def __init__(self, address: tuple[str, int], receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(_TIMEOUT_S)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Returns False if the broker has closed the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def send_available(self, data: bytes) -> int:
        """Sends what the broker accepts within a second; returns the number of bytes."""
        self.socket.settimeout(1)
        sent = 0
        try:
            while sent < len(data):
                sent += self.socket.send(data[sent : sent + 65_536])
        except OSError:
            pass
        self.socket.settimeout(_TIMEOUT_S)
        return sent

    def read(self) -> bytes | None:
        """The next response without its length, None when the broker closes the connection."""
        head = self._take(4)
        return None if head is None else self._take(int.from_bytes(head, "big"))

    def call(self, data: bytes) -> bytes | None:
        return self.read() if self.send(data) else None

    def _take(self, size: int) -> bytes | None:
        parts = []
        while size:
            try:
                data = self.socket.recv(min(size, 1 << 20))
            except OSError:
                return None
            if not data:
                return None
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


class Neighbor:
    """A well-behaved client in a process of its own, which sends a heartbeat every 10 ms.

    Attributes, after its end: `worst_ms`, the longest response time, infinite if the broker closed the connection;
    `peak_mb`, the largest memory of the broker process.
    """

    def __init__(self, target: Target) -> None:
        address = f"{target.address[0]}:{target.address[1]}"
        command = [sys.executable, __file__, "--neighbor", "--broker", address]
        command += ["--pid", str(target.process_id)] if target.process_id else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.worst_ms = self.peak_mb = 0.0

    def __enter__(self) -> Neighbor:
        return self

    def __exit__(self, *exc: object) -> None:
        time.sleep(0.2)
        output, _ = self._process.communicate(timeout=_TIMEOUT_S + 10)
        self.worst_ms, self.peak_mb = map(float, output.split())


def be_neighbor(target: Target) -> None:
    """Runs in the process of a `Neighbor` until its standard input is closed."""
    client, data = target.connect(), heartbeat()
    for _ in range(200):  # until the coordinator is loaded
        answer = client.call(data)
        if answer is not None and answer[8:10] not in (b"\0\x0e", b"\0\x0f", b"\0\x10"):
            break
        time.sleep(0.05)
    print("ready", flush=True)
    worst_ms = peak_mb = 0.0
    while not select.select([sys.stdin], [], [], _INTERVAL_S)[0]:
        started = time.monotonic()
        if client.call(data) is None:
            worst_ms = float("inf")
            break
        worst_ms = max(worst_ms, (time.monotonic() - started) * 1000)
        peak_mb = max(peak_mb, target.memory_mb())
    print(worst_ms, peak_mb)


# --- attacks ---


class Outcome(NamedTuple):
    """`response_bytes`: of all responses that were read; `refused`: connections that the broker has closed."""

    response_bytes: int = 0
    refused: int = 0


def call_all(client: Client, *frames: bytes) -> Outcome:
    """Sends all frames, then reads their responses."""
    sender = threading.Thread(target=client.send, args=(b"".join(frames),), daemon=True)
    sender.start()
    size = 0
    for _ in frames:
        answer = client.read()
        if answer is None:
            return Outcome(size, 1)
        size += len(answer)
    sender.join(_TIMEOUT_S)
    return Outcome(size)


def _fill(target: Target, topic: str, batches: int) -> None:
    """Creates a topic with `batches` batches of 900 kB."""
    batch = bytes(encode_batch([Record(None, bytes(900_000), 1)]))
    with target.connect() as client:
        client.call(create_topics(1, 1, topic))
        for _ in range(batches):
            client.call(produce(f"{topic}-0", batch))


def nothing(target: Target) -> Outcome:
    """No attack: what the machine alone costs."""
    time.sleep(2)
    return Outcome()


def time_lookup_of_headers(target: Target, times: int = 1) -> Outcome:
    with target.connect() as client:
        client.call(create_topics(1, 1, "headers"))
        client.call(produce("headers-0", empty_headers_batch()))
        return call_all(client, *[list_offsets_at("headers-0", 1_000)] * times)


def pipelined_time_lookups(target: Target) -> Outcome:
    return time_lookup_of_headers(target, 50)


def metadata_4mb(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, metadata_of_empty_names(4_000_000))


def metadata_100mb(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, metadata_of_empty_names(100_000_000))


def tags_4mb(target: Target) -> Outcome:
    with target.connect() as client, target.connect() as other:
        first = call_all(client, unknown_tags(4_000_000))
        second = call_all(other, header_tags(4_000_000))
        return Outcome(first.response_bytes + second.response_bytes, first.refused + second.refused)


def auto_create_80000(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, metadata_of([f"auto-{number}" for number in range(80_000)], create=True))


def create_100000_partitions(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, create_topics(1, 100_000), create_topics(5_000, 10, "many"))


def describe_configs_2000(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, describe_broker_configs(1, 2_000))


def describe_groups_300(target: Target) -> Outcome:
    with target.connect() as member, target.connect() as client:
        joined = member.call(join_group("large", bytes(200_000), session_timeout_ms=300_000))
        assert joined is not None
        member_id = _member_id_of(joined)
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(200_000))
        sync = SyncGroupRequest(
            group_id="large", generation_id=1, member_id=member_id, group_instance_id=None, assignments=[assignment]
        )
        member.call(bytes(encode_request(sync, 3, 1, None)))
        return call_all(client, describe_group("large", 300))


def _member_id_of(response: bytes) -> str:
    """The member id in a JoinGroup response of version 3."""
    at = 4 + 4 + 2 + 4  # correlation id, throttle time, error, generation
    for _ in range(2):  # protocol, leader
        at += 2 + int.from_bytes(response[at : at + 2], "big")
    size = int.from_bytes(response[at : at + 2], "big")
    return response[at + 2 : at + 2 + size].decode()


def clients_that_do_not_read(target: Target, count: int = 10) -> Outcome:
    _fill(target, "bulk", 60)
    with ExitStack() as held:
        clients = [held.enter_context(target.connect(receive_bytes=4096)) for _ in range(count)]
        for client in clients:
            client.send(fetch("bulk-0", 50_000_000) * 20)
        time.sleep(2)
    return Outcome()


def half_sent_frames(target: Target, count: int = 50) -> Outcome:
    data = half_sent(100_000_000, 4_000_000)
    with ExitStack() as held:
        clients = [held.enter_context(target.connect()) for _ in range(count)]
        threads = [threading.Thread(target=client.send_available, args=(data,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_TIMEOUT_S)
        time.sleep(1)
    return Outcome()


def pipelined_heartbeats(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, *[heartbeat("busy")] * 30_000)


def pipelined_metadata(target: Target) -> Outcome:
    with target.connect() as client:
        client.call(create_topics(100, 20, "wide"))
        return call_all(client, *[metadata_of_all_topics()] * 100)


def many_connections(target: Target, count: int = 2_000) -> Outcome:
    with ExitStack() as held:
        refused = 0
        for _ in range(count):
            try:
                held.enter_context(target.connect()).send(struct.pack(">i", 1000))
            except OSError:
                refused += 1
        time.sleep(0.5)
    return Outcome(0, refused)


def many_groups(target: Target, count: int = 9_000) -> Outcome:
    with target.connect() as client:
        frames = [join_group(f"group-{number}", bytes(2_000)) for number in range(count)]
        return call_all(client, *frames)


def many_producer_ids(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, *[init_producer_id()] * 20_000)


def fetch_100000_partitions(target: Target) -> Outcome:
    with target.connect() as client:
        return call_all(client, fetch_many(100_000), produce_to_many(100_000))


ATTACKS: dict[str, Callable[[Target], Outcome]] = {
    each.__name__: each
    for each in (
        nothing,
        time_lookup_of_headers,
        pipelined_time_lookups,
        metadata_4mb,
        metadata_100mb,
        tags_4mb,
        auto_create_80000,
        create_100000_partitions,
        describe_configs_2000,
        describe_groups_300,
        clients_that_do_not_read,
        half_sent_frames,
        pipelined_heartbeats,
        pipelined_metadata,
        many_connections,
        many_groups,
        many_producer_ids,
        fetch_100000_partitions,
    )
}
"""Attacks by name."""


class Cost(NamedTuple):
    """What an attack costs: worst response time of a neighbor, memory of the broker before and at most, duration."""

    outcome: Outcome
    worst_ms: float
    before_mb: float
    peak_mb: float
    seconds: float


def measure(target: Target, attack: Callable[[Target], Outcome]) -> Cost:
    """Runs an attack beside a neighbor."""
    neighbor = Neighbor(target)
    before_mb = target.memory_mb()
    started = time.monotonic()
    with neighbor:
        outcome = attack(target)
        seconds = time.monotonic() - started
    return Cost(outcome, neighbor.worst_ms, before_mb, neighbor.peak_mb, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", help="address of a running broker")
    parser.add_argument("--pid", type=int, help="process id of that broker")
    parser.add_argument("--only", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--neighbor", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.neighbor:
        be_neighbor(Target(options.broker, options.pid))
        return
    print(f"{'attack':28} {'neighbor ms':>11} {'before MB':>9} {'peak MB':>8} {'answer kB':>10} {'closed':>6} {'s':>6}")
    for name in options.only:
        with ExitStack() as stack:
            target = _target(options, stack)
            cost = measure(target, ATTACKS[name])
        print(
            f"{name:28} {cost.worst_ms:11.0f} {cost.before_mb:9.0f} {cost.peak_mb:8.0f} "
            f"{cost.outcome.response_bytes / 1000:10.0f} {cost.outcome.refused:6} {cost.seconds:6.1f}",
            flush=True,
        )


def _target(options: Any, stack: ExitStack) -> Target:
    if options.broker:
        return Target(options.broker, options.pid)
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    settings = [f"{name}={value}" for name, value in _CONFIG.items()]
    broker = stack.enter_context(BrokerProcess(Path(directory) / "data", *settings))
    return Target(broker.bootstrap_servers, broker.process.pid)


if __name__ == "__main__":
    main()
