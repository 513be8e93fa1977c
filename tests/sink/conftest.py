"""Topics of queries that copy records."""

from __future__ import annotations

import pytest
from support.clusters import Cluster
from support.sink_application import fill


@pytest.fixture
def output(topic: str) -> str:
    return f"{topic}-out"


@pytest.fixture
def filled(cluster: Cluster, topic: str, output: str) -> Cluster:
    """A cluster whose topic has records, and an empty topic for the output."""
    return fill(cluster, topic, output)
