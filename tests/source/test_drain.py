"""Graceful stop of a query that fails meanwhile."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from spark_groupsource.source.process import drain


class FailingQuery:
    """A query whose batch fails after the first look at it."""

    name, id = "delays", "6f0e"
    recentProgress: tuple[()] = ()

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
