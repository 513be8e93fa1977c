"""Search for the earlier commits of one author; on both clusters."""

from __future__ import annotations

import pytest
from support.topics import create_topic

from spark_groupsource.client.admin import delete_offsets
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership import commit_history, offsets_topic
from spark_groupsource.client.membership.commit_history import find_last_commits
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import OffsetAndMetadata, TopicPartition


def test_last_commit_of_an_author_is_found_before_later_ones(cluster, topic, group):
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, 100)
    partitions = [TopicPartition(topic, n) for n in range(100)]
    with ClusterClient(servers, ClientSettings.parse({"bootstrap.servers": servers})) as client:
        for offset in (4, 7):
            client.commit(group, {p: OffsetAndMetadata(offset, "author") for p in partitions[:2]})
        client.commit(f"{group}-other", {partitions[0]: OffsetAndMetadata(9, "author")})
        # more than the first window
        for offset in range(11):
            client.commit(group, {p: OffsetAndMetadata(offset, "another") for p in partitions})
        client.commit(group, {partitions[1]: OffsetAndMetadata(5, "author")})
        found = find_last_commits(client, group, partitions[:3], "author")
        assert found == {partitions[0]: 7, partitions[1]: 5, partitions[2]: None}


def test_commits_before_offsets_were_deleted_are_unknown(cluster, topic, group, monkeypatch):
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, 2)
    monkeypatch.setattr(offsets_topic, "_FIRST_RECORDS", 1)
    deleted, kept = [TopicPartition(topic, n) for n in range(2)]
    with ClusterClient(servers, ClientSettings.parse({"bootstrap.servers": servers})) as client:
        client.commit(group, {p: OffsetAndMetadata(7, "author") for p in (deleted, kept)})
        delete_offsets(client, group, [deleted])
        # the tombstone is in a later window than the commit
        for offset in range(10):
            client.commit(group, {kept: OffsetAndMetadata(offset, "another")})
        client.commit(group, {deleted: OffsetAndMetadata(3, "another")})
        assert find_last_commits(client, group, [deleted, kept], "author") == {kept: 7}


@pytest.mark.parametrize("window", [1, 1_000])
def test_commits_of_transactions_that_were_aborted_or_are_open_do_not_count(
    cluster, topic, group, monkeypatch, window
):
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, 3)
    monkeypatch.setattr(offsets_topic, "_FIRST_RECORDS", window)
    monkeypatch.setattr(commit_history, "_MAX_WINDOWS", 8)
    aborted, committed, opened = [TopicPartition(topic, n) for n in range(3)]
    with ClusterClient(servers, ClientSettings.parse({"bootstrap.servers": servers})) as client:
        client.commit(group, {p: OffsetAndMetadata(4, "author") for p in (aborted, committed, opened)})
        transactions = Transactions(client, group)
        transactions.init(60_000)
        for partition, offset, ends in ((committed, 7, True), (aborted, 9, False), (opened, 8, None)):
            transactions.commit_offsets(group, {partition: OffsetAndMetadata(offset, "author")})
            if ends is not None:
                transactions.end(is_committed=ends)
        client.commit(f"{group}-other", {aborted: OffsetAndMetadata(1)})
        found = find_last_commits(client, group, [aborted, committed, opened], "author")
        transactions.abort()
        assert found == {aborted: 4, committed: 7, opened: 4}


def test_log_that_was_not_read_to_its_start_leaves_the_commits_unknown(cluster, topic, group, monkeypatch):
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, 2)
    partitions = [TopicPartition(topic, n) for n in range(2)]
    monkeypatch.setattr(offsets_topic, "_FIRST_RECORDS", 1)
    monkeypatch.setattr(commit_history, "_MAX_WINDOWS", 2)
    with ClusterClient(servers, ClientSettings.parse({"bootstrap.servers": servers})) as client:
        for offset in range(30):
            client.commit(group, {partitions[0]: OffsetAndMetadata(offset, "author")})
        assert find_last_commits(client, group, partitions, "author") == {partitions[0]: 29}
        assert find_last_commits(client, group, partitions, "another") == {}
