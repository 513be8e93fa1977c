"""Graceful stop: reports of the query, and failures meanwhile."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from spark_groupsource.source.process import drain


class FailingQuery:
    """A query whose batch fails after the first look at it."""

    name, id = "delays", "6f0e"
    lastProgress = None

    def __init__(self, failure: Exception | None) -> None:
        self.isActive = True
        self.is_stopped = False
        self._failure = failure

    @property
    def status(self) -> dict[str, bool]:
        self.isActive = False
        return {"isTriggerActive": True, "isDataAvailable": True}

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize(
    "failure, messages",
    [
        (None, []),
        (
            RuntimeError("the disk is full\nat line 1"),
            [
                "[query=delays] The query failed during the drain, so another member may repeat its last batch: "
                "the disk is full"
            ],
        ),
    ],
)
def test_failure_during_a_drain_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception | None, messages: list[str]
) -> None:
    monkeypatch.setattr(drain, "driver_jvm_pid", os.getpid)
    query: Any = FailingQuery(failure)
    with caplog.at_level(logging.WARNING):
        drain.stop_gracefully(query)
    assert query.is_stopped and caplog.messages == messages


class ReportingQuery:
    """A query without a batch in flight, whose reports are counted when they are read."""

    name, id, isActive = "delays", "6f0e", True
    status = {"isTriggerActive": False, "isDataAvailable": False}

    def __init__(self, last: str, earlier: str) -> None:
        self.read = 0
        self._last, self._earlier = last, earlier

    @property
    def lastProgress(self) -> Any:
        return self._report(self._last)

    @property
    def recentProgress(self) -> list[Any]:
        return [self._report(self._earlier), self._report(self._last)]

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False

    def _report(self, end: str) -> Any:
        self.read += 1
        return {"sources": [{"endOffset": end}]}


NAMED = '{"@group": {"reader": "0123456789abcdef"}}'


@pytest.mark.parametrize("last, reports", [(NAMED, 1), ("null", 3)])
def test_drain_reads_earlier_reports_only_if_the_last_names_no_reader(
    monkeypatch: pytest.MonkeyPatch, last: str, reports: int
) -> None:
    monkeypatch.setattr(drain, "driver_jvm_pid", os.getpid)
    query: Any = ReportingQuery(last, NAMED)
    drain.stop_gracefully(query)
    assert (query.isActive, query.read) == (False, reports)
