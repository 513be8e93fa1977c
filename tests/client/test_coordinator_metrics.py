"""Metrics of members, with a simulated clock."""

from __future__ import annotations

import pytest
from support.scripted_group import T0, Bench

from spark_groupsource.client.membership.coordinator_metrics import COORDINATOR_METRICS, CoordinatorMetrics
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import OffsetAndMetadata


def test_every_metric_has_a_meaning_and_durations_are_absent_without_an_event() -> None:
    metrics = CoordinatorMetrics()
    empty = metrics.values(0, 0)
    absent = {name for name in COORDINATOR_METRICS if name.endswith(("-avg", "-max"))}
    assert empty.keys() == COORDINATOR_METRICS.keys() - absent
    assert {name for name, value in empty.items() if value == -1} == {
        "last-heartbeat-seconds-ago", "last-rebalance-seconds-ago"
    }  # fmt: skip
    metrics.rebalance_started("a", 0)
    metrics.joined(1, 1)
    metrics.synced("a", 1, 1, 2)
    metrics.heartbeat_received(1, 3)
    metrics.committed(1, 4)
    assert metrics.values(5, 0).keys() == COORDINATOR_METRICS.keys()


def test_rates_means_and_maxima_are_of_the_last_minute() -> None:
    metrics = CoordinatorMetrics()
    metrics.committed(30, 1_000)
    # a first event counts as one of a whole window
    assert metrics.values(1_000, 0)["commit-rate"] == pytest.approx(1 / 30)
    metrics.committed(10, 11_000)
    found = metrics.values(11_000, 4)
    assert found["commit-rate"] == pytest.approx(2 / 40) and found["assigned-partitions"] == 4
    assert (found["commit-latency-avg"], found["commit-latency-max"]) == (20, 30)
    # a new window begins; the first is measured until its last event is a minute old
    metrics.committed(50, 41_000)
    found = metrics.values(61_000, 0)
    assert found["commit-rate"] == pytest.approx(3 / 60) and found["commit-latency-avg"] == 30
    found = metrics.values(71_000, 0)
    assert found["commit-rate"] == pytest.approx(1 / 30) and found["commit-latency-avg"] == 50
    found = metrics.values(101_000, 0)
    assert found["commit-rate"] == 0 and "commit-latency-max" not in found and found["commit-total"] == 3


def test_samples_are_bounded() -> None:
    metrics = CoordinatorMetrics()
    for at_ms in range(0, 10_000_000, 1_000):
        metrics.heartbeat_received(at_ms // 1_000, at_ms)
    found = metrics.values(9_999_000, 0)
    assert found["heartbeat-total"] == 10_000 and found["heartbeat-rate"] == pytest.approx(1, rel=0.05)


def test_rebalance_of_several_members_counts_once_and_failures_prolong_it() -> None:
    metrics = CoordinatorMetrics()
    for name, at_ms in (("a", 1_000), ("b", 2_000)):
        metrics.rebalance_started(name, at_ms)
    metrics.rebalance_failed(3_000)
    metrics.rebalance_started("a", 4_000)
    metrics.synced("a", 7, 10, 6_000)
    metrics.synced("b", 7, 10, 6_500)
    found = metrics.values(16_500, 0)
    assert (found["rebalance-total"], found["failed-rebalance-total"], found["sync-total"]) == (1, 1, 2)
    # since the first JoinGroup
    assert found["rebalance-latency-max"] == found["rebalance-latency-total"] == 5_000
    assert found["last-rebalance-seconds-ago"] == 10
    metrics.rebalance_started("a", 20_000)
    metrics.synced("a", 8, 10, 21_000)
    assert metrics.values(21_000, 0)["rebalance-latency-avg"] == 3_000


def test_last_heartbeat_is_that_of_the_member_that_waits_longest() -> None:
    metrics = CoordinatorMetrics()
    metrics.heartbeat_sent("a", 1_000)
    metrics.heartbeat_sent("b", 9_000)
    assert metrics.values(10_999, 0)["last-heartbeat-seconds-ago"] == 9


def test_members_count_what_they_send() -> None:
    bench = Bench()
    bench.script.prepare("JoinGroup", ErrorCode.MEMBER_ID_REQUIRED)
    assert bench.settle().is_stable
    found = bench.client.metrics()
    assert found["join-total"] == found["sync-total"] == found["rebalance-total"] == 1
    # the JoinGroup that is rejected with a member id is the first step of the protocol
    assert (found["failed-rebalance-total"], found["assigned-partitions"]) == (0, 2)
    bench.client.commit({T0: OffsetAndMetadata(3)})
    bench.heartbeat()
    bench.clock.advance_ms(1_500)
    found = bench.client.metrics()
    assert found["commit-total"] == 1 and found["heartbeat-total"] >= 1
    assert found["last-heartbeat-seconds-ago"] == 1 and found["last-rebalance-seconds-ago"] >= 4
    bench.script.prepare("JoinGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.script.prepare("SyncGroup", ErrorCode.REBALANCE_IN_PROGRESS)
    bench.member.request_rejoin("test")
    assert bench.settle().is_stable
    found = bench.client.metrics()
    assert (found["rebalance-total"], found["failed-rebalance-total"], found["join-total"]) == (2, 2, 3)
