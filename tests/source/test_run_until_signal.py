"""Signals to an application with several queries: `run_until_signal`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from spark_groupsource import run_until_signal
from spark_groupsource.source.process import signals


class RunningQuery:
    """A query of an application that gets SIGTERM as soon as it waits for its queries. `failure`: that of its drain."""

    def __init__(self, failure: str = "") -> None:
        self.failure = failure

    @property
    def isActive(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Queries that were drained, three at the same time."""
    queries: list[Any] = []
    together = threading.Barrier(3, timeout=30)

    def drain(query: Any, timeout_s: float) -> None:
        together.wait()
        if query.failure:
            raise TimeoutError(query.failure)
        queries.append(query)

    monkeypatch.setattr(signals, "stop_gracefully", drain)
    monkeypatch.setattr(signals, "jvm_held", lambda at_signal: nullcontext())
    return queries


def test_queries_are_drained_at_the_same_time(drained: list[Any]) -> None:
    queries: list[Any] = [RunningQuery(), RunningQuery(), RunningQuery()]
    run_until_signal(*queries)
    assert sorted(map(id, drained)) == sorted(map(id, queries))


def test_query_that_is_not_drained_does_not_keep_the_others_from_it(
    drained: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queries: list[Any] = [RunningQuery("the first"), RunningQuery(), RunningQuery("the second")]
    with pytest.raises(TimeoutError, match="first"), caplog.at_level(logging.ERROR):
        run_until_signal(*queries)
    assert drained == [queries[1]] and caplog.messages == ["[driver] the second"]


class FailedQuery:
    """A query whose last batch has failed."""

    isActive = True

    def awaitTermination(self) -> None:
        raise RuntimeError("Java heap space")


@pytest.mark.parametrize(
    "has_signal, expected", [(False, pytest.raises(RuntimeError, match="heap")), (True, nullcontext())]
)
def test_failure_that_ends_the_jvm_is_raised(monkeypatch: pytest.MonkeyPatch, has_signal: bool, expected: Any) -> None:
    @contextmanager
    def exiting_jvm(at_signal: Callable[[], None]) -> Iterator[None]:
        at_signal()
        yield

    def drain(query: Any, timeout_s: float) -> None:
        if has_signal:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(signals, "jvm_held", exiting_jvm)
    monkeypatch.setattr(signals, "_drain", lambda queries, timeout_s: drain(queries[0], timeout_s))
    query: Any = FailedQuery()
    with expected:
        run_until_signal(query)
