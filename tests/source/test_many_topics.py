"""Groups of many topics, whose record max.message.bytes limits."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.clusters import Cluster
from support.direct_readers import StreamQuery
from support.topics import produce

from spark_groupsource.errors import BrokerError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.process.spark_parallelism import Parallelism, with_storable_subscriptions

TOPICS = 80

pytestmark = pytest.mark.usefixtures("in_process")


def pattern_of_topics(cluster: Cluster, topic: str) -> dict[str, str]:
    """Creates 80 topics whose names are 240 bytes long; returns the options of a reader of all."""
    names = [f"{topic}-{n:02d}-".ljust(240, "x") for n in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        future.result()
    for name in names[::20]:
        produce(cluster.bootstrap_servers, name, [(0, None, b"1")])
    return {"subscribePattern": f"^{topic}-", "startingOffsets": "earliest"}


@pytest.mark.slow
def test_members_by_default_are_as_many_as_the_group_can_store(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks that Spark can run are not known, so 64 are assumed, whose subscriptions are 1.2 MB."""
    options = {**pattern_of_topics(cluster, topic), "members": "auto"}
    with caplog.at_level(logging.INFO), StreamQuery(cluster, options) as query:
        assert len(query.trigger()) == 4
    (line,) = [message for message in caplog.messages if "members for" in message]
    assert "13 members for 80 partitions: " in line
    assert line.endswith("; the group stores the names of 80 topics for each member, 19,360 bytes.")


@pytest.mark.slow
def test_group_that_is_too_large_for_its_record_names_the_remedy(cluster: Cluster, topic: str) -> None:
    options = {**pattern_of_topics(cluster, topic), "members": "80"}
    with StreamQuery(cluster, options) as query, pytest.raises(BrokerError) as raised:
        query.trigger()
    assert "SyncGroup of group" in str(raised.value) and "UNKNOWN_SERVER_ERROR" in str(raised.value)
    assert "max.message.bytes of __consumer_offsets" in str(raised.value)
    assert "Use fewer members (option members) or topics" in str(raised.value)


def test_few_topics_limit_nothing() -> None:
    limit = Parallelism(2_000, "spark.cores.max=2000")
    partitions = {TopicPartition("orders", number) for number in range(4_000)}
    for each in (partitions, set()):
        assert with_storable_subscriptions(limit, each) == limit


def test_fewer_partitions_than_members_that_can_be_stored() -> None:
    limit = Parallelism(2_000, "spark.cores.max=2000")
    partitions = {TopicPartition(f"{number:03d}".ljust(249, "x"), 0) for number in range(32)}
    assert with_storable_subscriptions(limit, partitions) == limit


def test_topics_whose_names_exceed_the_record_leave_one_member() -> None:
    partitions = {TopicPartition(f"{number:05d}".ljust(249, "x"), 0) for number in range(4_500)}
    limited = with_storable_subscriptions(Parallelism(9, "spark.master=local[9]"), partitions)
    assert limited.tasks == 1 and limited.reason.startswith("spark.master=local[9]; the group stores")
