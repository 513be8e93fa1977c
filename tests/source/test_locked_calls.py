"""Lock of the session while a broker does not respond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from support.session_fakes import NO_LIMITS, P0, FakeCluster, Query

from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, DataLossError, ErrorCode, GroupSourceError, NetworkError
from spark_groupsource.source.locked_calls import LockedCalls

MOVED = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x")
UNKNOWN = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")
UNSTABLE = BrokerError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "x")
FORBIDDEN = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x")


class Brokers(FakeCluster):
    """Brokers that do not respond: each call takes as long as it may."""

    def __init__(self, clock: ManualClock, error: GroupSourceError, failures: int) -> None:
        super().__init__()
        self.clock, self.error, self.failures = clock, error, failures
        self.limits: list[int | None] = []
        self.locked = 0
        self.pauses = 0
        clock_sleep = clock.sleep_ms

        def sleep_ms(duration_ms: int) -> None:
            assert not self.locked
            self.pauses += 1
            clock_sleep(duration_ms)

        clock.sleep_ms = sleep_ms  # type: ignore[method-assign]

    def __enter__(self) -> None:
        self.locked += 1

    def __exit__(self, *_: object) -> None:
        self.locked -= 1

    def call(self) -> str:
        assert self.locked
        self.limits.append(self.call_timeout_ms)
        if len(self.limits) > self.failures:
            return "done"
        self.clock.advance_ms(self.call_timeout_ms or 0)
        raise self.error

    def run(self) -> str:
        return LockedCalls(cast(Any, self), cast(Any, self), self.clock).run(self.call)


@pytest.mark.parametrize("error", [NetworkError("lost"), MOVED])
def test_waits_are_short_and_become_longer_for_slow_brokers(error: GroupSourceError) -> None:
    brokers = Brokers(ManualClock(), error, failures=3)
    assert brokers.run() == "done"
    assert brokers.limits == [5_000, 10_000, 20_000, 40_000] and brokers.pauses == 3
    assert (brokers.call_timeout_ms, brokers.locked) == (None, 0)


def test_calls_are_repeated_for_the_timeout_of_the_client() -> None:
    clock = ManualClock()
    brokers = Brokers(clock, NetworkError("lost"), failures=100)
    with pytest.raises(NetworkError, match="lost"):
        brokers.run()
    assert brokers.limits == [5_000, 10_000, 20_000, 40_000]
    assert clock.now_ms() > brokers.settings.default_api_timeout_ms == 60_000
    assert (brokers.call_timeout_ms, brokers.locked) == (None, 0)


def outage_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """Returns the level of each log line about the cluster, and whether it says that it is back."""
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if "cluster" in r.getMessage()]
    return [(level, "responds again" in text) for level, text in lines]


def test_running_query_waits_for_its_cluster_without_bound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = ManualClock()
    brokers = Brokers(clock, NetworkError("lost"), failures=0)
    calls = LockedCalls(cast(Any, brokers), cast(Any, brokers), clock, entity="group=g")
    assert calls.run(brokers.call) == "done"
    for failures in (2, 100):
        brokers.limits.clear()
        brokers.failures = failures
        assert calls.run(brokers.call) == "done"
    assert clock.now_ms() > 90 * 60_000
    assert outage_lines(caplog) == [("WARNING", False), ("INFO", True)], "none about the short outage"
    assert "[group=g] Waiting for the cluster without bound (maxOutage), " in caplog.text


@pytest.mark.parametrize("max_outage_ms", [0, 3_600_000])
def test_max_outage_bounds_the_wait_of_a_running_query(max_outage_ms: int) -> None:
    clock = ManualClock()
    brokers = Brokers(clock, MOVED, failures=0)
    calls = LockedCalls(cast(Any, brokers), cast(Any, brokers), clock, max_outage_ms=max_outage_ms)
    calls.run(brokers.call)
    for _ in range(2):
        brokers.failures, began_ms = 10**6, clock.now_ms()
        with pytest.raises(BrokerError):
            calls.run(brokers.call)
        assert max_outage_ms <= clock.now_ms() - began_ms <= max_outage_ms + 2 * 60_200
        brokers.failures = 0
        calls.run(brokers.call)


def test_open_transaction_with_offsets_of_the_group_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers(ManualClock(), UNSTABLE, failures=1_000)
    assert brokers.run() == "done"
    assert set(brokers.limits) == {5_000}
    assert caplog.text.count("Waiting for an open transaction with offsets of the group: x failed: UNSTABLE") == 1


@pytest.mark.parametrize("error", [UNKNOWN, FORBIDDEN, DataLossError("X", "lost", "Read again.")])
def test_other_errors_are_not_repeated(error: GroupSourceError) -> None:
    brokers = Brokers(ManualClock(), error, failures=1)
    with pytest.raises(type(error)):
        brokers.run()
    assert len(brokers.limits) == 1 and brokers.call_timeout_ms is None


def test_drain_ends_a_call_that_waits_for_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()
    query.clock.advance_ms(1_000)

    def lose(*args: object, **settings: object) -> None:
        query.session.request_drain(None)
        raise NetworkError("lost")

    monkeypatch.setattr(query.cluster, "list_offsets", lose)
    assert query.trigger() is None
    assert query.session.drained.is_set() and query.group.calls[-1] == "leave"
    assert query.clock.now_ms() < 5_000


def _fail_a_commit(query: Query) -> None:
    query.group.commit_error = NetworkError("lost")
    query.session.latest_offset(query.start, NO_LIMITS)
    query.group.commit_error = None


def _rebalance_between_batches(query: Query) -> None:
    query.session.batch_finished(query.start)
    query.group.rebalance({P0: 0})


@pytest.mark.parametrize(
    ("prepare", "call"),
    [
        (_fail_a_commit, lambda query: query.session.commit()),
        (lambda query: None, lambda query: query.session.batch_finished(query.start)),
        (_rebalance_between_batches, lambda query: query.session.rejoin_if_idle()),
        (_rebalance_between_batches, lambda query: query.session.peer_reply("g", 0)),
    ],
    ids=["retry of a commit", "finished batch", "rejoin between batches", "reply to a co-reader"],
)
def test_commits_between_calls_of_spark_hold_the_lock_for_a_first_attempt_only(
    prepare: Callable[[Query], None], call: Callable[[Query], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(startingOffsets="earliest")
    query.trigger()
    prepare(query)
    limits: list[int | None] = []
    committed = query.group.commit

    def commit(*args: Any, **settings: Any) -> None:
        limits.append(query.cluster.call_timeout_ms)
        committed(*args, **settings)

    monkeypatch.setattr(query.group, "commit", commit)
    call(query)
    assert limits and set(limits) == {5_000}
    assert query.cluster.call_timeout_ms is None
