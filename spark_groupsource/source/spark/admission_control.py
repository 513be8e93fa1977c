"""Admission control of streaming reads, where Spark has it.

Spark 4.0 and 4.1 do not (SPARK-55304).

The interface is detected by import, because vendors add it to earlier versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_groupsource.errors import ConfigurationError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:
    HAS_ADMISSION_CONTROL = False

if not HAS_ADMISSION_CONTROL and not TYPE_CHECKING:

    class SupportsTriggerAvailableNow:
        """Substitute for a Spark without the interface, as the following."""

    class ReadLimit:
        pass

    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        max_bytes: int


__all__ = [
    "HAS_ADMISSION_CONTROL", "InferredStart", "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows",
    "ReadMinRows", "SupportsTriggerAvailableNow",
]  # fmt: skip


class InferredStart:
    """The start that Spark without admission control does not pass to ``latestOffset``, inferred from its calls.

    Such a Spark calls ``partitions(o, o)`` at a restart, where `o` is the end of the last logged batch, perhaps then
    ``partitions(start, o)`` to repeat that batch, and ``latestOffset()`` only while no batch runs. So the end that was
    last passed to ``partitions`` is checkpointed at the next ``latestOffset``. An end that was returned proves less:
    if ``spark.sql.streaming.triggerAvailableNowWrapper.enabled`` is set, Spark calls again before the batch.

    Attributes:
        start: the checkpointed offset; None before Spark has passed one: the query is new.
        planned: the end that was returned and not passed to ``partitions`` yet; None without one.
    """

    def __init__(self) -> None:
        self.start: dict[str, Any] | None = None
        self.planned: dict[str, Any] | None = None

    def end_returned(self, end: dict[str, Any]) -> None:
        # without an assignment there is no end
        if end and end != self.start:
            self.planned = end

    def partitions_called(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Raises: ConfigurationError if a batch was planned before Spark passed the checkpoint."""
        if start == end and self.start is None and self.planned not in (None, end):
            raise ConfigurationError(
                "Starting the query failed: Spark planned a batch before it passed the checkpoint. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, its default, or use Spark 4.2."
            )
        self.start = end
        if end == self.planned:
            self.planned = None
