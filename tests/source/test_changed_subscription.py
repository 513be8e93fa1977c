"""Subscriptions that change between two runs of a query."""

from __future__ import annotations

import pytest
from support.query_threads import ThreadedGroup
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.model import TopicPartition


@pytest.mark.slow
def test_topics_are_added_and_removed_between_runs(cluster, topic, group, in_process):
    scenario = ThreadedGroup(cluster, topic, group)
    other = f"{topic}-other"
    create_topic(scenario.servers, other, 1)

    def send(name, count):
        produce(scenario.servers, name, [(0, None, b"")] * count)

    def committed(name):
        commit = scenario.client.fetch_committed(group).get(TopicPartition(name, 0))
        return None if commit is None else commit.offset

    def run(end, expected, **options):
        with scenario.start("a", start=end, startingOffsets="latest", **options) as query:
            wait_until(lambda: query.seen.total() == expected, f"{expected} records are read", 60)
        return query.end

    try:
        # the first run starts at the end of its topic
        send(topic, 5)
        send(other, 10)
        with scenario.start("a", startingOffsets="latest") as query:
            wait_until(lambda: query.batches or scenario.assigned() == {"a-0": 6}, "the query has its partitions", 60)
            wait_until(lambda: committed(topic) == 5, "the first position is committed", 60)
            send(topic, 2)
            wait_until(lambda: query.seen.total() == 2, "what is new is read", 60)
        end = query.end
        assert committed(other) is None
        # a topic that is added is read from its start, the other one continues
        send(topic, 1)
        end = run(end, 11, subscribe=f"{topic},{other}")
        assert (committed(topic), committed(other)) == (8, 10)
        # a topic that is left out keeps its committed offset
        send(topic, 3)
        send(other, 4)
        end = run(end, 4, subscribe=other)
        assert (committed(topic), committed(other)) == (8, 14)
        # and continues there when it is back
        send(other, 1)
        end = run(end, 4, subscribe=None, subscribePattern=f"{topic}.*")
        assert (committed(topic), committed(other)) == (11, 15)
    finally:
        scenario.client.close()
