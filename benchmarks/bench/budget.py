"""Sizes and expected duration of every measure, by mode."""

from __future__ import annotations

from typing import Iterator, Literal, Mapping, NamedTuple

Mode = Literal["normal", "quick", "full"]


class Size(NamedTuple):
    """Factor of the numbers of records, number of rounds, and seconds on two idle processors; 0 to leave it out."""

    scale: float
    rounds: int
    seconds: int


class Row(NamedTuple):
    """Budget of one measure.

    Attributes:
        records: of its largest topic at scale 1; 0 if it has no topic.
    """

    records: int
    normal: Size
    quick: Size
    full: Size

    def size(self, mode: Mode) -> Size:
        size: Size = getattr(self, mode)
        return size


# measures that read one topic, as batch-read-1, batch-read-2 and availableNow, have the same scale
BUDGET: Mapping[str, Row] = {
    "batch-read-1": Row(8_000_000, Size(0.4, 3, 90), Size(0.0625, 1, 27), Size(1, 3, 240)),
    "batch-read-2": Row(8_000_000, Size(0.4, 3, 197), Size(0.0625, 1, 45), Size(1, 3, 465)),
    "batch-write": Row(2_000_000, Size(0.4, 2, 60), Size(0.125, 1, 0), Size(1, 3, 300)),
    "micro-batch-write": Row(0, Size(0.5, 2, 0), Size(0.25, 1, 0), Size(1, 3, 90)),
    "parts": Row(1_200_000, Size(0.5, 1, 5), Size(0.125, 1, 2), Size(1, 1, 15)),
    "arrow-clients": Row(1_200_000, Size(0.25, 2, 10), Size(0.05, 1, 3), Size(1, 3, 80)),
    "availableNow": Row(8_000_000, Size(0.4, 3, 40), Size(0.0625, 1, 15), Size(1, 5, 160)),
    "cold-start": Row(100, Size(1, 3, 23), Size(1, 1, 9), Size(1, 5, 50)),
    "starts-as-installed": Row(100, Size(1, 1, 45), Size(1, 1, 0), Size(1, 3, 60)),
    "micro-batch-tcp": Row(0, Size(0.6, 2, 40), Size(0.25, 1, 18), Size(1, 4, 100)),
    "micro-batch-unix": Row(0, Size(0.6, 2, 40), Size(0.25, 1, 0), Size(1, 4, 100)),
    "curve-records": Row(50_000_000, Size(0.32, 2, 25), Size(0.04, 1, 8), Size(1, 2, 90)),
    "curve-partitions": Row(100_000, Size(0.5, 2, 40), Size(0.05, 1, 6), Size(1, 3, 460)),
    "curve-batches": Row(2_000_000, Size(0.5, 2, 25), Size(0.1, 1, 8), Size(1, 3, 60)),
    "broker": Row(10_000, Size(0.25, 2, 35), Size(0.05, 1, 12), Size(1, 3, 150)),
    "joins": Row(0, Size(1, 2, 35), Size(0.05, 1, 5), Size(1, 3, 70)),
    "assignors": Row(0, Size(1, 3, 8), Size(1, 1, 4), Size(1, 5, 20)),
    "group-restart": Row(1_000_000, Size(1, 2, 40), Size(0.1, 1, 10), Size(1, 3, 70)),
    "memory": Row(0, Size(1, 1, 22), Size(0.1, 1, 8), Size(1, 1, 35)),
}


def table(mode: Mode, names: list[str]) -> Iterator[str]:
    """Yields a line of each measure, and the total."""
    yield f"{'measure':<22}{'records':>12}{'rounds':>8}{'seconds':>9}"
    for name in names:
        row = BUDGET[name]
        size = row.size(mode)
        yield f"{name:<22}{round(row.records * size.scale):>12,}{size.rounds:>8}{size.seconds:>9}"
    yield f"{'total':<42}{sum(BUDGET[name].size(mode).seconds for name in names):>9}"
