"""Requests of an event loop over one connection: order, deadlines, loss, TLS."""

from __future__ import annotations

import asyncio
import queue
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import certificates
from support.certificates import write_pem
from support.clients import ConnectionLostError, FakeBroker, advertise, fake_broker

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.request_pipeline import RequestPipeline
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common import net
from spark_groupsource.common.clock import Clock, ManualClock, SystemClock
from spark_groupsource.errors import NetworkError, RemoteProtocolError, RequestTimeoutError
from spark_groupsource.wire.frames import encode_response
from spark_groupsource.wire.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse

Client = Callable[[RequestPipeline], Awaitable[Any]]
_ROW = LeaveGroupResponse.MemberResponse
LARGE = LeaveGroupResponse(
    throttle_time_ms=0,
    error_code=0,
    members=[_ROW(member_id="m" * 90, group_instance_id=None, error_code=n % 100) for n in range(3_000)],
)


def heartbeat(member: str = "m") -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=1, member_id=member, group_instance_id=None)


def respond(request: Any, version: int) -> Any:
    return HeartbeatResponse(throttle_time_ms=0, error_code=0)


@contextmanager
def serving(**responses: Any) -> Iterator[FakeBroker]:
    served = advertise(ApiVersions=(0, 3), Heartbeat=(0, 4), LeaveGroup=(0, 5))
    with fake_broker(**{"ApiVersions": lambda request, version: served, "Heartbeat": respond, **responses}) as broker:
        yield broker


def run(
    broker: FakeBroker, client: Client, security: SecuritySettings | None = None, clock: Clock | None = None
) -> Any:
    """Returns the result of `client`, which uses a pipeline to the broker."""
    clock = clock or SystemClock()
    settings = security or SecuritySettings()
    connection = BrokerConnection(broker.address, client_id="c", security=settings, clock=clock)

    async def main() -> Any:
        connection.open(5_000)
        pipeline = RequestPipeline(connection, clock, 5_000)
        pipeline.start()
        try:
            return await client(pipeline)
        finally:
            pipeline.close()

    return asyncio.run(main())


def call(pipeline: RequestPipeline, timeout_ms: int = 5_000, member: str = "m") -> asyncio.Future[Any]:
    return pipeline.call(heartbeat(member), timeout_ms, client_id="c")


async def until_closed(pipeline: RequestPipeline) -> None:
    for _ in range(1_000):
        if pipeline.is_closed:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the connection is open after 5 s")


def test_requests_do_not_wait_for_each_other_and_have_their_own_client_ids() -> None:
    waiting: list[tuple[int, int]] = []

    def last(request: Any, version: int) -> bytes | None:
        waiting.append((int(request.member_id), version))
        if len(waiting) < 3:
            return None
        first_id = (1 << 16) + 1
        return b"".join(
            encode_response(HeartbeatResponse(throttle_time_ms=0, error_code=code), v, first_id + n)
            for n, (code, v) in enumerate(waiting)
        )

    async def client(pipeline: RequestPipeline) -> list[int]:
        sent = [pipeline.call(heartbeat(str(n)), 5_000, client_id=f"app-{n}") for n in (5, 6, 7)]
        return [response.error_code for response in await asyncio.gather(*sent)]

    with serving(Heartbeat=last) as broker:
        assert run(broker, client) == [5, 6, 7]


@pytest.mark.parametrize("size", [1, 3, 7, 100_000])
def test_response_arrives_in_parts_of_any_size(size: int) -> None:
    """Also a response that exceeds the bytes of one read."""
    small = LeaveGroupResponse(throttle_time_ms=0, error_code=0, members=[])

    def send(peer: Any, data: bytes) -> None:
        # few parts of a large response, because each is one system call
        step = max(size, len(data) // 50) if len(data) > 1_000 else size
        for start in range(0, len(data), step):
            peer.sendall(data[start : start + step])

    def leave(request: Any, version: int) -> Any:
        return LARGE if request.members else small

    async def client(pipeline: RequestPipeline) -> Any:
        member = LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id=None, reason=None)
        requests = [LeaveGroupRequest(group_id="g", members=members) for members in ([], [member], [])]
        return await asyncio.gather(*(pipeline.call(each, 5_000, client_id="c") for each in requests))

    with serving(LeaveGroup=leave) as broker:
        broker.send = send
        received = run(broker, client)
    assert [len(response.members) for response in received] == [0, 3_000, 0]
    assert [row.error_code for row in received[1].members] == [row.error_code for row in LARGE.members]


def test_request_without_a_response_ends_the_connection_and_the_requests_after_it() -> None:
    async def client(pipeline: RequestPipeline) -> list[Any]:
        sent = [call(pipeline, 200, "a"), call(pipeline, 60_000, "b")]
        failures = await asyncio.gather(*sent, return_exceptions=True)
        with pytest.raises(NetworkError, match="the connection is closed"):
            call(pipeline)
        return failures

    with serving(Heartbeat=lambda request, version: None) as broker:
        failures = run(broker, client)
    assert [type(failure) for failure in failures] == [RequestTimeoutError] * 2
    assert "Heartbeat request to 127.0.0.1" in str(failures[0]) and "No response within 200 ms" in str(failures[0])


