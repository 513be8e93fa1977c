"""Groups whose names have commas, spaces and characters of patterns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.topics import create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.selection import parse_name_pattern
from spark_groupsource.notebook.cluster import Cluster, connect

NAMES = ["a,b", "a", "b", " lead", "lead", "*", "a.*", "a+b", "["]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedBroker() as broker, connect(broker.bootstrap_servers) as opened:
        create_topic(broker.bootstrap_servers, "t", 1)
        for offset, name in enumerate(NAMES):
            # private: the interface of notebooks commits nothing
            opened._client.commit(name, {TopicPartition("t", 0): OffsetAndMetadata(offset)})
        yield opened


@pytest.mark.parametrize("name", NAMES)
def test_a_group_is_read_by_its_exact_name(cluster: Cluster, name: str) -> None:
    rows = list(cluster.group(name).offsets())
    assert [(row["group"], row["current_offset"]) for row in rows] == [(name, NAMES.index(name))]
    assert [row["group"] for row in cluster.group(name).lag()] == [name]


def test_groups_are_selected_by_names_and_patterns(cluster: Cluster) -> None:
    assert sorted(row["group"] for row in cluster.groups("a,lead")) == ["a", "lead"]
    assert sorted(row["group"] for row in cluster.groups("[ab]")) == ["a", "b"]
    # a pattern also selects the name that is its text
    assert sorted(row["group"] for row in cluster.groups("a[+]b,a.*")) == ["a", "a+b", "a,b", "a.*"]
    assert parse_name_pattern("groupPattern", "a,b|lead").selected(NAMES) == ["a,b", "lead"]
