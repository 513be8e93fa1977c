"""Queries of one group: cooperative rebalances without loss or duplicates."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.members import JavaMember
from support.query_threads import ThreadedGroup
from support.waiting import wait_until

JAVA_COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


@pytest.fixture
def scenario(cluster, topic, group, in_process):
    opened = ThreadedGroup(cluster, topic, group)
    yield opened
    opened.client.close()


@pytest.mark.java
def test_retained_partitions_are_read_while_a_java_member_is_slow(scenario):
    scenario.produce(60)
    with scenario.start("a") as a, JavaMember(
        scenario.servers, scenario.group, scenario.topic, assignor=JAVA_COOPERATIVE, session_timeout_ms=120_000
    ) as java:
        java.wait_for_partitions(3)
        wait_until(lambda: scenario.assigned().get("a-0") == 3, "half of the partitions each")
        scenario.produce(60)
        wait_until(lambda: scenario.committed() == len(a.seen) + java.consumed == scenario.produced, "all is committed")
        with java.frozen():
            b = scenario.start("b")
            wait_until(lambda: scenario.described().state == "PreparingRebalance", "a rebalance that waits for Java")
            before = len(a.seen)
            for _ in range(50):
                scenario.produce(60)
                before += 30
                wait_until(lambda: len(a.seen) == before, "query a reads its three partitions")
                if a.during_rebalances >= 60:
                    break
            # committed during the rebalance
            wait_until(lambda: scenario.committed() == before + java.consumed, "what was read is committed")
            assert a.during_rebalances >= 60 and not b.seen and scenario.described().state == "PreparingRebalance"
        # a commit of the Java member during another rebalance would fail, and its records be repeated
        wait_until(
            lambda: list(scenario.assigned().values()) == [2, 2, 2] and scenario.described().state == "Stable",
            "two partitions each",
            60,
        )
        scenario.produce(60)
        wait_until(lambda: len({*a.seen, *b.seen, *java.positions}) == scenario.produced, "everything is read")
        b.stop()
    assert set((a.seen + b.seen).values()) == {1}, "nothing is read twice"
    report = f"a {sorted(a.seen)}, b {sorted(b.seen)}, Java {java.events}"
    repeated = {*a.seen, *b.seen} & {*java.positions}
    # a commit of the Java member fails during a rebalance, and its next owner reads the records again
    assert not repeated or [each for each in java.of("offsets_committed") if not each["success"]], report
    assert len(b.seen) == 20, report


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@pytest.mark.slow
@pytest.mark.one_cluster
def test_nothing_is_lost_or_read_twice_while_queries_start_and_stop(scenario, assignor):
    rng, running, ended = random.Random(7), [], []

    def start():
        pauses = random.Random(rng.random())
        names = {"members": str(rng.choice([1, 2])), "kafka.partition.assignment.strategy": assignor}
        running.append(scenario.start(f"{len(running) + len(ended)}", lambda: pauses.uniform(0, 0.1), **names))

    def seen():
        return sum((query.seen for query in (*running, *ended)), Counter())

    start()
    for step in range(12):
        scenario.produce(120)
        goal = len(seen()) + 60
        wait_until(lambda: len(seen()) >= min(goal, scenario.produced), f"half of it is read, step {step}", 60)
        if len(running) == 1 or (len(running) < 4 and rng.random() < 0.6):
            start()
        else:
            ended.append(running.pop(rng.randrange(len(running))))
            ended[-1].stop()
    wait_until(lambda: len(seen()) == scenario.produced, "everything is read", 60)
    for query in running:
        query.stop()
    assert set(seen().values()) == {1} and scenario.committed() == scenario.produced
    during_rebalances = sum(query.during_rebalances for query in (*running, *ended))
    assert (during_rebalances > 0) == (assignor == "cooperative-sticky")
