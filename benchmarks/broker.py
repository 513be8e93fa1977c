"""Requests to the embedded broker and Apache Kafka: rates, processor time.

    python benchmarks/run.py --only broker

Heartbeats, commits, Produce and Fetch over eight connections with one outstanding request each; both brokers run, and
one of them is measured at a time, in alternation. Then 10,000 groups of one member. Client and broker share the
machine, so the rates include both. The rows of requests have no target.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack
from typing import Any, Awaitable, Callable, Iterator, TypeVar

from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from broker_requests import commit, fetch, produce
from coordinator import Member, Target, create_topic, embedded, kafka, many_groups, per_second, wait_until_ready

T = TypeVar("T")
TOPIC, PARTITIONS = "load", 100
_TIMEOUT_S = 120

REQUESTS: dict[str, Callable[[Member], Any]] = {
    "heartbeat": Member.heartbeat,
    "commit of 1 partition": commit(1),
    "commit of 10 partitions": commit(10),
    "commit of 100 partitions": commit(100),
    "Produce of 1 record of 100 B": produce(1),
    "Produce of 150 records of 100 B": produce(150),
    "Fetch of 1 partition": fetch(1),
    "Fetch of 100 partitions": fetch(PARTITIONS),
}


def run(work: Awaitable[T]) -> T:
    """Runs one measurement with a time limit. Raises: TimeoutError."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, _TIMEOUT_S)

    return asyncio.run(bounded())


def both(stack: ExitStack) -> list[Target]:
    """Starts the embedded broker and Kafka, each in a process of its own."""
    targets = [stack.enter_context(embedded()), stack.enter_context(kafka())]
    for target in targets:
        run(create_topic(target.address, TOPIC, PARTITIONS))
        run(wait_until_ready(target.address))
    return targets


def figures(context: Context) -> Iterator[Figure]:
    numbers = itertools.count()
    seconds = max(0.5, 2 * context.scale)
    with ExitStack() as stack:
        targets = both(stack)
        for title, make in REQUESTS.items():
            rates, spent = Rounds(), Rounds()
            # the first round lets the JVM's optimizing compiler work
            for number in range(context.rounds + 1):
                for target in targets:
                    rate, each_us = run(per_second(target, f"rate-{next(numbers)}", seconds, make))
                    if number:
                        rates.add(target.name, rate)
                        spent.add(target.name, each_us)
            measure = "embedded broker, requests/s"
            yield rates.figure(measure, title, "/s", "embedded", "kafka", is_rate=True)
            yield spent.figure("embedded broker, processor time per request", title, "us", "embedded", "kafka")
        count = context.records(10_000)
        took, memory = Rounds(), Rounds()
        for target in targets:
            before = target.memory_mb()
            took.add(target.name, run(many_groups(target.address, count)))
            memory.add(target.name, target.memory_mb() - before)
        title = f"{count:,} groups of one member"
        measure = "embedded broker, groups"
        yield took.figure(measure, f"{title}: until stable", "s", "embedded", "kafka", least_ratio=1.0)
        yield memory.figure(measure, f"{title}: memory", "MB", "embedded", "kafka")


MEASURES = (Measure("broker", figures, 420),)
