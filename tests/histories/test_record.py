"""Short runs of `record.py`; ``make soak`` has the long ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

from histories import clients, faulty_clusters
from histories.clients import API_TIMEOUT_S
from histories.faulty_clusters import OneBroker, ThreeBrokers
from histories.planted_broker import DEFECTS
from histories.record import run_part

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # kafka-python 3.0 leaves a socket to the garbage collector that is cut off while it connects
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

_SCRIPT = Path(__file__).with_name("planted_broker.py")


def test_histories_with_faults_have_no_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    # longer than any client repeats a request, so that a client does not know the outcome
    monkeypatch.setattr(faulty_clusters, "FAULT_S", (1.5 * API_TIMEOUT_S, 1.5 * API_TIMEOUT_S))
    # the faults: kill, cut, hold
    counts, _ = run_part(range(8, 11))
    for fault in ("kill", "cut", "hold"):
        for what in ("committed", "sends", "polls", "indefinite", "errors"):
            assert counts[fault, what] > 0, (fault, what)


SHOWN = {
    "commit_is_dropped": "(lost write|unseen)",
    "aborted_records_are_read": "aborted read",
    "commit_is_torn": "torn transaction",
    "batch_is_stored_twice": "duplicate",
    "acknowledged_batch_is_not_stored": "inconsistent offset",
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_broker_is_found(defect: str) -> None:
    assert _is_shown(SHOWN[defect], partial(OneBroker, script=(sys.executable, str(_SCRIPT), defect)))


def _is_shown(kind: str, start: Callable[[Path], Any] = OneBroker) -> bool:
    """Whether one of some histories has an anomaly of a kind; others may be all that the first ones have."""
    for seed in range(10, 20):
        try:
            run_part(range(seed, seed + 1), start)
        except AssertionError as error:
            if re.search(rf"\n  {kind}: ", str(error)):
                return True
    return False


def _repeated(messages: list[Message]) -> list[Message]:
    return messages + messages[-1:]


def _without_one(messages: list[Message]) -> list[Message]:
    return [each for number, each in enumerate(messages) if number != 1 or each.error() is not None]


@pytest.mark.parametrize(
    ("defect", "kind"), [(_repeated, "nonmonotonic poll"), (_without_one, "(skipped poll|lost write|unseen)")]
)
def test_a_defect_of_a_consumer_is_found(
    defect: Callable[[list[Message]], list[Message]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Planted(Consumer):
        def consume(self, *given: Any) -> list[Message]:
            return defect(super().consume(*given))

    monkeypatch.setattr(clients, "Consumer", Planted)
    assert _is_shown(kind)


def test_readers_of_uncommitted_records_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients.LibrdkafkaReader, "isolation_level", "read_uncommitted")
    assert _is_shown("aborted read")


@pytest.mark.spark
@pytest.mark.soak
def test_a_history_with_a_query_that_writes_exactly_once_has_no_anomaly() -> None:
    counts, _ = run_part(range(1), has_spark=True)
    assert counts["several", "batches"] > 0


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.parametrize("start", [partial(OneBroker, kafka=True), ThreeBrokers])
def test_histories_of_a_real_kafka_have_no_anomaly(start: Callable[[Path], Any]) -> None:
    assert run_part(range(100, 115), start)[0]
