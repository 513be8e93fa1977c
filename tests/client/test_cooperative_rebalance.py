"""Cooperative members read, commit and send heartbeats during a rebalance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.clients import POLL_MS, group_client, open_cluster, polling, settle
from support.removed_members import remove_members
from support.scripted_group import T0, follower
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.group_client import GroupClient, GroupView
from spark_groupsource.client.membership.membership_values import MemberState
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.errors import BrokerError, ErrorCode, GenerationMismatchError, NetworkError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

COOPERATIVE = ("cooperative-sticky",)


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    with open_cluster(cluster.bootstrap_servers, metadata_max_age_ms="200") as opened:
        yield opened


def task(client: ClusterClient, group: str, view: GroupView, retains_partitions: bool | None = None) -> TaskHeartbeat:
    """The heartbeat of a task planned when the first member looked as in `view`."""
    member = view.members[0]
    return TaskHeartbeat(
        client,
        group_id=group,
        member_id=member.member_id,
        generation_id=member.generation_id,
        retains_partitions=member.retains_partitions if retains_partitions is None else retains_partitions,
    )


def commit_all(ours: GroupClient, view: GroupView, offset: int) -> None:
    ours.commit({tp: OffsetAndMetadata(offset) for tp in view.partitions})
    assert {c.offset for c in ours.committed(view.partitions).values() if c} == {offset}


@contextmanager
def two_members_and_a_third_that_joins(client: ClusterClient, group: str, topic: str) -> Iterator[list[GroupClient]]:
    """Two members own half of the partitions each; the third has sent JoinGroup."""
    ours, slow, late = (
        group_client(client, group, topic, client_id=name, assignors=COOPERATIVE) for name in ("ours", "slow", "late")
    )
    with ours, slow, late:
        ours.poll(POLL_MS)
        with polling(slow):
            settle(ours, 3)
            wait_until(lambda: slow.view.is_stable and len(slow.view.partitions) == 3, "half of them each")
        late.poll(100)
        wait_until(lambda: ours.rejoin_needed and slow.rejoin_needed, "both are notified of the third")
        yield [ours, slow, late]


@pytest.mark.slow
def test_retained_partitions_are_owned_in_both_rebalances(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 6)

    def state() -> str:
        return admin.describe_groups(client, [group])[group].state

    with two_members_and_a_third_that_joins(client, group, topic) as (ours, slow, late):
        # first rebalance: `slow` does not rejoin
        first = ours.poll(200)
        assert first.retains_partitions and not first.is_stable
        assert len(first.partitions) == 3 and state() == "PreparingRebalance"
        assert first.members[0].retains_partitions
        with task(client, group, first) as heartbeat:
            commit_all(ours, first, 1)
            slow.poll(0)
            wait_until(lambda: state() == "Stable", "the first rebalance completes without a poll")
            # the member is in the next generation and retains what the batch reads
            heartbeat.check_now()
            with pytest.raises(GenerationMismatchError, match="ILLEGAL_GENERATION"):
                task(client, group, first, retains_partitions=False).check_now()
            commit_all(ours, first, 2)
            heartbeat.check_now()

        # second rebalance: one partition is revoked, and again `slow` does not rejoin
        wait_until(lambda: ours.shared.members[0].membership.needs_complete, "the assignment is here")
        second = ours.poll(200)
        assert second.retains_partitions and not second.is_stable and len(second.partitions) == 2
        assert second.members[0].generation_id == first.members[0].generation_id + 1
        assert set(second.partitions) < set(first.partitions)
        with task(client, group, second) as heartbeat:
            commit_all(ours, second, 3)
            with polling(slow, late):
                wait_until(lambda: late.view.is_stable and len(late.view.partitions) == 2, "the third owns two", 40)
                heartbeat.check_now()
        with polling(slow, late):
            after = settle(ours, 2)
        assert after.partitions == second.partitions
        owned = [*after.partitions, *slow.view.partitions, *late.view.partitions]
        assert sorted(owned) == [TopicPartition(topic, n) for n in range(6)]


@pytest.mark.slow
def test_removed_member_does_not_retain_partitions(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic, assignors=COOPERATIVE) as ours:
        ours.poll(POLL_MS)
        slow = group_client(client, group, topic, assignors=COOPERATIVE)
        with polling(slow):
            settle(ours, 1)
            wait_until(lambda: len(slow.view.partitions) == 1, "the other has its half")
        ours.shared.members[0].membership.request_rejoin("a test")
        view = ours.poll(200)
        assert view.retains_partitions and view.members[0].retains_partitions
        remove_members(client, group, [view.members[0].member_id])
        with pytest.raises(GenerationMismatchError, match="UNKNOWN_MEMBER_ID"):
            task(client, group, view).check_now()
        wait_until(lambda: not ours.view.retains_partitions, "the member is notified")
        slow.close()


def test_eager_members_do_not_retain_partitions(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic) as ours:
        assert ours.poll(POLL_MS).retains_partitions
        other = group_client(client, group, topic)
        other.poll(200)
        wait_until(lambda: ours.rejoin_needed, "the member is notified of the other")
        assert not ours.view.retains_partitions
        other.close()


class Coordinator:
    """Coordinator that accepts one generation."""

    def __init__(self, generation_id: int) -> None:
        self.generation_id = generation_id
        self.sent: list[int] = []
        self.on_send: Callable[[], None] = lambda: None

    def call_coordinator(self, group: str, request: Any, timeout_ms: int, **versions: Any) -> Any:
        self.sent.append(request.generation_id)
        self.on_send()
        right = request.generation_id == self.generation_id
        return SimpleNamespace(error_code=0 if right else ErrorCode.ILLEGAL_GENERATION)


def send(coordinator: Coordinator, heartbeat: TaskHeartbeat) -> int:
    coordinator.sent.clear()
    return heartbeat.send_heartbeat(1_000)


def test_task_that_retains_partitions_follows_the_generation() -> None:
    coordinator: Any = Coordinator(4)
    heartbeat = TaskHeartbeat(coordinator, group_id="g", member_id="m", generation_id=4, retains_partitions=True)
    assert send(coordinator, heartbeat) == 0 and coordinator.sent == [4]
    coordinator.generation_id = 6
    assert send(coordinator, heartbeat) == 0 and coordinator.sent == [4, 5, 6]
    assert send(coordinator, heartbeat) == 0 and coordinator.sent == [6]
    coordinator.generation_id = 4  # a coordinator that failed before it appended the later ones
    assert send(coordinator, heartbeat) == 0 and coordinator.sent == [6, 4]
    coordinator.generation_id = 3
    assert send(coordinator, heartbeat) == ErrorCode.ILLEGAL_GENERATION
    # generations before that of the batch are not tried
    assert 3 not in coordinator.sent and len(coordinator.sent) < 80


def test_task_follows_the_generation_that_its_other_thread_found() -> None:
    coordinator: Any = Coordinator(5)
    heartbeat = TaskHeartbeat(coordinator, group_id="g", member_id="m", generation_id=4, retains_partitions=True)

    def find_generation_in_other_thread() -> None:
        heartbeat.accepted_generation_id = 5

    coordinator.on_send = find_generation_in_other_thread
    assert send(coordinator, heartbeat) == 0 and coordinator.sent == [4, 5]


def test_commit_error_before_the_join_response_does_not_fence() -> None:
    bench = follower(T0, assignors=COOPERATIVE)
    bench.member.request_rejoin("a test")
    bench.poll()

    def commit_meanwhile(request: Any) -> None:
        bench.script.prepare("OffsetCommit", ErrorCode.ILLEGAL_GENERATION)
        with pytest.raises(BrokerError, match="REBALANCE_IN_PROGRESS"):
            bench.client.commit({T0: OffsetAndMetadata(5)}, max_rebalance_wait_ms=0)

    bench.script.prepare("JoinGroup", commit_meanwhile)
    bench.run_members()
    assert not bench.member.is_fenced and bench.callbacks() == []
    bench.client.commit({T0: OffsetAndMetadata(5)})
    assert [r.generation_id_or_member_epoch for r in bench.script.requests("OffsetCommit")] == [1, 2]


def test_commit_error_after_a_lost_join_response_does_not_fence() -> None:
    bench = follower(T0, assignors=COOPERATIVE)
    bench.script.prepare("JoinGroup", NetworkError("lost"))
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.members.loop.run_ready()
    assert bench.script.sent_apis() == ["JoinGroup"], "the member waits before the next one"
    bench.script.prepare("OffsetCommit", ErrorCode.ILLEGAL_GENERATION)
    with pytest.raises(BrokerError, match="REBALANCE_IN_PROGRESS"):
        bench.client.commit({T0: OffsetAndMetadata(5)}, max_rebalance_wait_ms=0)
    assert bench.settle().is_stable and ("lost", (T0,)) not in bench.callbacks()
    bench.client.commit({T0: OffsetAndMetadata(5)})
    assert [r.generation_id_or_member_epoch for r in bench.script.requests("OffsetCommit")] == [1, 2]


def test_commit_to_a_coordinator_that_does_not_know_the_last_generation() -> None:
    """Another broker took the group over before the assignment of generation 2 was stored."""
    bench = follower(T0, assignors=COOPERATIVE)
    bench.script.prepare("SyncGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.members.loop.run_ready()
    assert bench.script.sent_apis()[-2:] == ["JoinGroup", "SyncGroup"], "the member waits before the next JoinGroup"
    bench.script.prepare("OffsetCommit", ErrorCode.ILLEGAL_GENERATION)
    bench.client.commit({T0: OffsetAndMetadata(5)})
    bench.client.commit({T0: OffsetAndMetadata(6)})
    bench.script.prepare("OffsetCommit", ErrorCode.ILLEGAL_GENERATION)
    bench.client.commit({T0: OffsetAndMetadata(7)})
    assert not bench.member.is_fenced and bench.settle().is_stable and ("lost", (T0,)) not in bench.callbacks()
    bench.client.commit({T0: OffsetAndMetadata(8)})
    commits = [r.generation_id_or_member_epoch for r in bench.script.requests("OffsetCommit")]
    assert commits == [2, 1, 1, 1, 2, bench.member.generation.generation_id]


@pytest.mark.parametrize("instance_id", ["static", None])
def test_member_keeps_its_partitions_where_the_coordinator_does_not_know_the_last_generation(
    instance_id: str | None
) -> None:
    """A dynamic member whose partitions others may have would have been removed; a static one is kept."""
    bench = follower(T0, assignors=COOPERATIVE, group_instance_id=instance_id)
    bench.callbacks()
    bench.script.prepare("SyncGroup", ErrorCode.ILLEGAL_GENERATION)
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.members.loop.run_ready()
    assert bench.member.is_fenced == (instance_id is not None)
    assert bench.settle().is_stable
    assert (("lost", (T0,)) in bench.callbacks()) == (instance_id is not None)


@pytest.mark.parametrize("instance_id", ["static", None])
def test_static_member_loses_its_partitions_if_a_rebalance_ended_without_it(instance_id: str | None) -> None:
    """A dynamic member was removed then, or the generation between is one whose JoinGroup response was lost."""
    bench = follower(T0, assignors=COOPERATIVE, group_instance_id=instance_id)
    bench.callbacks()
    bench.script.generation_id += 1
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.run_members()
    assert bench.member.is_fenced == (instance_id is not None)
    if bench.member.is_fenced:
        with pytest.raises(GenerationMismatchError, match="ILLEGAL_GENERATION"):
            bench.client.commit({T0: OffsetAndMetadata(5)})
    assert bench.settle().is_stable
    assert (("lost", (T0,)) in bench.callbacks()) == (instance_id is not None)


@pytest.mark.slow
def test_static_member_that_joins_too_late_does_not_move_back_what_its_successor_has_committed(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    # the rebalance waits for three seconds; the late member sends no heartbeat meanwhile
    settings: dict[str, Any] = {"assignors": COOPERATIVE, "max_poll_interval_ms": 250, "session_timeout_ms": 40_000}
    with (
        open_cluster(cluster.bootstrap_servers) as other,
        group_client(client, group, topic, group_instance_id="s", heartbeat_interval_ms=12_000, **settings) as late,
        group_client(other, group, topic, **settings) as successor,
    ):
        settle(late, 2)
        late.commit(dict.fromkeys(partitions, OffsetAndMetadata(1)))
        (owned,) = settle(successor, 1).partitions
        successor.commit({owned: OffsetAndMetadata(100)})
        membership = late.shared.members[0].membership
        with late.shared.changed:
            membership.request_rejoin("a test")
        late.poll(0)
        wait_until(lambda: membership.state is MemberState.PREPARING_REBALANCE, "JoinGroup is sent")
        with polling(successor), pytest.raises(GenerationMismatchError):
            late.commit({owned: OffsetAndMetadata(5)}, max_rebalance_wait_ms=10_000)
        committed = successor.committed([owned])[owned]
        assert committed is not None and committed.offset == 100
        with polling(successor):
            settle(late, 1)
