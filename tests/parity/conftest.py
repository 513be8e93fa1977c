"""Spark's own Kafka source beside ours, and a real Kafka with a topic of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from rival import Rivals, add_connector
from zoo import TOPICS, Zoo

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from real_kafka import RealKafka


@pytest.fixture
def rivals(spark: SparkSession, kafka: RealKafka, tmp_path: Path) -> Rivals:
    """Both sources on one session and one real Kafka."""
    add_connector(spark)
    return Rivals(spark, kafka.bootstrap_servers, tmp_path)


@pytest.fixture(scope="session")
def zoo(kafka: RealKafka) -> Zoo:
    """Kind of topic -> name of a topic of that kind; made when first asked for."""
    return Zoo(kafka.bootstrap_servers, TOPICS)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets readers run in the process of the tests: without their signal handlers, connections closed afterwards."""
    from spark_groupsource.source import stream, task

    monkeypatch.setattr(stream._Live, "_handle_signals", lambda self: None)
    yield
    for cluster in list(task._clusters.values()):
        task._discard(cluster)
