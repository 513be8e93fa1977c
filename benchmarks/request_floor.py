"""Request rates beside a warmed Kafka and a server without work.

    python benchmarks/request_floor.py --warm-s 120

The server is one Python thread that receives the same requests, sends responses of the same size, and decodes nothing:
what remains of its processor time is the cost of system calls, of the event loop and of the interpreter. All three are
measured in alternating rounds by one client with eight connections.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import selectors
import socket
import statistics
import struct
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import Any, Iterator

from bench.children import exit_at_sigterm
from broker import PARTITIONS, REQUESTS, TOPIC, run
from coordinator import (
    CONNECTIONS,
    VERSIONS,
    Connection,
    Member,
    Target,
    create_topic,
    embedded,
    frames,
    kafka,
    leave,
    wait_until_ready,
)
from rich.console import Console
from rich.table import Table

_LENGTH = struct.Struct(">i")
_CORRELATION_AT = 8
_RECEIVED_BYTES = 1 << 17


def serve(listener: socket.socket, response_bytes: int) -> None:
    """Responds to each frame with its correlation id and zeros; runs until it is terminated."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    head, rest = _LENGTH.pack(response_bytes), bytes(response_bytes - _LENGTH.size)
    received: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is listener:
                accepted = listener.accept()[0]
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(accepted, selectors.EVENT_READ)
                continue
            data = connection.recv(_RECEIVED_BYTES)
            if not data:
                selector.unregister(connection)
                connection.close()
                continue
            data = received.pop(connection, b"") + data
            size = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            if len(data) < size:
                received[connection] = data
                continue
            connection.sendall(head + data[_CORRELATION_AT : _CORRELATION_AT + _LENGTH.size] + rest)


@contextmanager
def floor(response_bytes: int) -> Iterator[Target]:
    """Starts the server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, response_bytes))
        process.start()
        try:
            assert process.pid is not None
            yield Target("no work", f"127.0.0.1:{listener.getsockname()[1]}", process.pid)
        finally:
            process.terminate()
            process.join()


Sent = list[Iterator[bytes]]
"""The frames of each connection."""


async def frames_of(target: Target, title: str) -> tuple[list[Connection], list[Member], Sent, int]:
    """Returns connections, their settled members and requests, and the size of a response."""
    connections, members, sent, size = [], [], Sent(), 0
    for number in range(CONNECTIONS):
        connection = await Connection.open(target.address)
        member = Member(connection, f"{title}-{time.monotonic_ns()}-{number}")
        await member.settle()
        request = REQUESTS[title](member)
        sent.append(frames(request, VERSIONS[request.API_KEY]))
        size = len(await connection.exchange(next(sent[-1])))
        connections.append(connection)
        members.append(member)
    return connections, members, sent, size


async def rate(target: Target, connections: list[Connection], sent: Sent, seconds: float) -> Any:
    """Returns requests per second, and microseconds of processor time of the server per request."""
    count, ends = 0, time.perf_counter() + seconds

    async def repeat(connection: Connection, frames: Iterator[bytes]) -> None:
        nonlocal count
        while time.perf_counter() < ends:
            await connection.exchange(next(frames))
            count += 1

    began, busy_s = time.perf_counter(), target.busy_s()
    await asyncio.gather(*map(repeat, connections, sent))
    return count / (time.perf_counter() - began), (target.busy_s() - busy_s) / count * 1e6


async def measure(target: Target, title: str, seconds: float) -> tuple[float, float, Sent, int]:
    connections, members, sent, size = await frames_of(target, title)
    found = await rate(target, connections, sent, seconds)
    for connection, member in zip(connections, members):
        await connection.call(leave([member]))
        connection.close()
    return *found, sent, size


async def measure_floor(target: Target, sent: Sent, seconds: float) -> tuple[float, float]:
    connections = [await Connection.open(target.address) for _ in sent]
    found: tuple[float, float] = await rate(target, connections, sent, seconds)
    for connection in connections:
        connection.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-s", type=float, default=120, help="seconds of requests to Kafka before the rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="length of a round")
    options = parser.parse_args()
    exit_at_sigterm()
    table = Table("request", "embedded, /s", "Kafka, /s", "no work, /s", "embedded, us", "Kafka, us", "no work, us")
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(embedded()), stack.enter_context(kafka())
        for target in (ours, theirs):
            run(create_topic(target.address, TOPIC, PARTITIONS))
            run(wait_until_ready(target.address))
        for title in REQUESTS:
            run(measure(theirs, title, options.warm_s / len(REQUESTS)))
        for title in REQUESTS:
            found: list[list[tuple[float, float]]] = [[], [], []]
            for _ in range(options.rounds):
                *own, sent, size = run(measure(ours, title, options.seconds))
                found[0].append((own[0], own[1]))
                found[1].append(run(measure(theirs, title, options.seconds))[:2])
                with floor(size) as target:
                    found[2].append(run(measure_floor(target, sent, options.seconds)))
            rates, spent = ([statistics.median(each[at] for each in rounds) for rounds in found] for at in (0, 1))
            table.add_row(title, *(f"{each:,.0f}" for each in rates), *(f"{each:.0f}" for each in spent))
            print(title, *rates, *spent, file=sys.stderr)
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
