"""Short runs of `record.py`; ``make soak`` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from histories.clients import LibrdkafkaReader
from histories.record import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_histories_with_faults_have_no_anomaly(tmp_path: Path) -> None:
    # the faults: kill, none, kill
    assert run(tmp_path, histories=3, seed=1) > 0


def test_readers_of_uncommitted_records_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LibrdkafkaReader, "isolation_level", "read_uncommitted")
    with pytest.raises(AssertionError, match="aborted read"):
        run(tmp_path, histories=3, seed=10)


@pytest.mark.kafka
@pytest.mark.soak
def test_histories_of_a_real_kafka_have_no_anomaly(tmp_path: Path) -> None:
    assert run(tmp_path, histories=20, seed=100, kafka=True) > 0
