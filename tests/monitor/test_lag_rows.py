"""Lag, time, bytes and rates, computed from given offsets."""

from __future__ import annotations

import pytest

from spark_groupsource.monitor.offsets.lag import (
    FirstBatch,
    LogSpan,
    catch_up_ms,
    growth_per_second,
    lag_bytes,
    lag_ms,
    log_end_lag_ms,
)

FIRST = FirstBatch(timestamp_ms=1_000, size=300, offsets=3)


@pytest.mark.parametrize(
    ("lag", "first", "expected"),
    [(5, FIRST, 4_000), (0, None, 0), (-1, None, 0), (5, None, None), (None, FIRST, None)],
)
def test_lag_ms_is_the_age_of_the_first_record(lag: int | None, first: FirstBatch | None, expected: int | None) -> None:
    assert lag_ms(lag, first, 5_000) == expected


def test_a_record_of_the_future_has_no_negative_age() -> None:
    assert lag_ms(1, FIRST, 500) == 0
    assert lag_ms(1, FirstBatch(-1, 300, 3), 500) is None


def test_time_against_the_log_end() -> None:
    assert [log_end_lag_ms(5, FIRST, newest_ms) for newest_ms in (4_000, 500, None)] == [3_000, 0, None]
    assert [log_end_lag_ms(lag, None, 4_000) for lag in (0, None, 5)] == [0, None, None]
    assert log_end_lag_ms(0, None, None) == 0


@pytest.mark.parametrize(
    ("lag", "log", "first", "expected"),
    [
        (10, LogSpan(0, 100, 5_000), None, 500),
        # only what the log still has
        (1_000, LogSpan(900, 1_000, 5_000), None, 5_000),
        (10, LogSpan(0, 100), FIRST, 1_000),
        (10, None, None, None),
        (0, None, None, 0),
        (None, LogSpan(0, 100, 5_000), FIRST, None),
    ],
)
def test_lag_bytes(lag: int | None, log: LogSpan | None, first: FirstBatch | None, expected: int | None) -> None:
    assert lag_bytes(lag, log, first) == expected


def test_growth_per_second() -> None:
    assert growth_per_second(100, 0, 300, 10_000) == 20.0
    assert growth_per_second(300, 0, 100, 10_000) == 0.0
    assert growth_per_second(100, 9_500, 300, 10_000) is None


@pytest.mark.parametrize(
    ("lag", "consumed", "produced", "expected"),
    [
        (100, 30.0, 10.0, 5_000),
        (100, 10.0, 10.0, None),
        (100, None, 10.0, None),
        (100, 10.0, None, None),
        (0, None, None, 0),
        (None, 30.0, 10.0, None),
    ],
)
def test_catch_up_ms(lag: int | None, consumed: float | None, produced: float | None, expected: int | None) -> None:
    assert catch_up_ms(lag, consumed, produced) == expected
