"""Heartbeats of read tasks, which detect fenced members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import POLL_MS, group_client, open_cluster, polling, settle
from support.removed_members import remove_members
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.fencing import find_generation
from spark_groupsource.client.membership.group_client import GroupClient, MemberView
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.errors import GenerationMismatchError


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    with open_cluster(cluster.bootstrap_servers) as opened:
        yield opened


def heartbeat(client: ClusterClient, group: str, member: MemberView, interval_ms: int = 100) -> TaskHeartbeat:
    return TaskHeartbeat(
        client,
        group_id=group,
        member_id=member.member_id,
        generation_id=member.generation_id,
        group_instance_id=member.group_instance_id,
        heartbeat_interval_ms=interval_ms,
    )


def failure(task_heartbeat: TaskHeartbeat) -> GenerationMismatchError | None:
    try:
        task_heartbeat.check()
    except GenerationMismatchError as error:
        return error
    return None


def test_heartbeat_of_a_current_member_succeeds(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic) as ours:
        member = ours.poll(POLL_MS).members[0]
        with heartbeat(client, group, member) as task_heartbeat:
            task_heartbeat.check_now()
            task_heartbeat.check()


def test_error_of_a_removed_member_names_both_generations(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic) as ours:
        member = ours.poll(POLL_MS).members[0]
        with heartbeat(client, group, member) as task_heartbeat:
            remove_members(client, group, [member.member_id])
            error = wait_until(lambda: failure(task_heartbeat), "the heartbeat is rejected")
            assert error is not None
            assert (error.generation_id, error.current_generation) == (1, 2)
            assert group in str(error) and member.member_id in str(error) and "UNKNOWN_MEMBER_ID" in str(error)
            with pytest.raises(GenerationMismatchError):
                task_heartbeat.check_now()


def test_error_of_an_old_generation_names_the_new_one(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic) as ours:
        old = ours.poll(POLL_MS).members[0]
        # offsets committed after a group's record must not hide it
        other = group_client(client, group, topic)
        with polling(other):
            current = settle(ours, 1).generation_id
        late = heartbeat(client, group, old)
        with pytest.raises(GenerationMismatchError) as raised:
            late.check_now()
        assert (raised.value.generation_id, raised.value.current_generation) == (old.generation_id, current)
        assert "ILLEGAL_GENERATION" in str(raised.value)
        other.close()


def test_rebalance_in_progress_does_not_fail_a_task(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic) as ours:
        member = ours.poll(POLL_MS).members[0]
        other: GroupClient = group_client(client, group, topic)
        other.poll(200)
        wait_until(lambda: ours.rejoin_needed, "our member hears of the other")
        with heartbeat(client, group, member) as task_heartbeat:
            task_heartbeat.check_now()
            task_heartbeat.check()
        other.close()


def test_generation_is_found_before_many_commits(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    from spark_groupsource.model import OffsetAndMetadata, TopicPartition

    create_topic(cluster.bootstrap_servers, topic, 1)
    with group_client(client, group, topic) as ours:
        ours.poll(POLL_MS)
        for n in range(1_100):
            ours.commit({TopicPartition(topic, 0): OffsetAndMetadata(n)})
        assert find_generation(client, group) == 1
    assert find_generation(client, group) == 2
    assert find_generation(client, f"{group}-none", timeout_ms=300) == -1
