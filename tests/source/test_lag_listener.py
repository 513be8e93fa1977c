"""`LagListener` with progress events as Spark passes them."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.positions.offset_json import SourceOffset, encode_offset
from spark_groupsource.source.spark import lag_listener
from spark_groupsource.source.spark.lag_listener import LagListener, LagReport
from spark_groupsource.wire.group_events import Cause

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def rebalances(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rebalances that the events of the members show."""
    found: list[Any] = []
    monkeypatch.setattr(lag_listener, "driver_jvm_pid", lambda: 1)
    status = {"group": "g", "metrics": {"join-rate": 0.5}}
    monkeypatch.setattr(lag_listener, "query_statuses", lambda driver, query, with_events: [status])
    monkeypatch.setattr(lag_listener, "rebalances_from_events", lambda events: found)
    return found


def progress(batch: int = 3, generation: int = 1, latest: str | None = '{"t":{"0":10,"1":7}}') -> Any:
    end = encode_offset(SourceOffset({FIRST: 4, SECOND: 7}, reader="r", group_id="g", generation_id=generation))
    ours = SimpleNamespace(endOffset=json.dumps(end), latestOffset=latest)
    others = [SimpleNamespace(endOffset=text, latestOffset=None) for text in ('{"t":{"0":1}}', "17", None)]
    sources = [*others, ours]
    return SimpleNamespace(progress=SimpleNamespace(id="id-1", name="orders", batchId=batch, sources=sources))


def test_lag_of_each_partition_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[LagReport] = []
    listener = LagListener(reports.append)
    with caplog.at_level(logging.INFO):
        listener.onQueryProgress(progress())
    (report,) = reports
    assert (report.query, report.batch, report.source, report.lags) == ("orders", 3, 3, {FIRST: 6, SECOND: 0})
    values = {"group": "g", "generation": 1, "partitions": 2, "lag": 6, "max_lag": 6, "rebalances": 0}
    assert report.metrics == {**values, "rebalance_causes": [], "join-rate": 0.5}
    assert caplog.messages == [
        "[query=orders batch=3 group=g generation=1] Lag 6 offsets in 2 partitions, largest t-0: 6."
    ]
    assert listener.last == {"id-1": [report]}
    listener.onQueryTerminated(SimpleNamespace(id="id-1"))
    assert listener.last == {}


def test_each_rebalance_is_reported_once(rebalances: list[Any]) -> None:
    listener = LagListener()

    def causes(generation: int) -> list[str]:
        listener.onQueryProgress(progress(generation=generation))
        return listener.last["id-1"][0].metrics["rebalance_causes"]  # type: ignore[no-any-return]

    assert causes(1) == [], "its events follow"
    rebalances.append(SimpleNamespace(generation=1, cause=Cause.JOINED))
    assert causes(1) == ["JOINED"] and causes(1) == []
    rebalances.append(SimpleNamespace(generation=2, cause=Cause.LEFT))
    assert causes(2) == ["LEFT"]


def test_each_batch_asks_the_readers_once(rebalances: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def ask(driver: int, query: str, with_events: bool) -> list[Any]:
        asked.append(with_events)
        return []

    monkeypatch.setattr(lag_listener, "query_statuses", ask)
    rebalances.append(SimpleNamespace(generation=1, cause=Cause.JOINED))
    listener = LagListener()
    for generation in (1, 1, 2):
        event = progress(generation=generation)
        # a query that reads twice
        event.progress.sources.append(event.progress.sources[-1])
        listener.onQueryProgress(event)
    assert asked == [True, False, True], "events only of a new generation"
    others = progress()
    del others.progress.sources[-1:]
    listener.onQueryProgress(others)
    assert len(asked) == 3, "a query without a groupsource source"


def test_without_the_driver_lag_is_reported_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise ConfigurationError("Spark Connect.")

    monkeypatch.setattr(lag_listener, "driver_jvm_pid", fail)
    listener = LagListener()
    listener.onQueryProgress(progress(latest=None))
    (report,) = listener.last["id-1"]
    assert (report.lags, report.rebalances, report.consumer_metrics) == ({}, (), {})


def test_an_error_of_the_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(report: LagReport) -> None:
        raise ValueError("no")

    LagListener(fail).onQueryProgress(progress())
    assert "[query=orders] Reporting the lag failed." in caplog.messages
