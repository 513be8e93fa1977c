"""Many members of one process: one thread, shared connections, heartbeats in time."""

from __future__ import annotations

import gc
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from support.certificates import CA, KEY, SERVER, write_pem
from support.clients import POLL_MS, group_client, is_connected, open_cluster
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.assign.range_roundrobin import RangeAssignor
from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership import commit_repetition, group_connections
from spark_groupsource.client.membership.membership_values import MemberState
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

MEMBERS = 12


@pytest.fixture
def client(cluster: Any, topic: str) -> Iterator[ClusterClient]:
    create_topic(cluster.bootstrap_servers, topic, 2 * MEMBERS)
    with open_cluster(cluster.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have opened a connection of members."""
    names: list[str] = []
    open_pipeline = ClusterClient.open_pipeline

    def record(self: ClusterClient, *arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return open_pipeline(self, *arguments)

    monkeypatch.setattr(ClusterClient, "open_pipeline", record)
    return names


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Member id -> when it has sent heartbeats."""
    sent: dict[str, list[float]] = defaultdict(list)
    create = Membership.heartbeat_request

    def record(self: Membership, now_ms: int) -> Any:
        sent[self.generation.member_id].append(time.monotonic())
        return create(self, now_ms)

    monkeypatch.setattr(Membership, "heartbeat_request", record)
    return sent


def threads_of(group: str) -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name == f"members of {group}" or name.startswith("group members")]


def test_members_share_a_thread_and_connections(
    client: ClusterClient, topic: str, group: str, opened: list[str]
) -> None:
    with group_client(client, group, topic, members=MEMBERS) as ours:
        assert ours.poll(POLL_MS).is_stable
        # the thread of the assignor may end after the rebalance
        wait_until(lambda: threads_of(group) == [f"members of {group}"], "only the thread of the event loop")
        count = len(opened)
        # of the members that wait for each other in JoinGroup, and the one for all other requests
        assert count <= MEMBERS + 1 and f"members of {group}" not in opened
        described = admin.describe_groups(client, [group])[group]
        assert {m.client_id for m in described.members} == {f"app-{n}" for n in range(MEMBERS)}
        ours.shared.members[0].membership.request_rejoin("a test")
        assert ours.poll(POLL_MS).is_stable and len(opened) <= MEMBERS + 1
    wait_until(lambda: not threads_of(group), "the thread has ended")


def test_connections_of_a_rebalance_are_closed_when_idle(
    client: ClusterClient, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_connections, "_MAX_IDLE_MS", 50)
    closed: list[int] = []
    close = BrokerConnection.close
    monkeypatch.setattr(BrokerConnection, "close", lambda self: (closed.append(1), close(self)))
    with group_client(client, group, topic, members=MEMBERS) as ours:
        assert ours.poll(POLL_MS).is_stable
        wait_until(lambda: len(closed) >= MEMBERS, "the connections of JoinGroup requests are closed")
        # private: what remains is the connection that all members share
        connections = ours.loop.connections
        assert not connections._idle and not connections._used and is_connected(ours)
        assert ours.poll(POLL_MS).is_stable


def test_one_commit_is_that_of_every_member(client: ClusterClient, topic: str, group: str) -> None:
    with group_client(client, group, topic, members=MEMBERS) as ours:
        partitions = ours.poll(POLL_MS).partitions
        offsets = {tp: OffsetAndMetadata(tp.partition) for tp in partitions}
        ours.commit(offsets)
        assert ours.committed(partitions) == offsets and len(offsets) == 2 * MEMBERS


def test_heartbeats_are_sent_while_another_member_waits_for_its_join(
    client: ClusterClient, topic: str, group: str, heartbeats: dict[str, list[float]]
) -> None:
    """A broker responds to nothing on the connection of a JoinGroup that waits."""
    with group_client(client, group, topic, members=3) as ours:
        assert ours.poll(POLL_MS).is_stable
        first, *others = (member.membership for member in ours.shared.members)
        with ours.shared.changed:
            # the owner does so for all members
            first.request_rejoin("a test")
            first.prepare((topic,))
            ours.shared.wake()
        wait_until(lambda: first.state is MemberState.PREPARING_REBALANCE, "the first member joins")
        before = {m.generation.member_id: len(heartbeats[m.generation.member_id]) for m in others}
        wait_until(lambda: all(len(heartbeats[k]) >= n + 4 for k, n in before.items()), "heartbeats of the others")
        assert first.state is MemberState.PREPARING_REBALANCE
        assert ours.poll(POLL_MS).is_stable


class SlowAssignor(RangeAssignor):
    """Waits until the leader's heartbeats have been sent, as long as the group waits for its assignment."""

    name = "slow"
    may_end = threading.Event()

    def assign(self, *arguments: Any) -> Any:
        assert self.may_end.wait(20)
        return super().assign(*arguments)


