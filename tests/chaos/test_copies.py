"""A short run of `copies.py`; ``make soak`` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.copies import run

# a run starts three Spark applications, which is slow on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.mark.soak
def test_copies_are_exact_while_processes_are_killed(tmp_path: Path) -> None:
    # the events: kill worker, kill worker, kill driver, drain, kill worker
    assert run(tmp_path, events=5, seed=3, records_per_s=50) > 0
