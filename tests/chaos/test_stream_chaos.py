"""Short runs of `stream.py`; ``make soak`` has the long ones."""

import pytest
from chaos.stream import run

# a run starts Spark, which is slow on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]


def test_faults_lose_no_record(tmp_path):
    # the events: kill broker, kill reader; few records, because every micro-batch costs as much as hundreds of them
    run(tmp_path, events=2, seed=170, applications=1, records_per_s=50, trigger="1 second")


@pytest.mark.soak
def test_graceful_events_lose_and_repeat_no_record(tmp_path):
    assert run(tmp_path, events=3, seed=5, graceful=True).repeats == 0
