"""Long requests: time slices, fairness between clients."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Coroutine, Generator

import pytest
from support.raw_broker import RawConnection, create_topic, metadata, unexpected_errors

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.network.response_router import ResponseRouter
from spark_groupsource.common import coroutines
from spark_groupsource.common.clock import monotonic_ns
from spark_groupsource.common.coroutines import begin, enter_task, in_thread, next_turn, pause, run_at_once, run_parts
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import HeartbeatRequest, HeartbeatResponse, MetadataRequest


def results_of(*works: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results and errors of coroutines, in the order in which they end."""

    async def run() -> list[Any]:
        ended: list[Any] = []

        async def end(work: Coroutine[Any, Any, Any]) -> None:
            try:
                ended.append(await work)
            except Exception as error:
                ended.append(error)

        await asyncio.gather(*map(end, works))
        return ended

    return asyncio.run(run())


@pytest.fixture
def short_slices(monkeypatch):
    """Each pause ends the time slice."""
    monkeypatch.setattr(coroutines, "SLICE_NS", 0)
    # an earlier test may have begun a longer one
    while not asyncio.run(pause()):
        pass


def test_coroutines_run_round_robin(short_slices):
    order = []

    async def work(name: str, count: int) -> str:
        for number in range(count):
            order.append(f"{name}{number}")
            await pause()
        return name

    assert results_of(work("a", 3), work("b", 2)) == ["b", "a"]
    assert order == ["a0", "b0", "a1", "b1", "a2"]


def test_a_function_is_called_in_another_thread():
    async def work() -> str | None:
        name = await in_thread(lambda: threading.current_thread().name)
        try:
            await in_thread(lambda number: 1 // number, 0)
        except ZeroDivisionError:
            return name
        return None

    assert results_of(work())[0] != threading.current_thread().name
    assert run_at_once(work()) == threading.current_thread().name


def test_parts_wait_for_the_future_of_a_thread(short_slices):
    def parts(done: Future[str]) -> Generator[Future[str] | None, None, str]:
        yield None
        yield done
        return done.result(0)

    async def work() -> str:
        done: Future[str] = Future()
        threading.Timer(0.01, done.set_result, ["done"]).start()
        return await run_parts(parts(done))

    assert results_of(work()) == ["done"]


def test_one_slice_runs_per_iteration_of_the_event_loop(short_slices):
    """Thousands of requests that pause do not keep the event loop from its sockets."""

    async def run() -> int:
        steps = 0

        async def endless() -> None:
            nonlocal steps
            while True:
                await pause()
                steps += 1

        tasks = [asyncio.create_task(endless()) for _ in range(50)]
        await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return steps

    assert 0 < asyncio.run(run()) <= 21


def test_the_first_slice_of_a_request_runs_at_once(monkeypatch):
    clock_ns = [0]
    monkeypatch.setattr(coroutines, "monotonic_ns", lambda: clock_ns[0])
    done = []

    async def work(parts: int, count: int) -> str:
        for number in range(parts):
            done.append(number)
            clock_ns[0] += 400_000
            await pause()
        return "result"

    with pytest.raises(StopIteration) as ended:
        begin(work(2, 1))
    assert ended.value.value == "result"
    del done[:]
    long = work(5, 2)
    begin(long)
    assert done == [0, 1, 2]
    assert run_at_once(long) == "result" and done == [0, 1, 2, 3, 4]


class Client:
    """A connection that keeps its responses and errors."""

    def __init__(self, ended: list[Any]) -> None:
        self.send_response = self.fail = ended.append


def test_an_error_ends_only_its_own_request(short_slices):
    async def fails() -> None:
        await enter_task()
        raise RuntimeError("a defect")

    async def works() -> str:
        await enter_task()
        await pause()
        return "done"

    async def run() -> list[Any]:
        ended: list[Any] = []
        router = ResponseRouter()
        for work in (fails(), works()):
            router.run(router.new_token(Client(ended)), work, 0, is_update=False)
        while len(ended) < 2:
            await asyncio.sleep(0)
        return ended

    error, result = asyncio.run(run())
    assert (str(error), result) == ("a defect", "done")


@pytest.mark.parametrize("is_update", [False, True])
def test_a_request_whose_client_has_disconnected_ends_unless_it_is_an_update(short_slices, is_update):
    ended = []

    async def work() -> None:
        try:
            for _ in range(5):
                await enter_task()
                await pause()
            ended.append("complete")
        finally:
            ended.append("closed")

    async def run() -> None:
        router = ResponseRouter()
        token = router.new_token(Client(ended))
        router.run(token, work(), 0, is_update=is_update)
        for _ in range(4):
            await asyncio.sleep(0)
        router.cancel(token)
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert ended == (["complete", "closed"] if is_update else ["closed"])


@pytest.mark.parametrize("pauses", [0, 1])
def test_the_response_of_a_long_request_is_completed_in_another_thread(pauses):
    names = []

    def complete(response: HeartbeatResponse) -> HeartbeatResponse:
        names.append(threading.current_thread().name)
        return response

    async def work() -> HeartbeatResponse:
        for _ in range(pauses):
            await next_turn()
        return HeartbeatResponse(throttle_time_ms=0, error_code=0)

    async def run() -> None:
        ended: list[Any] = []
        router = ResponseRouter()
        token = router.new_token(Client(ended))
        router.complete_with(token, complete)
        router.run(token, work(), 0, is_update=False)
        while not ended:
            await asyncio.sleep(0)
        assert isinstance(ended[0], HeartbeatResponse)

    asyncio.run(asyncio.wait_for(run(), 10))
    assert [name == threading.current_thread().name for name in names] == [not pauses]


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(config={"offsets.topic.num.partitions": "1"}) as running:
        yield running




@pytest.mark.slow
def test_pipelined_requests_run_round_robin_with_other_clients(broker):
    """The other client is served after a few of the pipelined requests, which take seconds."""
    heartbeat = bytes(encode_request(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3, 1, "c"))
    slow = bytes(encode_request(MetadataRequest(topics=None, allow_auto_topic_creation=False), 4, 1, "c"))
    with RawConnection(broker.bootstrap_servers) as busy, RawConnection(broker.bootstrap_servers) as neighbor:
        create_topic(busy, "wide", partitions=200)
        for _ in range(2):  # the first heartbeat creates the coordinator's topic
            neighbor.send(heartbeat)
            assert neighbor.read_frame()
        busy.send(slow * 300)
        waits_ms = []
        for _ in range(9):
            started_ns = monotonic_ns()
            neighbor.send(heartbeat)
            assert neighbor.read_frame()
            waits_ms.append((monotonic_ns() - started_ns) / 1e6)
        assert sorted(waits_ms)[4] < 100
        for _ in range(300):
            assert busy.read_frame()
        assert metadata(neighbor, "wide").topics[0].error_code == 0
    assert not unexpected_errors(broker.reports)
