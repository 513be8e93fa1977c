"""Groups of members of four client libraries."""

from __future__ import annotations

from typing import Any

import pytest
from support.members import JavaMember, LibrdkafkaMember
from support.python_members import AioKafkaMember, KafkaPythonMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.model import TopicPartition

pytestmark = pytest.mark.foreign

JAVA = "org.apache.kafka.clients.consumer."
JAVA_ASSIGNORS = {
    "range": f"{JAVA}RangeAssignor",
    "roundrobin": f"{JAVA}RoundRobinAssignor",
    "sticky": f"{JAVA}StickyAssignor",
    "cooperative-sticky": f"{JAVA}CooperativeStickyAssignor",
}
PARTITIONS = 6


def member(library: str, cluster: Any, group: str, topic: str, assignor: str = "range", instance: str = "") -> Any:
    """A running member of one client library; a context manager."""
    address = cluster.bootstrap_servers
    if library == "java":
        options = {"group_instance_id": instance} if instance else {}
        return JavaMember(address, group, topic, assignor=JAVA_ASSIGNORS[assignor], **options)
    if library == "librdkafka":
        options = {"group_instance_id": instance} if instance else {}
        return LibrdkafkaMember(address, group, topic, partition_assignment_strategy=assignor, **options)
    kind = {"kafka-python": KafkaPythonMember, "aiokafka": AioKafkaMember}[library]
    options = {"group_instance_id": instance} if instance else {}
    return kind(address, group, topic, assignor, **options)


@pytest.fixture
def six(cluster: Any, topic: str) -> set[TopicPartition]:
    create_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    produce(cluster.bootstrap_servers, topic, ((n % PARTITIONS, None, b"x") for n in range(60)))
    return {TopicPartition(topic, n) for n in range(PARTITIONS)}


def share(first: Any, second: Any, six: set[TopicPartition]) -> None:
    """Waits until each member owns half of the partitions."""
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


@pytest.mark.slow
@pytest.mark.parametrize("library, assignor", SAME, ids=[f"{library}-{assignor}" for library, assignor in SAME])
def test_each_assignor_distributes_and_returns_partitions(
    cluster: Any, six: Any, topic: str, group: str, library: str, assignor: str
) -> None:
    with member(library, cluster, group, topic, assignor) as first:
        first.wait_for_partitions(6)
        with member(library, cluster, group, topic, assignor) as second:
            share(first, second, six)
        first.wait_for_partitions(6)
        wait_until(lambda: {partition for partition, _ in first.seen} == set(range(6)), "it reads all of them")


# leader (the first member), follower, assignor; each library leads once and follows once
MIXED = [
    ("librdkafka", "kafka-python", "range"),
    ("kafka-python", "aiokafka", "roundrobin"),
    ("aiokafka", "librdkafka", "range"),
    pytest.param("java", "librdkafka", "cooperative-sticky", marks=pytest.mark.kafka),
    pytest.param("kafka-python", "java", "sticky", marks=pytest.mark.kafka),
    pytest.param("java", "aiokafka", "roundrobin", marks=pytest.mark.kafka),
]


@pytest.mark.slow
@pytest.mark.parametrize("leader, follower, assignor", MIXED)
def test_each_library_leads_another(
    cluster: Any, six: Any, topic: str, group: str, leader: str, follower: str, assignor: str
) -> None:
    with member(leader, cluster, group, topic, assignor) as first:
        first.wait_for_partitions(6)
        with member(follower, cluster, group, topic, assignor) as second:
            share(first, second, six)
        first.wait_for_partitions(6)


@pytest.mark.slow
@pytest.mark.parametrize("assignor, kept", [("range", False), ("cooperative-sticky", True)])
def test_eager_members_revoke_all_partitions_and_cooperative_ones_only_moved_ones(
    cluster: Any, six: Any, topic: str, group: str, assignor: str, kept: bool
) -> None:
    revoked: list[set[TopicPartition]] = []

    class RecordingMember(LibrdkafkaMember):
        def _revoked(self, consumer: Any, partitions: Any) -> None:
            revoked.append({TopicPartition(p.topic, p.partition) for p in partitions})
            super()._revoked(consumer, partitions)

    with RecordingMember(cluster.bootstrap_servers, group, topic, partition_assignment_strategy=assignor) as first:
        first.wait_for_partitions(6)
        with member("librdkafka", cluster, group, topic, assignor) as second:
            share(first, second, six)
            assert [len(each) for each in revoked] == ([3] if kept else [6])
            assert not kept or revoked[0] == second.partitions


@pytest.mark.slow
@pytest.mark.parametrize("library", ["librdkafka", pytest.param("java", marks=pytest.mark.kafka)])
def test_a_returning_static_member_causes_no_rebalance(
    cluster: Any, six: Any, topic: str, group: str, library: str
) -> None:
    with member("librdkafka", cluster, group, topic, instance="watcher") as watcher:
        watcher.wait_for_partitions(6)
        first = member(library, cluster, group, topic, instance="guest")
        share(watcher, first, six)
        before, rebalances = set(first.partitions), watcher.rebalances
        first.stop()  # a static member sends no LeaveGroup
        with member(library, cluster, group, topic, instance="guest") as again:
            again.wait_for_partitions(3)
            assert again.partitions == before
            assert watcher.rebalances == rebalances and len(watcher.partitions) == 3


@pytest.mark.slow
def test_a_duplicate_instance_id_fences_the_earlier_member(
    cluster: Any, six: Any, topic: str, group: str
) -> None:
    with member("librdkafka", cluster, group, topic, instance="only") as first:
        first.wait_for_partitions(6)
        with member("librdkafka", cluster, group, topic, instance="only") as second:
            second.wait_for_partitions(6)
            wait_until(lambda: any("FENCED" in error or "fenced" in error for error in first.errors), "it is fenced")
