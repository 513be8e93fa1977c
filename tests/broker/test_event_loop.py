"""Event loop of the broker: clients that disconnect at once."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys

import pytest

from spark_groupsource.broker.network import event_loop


@pytest.mark.skipif(sys.platform != "linux", reason="another selector is used")
def test_requests_are_handled_before_connections_that_were_closed():
    selector = event_loop._new_selector()  # private: it is part of the loop
    pairs = [socket.socketpair() for _ in range(100)]
    for server, _ in pairs:
        selector.register(server, selectors.EVENT_READ)
    for _, client in pairs[:-1]:
        client.close()
    pairs[-1][1].send(b"request")
    remaining = {server.fileno() for server, _ in pairs}
    iterations = 0
    while remaining:
        ready = selector.select(1)
        iterations += 1
        assert all(mask == selectors.EVENT_READ for _, mask in ready) and len(ready) <= 33
        found = {key.fd for key, _ in ready}
        if iterations == 1:
            assert pairs[-1][0].fileno() in found
        for key, _ in ready:
            selector.unregister(key.fileobj)
        remaining -= found
    assert iterations == 4 and selector.select(0) == []
    selector.close()
    for server, client in pairs:
        server.close()
        client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="another selector is used")
def test_incomplete_requests_are_read_after_others_in_turn_and_for_a_limited_time(monkeypatch):
    now_ns, reads_ns = 0, 1_200_000
    monkeypatch.setattr(event_loop, "monotonic_ns", lambda: now_ns)
    pairs = [socket.socketpair() for _ in range(25)]
    request = pairs[12][0].fileno()
    iterations: list[list[int]] = []

    def read(descriptor: int) -> None:
        nonlocal now_ns
        now_ns += reads_ns
        iterations[-1].append(descriptor)

    async def main() -> None:
        nonlocal reads_ns
        loop = asyncio.get_running_loop()
        for server, client in pairs:
            client.send(b"part")
            loop.add_reader(server, read, server.fileno())
            if server.fileno() != request:
                event_loop.deferred_reads().add(server.fileno())
        for iteration in range(7):
            await asyncio.sleep(0)
            reads_ns = 8_000_000 if iteration == 5 else 1_200_000
            iterations.append([])
        await asyncio.sleep(0)
        for server, _ in pairs:
            loop.remove_reader(server)

    event_loop.run(main())
    assert [each[0] for each in iterations] == [request] * 7  # its handler does not wait for the others
    assert [len(each) - 1 for each in iterations] == [5, 5, 5, 5, 5, 1, 5]
    # the others are not read again before each was read once
    assert len(set(sum((each[1:] for each in iterations[:5]), []))) == 24
    for server, client in pairs:
        server.close()
        client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="another selector is used")
def test_a_deferred_connection_that_stops_reading_is_not_read():
    pairs = [socket.socketpair() for _ in range(3)]
    found: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def read(number: int) -> None:
            found.append(number)
            for server, _ in pairs[:2]:
                loop.remove_reader(server)

        for number, (server, client) in enumerate(pairs):
            client.send(b"part")
            loop.add_reader(server, read, number)
            if number < 2:
                event_loop.deferred_reads().add(server.fileno())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.remove_reader(pairs[2][0])

    event_loop.run(main())
    assert set(found) == {2}
    for server, client in pairs:
        server.close()
        client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="another selector is used")
def test_a_client_that_ends_its_requests_can_still_be_written_to():
    selector = event_loop._new_selector()  # private: it is part of the loop
    server, client = socket.socketpair()
    client.shutdown(socket.SHUT_WR)
    selector.register(server, selectors.EVENT_WRITE)
    assert [mask for _, mask in selector.select(0)] == [selectors.EVENT_WRITE]
    server.setblocking(False)
    while True:
        try:
            server.send(bytes(65_536))
        except BlockingIOError:
            break
    assert selector.select(0) == []  # the end of the requests is no reason to write
    selector.modify(server, selectors.EVENT_READ | selectors.EVENT_WRITE)
    assert [mask for _, mask in selector.select(0)] == [selectors.EVENT_READ]
    selector.close()
    server.close()
    client.close()


def test_tasks_are_cancelled_at_the_end_and_the_result_is_returned():
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def main() -> int:
        asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        return 7

    assert event_loop.run(main()) == 7 and ended == ["cancelled"]
