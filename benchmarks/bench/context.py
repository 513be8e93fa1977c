"""What a measure receives: the brokers, the size, the number of rounds."""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple

from bench.figures import Figure


class Context(NamedTuple):
    """The size of a run.

    Attributes:
        bootstrap_servers: of a real Kafka that all measures share.
        scale: factor of the numbers of records; 1 for the published figures.
        rounds: how often each measurement is repeated, in alternation with the rival's.
        spark_home: a Spark whose archive of PySpark has compiled modules; empty for the installed one.
    """

    bootstrap_servers: str
    scale: float = 1.0
    rounds: int = 3
    spark_home: str = ""

    def records(self, count: int, multiple: int = 1) -> int:
        """Returns `count` records at this scale, rounded to a multiple."""
        return max(1, round(count * self.scale / multiple)) * multiple


class Measure(NamedTuple):
    """One measure of `run.py`: yields its figures as it finds them.

    `is_installed_spark`: it runs with Spark as installed, not with `Context.spark_home`.
    """

    name: str
    figures: Callable[[Context], Iterator[Figure]]
    timeout_s: float = 300
    is_installed_spark: bool = False
