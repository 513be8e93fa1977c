"""Commits and rebalances between two triggers."""

from __future__ import annotations

import json
import os
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
from support.session_fakes import P0, P1, P2, FakeGroup, Query
from support.waiting import wait_until

from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.source.positions.offset_json import GROUP_KEY
from spark_groupsource.source.process.control_socket import ControlServer
from spark_groupsource.source.spark.batch_listener import report_finished_batches


def running(**fields: object) -> Query:
    """A query whose first batch has been planned and handed to Spark."""
    query = Query(startingOffsets="earliest", group=FakeGroup(**fields))
    assert query.trigger() == {P0: (0, 10), P1: (0, 10), P2: (0, 10)}
    return query


def test_finished_batch_is_committed_at_once() -> None:
    query = running()
    assert query.committed() == {}
    query.session.batch_finished(query.start)
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    query.group.calls.clear()
    assert query.trigger() is None
    assert [call for call in query.group.calls if call != "poll"] == []


def test_end_offset_of_an_earlier_batch_commits_nothing() -> None:
    query = running()
    first = query.start
    query.cluster.logs[P0] = (0, 15)
    assert query.trigger() == {P0: (10, 15)}
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    query.session.batch_finished(first)
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


def test_report_of_a_batch_does_not_wait_for_the_next_call_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """That call has committed the batch, and may wait for a rebalance; a drain has to reach the reader meanwhile."""
    query = running()
    report = Thread(target=query.session.batch_finished, args=(query.start,), daemon=True)
    poll, ended = query.group.poll, []

    def poll_with_report(timeout_ms: int) -> bool:
        if not report.ident:
            report.start()
            report.join(10)
            ended.append(not report.is_alive())
        return poll(timeout_ms)

    monkeypatch.setattr(query.group, "poll", poll_with_report)
    assert query.trigger() is None
    assert ended == [True] and query.committed() == {P0: 10, P1: 10, P2: 10}


def test_idle_reader_takes_part_in_a_rebalance() -> None:
    query = running()
    query.session.batch_finished(query.start)
    query.group.calls.clear()
    query.session.rejoin_if_idle()
    assert query.group.calls == [], "nothing to rejoin"
    query.group.rebalance({P0: 0})
    query.session.rejoin_if_idle()
    assert query.group.calls == [("commit", {P0: 10, P1: 10, P2: 10}), "poll"], "everything is committed again before"
    assert query.group.owners() == {P0: 0}
    query.cluster.logs = {P0: (0, 12), P1: (0, 12), P2: (0, 12)}
    assert query.trigger() == {P0: (10, 12)}


def query_whose_partition_has_been_away() -> Query:
    query = running()
    query.session.batch_finished(query.start)
    for assigned in ({P0: 0}, {P0: 0, P1: 0, P2: 0}):
        query.group.rebalance(assigned)
        query.session.rejoin_if_idle()
        if P1 not in assigned:
            query.group.commits[P1] = query.group.commits[P1]._replace(offset=11, metadata="another query")
    return query


def test_drain_commits_nothing_behind_a_partition_that_has_been_away() -> None:
    query = query_whose_partition_has_been_away()
    assert query.session.request_drain(query.start)
    assert query.committed() == {P0: 10, P1: 11, P2: 10} and query.group.calls[-1] == "leave"


def test_partition_that_has_been_away_continues_where_the_other_member_stopped() -> None:
    query = query_whose_partition_has_been_away()
    query.cluster.logs = {P0: (0, 12), P1: (0, 12), P2: (0, 12)}
    assert query.trigger() == {P0: (10, 12), P1: (11, 12), P2: (10, 12)}
    assert query.committed() == {P0: 10, P1: 11, P2: 10}


def test_reader_with_a_batch_in_flight_does_not_rejoin() -> None:
    query = running()
    query.group.calls.clear()
    query.group.rebalance({P0: 0})
    query.session.rejoin_if_idle()
    assert query.group.calls == []


def test_reader_that_could_not_commit_does_not_rejoin() -> None:
    query = running()
    query.group.commit_error = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "commit")
    query.session.batch_finished(query.start)
    query.group.rebalance({P0: 0})
    query.session.rejoin_if_idle()
    assert "poll" not in query.group.calls[1:] and query.group.owners() == {P0: 0, P1: 0, P2: 1}
    query.group.commit_error = None
    query.trigger()
    assert query.committed() == {P0: 10, P1: 10, P2: 10} and query.group.owners() == {P0: 0}


def test_error_of_a_rejoin_ends_the_query_at_the_next_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    query = running()
    query.session.batch_finished(query.start)
    query.group.rebalance({P0: 0})

    def fail(timeout_ms: int) -> bool:
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "JoinGroup")

    with monkeypatch.context() as patched:
        patched.setattr(query.group, "poll", fail)
        query.session.rejoin_if_idle()
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        query.trigger()


def test_listener_sends_the_end_offset_to_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    listener_module = pytest.importorskip("spark_groupsource.source.spark.batch_listener")
    monkeypatch.setattr(listener_module, "driver_jvm_pid", os.getpid)
    finished: list[object] = []
    ticks: list[int] = []
    server = ControlServer(
        os.getpid(),
        "b" * 32,
        lambda proof: False,
        batch_finished=finished.append,
        idle=lambda: ticks.append(1),
    )
    end = {"t": {"0": 5}, GROUP_KEY: {"reader": "b" * 32}}

    class Source:
        def __init__(self, offset: str | None) -> None:
            self.endOffset = offset

    class Progress:
        sources = [Source(None), Source('{"t":{"0":1}}'), Source(json.dumps(end))]

    class Event:
        progress = Progress

    try:
        listener_module.BatchListener().onQueryProgress(Event)
        wait_until(lambda: finished == [end], "the reader got the end offset")
        wait_until(lambda: bool(ticks), "the server runs idle")
    finally:
        server.close()
    # the reader has ended
    listener_module.BatchListener().onQueryProgress(Event)


def test_no_listener_is_added_in_a_client_of_spark_connect(caplog: pytest.LogCaptureFixture) -> None:
    """It would run in the client, which has no driver and no control sockets, and fail for each batch."""
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "streams": Mock()})()
    report_finished_batches(session)
    assert session.streams.addListener.call_count == 0
    assert "Under Spark Connect, queries commit a batch at the next trigger" in caplog.text
