"""OffsetCommit requests that arrive late, and acknowledged commits that are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from support.clients import (
    ConnectionLostError,
    FakeBroker,
    advertise,
    fake_broker,
    group_client,
    is_connected,
    open_cluster,
    settle,
)
from support.scripted_group import GROUP, T0, T1, Script, follower
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import CommittingMember
from spark_groupsource.client.membership import commit_repetition
from spark_groupsource.client.membership.commit_repetition import LATE_REQUEST_MS, REPEAT_INTERVAL_MS, CommitRepetition
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.membership.membership_values import Generation
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.group.ownership import AssignedPartitions
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.wire.messages import FindCoordinatorResponse, MetadataResponse

SETTINGS = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "5", "default_api_timeout_ms": "5000"}
VERSIONS = {
    "ApiVersions": (0, 3), "Metadata": (4, 12), "FindCoordinator": (0, 4), "JoinGroup": (0, 9), "SyncGroup": (0, 5),
    "Heartbeat": (0, 4), "LeaveGroup": (0, 5), "OffsetCommit": (0, 9), "DescribeGroups": (0, 5),
}  # fmt: skip


class Coordinator:
    """A broker with one group. `lost`: number of OffsetCommit requests that get no response, and are not applied."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker, self.script = broker, Script(ManualClock())
        self.committed: dict[TopicPartition, int] = {}
        self.lost, self.late = 0, list[Any]()
        self.is_down = False
        self.others_have_joined = threading.Event()
        self.others_have_joined.set()
        for api in VERSIONS:
            broker.responses[api] = lambda request, version, api=api: self.respond(api, request)
        broker.responses["ApiVersions"] = lambda request, version: advertise(**VERSIONS)

    def respond(self, api: str, request: Any) -> Any:
        port = self.broker.address.port
        if self.is_down:
            raise ConnectionLostError
        if api == "FindCoordinator":
            row = FindCoordinatorResponse.Coordinator
            found = row(key=GROUP, node_id=0, host="127.0.0.1", port=port, error_code=0, error_message=None)
            return FindCoordinatorResponse(coordinators=[found], node_id=0, host="127.0.0.1", port=port, error_code=0)
        if api == "OffsetCommit":
            if self.lost:
                self.lost -= 1
                self.late.append(request)
                raise ConnectionLostError
            self.apply(request)
        if api == "JoinGroup":
            assert self.others_have_joined.wait(30)
        response = self.script.default_response(request)
        if api == "Metadata":
            node = MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=port, rack=None)
            response.brokers = [node]
        return response

    def apply(self, request: Any) -> None:
        for topic in request.topics:
            for p in topic.partitions:
                self.committed[TopicPartition(topic.name, p.partition_index)] = p.committed_offset


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with fake_broker() as broker:
        yield Coordinator(broker)


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[ClusterClient]:
    with open_cluster(str(coordinator.broker.address), **SETTINGS) as opened:
        yield opened


@pytest.fixture
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_repetition, "REPEAT_INTERVAL_MS", 20)


def test_commit_that_arrives_late_is_corrected(
    coordinator: Coordinator, client: ClusterClient, short_interval: None
) -> None:
    with group_client(client, GROUP, "t") as ours:
        assert ours.poll(10_000).is_stable
        coordinator.lost = 1
        ours.commit({T0: OffsetAndMetadata(1_000), T1: OffsetAndMetadata(7)})
        ours.commit({T0: OffsetAndMetadata(1_500)})
        (late,) = coordinator.late
        coordinator.apply(late)
        wait_until(lambda: coordinator.committed == {T0: 1_500, T1: 7}, "the last offsets are committed again")


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_commit_that_arrives_late_while_the_group_waits_for_other_members_is_corrected(
    coordinator: Coordinator, client: ClusterClient, short_interval: None, assignor: str
) -> None:
    with group_client(client, GROUP, "t", assignors=(assignor,)) as ours:
        assert ours.poll(10_000).is_stable
        coordinator.lost = 1
        ours.commit({T0: OffsetAndMetadata(1_000), T1: OffsetAndMetadata(7)})
        ours.commit({T0: OffsetAndMetadata(1_500)})
        coordinator.others_have_joined.clear()
        coordinator.broker.requests.clear()
        with ours.shared.changed:
            ours.shared.members[0].membership.request_rejoin("test")
        assert not ours.poll(0).is_stable
        wait_until(lambda: "JoinGroup" in [name for name, _, _ in coordinator.broker.requests], "the member joins")
        (late,) = coordinator.late
        coordinator.apply(late)
        wait_until(lambda: coordinator.committed == {T0: 1_500, T1: 7}, "the last offsets are committed again")
        coordinator.others_have_joined.set()
        assert ours.poll(10_000).is_stable


