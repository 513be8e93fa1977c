"""Samples of the lag of a query."""

from __future__ import annotations

# private: the bound of memory
from spark_groupsource.source.group.lag_samples import _MAX_SAMPLES, LagSamples
from spark_groupsource.wire.group_events import EventKind


def test_samples_are_a_second_apart() -> None:
    samples = LagSamples("g")
    for at_ms, lag in ((1_000, 5), (1_900, 6), (2_000, 7), (1_500, 8)):
        samples.add(lag, 1, at_ms)
    found = samples.take()
    # the clock was set back
    assert [(each.at_ms, each.detail) for each in found] == [
        (1_000, {"lag": 5}),
        (2_000, {"lag": 7}),
        (1_500, {"lag": 8}),
    ]
    assert {each.kind for each in found} == {EventKind.LAG_SAMPLED}


def test_a_long_time_has_fewer_samples_of_each_second() -> None:
    samples = LagSamples("g")
    for second in range(10_000):
        samples.add(second, 1, second * 1_000)
    times = [each.at_ms for each in samples.events]
    assert _MAX_SAMPLES / 3 < len(times) < _MAX_SAMPLES and times[0] == 0 and times[-1] > 9_900_000
    assert len(samples.take()) == len(times) and samples.take() == []
    samples.add(1, 1, 10_100_000)
    assert [each.at_ms for each in samples.take()] == [10_100_000]
