"""A short run of `broker_kills.py`; ``make soak`` has the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.startup import python_path

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_killed_broker_loses_no_acknowledged_record() -> None:
    command = [sys.executable, str(TESTS / "chaos" / "broker_kills.py"), "--kills", "3"]
    command += ["--group-records", "2000", "--restart-limit-s", "60"]
    environment = {**os.environ, "PYTHONPATH": python_path(TESTS)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "none missing, none twice" in run.stdout