def test_offset_that_the_coordinator_lost_is_committed_again(
    coordinator: Coordinator, client: ClusterClient, short_interval: None
) -> None:
    with group_client(client, GROUP, "t") as ours:
        assert ours.poll(10_000).is_stable
        ours.commit({T0: OffsetAndMetadata(1_000)})
        ours.commit({T0: OffsetAndMetadata(1_500)})
        coordinator.is_down = True
        wait_until(lambda: not is_connected(ours), "the connection to the coordinator is lost")
        coordinator.committed[T0] = 1_000
        coordinator.is_down = False
        wait_until(lambda: coordinator.committed[T0] == 1_500, "the last offset is committed again")


def test_commit_without_members_is_repeated_by_the_query(coordinator: Coordinator, client: ClusterClient) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "assign": '{"t":[0]}', "kafka.group.id": GROUP}
    assigned = AssignedPartitions(client, parse_options(options, "stream"))
    clock = client.clock = ManualClock()
    assigned.commit({T0: OffsetAndMetadata(1)})
    clock.advance_ms(10_000)
    assert not assigned.repeats_commit()
    coordinator.lost = 1
    assigned.commit({T0: OffsetAndMetadata(2)})
    due = []
    for _ in range(40):
        clock.advance_ms(REPEAT_INTERVAL_MS)
        due.append(assigned.repeats_commit())
    # the backoff of the retried commit, which is random, decides about the one at the end of the time
    count = LATE_REQUEST_MS // REPEAT_INTERVAL_MS
    assert all(due[:count]) and not any(due[count + 1 :]) and len(due) > count + 1


# -- timers ----------------------------------------------------------------------------------------------------------


def commits(bench: Any) -> list[dict[int, int]]:
    """Returns the committed offset of each partition of each OffsetCommit."""
    requests = bench.script.requests("OffsetCommit")
    return [{p.partition_index: p.committed_offset for t in r.topics for p in t.partitions} for r in requests]


def lose_connection(bench: Any) -> None:
    """The connection of the member to its coordinator is lost."""
    bench.script.prepare("Heartbeat", NetworkError("lost"))
    bench.heartbeat()


def idle(bench: Any, ms: int) -> None:
    """Lets the member run while the owner does nothing."""
    for _ in range(ms // 1_000):
        bench.clock.advance_ms(1_000)
        bench.run_members()


def test_member_repeats_its_last_offsets_while_the_request_may_arrive() -> None:
    bench = follower(T0, T1)
    bench.client.commit({T1: OffsetAndMetadata(3)})
    idle(bench, 60_000)
    assert commits(bench) == [{1: 3}], "nothing was lost"
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T0: OffsetAndMetadata(10)})
    bench.clear()
    idle(bench, 10_000)
    bench.client.commit({T0: OffsetAndMetadata(15)})
    bench.clear()
    idle(bench, 200_000)
    repeated = commits(bench)
    assert repeated == [{0: 15, 1: 3}] * len(repeated)
    assert len(repeated) in range(21, 25), "every 5 s up to 2 minutes"


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_offsets_are_repeated_while_a_second_join_group_waits(assignor: str) -> None:
    bench = follower(T0, T1, assignors=(assignor,))
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T0: OffsetAndMetadata(10)})

    def wait(request: Any) -> None:
        bench.script.delay_ms = 14_000

    bench.script.prepare("JoinGroup", NetworkError("lost"), wait)
    bench.member.request_rejoin("test")
    bench.clear()
    bench.poll()
    bench.members.loop.run_ready()
    assert bench.script.sent_apis() == ["JoinGroup"], "the member waits before the next one"
    idle(bench, 2_000)
    repeated = commits(bench)
    assert bench.script.sent_apis().count("JoinGroup") == 2
    assert repeated == [{0: 10}] * len(repeated) and len(repeated) in (2, 3), "every 5 s until the response"


