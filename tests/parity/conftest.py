"""Spark's own Kafka source beside ours, and a real Kafka with a topic of every kind."""

from __future__ import annotations

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
