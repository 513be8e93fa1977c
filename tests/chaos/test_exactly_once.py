"""A short run of `exactly_once.py`; ``make soak`` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.exactly_once import run


@pytest.mark.slow
def test_each_record_is_delivered_once_when_the_broker_is_killed(tmp_path: Path) -> None:
    run(tmp_path, records=1_000, kills=2, seed=7)
