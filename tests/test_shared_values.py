"""Shared values and helpers: bounded names, clock instants."""

from __future__ import annotations

import pytest

from spark_groupsource.common.clock import Instant, ManualClock
from spark_groupsource.model import TopicPartition, bounded_names


@pytest.mark.parametrize(
    "count, text",
    [(0, ""), (1, "t-0"), (5, "t-0, t-1, t-2, t-3, t-4"), (6, "t-0, t-1, t-2, t-3, t-4 and 1 more")],
)
def test_at_most_five_names_are_listed(count: int, text: str) -> None:
    assert bounded_names(TopicPartition("t", number) for number in range(count)) == text


def test_the_number_of_omitted_names_has_thousands_separators() -> None:
    assert bounded_names(range(5_000), limit=2) == "0, 1 and 4,998 more"


def test_an_instant_reads_both_clocks() -> None:
    clock = ManualClock(now_ms=5, timestamp_ms=1_000)
    clock.advance_ms(7)
    assert clock.instant() == Instant(now_ms=12, timestamp_ms=1_007)
