"""Fixtures of a broker with three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.raw_broker import RawConnection
from support.three_nodes import CONFIG, connected

from spark_groupsource.broker.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker with three nodes; a module that tests a single node has a fixture of its own with this name."""
    with EmbeddedBroker(config=CONFIG, brokers=3) as running:
        yield running


@pytest.fixture
def nodes(broker: EmbeddedBroker) -> Iterator[dict[int, RawConnection]]:
    """A connection to each node, by node id."""
    with connected(broker) as connections:
        yield connections
