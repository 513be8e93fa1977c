"""Classes of users in the reader process: the examples of docs/concepts.md."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from lag_assignor import LagAssignor
from support.query_threads import PARTITIONS, ThreadedGroup
from support.topics import produce
from support.waiting import wait_until

from spark_groupsource.assign import GroupMember, Subscription, TopicPartition, load_assignor
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.group.rebalance_listener import load_rebalance_listener


@pytest.fixture
def threaded(cluster, topic, group, in_process):
    opened = ThreadedGroup(cluster, topic, group)
    yield opened
    opened.client.close()


class Offsets:
    """Offsets of the partitions of t: starts at 10, some commits."""

    ENDS, COMMITS = {0: 1_010, 1: 110, 2: 60, 3: 60, 4: 10}, {0: 510, 3: 60}

    def committed(self, partitions):
        return {each: self.COMMITS[each.partition] for each in partitions if each.partition in self.COMMITS}

    def beginning_offsets(self, partitions):
        return dict.fromkeys(partitions, 10)

    def end_offsets(self, partitions):
        return {each: self.ENDS[each.partition] for each in partitions}


def test_assignor_of_the_example_balances_the_lag():
    assignor = LagAssignor()
    assignor.configure(Offsets())
    members = [GroupMember(name, Subscription(("t",))) for name in ("a", "b")]
    # lags 500, 100, 50, 0, 0: the sums are 500 and 150, and partitions without lag go where there are fewer
    assigned = assignor.assign({"t": 5}, members)
    assert assigned == {
        "a": [TopicPartition("t", 0)],
        "b": [TopicPartition("t", number) for number in (1, 2, 3, 4)],
    }
    other = GroupMember("c", Subscription(("u",)))
    assert assignor.assign({"t": 5}, [*members, other])["c"] == []


def test_subclass_of_assignor_without_a_name_is_rejected():
    with pytest.raises(ConfigurationError, match="lacks a name"):
        load_assignor(f"{__name__}:Nameless")


class Nameless(LagAssignor):
    name = None


@pytest.mark.slow
def test_two_applications_share_the_lag_not_the_partitions(threaded):
    strategy = {"kafka.partition.assignment.strategy": "lag_assignor:LagAssignor"}
    # one partition is far behind the others
    rows = [(0, None, b"") for _ in range(3_000)] + [(n, None, b"") for n in range(1, PARTITIONS) for _ in range(100)]
    total = produce(threaded.servers, threaded.topic, rows)
    slow = {"maxOffsetsPerTrigger": "6", **strategy}
    with threaded.start("a", lambda: 0.05, **slow) as first:
        wait_until(lambda: first.batches > 1, "the first application has committed")
        with threaded.start("b", lambda: 0.05, **slow) as second:
            wait_until(lambda: sorted(threaded.assigned().values()) == [1, PARTITIONS - 1], "the lag is shared", 60)
            assert {m.assignment for m in threaded.described().members if len(m.assignment) == 1} == {
                (TopicPartition(threaded.topic, 0),)
            }
    seen = first.seen + second.seen
    assert set(seen.values()) == {1} and threaded.committed() == len(seen) < total


@pytest.mark.slow
def test_listener_of_the_example_stores_the_owners(threaded, tmp_path, monkeypatch):
    path = tmp_path / "owners.db"
    monkeypatch.setenv("OWNERS_DATABASE", str(path))
    threaded.produce(60)
    listening = {"rebalanceListener": "partition_owners:PartitionOwners"}

    def owners(condition):
        with closing(sqlite3.connect(path)) as database:
            return database.execute(f"select partition, process from owners where {condition}").fetchall()

    with threaded.start("a", **listening):
        wait_until(lambda: threaded.committed() == 60, "the first application has read", 60)
        with threaded.start("b", **listening):
            wait_until(lambda: sorted(threaded.assigned().values()) == [3, 3], "each owns a half", 60)
            # the second half of a cooperative hand-over is applied at the next trigger
            wait_until(lambda: len(owners("until is null")) == PARTITIONS, "each assigned partition has its owner")
            current = owners("until is null")
            assert sorted(partition for partition, _ in current) == list(range(PARTITIONS))
            assert len({process for _, process in current}) == 2
    assert owners("until is null") == [] and owners("how <> 'revoked'") == []
    # the partitions that moved have two owners, one after the other
    with closing(sqlite3.connect(path)) as database:
        overlapping = database.execute(
            "select count(*) from owners a join owners b on a.partition = b.partition "
            "and a.rowid < b.rowid and a.until > b.since"
        ).fetchone()
    assert overlapping == (0,)


class WithoutLost:
    def __init__(self):
        self.calls = []

    def on_partitions_revoked(self, revoked):
        self.calls.append(("revoked", revoked))

    def on_partitions_assigned(self, assigned):
        self.calls.append(("assigned", assigned))


def test_lost_partitions_of_a_listener_without_on_partitions_lost_are_revoked(monkeypatch):
    listener = WithoutLost()
    monkeypatch.setattr(f"{__name__}.WithoutLost", lambda: listener)
    loaded = load_rebalance_listener(f"{__name__}:WithoutLost")
    partitions = [TopicPartition("t", 0)]
    loaded.assigned(partitions)
    loaded.lost(partitions)
    assert listener.calls == [("assigned", partitions), ("revoked", partitions)]


def test_examples_need_their_settings(monkeypatch):
    monkeypatch.delenv("OWNERS_DATABASE", raising=False)
    assert "OWNERS_DATABASE" not in os.environ
    with pytest.raises(ConfigurationError, match="cannot be created: KeyError: 'OWNERS_DATABASE'"):
        load_rebalance_listener("partition_owners:PartitionOwners")
