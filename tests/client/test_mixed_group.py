"""Our members in a group with librdkafka and with Kafka's Java consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import POLL_MS, group_client, open_cluster, polling, settle
from support.members import JavaMember, LibrdkafkaMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.model import TopicPartition

RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    with open_cluster(cluster.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def six(cluster: Any, topic: str) -> tuple[TopicPartition, ...]:
    create_topic(cluster.bootstrap_servers, topic, 6)
    produce(cluster.bootstrap_servers, topic, [(n % 6, None, b"x") for n in range(60)])
    return tuple(TopicPartition(topic, n) for n in range(6))


def led_by_us(ours: Any) -> bool:
    return any(member.membership.is_leader for member in ours.shared.members)


def test_our_member_leads_a_group_with_librdkafka(
    client: ClusterClient, topic: str, group: str, cluster: Any, six: Any
) -> None:
    with group_client(client, group, topic, members=2, assignors=("range",)) as ours:
        settle(ours, 6)
        with polling(ours), LibrdkafkaMember(
            cluster.bootstrap_servers, group, topic, partition_assignment_strategy="range"
        ) as other:
            other.wait_for_partitions(2)
            wait_until(lambda: len(ours.view.partitions) == 4, "we own the other four")
            assert led_by_us(ours)
            assert {*ours.view.partitions, *other.partitions} == set(six)
        assert settle(ours, 6).partitions == six


@pytest.mark.slow
def test_librdkafka_leads_a_group_with_our_members(
    client: ClusterClient, topic: str, group: str, cluster: Any, six: Any
) -> None:
    with LibrdkafkaMember(cluster.bootstrap_servers, group, topic, partition_assignment_strategy="roundrobin") as other:
        other.wait_for_partitions(6)
        with group_client(client, group, topic, members=2, assignors=("roundrobin",)) as ours:
            view = settle(ours, 4)
            assert not led_by_us(ours)
            wait_until(lambda: {*view.partitions, *other.partitions} == set(six), "librdkafka has the other two")
            assert [len(m.partitions) for m in view.members] == [2, 2]
        other.wait_for_partitions(6)


@pytest.mark.java
def test_our_member_leads_a_group_with_java(
    client: ClusterClient, topic: str, group: str, cluster: Any, six: Any
) -> None:
    with group_client(client, group, topic, members=2, assignors=("range",)) as ours:
        settle(ours, 6)
        with polling(ours), JavaMember(cluster.bootstrap_servers, group, topic, assignor=RANGE) as other:
            other.wait_for_partitions(2)
            wait_until(lambda: len(ours.view.partitions) == 4, "we own the other four")
            assert led_by_us(ours)
            assert {*ours.view.partitions, *other.partitions} == set(six)
            wait_until(lambda: other.consumed == 20, "it consumes its two partitions")
        view = settle(ours, 6)
        committed = ours.committed(view.partitions)
        assert sorted(c.offset for c in committed.values() if c is not None) == [10, 10], "Java's commits are there"


@pytest.mark.java
def test_java_leads_a_group_with_our_members(
    client: ClusterClient, topic: str, group: str, cluster: Any, six: Any
) -> None:
    with JavaMember(cluster.bootstrap_servers, group, topic, assignor=RANGE) as other:
        other.wait_for_partitions(6)
        with group_client(client, group, topic, members=2, assignors=("range",)) as ours:
            view = settle(ours, 4)
            assert not led_by_us(ours)
            wait_until(lambda: {*ours.view.partitions, *other.partitions} == set(six), "Java has the other two")
            described = admin.describe_groups(client, [group])[group]
            assert {m.member_id for m in view.members} < {m.member_id for m in described.members}
        other.wait_for_partitions(6)


@pytest.mark.java
def test_cooperative_rebalance_with_java(client: ClusterClient, topic: str, group: str, cluster: Any, six: Any) -> None:
    with group_client(client, group, topic, members=1, assignors=("cooperative-sticky",)) as ours:
        before = settle(ours, 6)
        with polling(ours), JavaMember(cluster.bootstrap_servers, group, topic, assignor=COOPERATIVE) as other:
            other.wait_for_partitions(3)
            wait_until(lambda: len(ours.view.partitions) == 3, "we keep three")
            assert set(ours.view.partitions) < set(before.partitions)
        assert settle(ours, 6).partitions == six


@pytest.mark.java
def test_partitions_of_a_killed_java_member_are_reassigned_after_its_session(
    client: ClusterClient, topic: str, group: str, cluster: Any, six: Any
) -> None:
    with group_client(client, group, topic, assignors=("range",)) as ours:
        ours.poll(POLL_MS)
        with polling(ours):
            other = JavaMember(cluster.bootstrap_servers, group, topic, assignor=RANGE, session_timeout_ms=6_000)
            other.wait_for_partitions(3)
            wait_until(lambda: len(ours.view.partitions) == 3, "we own the other half")
            other.kill()
            wait_until(lambda: ours.view.partitions == six, "we own all again", 30)
        assert "left" in ours.events[-1].cause or ours.events[-1].cause == "group is rebalancing"