@pytest.mark.parametrize("code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_SERVER_ERROR, NetworkError("x")])
def test_failed_repetition_is_left_to_the_next(code: Any) -> None:
    bench = follower(T0, T1)
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T0: OffsetAndMetadata(10)})
    bench.clear()
    bench.script.prepare("OffsetCommit", code)
    idle(bench, 12_000)
    assert len(commits(bench)) >= 2 and bench.client.view.is_stable


def test_offset_is_committed_again_after_a_connection_without_requests_was_lost() -> None:
    """The event loop notices it before the next heartbeat."""
    bench = follower(T0, T1)
    bench.client.commit({T0: OffsetAndMetadata(10)})
    bench.clear()
    # private: the connection that the members share
    pipeline = bench.client.loop.connections._pipeline
    assert pipeline is not None
    pipeline.is_closed = True  # type: ignore[misc]
    bench.heartbeat()
    assert bench.script.sent_apis() == ["FindCoordinator", "Heartbeat"]
    idle(bench, 6_000)
    assert commits(bench) == [{0: 10}]


def test_partitions_that_were_released_are_not_committed_again() -> None:
    """Their next owner has committed other offsets, also where the partition returns."""
    bench = follower(T0, T1)
    bench.client.commit({T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(3)})
    bench.script.assigned = (T0,)
    bench.member.request_rejoin("test")
    bench.settle()
    bench.script.assigned = (T0, T1)
    bench.member.request_rejoin("test")
    bench.settle()
    bench.clear()
    lose_connection(bench)
    idle(bench, 10_000)
    assert commits(bench) == []
    bench.client.commit({T0: OffsetAndMetadata(12)})
    lose_connection(bench)
    bench.clear()
    idle(bench, 6_000)
    assert commits(bench) == [{0: 12}]


def test_offsets_of_a_deleted_topic_are_not_committed_to_the_one_that_replaced_it() -> None:
    """A broker that does not serve topic ids would take them."""
    bench = follower(T0, T1)
    old, new = ({"t": str(UUID(int=number))} for number in (1, 2))
    bench.script.topic_ids = {"t": UUID(old["t"])}
    bench.client.commit({T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(3)}, topic_ids=old)
    bench.script.topic_ids = {"t": UUID(new["t"])}
    bench.client.commit({T0: OffsetAndMetadata(1)}, topic_ids=new)
    lose_connection(bench)
    bench.clear()
    idle(bench, 6_000)
    assert commits(bench) == [{0: 1}]


def test_repetition_to_a_topic_that_was_recreated_is_rejected_without_a_warning(caplog: Any) -> None:
    bench = follower(T0, T1)
    bench.script.topic_ids = {"t": UUID(int=1)}
    bench.client.commit({T0: OffsetAndMetadata(10)}, topic_ids={"t": str(UUID(int=1))})
    bench.script.topic_ids = {"t": UUID(int=2)}
    lose_connection(bench)
    bench.clear()
    idle(bench, 12_000)
    assert commits(bench) == [] and bench.script.sent_apis().count("Metadata") == 2
    assert bench.client.view.is_stable and "Repeating commits failed" not in caplog.text


@pytest.mark.parametrize("instance_id", [None, "static"])
@pytest.mark.parametrize("end", [GroupClient.step_back, GroupClient.leave])
def test_member_that_has_left_repeats_nothing(end: Callable[[GroupClient, str], None], instance_id: str | None) -> None:
    """An empty group accepts commits of generation -1."""
    bench = follower(T0, T1, group_instance_id=instance_id)
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T0: OffsetAndMetadata(10)})
    end(bench.client, "test")
    bench.clear()
    idle(bench, 20_000)
    assert commits(bench) == []


def test_commit_that_is_rejected_during_a_repetition_is_not_repeated() -> None:
    bench = follower(T0, T1)
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T0: OffsetAndMetadata(10)})
    bench.clear()
    raised: list[BrokerError] = []

    def commit() -> None:
        try:
            bench.client.commit({T0: OffsetAndMetadata(15)})
        except BrokerError as error:
            raised.append(error)

    owner = threading.Thread(target=commit)
    bench.script.prepare("OffsetCommit", lambda request: owner.start(), ErrorCode.OFFSET_METADATA_TOO_LARGE)
    idle(bench, 6_000)
    owner.join()
    bench.clear()
    idle(bench, 12_000)
    assert raised and commits(bench) == []


