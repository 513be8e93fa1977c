"""A former coordinator that is cut off from its controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.clients import ConnectionLostError, FakeBroker, advertise, fake_broker, group_client, open_cluster
from support.scripted_group import GROUP, T0, Script
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import ErrorCode, GenerationMismatchError
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.group.ownership import AssignedPartitions
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.wire.messages import FindCoordinatorResponse, MetadataResponse

SETTINGS = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "5", "default_api_timeout_ms": "5000"}
FENCES = [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID]
VERSIONS = {
    "ApiVersions": (0, 3), "Metadata": (4, 12), "FindCoordinator": (0, 4), "JoinGroup": (0, 9), "SyncGroup": (0, 5),
    "Heartbeat": (0, 4), "LeaveGroup": (0, 5), "OffsetCommit": (0, 9), "OffsetFetch": (8, 8), "DescribeGroups": (0, 5),
}  # fmt: skip


class Cluster:
    """Brokers 0, 1 and 2. Each names the coordinator in `named`; `code` is the error of broker 0 for the member."""

    def __init__(self, brokers: list[FakeBroker]) -> None:
        self.brokers = brokers
        self.named = [0, 0, 0]
        self.silent: set[int] = set()
        self.code = ErrorCode.NONE
        self.code_of_others = ErrorCode.NOT_COORDINATOR
        self.script = Script(ManualClock())
        for number, broker in enumerate(brokers):
            for api in VERSIONS:
                broker.responses[api] = lambda request, version, api=api, number=number: self.respond(
                    number, api, request
                )
            broker.responses["ApiVersions"] = lambda request, version: advertise(**VERSIONS)

    def respond(self, number: int, api: str, request: Any) -> Any:
        if number in self.silent:
            raise ConnectionLostError
        if api == "Metadata":
            response = self.script.default_response(request)
            response.brokers = [
                MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=b.address.port, rack="r")
                for n, b in enumerate(self.brokers)
            ]
            return response
        if api == "FindCoordinator":
            node = self.named[number]
            port = self.brokers[node].address.port
            row = FindCoordinatorResponse.Coordinator
            found = row(key=GROUP, node_id=node, host="127.0.0.1", port=port, error_code=0, error_message=None)
            return FindCoordinatorResponse(
                coordinators=[found], node_id=node, host="127.0.0.1", port=port, error_code=0
            )
        if api == "OffsetFetch":
            # the former coordinator does not know that it is one
            self.script.committed = {T0: OffsetAndMetadata(5 if number == 0 else 9)}
            return self.script.default_response(request)
        code = self.code if number == 0 else self.code_of_others
        return self.script.default_response(request, code)

    def move(self, code: ErrorCode) -> None:
        """Broker 1 has the group from now on; broker 0 does not know it and rejects the member with `code`."""
        self.named, self.code, self.code_of_others = [0, 1, 1], code, ErrorCode.NONE

    def sent(self, number: int, api: str) -> int:
        return sum(name == api for name, _, _ in self.brokers[number].requests)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as opened:
        yield Cluster([opened.enter_context(fake_broker()) for _ in range(3)])


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    with open_cluster(",".join(str(broker.address) for broker in cluster.brokers), **SETTINGS) as opened:
        opened.metadata(["t"])
        opened.find_coordinator(GROUP)
        yield opened


def task(client: ClusterClient, **settings: Any) -> TaskHeartbeat:
    return TaskHeartbeat(
        client, group_id=GROUP, member_id="m1", generation_id=1, heartbeat_interval_ms=1_000, **settings
    )


@pytest.mark.parametrize("code", FENCES)
def test_task_is_not_fenced_by_a_former_coordinator(cluster: Cluster, client: ClusterClient, code: ErrorCode) -> None:
    task(client).check_now()
    cluster.move(code)
    with task(client) as heartbeat:
        heartbeat.check_now()
        wait_until(lambda: cluster.sent(1, "Heartbeat") >= 2, "both heartbeats are sent to the new coordinator")
        heartbeat.check()


@pytest.mark.parametrize("code", FENCES)
def test_batch_is_not_finished_at_a_former_coordinator(
    cluster: Cluster, client: ClusterClient, code: ErrorCode
) -> None:
    """It accepts the member as before; the present one has removed it after its session timeout."""
    cluster.named, cluster.code_of_others = [0, 1, 1], code
    with pytest.raises(GenerationMismatchError, match=code.name):
        task(client).check_now()
    assert cluster.sent(1, "Heartbeat")


def test_committed_offsets_of_option_assign_are_not_those_of_a_former_coordinator(
    cluster: Cluster, client: ClusterClient
) -> None:
    """The query has no member that the coordinator could reject."""
    cluster.move(ErrorCode.NONE)
    options = {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [0, 1]}', "kafka.group.id": GROUP}
    committed = AssignedPartitions(client, parse_options(options, "stream")).committed([T0])
    assert committed == {T0: OffsetAndMetadata(9)}


def test_coordinator_is_confirmed_by_one_broker_now_and_then(cluster: Cluster, client: ClusterClient) -> None:
    before = [cluster.sent(number, "FindCoordinator") for number in range(3)]
    for _ in range(3):
        task(client).check_now()
    assert cluster.sent(0, "FindCoordinator") == before[0]
    assert sum(cluster.sent(number, "FindCoordinator") for number in (1, 2)) == sum(before[1:]) + 1


def test_task_ends_where_no_other_broker_responds(cluster: Cluster, client: ClusterClient) -> None:
    cluster.silent = {1, 2}
    task(client).check_now()
    assert cluster.sent(0, "Heartbeat") == 1


def test_first_heartbeat_of_a_task_is_not_fenced_by_a_former_coordinator(cluster: Cluster) -> None:
    """The client of a read task has the addresses of the brokers, and no metadata yet."""
    cluster.move(ErrorCode.UNKNOWN_MEMBER_ID)
    former, *others = [broker.address for broker in cluster.brokers]
    with open_cluster(str(former), **SETTINGS) as client:
        assert client.find_coordinator(GROUP).node_id == 0
        client.add_known_brokers([former, *others])
        task(client).check_now()


def test_client_without_metadata_asks_another_broker(cluster: Cluster) -> None:
    """The first bootstrap address is that of the former coordinator, which names itself."""
    cluster.move(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with open_cluster(",".join(str(broker.address) for broker in cluster.brokers), **SETTINGS) as client:
        client.commit(GROUP, {T0: OffsetAndMetadata(5)})
    assert cluster.sent(0, "FindCoordinator") == cluster.sent(1, "OffsetCommit") == 1


@pytest.mark.parametrize("code", [*FENCES, ErrorCode.NOT_COORDINATOR])
def test_committed_offsets_of_a_former_coordinator_are_not_used(
    cluster: Cluster, client: ClusterClient, code: ErrorCode
) -> None:
    with group_client(client, GROUP, "t", heartbeat_interval_ms=9_000) as ours:
        assert ours.poll(10_000).is_stable
        assert ours.committed([T0]) == {T0: OffsetAndMetadata(5)}
        cluster.move(code)
        assert ours.committed([T0]) == {T0: OffsetAndMetadata(9)}


def test_committed_offsets_are_those_of_the_coordinator_that_removed_the_member(
    cluster: Cluster, client: ClusterClient
) -> None:
    with group_client(client, GROUP, "t", heartbeat_interval_ms=9_000) as ours:
        assert ours.poll(10_000).is_stable
        cluster.code = ErrorCode.UNKNOWN_MEMBER_ID
        assert ours.committed([T0]) == {T0: OffsetAndMetadata(5)}


@pytest.mark.parametrize("named", [[0, 0, 0], [0, 1, 1]])
@pytest.mark.parametrize("retains", [True, False])
def test_task_that_every_coordinator_rejects_is_fenced(
    cluster: Cluster, client: ClusterClient, named: list[int], retains: bool
) -> None:
    cluster.move(ErrorCode.ILLEGAL_GENERATION)
    cluster.named, cluster.code_of_others = named, ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(GenerationMismatchError):
        task(client, retains_partitions=retains).check_now()
    lookups = sum(cluster.sent(number, "FindCoordinator") for number in range(3))
    assert lookups <= 1 + 2 + 2 * (named[1] != 0) + 12, "not one for each generation"


def test_former_coordinator_is_not_asked_where_most_brokers_name_the_one_that_rejected(
    cluster: Cluster, client: ClusterClient
) -> None:
    """Its response would replace the one of the coordinator, which lets a task try the next generations."""
    cluster.code, cluster.named = ErrorCode.ILLEGAL_GENERATION, [0, 1, 0]
    with pytest.raises(GenerationMismatchError):
        task(client).check_now()
    assert cluster.sent(1, "Heartbeat") == 0


def test_task_is_fenced_where_no_other_broker_responds(cluster: Cluster, client: ClusterClient) -> None:
    cluster.move(ErrorCode.UNKNOWN_MEMBER_ID)
    cluster.silent = {1, 2}
    with pytest.raises(GenerationMismatchError):
        task(client).check_now()


@pytest.mark.parametrize("code", FENCES)
@pytest.mark.parametrize("first", ["heartbeat", "commit"])
def test_driver_is_not_fenced_by_a_former_coordinator(
    cluster: Cluster, client: ClusterClient, code: ErrorCode, first: str
) -> None:
    interval_ms = 100 if first == "heartbeat" else 9_000
    with group_client(client, GROUP, "t", heartbeat_interval_ms=interval_ms, session_timeout_ms=30_000) as ours:
        before = ours.poll(10_000)
        assert before.is_stable
        cluster.move(code)
        if first == "heartbeat":
            wait_until(lambda: cluster.sent(1, "Heartbeat") >= 2, "heartbeats are sent to the new coordinator")
        ours.commit({T0: OffsetAndMetadata(5)})
        assert cluster.sent(1, "OffsetCommit") == 1
        after = ours.poll(0)
        assert after.is_stable and after.members == before.members and not ours.rejoin_needed


@pytest.mark.parametrize("is_present", [True, False])
def test_commit_to_a_coordinator_without_the_group(cluster: Cluster, client: ClusterClient, is_present: bool) -> None:
    """From OffsetCommit 9 on, a coordinator that has never had the group, or has lost it, does not name the member."""
    with group_client(client, GROUP, "t", heartbeat_interval_ms=9_000, session_timeout_ms=30_000) as ours:
        assert ours.poll(10_000).is_stable
        cluster.code = ErrorCode.GROUP_ID_NOT_FOUND
        if is_present:
            cluster.move(ErrorCode.GROUP_ID_NOT_FOUND)
            ours.commit({T0: OffsetAndMetadata(5)})
            assert cluster.sent(1, "OffsetCommit") == 1 and not ours.rejoin_needed
        else:
            with pytest.raises(GenerationMismatchError):
                ours.commit({T0: OffsetAndMetadata(5)})
            cluster.code = ErrorCode.NONE
            assert ours.rejoin_needed and ours.poll(10_000).is_stable


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID])
def test_driver_joins_the_present_coordinator_after_a_former_one_rejects_it(
    cluster: Cluster, client: ClusterClient, code: ErrorCode
) -> None:
    with group_client(client, GROUP, "t", group_instance_id="i", heartbeat_interval_ms=9_000) as ours:
        assert ours.poll(10_000).is_stable
        cluster.move(code)
        with ours.shared.changed:
            ours.shared.members[0].membership.request_rejoin("test")
        assert ours.poll(10_000).is_stable
        assert cluster.sent(1, "JoinGroup") == 1
