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
def test_incomplete_requests_are_read_after_others_and_in_turn(monkeypatch):
    now_ns = 0
    monkeypatch.setattr(event_loop, "monotonic_ns", lambda: now_ns)
    selector = event_loop._new_selector()  # private: it is part of the loop
    pairs = [socket.socketpair() for _ in range(61)]
    for server, client in pairs:
        selector.register(server, selectors.EVENT_READ)
        selector.deferred_reads.add(server.fileno())
        client.send(b"part")
    request = pairs[30][0].fileno()
    selector.deferred_reads.discard(request)
    found = []
    for _ in range(5):
        ready = [key.fd for key, _ in selector.select(1)]
        assert ready[0] == request  # its handler does not wait for the others
        found.append(ready[1:])
        now_ns += 20_000_000
    assert [len(each) for each in found] == [32, 16, 8, 4, 4]
    # the others are not read again before each was read once
    assert len(set(sum(found[:4], []))) == 60
    assert len(selector.select(0)) == 5
    assert len(selector.select(0)) == 9  # the last iteration was short
    selector.close()
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
