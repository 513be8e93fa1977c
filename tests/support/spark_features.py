"""Marks of tests that need what not every supported Spark has."""

from __future__ import annotations

import pytest

from spark_groupsource.source.admission_control import HAS_ADMISSION_CONTROL

needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="this Spark has no admission control (SPARK-55304, in Spark 4.2)"
)