def test_brokers_reject_late_commits_of_former_members(cluster: Any, topic: str, group: str) -> None:
    """What the repetition relies on; one of a member in a rebalance is accepted until all have joined."""
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, 1)
    partition = TopicPartition(topic, 0)
    with open_cluster(servers) as client:

        def late(generation: Generation, instance_id: str | None) -> int:
            try:
                member = CommittingMember(generation.generation_id, generation.member_id, instance_id)
                client.commit(group, {partition: OffsetAndMetadata(1)}, member=member)
            except BrokerError as error:
                return error.code
            return 0

        with group_client(client, group, topic, group_instance_id="a") as replaced:
            settle(replaced)
            former = replaced.shared.members[0].membership.generation
            instance_id = replaced.shared.members[0].membership.config.group_instance_id
            with group_client(client, group, topic, group_instance_id="a") as present:
                settle(present)
                generation = present.shared.members[0].membership.generation
                assert generation.generation_id == former.generation_id, "no rebalance"
                assert late(former, instance_id) == ErrorCode.FENCED_INSTANCE_ID
                with group_client(client, group, topic) as joining:
                    joining.poll(0)
                    wait_until(
                        lambda: describe_groups(client, [group])[group].state == "PreparingRebalance",
                        "a rebalance has begun",
                    )
                    assert late(generation, instance_id) == 0
                present.step_back("test")
                assert late(generation, instance_id) == ErrorCode.UNKNOWN_MEMBER_ID
                assert late(generation._replace(generation_id=-1), None) == 0, "the group is empty"


def test_offsets_of_a_revoked_partition_are_repeated_until_the_next_generation() -> None:
    """No other member can own it before (KIP-429), and the coordinator takes a late request in this generation."""
    bench = follower(T0, T1, assignors=("cooperative-sticky",))
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(3)})
    bench.script.assigned = (T0,)
    bench.member.request_rejoin("test")
    bench.poll()
    bench.run_members()
    bench.script.prepare("OffsetCommit", NetworkError("lost"))
    bench.client.commit({T1: OffsetAndMetadata(4)})

    def wait(request: Any) -> None:
        bench.script.delay_ms = 9_000

    bench.script.prepare("JoinGroup", wait)
    bench.clear()
    bench.poll()
    assert bench.client.view.partitions == (T0,)
    idle(bench, 1_000)
    repeated = commits(bench)
    assert repeated == [{0: 10, 1: 4}] * len(repeated) and len(repeated) in (1, 2), "until the response to JoinGroup"
    bench.settle()
    lose_connection(bench)
    bench.clear()
    idle(bench, 6_000)
    assert commits(bench) == [{0: 10}]


def test_rejected_offsets_are_not_committed_again() -> None:
    bench = follower(T0, T1)
    bench.client.commit({T0: OffsetAndMetadata(10)})
    bench.script.prepare("OffsetCommit", ErrorCode.OFFSET_METADATA_TOO_LARGE)
    with pytest.raises(BrokerError):
        bench.client.commit({T1: OffsetAndMetadata(3)})
    lose_connection(bench)
    bench.clear()
    idle(bench, 6_000)
    assert commits(bench) == [{0: 10}]


def test_offsets_of_a_commit_that_failed_while_the_coordinator_moved_are_repeated() -> None:
    """The owner may commit at its next trigger only."""
    bench = follower(T0, T1, client={"default_api_timeout_ms": 1_000})
    bench.script.prepare("OffsetCommit", *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100)
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        bench.client.commit({T0: OffsetAndMetadata(10)})
    bench.script.clear_prepared()
    lose_connection(bench)
    bench.clear()
    idle(bench, 6_000)
    assert commits(bench) == [{0: 10}]


def test_repetition_ends_with_the_generation() -> None:
    repetition = CommitRepetition()
    repetition.start(0)
    assert not repetition.is_due(REPEAT_INTERVAL_MS - 1) and repetition.is_due(REPEAT_INTERVAL_MS)
    repetition.cancel()
    assert not repetition.is_due(10**9)
