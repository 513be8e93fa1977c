"""A short run of `power_loss.py`; ``make soak`` has the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.startup import python_path

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["always", "os"])
def test_broker_recovers_from_power_losses(flush: str) -> None:
    command = [sys.executable, str(TESTS / "chaos" / "power_loss.py"), "--rounds", "4", "--flush", flush, "--seed", "5"]
    environment = {**os.environ, "PYTHONPATH": python_path(TESTS)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"--flush {flush}: 4 power losses" in run.stdout
