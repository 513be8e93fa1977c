"""Lag of a group in the past."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from support.commits import commit
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

import spark_groupsource as gs
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.offsets import lag_history

# private: a case of the estimate for each clock
from spark_groupsource.monitor.offsets.lag_history import CommitHistory, _lag

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_commits_at_a_time() -> None:
    commits = CommitHistory()
    assert commits.at(10_000) == {} and commits.last_ms is None
    for partition, at_ms, offset in ((P0, 1_000, 5), (P1, 2_000, 7), (P0, 3_000, 9), (P0, 3_050, 10)):
        commits.add(partition, at_ms, offset)
    assert [commits.at(at_ms) for at_ms in (999, 1_000, 2_000, 3_000)] == [{}, {P0: 5}, {P0: 5, P1: 7}, {P0: 10, P1: 7}]
    assert commits.last_ms == 3_000 and commits.partitions == {P0, P1}


def test_old_commits_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "_MAX_COMMITS", 100)
    commits, rng = CommitHistory(), random.Random(1)
    for number in range(5_000):
        commits.add(rng.choice((P0, P1)), number * 1_000, number)
        # private: the number of kept commits is a bound of memory
        assert commits._count <= 100 == lag_history._MAX_COMMITS
    times = commits._times[P0]
    assert times == sorted(times) and commits._count == len(times) + len(commits._times[P1])
    assert max(commits.at(4_999_000).values()) == 4_999
    # the first commit is kept, and the newest ones are the densest
    assert times[0] < 10_000 and times[-1] - times[-2] <= times[1] - times[0]


def test_partitions_without_later_records_end_at_the_log_end() -> None:
    assert _lag({P0: 3, P1: 8}, {P0: 10, P1: -1}, {P0: 50, P1: 9}) == 7 + 1
    assert _lag({P0: 12}, {P0: 10}, {P0: 50}) == 0  # the clock of the producer was behind
    assert _lag({P0: 3}, {P0: -1}, {}) == 0


def test_lag_of_a_group_of_other_clients(cluster: Any, topic: str, group: str) -> None:
    servers, other = cluster.bootstrap_servers, f"{topic}-other"
    for each in (topic, other):
        create_topic(servers, each, 2)
        produce(servers, each, ((n % 2, None, b"x") for n in range(10)))
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    for topics, committed in (([topic, other], 5), ([topic], None)):
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.subscribe(topics)
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "the member has joined")
        if committed is not None:
            commit(consumer, [RdTopicPartition(each, n, committed) for each in topics for n in range(2)])
        consumer.close()
        if committed is not None:
            delete_topic(servers, other)
            produce(servers, topic, ((n % 2, None, b"x") for n in range(6)))
    with gs.connect(servers) as connected:

        def lags() -> list[int]:
            return [lag for _, lag in gs.timeline(connected.group(group)).timeline.lag]

        # the embedded coordinator stores the events of the last member later
        wait_until(lambda: lags()[-1:] == [6], "the lag is that of the records that were produced last")
        assert all(0 <= lag <= 6 for lag in lags())
