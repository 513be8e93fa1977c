"""Order of records of several partitions with equal timestamps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.monitor.arrival_order import arrival_indexes


def test_indexes_restart_with_each_timestamp() -> None:
    assert arrival_indexes([5, 5, 5, 7, 7, 5]) == [0, 1, 2, 0, 1, 0]
    assert arrival_indexes([5, 5, 7], earlier=3) == [3, 4, 0]
    assert arrival_indexes([]) == []


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 4))
def test_batches_that_a_producer_distributes_in_turn_are_merged_in_the_order_of_sending(
    sizes: list[int], partitions: int
) -> None:
    """Each batch has one timestamp and begins with partition 0."""
    logs: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
    sent = []
    for timestamp, size in enumerate(sizes):
        for number in range(size):
            logs[number % partitions].append((timestamp, len(sent)))
            sent.append(len(sent))
    keyed = [
        ((timestamp, index, partition), record)
        for partition, log in enumerate(logs)
        for (timestamp, record), index in zip(log, arrival_indexes([timestamp for timestamp, _ in log]))
    ]
    assert [record for _, record in sorted(keyed)] == sent
