"""Short runs under fire; `stream.py` makes long ones."""

import pytest
from chaos.stream import run

# most of the time goes into starting Spark again and again, which a busy machine does slowly
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]


def test_violent_events_lose_nothing(tmp_path):
    run(tmp_path, events=6, seed=4)


def test_graceful_events_lose_and_repeat_nothing(tmp_path):
    assert run(tmp_path, events=3, seed=5, graceful=True).repeats == 0