def test_response_that_progresses_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a response restarts the timeout, and the response restarts that of the next request."""
    clock = ManualClock()
    arrived = 0
    receive_some = net.receive_some

    def counted(connection: Any) -> Any:
        nonlocal arrived
        data = receive_some(connection)
        arrived += len(data or b"")
        return data

    async def client(pipeline: RequestPipeline) -> Any:
        # timers are due by the manual clock, which does not move while a part is on its way
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock.now_ms() / 1000)
        monkeypatch.setattr(net, "receive_some", counted)
        timeouts_ms = (300, 600, 300)
        request = LeaveGroupRequest(group_id="g", members=[])
        responses = asyncio.gather(*(pipeline.call(request, each, client_id="c") for each in timeouts_ms))
        expected = 0
        for timeout_ms in timeouts_ms:
            peer, data = await asyncio.to_thread(responding.get, timeout=30)
            step = len(data) // 8
            for start in range(0, len(data), step):
                clock.advance_ms(timeout_ms - 50)
                await asyncio.sleep(0)
                peer.sendall(data[start : start + step])
                expected += len(data[start : start + step])
                while arrived < expected and not responses.done():
                    await asyncio.sleep(0)
        return await responses

    responding: queue.SimpleQueue[tuple[socket.socket, bytes]] = queue.SimpleQueue()

    def send(peer: socket.socket, data: bytes) -> None:
        if len(data) > 10_000:
            responding.put((peer, data))
        else:
            peer.sendall(data)

    with serving(LeaveGroup=lambda request, version: LARGE) as broker:
        broker.send = send
        received = run(broker, client, clock=clock)
    assert [len(response.members) for response in received] == [3_000] * 3


def test_lost_connection_fails_every_request_and_is_noticed_without_one() -> None:
    def lose(request: Any, version: int) -> Any:
        if request.member_id == "b":
            raise ConnectionLostError
        return respond(request, version)

    async def client(pipeline: RequestPipeline) -> list[Any]:
        sent = [call(pipeline, member=member) for member in "abc"]
        return await asyncio.gather(*sent, return_exceptions=True)

    async def wait(pipeline: RequestPipeline) -> None:
        await asyncio.gather(call(pipeline, member="b"), return_exceptions=True)
        assert pipeline.is_closed

    with serving(Heartbeat=lose) as broker:
        first, *lost = run(broker, client)
        run(broker, wait)
    assert first.error_code == 0 and [type(each) for each in lost] == [NetworkError] * 2


def test_malformed_response_ends_the_connection() -> None:
    async def client(pipeline: RequestPipeline) -> Any:
        return await asyncio.gather(call(pipeline), return_exceptions=True)

    with serving(Heartbeat=lambda request, version: b"\xff\xff\xff\xff") as broker:
        (failure,) = run(broker, client)
    assert isinstance(failure, RemoteProtocolError) and "length is -1" in str(failure)


def test_retired_connection_receives_its_responses_before_it_is_closed() -> None:
    async def client(pipeline: RequestPipeline) -> Any:
        sent = [call(pipeline), call(pipeline)]
        pipeline.retire()
        assert not pipeline.is_closed
        received = await asyncio.gather(*sent)
        await until_closed(pipeline)
        return [response.error_code for response in received]

    with serving() as broker:
        assert run(broker, client) == [0, 0]


def test_canceled_request_leaves_the_others_their_responses() -> None:
    async def client(pipeline: RequestPipeline) -> Any:
        first, second = call(pipeline), call(pipeline)
        first.cancel()
        return await second

    with serving() as broker:
        assert run(broker, client).error_code == 0


def test_tls(tmp_path: Path) -> None:
    """Also a request that exceeds the buffers of the sockets, and a response that exceeds a TLS record."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_pem(tmp_path / "server.pem", certificates.KEY, certificates.SERVER))

    def leave(request: Any, version: int) -> Any:
        rows = [_ROW(member_id=m.member_id, group_instance_id=None, error_code=0) for m in request.members]
        return LeaveGroupResponse(throttle_time_ms=0, error_code=0, members=rows)

    identity = LeaveGroupRequest.MemberIdentity
    members = [identity(member_id="m" * 20_000, group_instance_id=None, reason=None) for _ in range(500)]

    async def client(pipeline: RequestPipeline) -> Any:
        large = pipeline.call(LeaveGroupRequest(group_id="g", members=members), 20_000, client_id="c")
        return await asyncio.gather(call(pipeline), large, call(pipeline))

    settings = {"security.protocol": "SSL", "ssl.ca.location": str(write_pem(tmp_path / "ca.pem", certificates.CA))}
    with serving(LeaveGroup=leave) as broker:
        broker.tls = context
        first, large, last = run(broker, client, SecuritySettings.parse(settings))
    assert first.error_code == last.error_code == 0 and len(large.members) == 500