def test_heartbeats_of_the_leader_are_sent_while_its_assignor_runs(
    client: ClusterClient, topic: str, group: str, heartbeats: dict[str, list[float]]
) -> None:
    assignor = f"{SlowAssignor.__module__}:{SlowAssignor.__name__}"
    SlowAssignor.may_end.set()
    with group_client(client, group, topic, members=3, assignors=(assignor,)) as ours:
        assert ours.poll(POLL_MS).is_stable
        SlowAssignor.may_end.clear()
        ours.shared.members[0].membership.request_rejoin("a test")
        ours.poll(0)
        leader = lambda: [m.membership for m in ours.shared.members if m.membership.is_leader]  # noqa: E731
        is_computing = lambda: leader() and leader()[0].state is MemberState.COMPLETING_REBALANCE  # noqa: E731
        wait_until(lambda: ours.poll(0) and is_computing(), "the leader computes the assignment")
        member_id = leader()[0].generation.member_id
        before = len(heartbeats[member_id])
        wait_until(lambda: len(heartbeats[member_id]) >= before + 3, "heartbeats of the leader")
        SlowAssignor.may_end.set()
        assert ours.poll(POLL_MS).is_stable


def test_heartbeats_are_spread_over_the_interval(
    client: ClusterClient, topic: str, group: str, heartbeats: dict[str, list[float]]
) -> None:
    def first_heartbeats() -> list[float]:
        heartbeats.clear()
        wait_until(lambda: len(heartbeats) == MEMBERS, "a heartbeat of every member")
        return sorted(times[0] for times in heartbeats.values())

    with group_client(client, group, topic, members=MEMBERS, heartbeat_interval_ms=1_200) as ours:
        assert ours.poll(POLL_MS).is_stable
        firsts = first_heartbeats()
        for _ in range(5):
            # the timers of the loop join what is due within 50 ms; after a pause of the machine, all are due
            if len({round(at * 10) for at in firsts}) >= MEMBERS // 3 and firsts[-1] - firsts[0] > 0.5:
                return
            ours.shared.members[0].membership.request_rejoin("a test")
            assert ours.poll(POLL_MS).is_stable
            firsts = first_heartbeats()
    raise AssertionError(firsts)


@pytest.mark.slow
def test_members_outlive_the_session_of_their_login(tmp_path: Any, topic: str, group: str, opened: list[str]) -> None:
    """Over TLS and SASL; the broker closes a connection at the first request after connections.max.reauth.ms."""
    from spark_groupsource.broker.embedded import EmbeddedBroker

    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.keystore.location": str(write_pem(tmp_path / "server.pem", KEY, SERVER)),
        "ssl.keystore.type": "PEM",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
        "connections.max.reauth.ms": "2000",
    }
    settings = {
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": str(write_pem(tmp_path / "ca.pem", CA)),
        "sasl_mechanism": "PLAIN",
        "sasl_username": "ann",
        "sasl_password": "secret",
    }
    with EmbeddedBroker(config=config, topics={topic: 6}) as broker:
        with open_cluster(broker.bootstrap_servers, **settings) as client:
            with group_client(client, group, topic, members=3) as ours:
                view = ours.poll(POLL_MS)
                assert view.is_stable
                count = len(opened)
                wait_until(lambda: len(opened) >= count + 2, "the shared connection is replaced twice")
                ours.commit({TopicPartition(topic, n): OffsetAndMetadata(n) for n in range(6)})
                assert ours.poll(0) == view


def test_client_is_closed_while_its_members_wait(client: ClusterClient, topic: str, group: str, caplog: Any) -> None:
    """In JoinGroup, and while a connection is opened; asyncio logs tasks that were not awaited."""
    with group_client(client, group, topic) as other:
        assert other.poll(POLL_MS).is_stable
        for state in (MemberState.UNJOINED, MemberState.PREPARING_REBALANCE):
            with group_client(client, group, topic, members=MEMBERS, session_timeout_ms=6_000) as ours:
                ours.poll(0)
                wait_until(lambda: ours.shared.members[-1].membership.state is state, state.value)  # noqa: B023
            # a thread that opens a connection ends later
            wait_until(lambda: threads_of(group) == [f"members of {group}"], "only the thread of the other client")
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_last_offsets_of_all_members_are_committed_again_with_their_topic_ids(
    client: ClusterClient, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the members that have not committed yet are none."""
    sent: list[tuple[int, Any]] = []
    commit_each = ClusterClient.commit_each

    def record(self: ClusterClient, group_id: str, commits: Any, **options: Any) -> Any:
        sent.append((len(commits), options["topic_ids"]))
        return commit_each(self, group_id, commits, **options)

    monkeypatch.setattr(commit_repetition, "REPEAT_INTERVAL_MS", 50)
    ids = {topic: str(client.describe_topics([topic])[topic].topic_id)}
    with group_client(client, group, topic, members=4) as ours:
        first, *others = (member.partitions for member in ours.poll(POLL_MS).members)
        offsets = {tp: OffsetAndMetadata(7) for partitions in others for tp in partitions}
        ours.commit(offsets, topic_ids=ids)
        monkeypatch.setattr(ClusterClient, "commit_each", record)
        with ours.shared.changed:
            for member in ours.shared.members:
                member.membership.repetition.start(client.clock.now_ms())
            ours.shared.wake()
        wait_until(lambda: sum(count for count, _ in sent) >= 3, "the commits of three members are repeated")
        assert all(given == ids for _, given in sent) and ours.committed(first) == dict.fromkeys(first)
