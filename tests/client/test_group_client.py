"""Group client on both brokers: rebalances, commits, fencing, leaving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import POLL_MS, advertise, fake_broker, group_client, is_connected, open_cluster, polling, settle
from support.removed_members import remove_members
from support.scripted_group import Bench, joined
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import CommittingMember
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_subscription
from spark_groupsource.wire.messages import FindCoordinatorResponse, MetadataResponse


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    with open_cluster(cluster.bootstrap_servers, metadata_max_age_ms="200") as opened:
        yield opened


def test_members_of_one_process_join_one_rebalance(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 6)
    with group_client(client, group, topic, members=3) as ours:
        view = ours.poll(POLL_MS)
        # without group.initial.rebalance.delay.ms an empty group does not wait for the second before its first round
        assert view.is_stable and view.generation_id <= 3
        assert sorted(view.partitions) == [TopicPartition(topic, n) for n in range(6)]
        assert [len(m.partitions) for m in view.members] == [2, 2, 2]
        assert [m.client_id for m in view.members] == ["app-0", "app-1", "app-2"]
        assert len({m.member_id for m in view.members}) == 3 and not ours.rejoin_needed

        described = admin.describe_groups(client, [group])[group]
        assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
        assignments = {m.member_id: m.assignment for m in described.members}
        assert assignments == {m.member_id: m.partitions for m in view.members}
        assert {m.client_id for m in described.members} == {"app-0", "app-1", "app-2"}

        event = ours.events[-1]
        assert (event.generation_id, event.members) == (view.generation_id, 3)
        assert event.gained == view.partitions and event.lost == ()
        assert ours.events[0].cause == "joined the group", ours.events
    assert admin.describe_groups(client, [group])[group].state == "Empty"


@pytest.mark.parametrize("instance", [None, "static"])
def test_client_that_steps_back_joins_again(
    client: ClusterClient, topic: str, group: str, cluster: Any, instance: str | None
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 4)
    static = {} if instance is None else {"group_instance_id": instance}
    with group_client(client, group, topic, client_id="a", **static) as first:
        before = first.poll(POLL_MS)
        first.commit({tp: OffsetAndMetadata(5) for tp in before.partitions})
        first.step_back("waiting")
        assert not first.view.partitions and first.rejoin_needed
        assert admin.describe_groups(client, [group])[group].state == "Empty"
        with group_client(client, group, topic, client_id="b") as second:
            assert second.poll(POLL_MS).partitions == before.partitions
            second.commit({tp: OffsetAndMetadata(6) for tp in before.partitions})
            with polling(second):
                assert len(settle(first, 2).partitions) == 2
                assert set(first.committed(before.partitions).values()) == {OffsetAndMetadata(6)}


def test_second_application_joins_and_leaves(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 6)
    with group_client(client, group, topic, members=2, client_id="a") as first:
        before = first.poll(POLL_MS)
        first.commit({tp: OffsetAndMetadata(tp.partition + 10) for tp in before.partitions})
        second = group_client(client, group, topic, members=2, client_id="b")
        with polling(second):
            after = settle(first, 4)
            wait_until(lambda: second.view.is_stable, "the second application is settled")
            assert {*after.partitions, *second.view.partitions} == set(before.partitions)
            assert second.view.generation_id == after.generation_id
            taken = second.view.partitions
            assert second.committed(taken) == {tp: OffsetAndMetadata(tp.partition + 10) for tp in taken}
        assert first.events[-1].lost == taken and second.events[0].gained == taken
        second.close()
        assert settle(first, 6).partitions == before.partitions
        assert first.events[-1].gained == taken
        causes = [event.cause for event in [*first.events, *second.events]]
        assert any("b-0, b-1 joined" in cause or "a-0, a-1 joined" in cause for cause in causes), causes
        assert first.events[-1].cause in ("b-0, b-1 left", "group is rebalancing")


@pytest.mark.parametrize("assignor", ["roundrobin", "sticky", "cooperative-sticky"])
def test_every_assignor_shares_all_partitions(
    client: ClusterClient, topic: str, group: str, cluster: Any, assignor: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 5)
    with group_client(client, group, topic, members=2, assignors=(assignor,)) as ours:
        first = ours.poll(POLL_MS)
        assert sorted(len(m.partitions) for m in first.members) == [2, 3]
        other = group_client(client, group, topic, assignors=(assignor,))
        with polling(other):
            wait_until(lambda: ours.rejoin_needed, "our members hear of the third")
            view = settle(ours, 3 if assignor == "roundrobin" else None)
            wait_until(lambda: settle(ours) and other.view.is_stable, "the third member is settled")
            view = ours.view
            owned = [*view.partitions, *other.view.partitions]
            assert sorted(owned) == [TopicPartition(topic, n) for n in range(5)]
            if "sticky" in assignor:
                kept = sum(len(set(a.partitions) & set(b.partitions)) for a, b in zip(first.members, view.members))
                assert kept == len(view.partitions), "what stays with us stays with the same member"
        other.close()


@pytest.mark.slow
def test_cooperative_members_retain_partitions(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 4)
    calls: list[tuple[str, list[TopicPartition]]] = []

    class Listener:
        def revoked(self, partitions: Any) -> None:
            calls.append(("revoked", list(partitions)))
            ours.commit({tp: OffsetAndMetadata(9) for tp in partitions})

        def assigned(self, partitions: Any) -> None:
            calls.append(("assigned", list(partitions)))

        def lost(self, partitions: Any) -> None:
            calls.append(("lost", list(partitions)))

    settings = GroupSettings(
        group, topics=(topic,), assignors=("cooperative-sticky",), session_timeout_ms=10_000, heartbeat_interval_ms=200
    )
    with GroupClient(client, settings, listener=Listener()) as ours:
        before = ours.poll(POLL_MS)
        assert calls == [("assigned", list(before.partitions))]
        other = group_client(client, group, topic, assignors=("cooperative-sticky",))
        with polling(other):
            wait_until(lambda: ours.rejoin_needed, "ours hears of the other")
            after = settle(ours, 2)
            wait_until(lambda: settle(ours) and len(other.view.partitions) == 2, "the other has its half")
        revoked = [tp for kind, partitions in calls if kind == "revoked" for tp in partitions]
        assert sorted(revoked) == sorted(set(before.partitions) - set(after.partitions))
        assert not any(kind == "lost" for kind, _ in calls)
        assert {c.offset for c in ours.committed(revoked).values() if c is not None} == {9}
        other.close()


def test_listener_of_an_eager_member_is_called_for_all_partitions(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    calls: list[str] = []

    class Listener:
        def revoked(self, partitions: Any) -> None:
            calls.append(f"revoked {len(partitions)}")
            ours.commit({tp: OffsetAndMetadata(5) for tp in partitions})

        def assigned(self, partitions: Any) -> None:
            calls.append(f"assigned {len(partitions)}")

        def lost(self, partitions: Any) -> None:
            calls.append(f"lost {len(partitions)}")

    settings = GroupSettings(group, topics=(topic,), session_timeout_ms=10_000, heartbeat_interval_ms=200)
    with GroupClient(client, settings, listener=Listener()) as ours:
        ours.poll(POLL_MS)
        other = group_client(client, group, topic)
        with polling(other):
            settle(ours, 1)
            wait_until(lambda: len(other.view.partitions) == 1, "the other has its half")
        assert calls == ["assigned 2", "revoked 2", "assigned 1"]
        (mine,) = ours.view.partitions
        assert {o.offset for o in ours.committed([TopicPartition(topic, n) for n in range(2)]).values() if o} == {5}

        remove_members(client, group, [ours.view.members[0].member_id])
        wait_until(lambda: ours.rejoin_needed, "the heartbeat is rejected")
        with polling(other):
            settle(ours, 1)
        assert calls[3:] == ["lost 1", "assigned 1"]
        other.close()


def test_removed_member_cannot_commit(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    # a heartbeat every ten seconds: the commit is rejected before a heartbeat
    with group_client(client, group, topic, heartbeat_interval_ms=9_000) as ours:
        view = ours.poll(POLL_MS)
        member_id = view.members[0].member_id
        remove_members(client, group, [member_id])
        with pytest.raises(GenerationMismatchError) as raised:
            ours.commit({tp: OffsetAndMetadata(1) for tp in view.partitions})
        error = raised.value
        assert (error.group_id, error.member_id, error.generation_id) == (group, member_id, 1)
        assert error.current_generation == 2, "the group is empty in its second generation"
        assert "UNKNOWN_MEMBER_ID" in str(error) and "generation 1" in str(error) and "now 2" in str(error)
        assert ours.rejoin_needed
        assert set(ours.committed(view.partitions).values()) == {None}
        with pytest.raises(GenerationMismatchError, match="generation 1"):
            ours.commit({tp: OffsetAndMetadata(1) for tp in view.partitions})
        again = settle(ours, 2)
        assert again.members[0].member_id not in ("", member_id)
        ours.commit({tp: OffsetAndMetadata(1) for tp in again.partitions})


@pytest.mark.parametrize("is_fenced_first", [True, False])
@pytest.mark.parametrize(
    "other", [NetworkError("lost"), BrokerError(ErrorCode.NOT_COORDINATOR, "commit"),
              BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")],
    ids=["network", "retriable", "fatal"],
)  # fmt: skip
def test_of_a_fenced_member_and_one_with_another_error_the_other_error_is_raised(
    client: ClusterClient, topic: str, group: str, cluster: Any, monkeypatch: Any, other: Exception,
    is_fenced_first: bool,
) -> None:  # fmt: skip
    """After a fence the owner drops all offsets, and a drained query would leave without those of the other member."""
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic, members=2, heartbeat_interval_ms=9_000) as ours:
        view = settle(ours, 2)
        fence = BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "commit")
        outcomes = [fence, other] if is_fenced_first else [other, fence]
        monkeypatch.setattr(client, "commit_each", lambda *_, **__: outcomes)
        with pytest.raises(type(other), match=str(other)[:20]):
            ours.commit({tp: OffsetAndMetadata(1) for tp in view.partitions})
        # the next commit, of the fenced member alone
        (fenced,) = view.members[0 if is_fenced_first else 1].partitions
        with pytest.raises(GenerationMismatchError):
            ours.commit({fenced: OffsetAndMetadata(1)})


def test_commit_in_an_old_generation_is_rejected(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic) as ours:
        old = ours.poll(POLL_MS).members[0]
        other = group_client(client, group, topic)
        with polling(other):
            settle(ours, 1)
        with pytest.raises(BrokerError, match="ILLEGAL_GENERATION"):
            member = CommittingMember(old.generation_id, old.member_id)
            client.commit(group, {TopicPartition(topic, 0): OffsetAndMetadata(1)}, member=member)
        other.close()


def test_commit_of_a_partition_of_another_member_raises(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    with group_client(client, group, topic) as ours:
        ours.poll(POLL_MS)
        with pytest.raises(ValueError, match=f"{topic}-9"):
            ours.commit({TopicPartition(topic, 9): OffsetAndMetadata(1)})


def test_static_members_keep_their_partitions_over_a_restart(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 4)
    first = group_client(client, group, topic, members=2, group_instance_id="i")
    before = first.poll(POLL_MS)
    assert [m.group_instance_id for m in before.members] == ["i-0", "i-1"]
    first.close()
    assert admin.describe_groups(client, [group])[group].state == "Stable", "static members do not leave"

    with group_client(client, group, topic, members=2, group_instance_id="i") as second:
        after = settle(second, 4)
        assert [m.partitions for m in after.members] == [m.partitions for m in before.members]
        assert after.generation_id == before.generation_id
        second.commit({tp: OffsetAndMetadata(1) for tp in after.partitions})
    remove_members(client, group, group_instance_ids=["i-0", "i-1"])


def test_replaced_static_member_is_fenced(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    first = group_client(client, group, topic, group_instance_id="i")
    view = first.poll(POLL_MS)
    with group_client(client, group, topic, group_instance_id="i") as second:
        settle(second, 1)
        with pytest.raises(GenerationMismatchError, match="FENCED_INSTANCE_ID"):
            first.commit({tp: OffsetAndMetadata(1) for tp in view.partitions})
        with pytest.raises(GenerationMismatchError, match="FENCED_INSTANCE_ID"):
            first.poll(POLL_MS)
        first.close()
        second.commit({tp: OffsetAndMetadata(1) for tp in view.partitions})
        assert second.poll(POLL_MS).is_stable, "the first process has not taken the place of the second"
    remove_members(client, group, group_instance_ids=["i-0"])


def test_new_partitions_make_the_leader_rebalance(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic, members=2) as ours:
        settle(ours, 2)
        admin.create_partitions(client, {topic: 4})
        view = settle(ours, 4)
        assert [len(m.partitions) for m in view.members] == [2, 2]
        assert "cached metadata has changed" in ours.events[-1].cause


@pytest.mark.conformance("KC-045")
def test_pattern_subscribes_to_new_topics(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, f"{topic}-a", 1)
    with group_client(client, group, pattern=f"^{topic}-") as ours:
        settle(ours, 1)
        create_topic(cluster.bootstrap_servers, f"{topic}-b", 1)
        create_topic(cluster.bootstrap_servers, f"x{topic}-c", 1)
        view = settle(ours, 2)
        assert {tp.topic for tp in view.partitions} == {f"{topic}-a", f"{topic}-b"}
        assert "subscription has changed" in ours.events[-1].cause


def test_members_without_a_common_assignor_raise(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with group_client(client, group, topic, assignors=("range",)) as first:
        first.poll(POLL_MS)
        with group_client(client, group, topic, assignors=("sticky",)) as second:
            with pytest.raises(BrokerError, match="partition.assignment.strategy") as raised:
                second.poll(POLL_MS)
            assert raised.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_session_timeout_outside_the_brokers_bounds_raises(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    with group_client(client, group, topic, session_timeout_ms=1_000) as ours:
        with pytest.raises(BrokerError, match="group.min.session.timeout.ms"):
            ours.poll(POLL_MS)


def test_unknown_assignor_raises(client: ClusterClient, group: str) -> None:
    with pytest.raises(ConfigurationError, match="partition.assignment.strategy"):
        group_client(client, group, "t", assignors=("best",))


class Failing:
    """An assignor that cannot."""

    name = "failing"
    cooperative = False

    def user_data(self, topics: Any, owned: Any, generation_id: int) -> None:
        return None

    def assign(self, partitions: Any, members: Any, racks: Any = None) -> Any:
        raise LookupError("no idea")

    def on_assignment(self, assignment: Any, generation_id: int) -> None:
        return None


def test_exception_of_an_assignor_is_raised_from_poll(
    client: ClusterClient, topic: str, group: str, cluster: Any
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    with group_client(client, group, topic, assignors=("test_group_client:Failing",)) as ours:
        with pytest.raises(ConfigurationError, match="Failing.assign raised LookupError: no idea"):
            ours.poll(POLL_MS)


def test_close_during_a_rebalance_returns_soon(client: ClusterClient, topic: str, group: str, cluster: Any) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    first = group_client(client, group, topic)
    first.poll(POLL_MS)
    second = group_client(client, group, topic, client_id="late")
    assert not second.poll(300).is_stable, "the first does not poll, so the round is not over"
    second.close()
    assert settle(first, 2).is_stable
    first.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.poll(1)


def test_members_survive_a_restart_of_the_coordinator(topic: str, group: str, tmp_path: Any) -> None:
    from spark_groupsource.broker.embedded import EmbeddedBroker

    broker = EmbeddedBroker(data_dir=tmp_path, config={"group.initial.rebalance.delay.ms": "0"})
    broker.start()
    create_topic(broker.bootstrap_servers, topic, 4)
    with open_cluster(broker.bootstrap_servers) as client, group_client(client, group, topic, members=2) as ours:
        before = ours.poll(POLL_MS)
        ours.commit({tp: OffsetAndMetadata(1) for tp in before.partitions})
        host, _, port = broker.bootstrap_servers.rpartition(":")
        broker.stop()
        wait_until(lambda: not is_connected(ours), "the members notice")
        again = EmbeddedBroker(data_dir=tmp_path, host=host, port=int(port))
        again.start()
        try:
            ours.commit({tp: OffsetAndMetadata(2) for tp in before.partitions})
            assert ours.poll(POLL_MS) == before, "same members, same generation, same partitions"
            assert not ours.rejoin_needed
        finally:
            ours.close()
            again.stop()


def test_static_members_need_a_supported_joingroup_version(group: str) -> None:
    with fake_broker() as broker:
        row = FindCoordinatorResponse.Coordinator(
            key=group, node_id=1, host="127.0.0.1", port=broker.address.port, error_code=0, error_message=None
        )
        broker.responses["ApiVersions"] = lambda r, v: advertise(
            ApiVersions=(0, 3), Metadata=(0, 12), FindCoordinator=(0, 4), JoinGroup=(0, 4)
        )
        node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.address.port, rack=None)
        no_topic = MetadataResponse(throttle_time_ms=0, brokers=[node], cluster_id="c", controller_id=1, topics=[])
        broker.responses["Metadata"] = lambda r, v: no_topic
        found = FindCoordinatorResponse(throttle_time_ms=0, coordinators=[row])
        broker.responses["FindCoordinator"] = lambda r, v: found
        with (
            open_cluster(str(broker.address)) as client,
            group_client(client, group, "t", group_instance_id="i") as ours,
        ):
            for _ in range(2):
                with pytest.raises(UnsupportedVersionError, match="JoinGroup failed: .* supports versions 0 to 4"):
                    ours.poll(POLL_MS)


def test_user_data_of_an_assignor_are_computed_without_the_lock_of_the_group() -> None:
    bench = Bench()
    member, acquired = bench.client.shared.members[0], []

    def try_lock() -> None:
        if bench.client.shared.changed.acquire(timeout=5):
            acquired.append(True)
            bench.client.shared.changed.release()

    class Observed:
        """The assignor of the member; `user_data` lets another thread take the lock."""

        def __init__(self, assignor: Any) -> None:
            self._assignor = assignor

        def __getattr__(self, name: str) -> Any:
            return getattr(self._assignor, name)

        def user_data(self, *arguments: Any) -> bytes | None:
            other = threading.Thread(target=try_lock)
            other.start()
            other.join(5)
            return b"mine"

    assignors: dict[str, Any] = member.assignors  # type: ignore[assignment]
    assignors.update({name: Observed(assignor) for name, assignor in assignors.items()})
    assert bench.settle().is_stable
    assert acquired
    protocols = bench.script.requests("JoinGroup")[-1].protocols
    assert [decode_subscription(protocol.metadata).user_data for protocol in protocols] == [b"mine"] * len(protocols)


def test_rebalances_wait_twice_the_longest_pause_between_polls() -> None:
    bench = joined(max_poll_interval_ms=1_000)

    def announced() -> int:
        bench.member.request_rejoin("a test")
        bench.settle()
        return int(bench.script.requests("JoinGroup")[-1].rebalance_timeout_ms)

    assert announced() == 12_000
    for _ in range(7):
        bench.heartbeat()
    before_ms = bench.clock.now_ms()
    bench.clock.advance_ms(20_000)
    assert announced() >= 40_000 and bench.clock.now_ms() > before_ms
