"""The short run of `broker_kills.py`; the long one is ``python tests/chaos/broker_kills.py --kills 500``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_broker_that_is_killed_again_and_again_loses_nothing() -> None:
    script = Path(__file__).with_name("broker_kills.py")
    command = [sys.executable, str(script), "--kills", "8", "--group-records", "10000", "--restart-limit-s", "60"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "none missing, none twice" in run.stdout
