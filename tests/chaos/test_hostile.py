"""A short run of `hostile.py`; ``make soak`` has the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_neighbors_are_served_during_attacks() -> None:
    command = [sys.executable, str(TESTS / "chaos" / "hostile.py"), "--minutes", "0", "--limit-ms", "5000"]
    command += ["--only", "long_names"]
    paths = [str(TESTS), str(TESTS.parent / "jobs"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    runs = {row[1].strip(): row[2].strip() for row in (line.split("|") for line in run.stdout.splitlines()) if row[2:]}
    assert (runs["long_names"], runs["fuzz"]) == ("1", "1")
