"""Marks of tests that need what not every supported Spark has."""

from __future__ import annotations

import pyspark
import pytest

from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL

needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="this Spark has no admission control (SPARK-55304, in Spark 4.2)"
)

FILLS_COLUMNS = not pyspark.__version__.startswith("4.0")
"""Whether an INSERT INTO may leave out columns of a table; 4.0 needs all of them."""
PLANS_ONCE_PER_LOAD = not pyspark.__version__.startswith("4.0")
"""Whether Spark plans a batch read of a Python source once per ``load()``; 4.0 plans each action."""


def committed_at_end(offset: int) -> int:
    """Returns what a query with the trigger availableNow has committed at its end, if its only batch ends at `offset`.

    Without admission control, the next run of the query commits the batch.
    """
    return offset if HAS_ADMISSION_CONTROL else 0
