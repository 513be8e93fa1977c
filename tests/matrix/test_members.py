"""Members of four makes: each assignor, each make as the leader of another, eager and cooperative, static members."""

from __future__ import annotations

from typing import Any

import pytest
from support.members import JavaMember, RdMember
from support.python_members import AioKafkaMember, KafkaPythonMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.model import TopicPartition

JAVA = "org.apache.kafka.clients.consumer."
JAVA_ASSIGNORS = {
    "range": f"{JAVA}RangeAssignor",
    "roundrobin": f"{JAVA}RoundRobinAssignor",
    "sticky": f"{JAVA}StickyAssignor",
    "cooperative-sticky": f"{JAVA}CooperativeStickyAssignor",
}
PARTITIONS = 6


def member(make: str, cluster: Any, group: str, topic: str, assignor: str = "range", instance: str = "") -> Any:
    """A running member of one make; a context manager."""
    address = cluster.bootstrap_servers
    if make == "java":
        options = {"group_instance_id": instance} if instance else {}
        return JavaMember(address, group, topic, assignor=JAVA_ASSIGNORS[assignor], **options)
    if make == "librdkafka":
        options = {"group_instance_id": instance} if instance else {}
        return RdMember(address, group, topic, partition_assignment_strategy=assignor, **options)
    kind = {"kafka-python": KafkaPythonMember, "aiokafka": AioKafkaMember}[make]
    options = {"group_instance_id": instance} if instance else {}
    return kind(address, group, topic, assignor, **options)


@pytest.fixture
def six(cluster: Any, topic: str) -> set[TopicPartition]:
    create_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    produce(cluster.bootstrap_servers, topic, ((n % PARTITIONS, None, b"x") for n in range(60)))
    return {TopicPartition(topic, n) for n in range(PARTITIONS)}


def share(first: Any, second: Any, six: set[TopicPartition]) -> None:
    """Both own half, together everything."""
    wait_until(
        lambda: len(first.partitions) == len(second.partitions) == 3 and first.partitions | second.partitions == six,
        "each of the two owns three partitions",
        60,
    )


SAME = [
    *(("librdkafka", assignor) for assignor in ("range", "roundrobin", "cooperative-sticky")),
    *(("kafka-python", assignor) for assignor in ("range", "roundrobin", "sticky")),
    *(("aiokafka", assignor) for assignor in ("range", "roundrobin", "sticky")),
]


@pytest.mark.parametrize("make, assignor", SAME, ids=[f"{make}-{assignor}" for make, assignor in SAME])
def test_each_assignor_shares_and_gives_back(
    cluster: Any, six: Any, topic: str, group: str, make: str, assignor: str
) -> None:
    with member(make, cluster, group, topic, assignor) as first:
        first.wait_for_partitions(6)
        with member(make, cluster, group, topic, assignor) as second:
            share(first, second, six)
        first.wait_for_partitions(6)
        wait_until(lambda: {partition for partition, _ in first.seen} == set(range(6)), "it reads all of them")


# who leads, because it was there first; who follows; by which assignor. Each make leads once and follows once.
MIXED = [
    ("librdkafka", "kafka-python", "range"),
    ("kafka-python", "aiokafka", "roundrobin"),
    ("aiokafka", "librdkafka", "range"),
    pytest.param("java", "librdkafka", "cooperative-sticky", marks=pytest.mark.kafka),
    pytest.param("kafka-python", "java", "sticky", marks=pytest.mark.kafka),
    pytest.param("java", "aiokafka", "roundrobin", marks=pytest.mark.kafka),
]


@pytest.mark.parametrize("leader, follower, assignor", MIXED)
def test_each_make_leads_another(
    cluster: Any, six: Any, topic: str, group: str, leader: str, follower: str, assignor: str
) -> None:
    with member(leader, cluster, group, topic, assignor) as first:
        first.wait_for_partitions(6)
        with member(follower, cluster, group, topic, assignor) as second:
            share(first, second, six)
        first.wait_for_partitions(6)


@pytest.mark.parametrize("assignor, kept", [("range", False), ("cooperative-sticky", True)])
def test_eager_members_give_up_all_and_cooperative_ones_only_what_moves(
    cluster: Any, six: Any, topic: str, group: str, assignor: str, kept: bool
) -> None:
    given_up: list[set[TopicPartition]] = []

    class Watched(RdMember):
        def _revoked(self, consumer: Any, partitions: Any) -> None:
            given_up.append({TopicPartition(p.topic, p.partition) for p in partitions})
            super()._revoked(consumer, partitions)

    with Watched(cluster.bootstrap_servers, group, topic, partition_assignment_strategy=assignor) as first:
        first.wait_for_partitions(6)
        with member("librdkafka", cluster, group, topic, assignor) as second:
            share(first, second, six)
            assert [len(each) for each in given_up] == ([3] if kept else [6])
            assert not kept or given_up[0] == second.partitions


@pytest.mark.parametrize("make", ["librdkafka", pytest.param("java", marks=pytest.mark.kafka)])
def test_a_static_member_that_returns_disturbs_nobody(
    cluster: Any, six: Any, topic: str, group: str, make: str
) -> None:
    with member("librdkafka", cluster, group, topic, instance="watcher") as watcher:
        watcher.wait_for_partitions(6)
        first = member(make, cluster, group, topic, instance="guest")
        share(watcher, first, six)
        before, rebalances = set(first.partitions), watcher.rebalances
        first.stop()  # a static member does not say good-bye
        with member(make, cluster, group, topic, instance="guest") as again:
            again.wait_for_partitions(3)
            assert again.partitions == before
            assert watcher.rebalances == rebalances and len(watcher.partitions) == 3


def test_an_instance_id_that_is_taken_over_fences_its_former_holder(
    cluster: Any, six: Any, topic: str, group: str
) -> None:
    with member("librdkafka", cluster, group, topic, instance="only") as first:
        first.wait_for_partitions(6)
        with member("librdkafka", cluster, group, topic, instance="only") as second:
            second.wait_for_partitions(6)
            wait_until(lambda: any("FENCED" in error or "fenced" in error for error in first.errors), "it is fenced")
