"""Fixtures: both sources on a real Kafka, and topics of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.both_sources import BothSources, add_connector
from support.sample_topics import TOPICS, SampleTopics

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from real_kafka import RealKafka


@pytest.fixture
def sources(spark: SparkSession, kafka: RealKafka, tmp_path: Path) -> BothSources:
    """Both sources on one session and one real Kafka."""
    add_connector(spark)
    return BothSources(spark, kafka.bootstrap_servers, tmp_path)


@pytest.fixture(scope="session")
def samples(kafka: RealKafka) -> SampleTopics:
    """Kind of topic -> name of a topic of that kind, created when first used."""
    return SampleTopics(kafka.bootstrap_servers, TOPICS)
