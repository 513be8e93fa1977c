"""Order of records of several partitions: by timestamp, then by arrival."""

from __future__ import annotations

from typing import Sequence


def arrival_indexes(timestamps: Sequence[int], earlier: int = 0) -> list[int]:
    """Returns the position of each record among the records of equal timestamp around it.

    Records that a producer sends in one batch have equal timestamps. It distributes them over the partitions, so those
    with the same position in their partitions were sent next to each other.

    Args:
        timestamps: of consecutive records of one partition.
        earlier: number of records before the first one that have its timestamp.
    """
    found: list[int] = []
    for number, timestamp in enumerate(timestamps):
        if not number:
            found.append(earlier)
        else:
            found.append(found[-1] + 1 if timestamp == timestamps[number - 1] else 0)
    return found
