"""Scheduler of long requests: time slices, fairness between clients."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from support.raw_broker import RawConnection, create_topic, metadata, unexpected_errors

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.network.scheduler import Scheduler, StepsTask, Task
from spark_groupsource.common.clock import monotonic_ns
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import HeartbeatRequest, MetadataRequest


def run_steps(*generators: Any) -> list[Any]:
    """The results and errors of requests, in the order in which they end."""

    async def run() -> list[Any]:
        scheduler = Scheduler(lambda: None)
        ended: list[Any] = []
        for steps in generators:
            StepsTask(scheduler, steps, ended.append, ended.append)
        while len(ended) < len(generators):
            await asyncio.sleep(0)
        scheduler.close()
        return ended

    return asyncio.run(run())


def test_requests_run_round_robin_by_steps():
    order = []

    def steps(name: str, count: int):
        for number in range(count):
            order.append(f"{name}{number}")
            yield
        return name

    assert run_steps(steps("a", 3), steps("b", 2)) == ["b", "a"]
    assert order == ["a0", "b0", "a1", "b1", "a2"]


def test_a_function_runs_in_the_worker_thread():
    def steps():
        name = yield lambda: threading.current_thread().name
        try:
            yield lambda: 1 // 0
        except ZeroDivisionError:
            return name
        return None

    (name,) = run_steps(steps())
    assert name.startswith("groupsource-broker-worker")


def test_an_error_ends_only_its_own_request():
    def fails():
        yield
        raise RuntimeError("a defect")

    def works():
        yield
        yield
        return "done"

    error, result = run_steps(fails(), works())
    assert (str(error), result) == ("a defect", "done")


def test_the_event_loop_polls_between_slices():
    """A task that always has a next step does not keep the event loop longer than a slice."""

    async def run() -> float:
        scheduler = Scheduler(lambda: None)
        forever = Task(lambda: True)
        scheduler.submit(forever)
        waits = []
        for _ in range(5):
            started_ns = time.thread_time_ns()  # other processes on the machine do not count
            await asyncio.sleep(0)
            waits.append(time.thread_time_ns() - started_ns)
        forever.cancel()
        return sorted(waits)[2] / 1e6

    assert asyncio.run(run()) < 15


def test_a_cancelled_request_ends_at_its_next_yield():
    left = []

    def steps():
        try:
            while True:
                yield
        finally:
            left.append("closed")

    async def run() -> None:
        scheduler = Scheduler(lambda: None)
        task = StepsTask(scheduler, steps(), left.append, left.append)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert left in ([], ["closed"])  # empty when no step had started


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
