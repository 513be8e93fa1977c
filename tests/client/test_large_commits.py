"""Commits that the coordinator does not store as one record batch (max.message.bytes)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import POLL_MS, group_client, open_cluster
from support.topics import create_topic

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import (
    NO_MEMBER,
    CommittingMember,
    errors_of_commits,
    split_commits,
)
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.errors import NetworkError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

PARTITIONS = 300
# with 300 partitions more than the default of 1,048,588 bytes
METADATA = "x" * 4_000


@pytest.fixture
def client(cluster: Any, topic: str) -> Iterator[ClusterClient]:
    create_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    with open_cluster(cluster.bootstrap_servers) as opened:
        yield opened


def offsets_of(topic: str, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, number): OffsetAndMetadata(offset, METADATA, -1) for number in range(PARTITIONS)}


@pytest.mark.slow
def test_commits_of_one_member_and_of_a_transaction(client: ClusterClient, topic: str, group: str) -> None:
    with group_client(client, group, topic) as ours:
        assert len(ours.poll(POLL_MS).partitions) == PARTITIONS
        ours.commit(offsets_of(topic, 5))
        assert client.fetch_committed(group) == offsets_of(topic, 5)
    client.commit(group, offsets_of(topic, 6))
    assert client.fetch_committed(group) == offsets_of(topic, 6)
    transactions = Transactions(client, f"T-{group}")
    transactions.init(60_000)
    transactions.commit_offsets(group, offsets_of(topic, 7))
    transactions.end(is_committed=True)
    # waits for the markers of the transaction
    Transactions(client, f"T-{group}").init(60_000)
    assert client.fetch_committed(group) == offsets_of(topic, 7)


def test_parts_of_commits() -> None:
    small = {TopicPartition("t", 7): OffsetAndMetadata(1, "", -1)}
    member = CommittingMember(3, "m")
    parts = split_commits("g", [(member, offsets_of("t", 5)), (NO_MEMBER, small), (NO_MEMBER, {})])
    assert [(part.commit, part.member, len(part.offsets)) for part in parts] == [
        (0, member, 128), (0, member, 128), (0, member, 44), (1, NO_MEMBER, 1), (2, NO_MEMBER, 0)
    ]  # fmt: skip
    assert {tp: each for part in parts[:3] for tp, each in part.offsets.items()} == offsets_of("t", 5)
    lost, closed = NetworkError("no response"), NetworkError("closed")
    assert errors_of_commits(parts, [None, lost, closed, None, None]) == [lost, None, None]
    assert errors_of_commits(parts, [None, None, None, closed, lost]) == [None, closed, lost]
