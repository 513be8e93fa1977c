"""Failures of consumer calls: authentication, timeouts, errors per partition, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clients import fake_broker, open_cluster
from support.fake_leader import TP, fake_leader
from support.scripted_group import GROUP, T0, T1, Bench, joined

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.cluster.metadata import EpochEndOffset
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.errors import (
    AuthenticationError,
    BrokerError,
    ConfigurationError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
    RequestTimeoutError,
)
from spark_groupsource.model import OffsetAndMetadata, OffsetRange
from spark_groupsource.wire.messages import (
    OffsetForLeaderEpochResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

# -- authentication --------------------------------------------------------------------------------------------------

SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "ann",
    "sasl_password": "wrong",
}
CALLS: dict[str, Callable[[ClusterClient], Any]] = {
    "partitions": lambda client: client.metadata(["t"]),
    "beginning offsets": lambda client: client.list_offsets({TP: EARLIEST}),
    "end offsets": lambda client: client.list_offsets({TP: LATEST}),
    "fetch": lambda client: list(PartitionFetcher(client).fetch_blocks([OffsetRange(TP, 0, 1)])),
    "offsets for times": lambda client: client.list_offsets({TP: 1_700_000_000_000}),
    "commit": lambda client: client.commit("g", {TP: OffsetAndMetadata(1)}),
    "committed offsets": lambda client: client.fetch_committed("g", [TP]),
}


def reject(request: Any, version: int) -> Any:
    return SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"", session_lifetime_ms=0)


@pytest.mark.conformance("KC-072", "KC-073", "KC-074", "KC-075", "KC-076", "KC-077", "KC-078")
@pytest.mark.parametrize("call", CALLS)
def test_authentication_failure_is_raised_without_a_retry(call: str) -> None:
    with fake_leader() as broker:
        broker.responses["SaslHandshake"] = lambda r, v: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])
        broker.responses["SaslAuthenticate"] = reject
        with open_cluster(str(broker.address), **SASL) as client:
            with pytest.raises(AuthenticationError, match="user 'ann'"):
                CALLS[call](client)
        assert len(broker.sent("SaslAuthenticate")) == 1


# -- offsets of several partitions -----------------------------------------------------------------------------------


def failing(bench: Bench, code: ErrorCode, *partitions: int) -> Callable[[Any], Any]:
    """A ListOffsets response with an error of some partitions."""

    def respond(request: Any) -> Any:
        response = bench.script.default_response(request)
        for topic in response.topics:
            for p in topic.partitions:
                p.error_code = code if p.partition_index in partitions else 0
        return response

    return respond


def listed(bench: Bench) -> list[list[int]]:
    """The partitions of each ListOffsets request."""
    return [[p.partition_index for p in r.topics[0].partitions] for r in bench.script.requests("ListOffsets")]


@pytest.mark.conformance("OF-026")
def test_only_partitions_with_a_retriable_error_are_requested_again() -> None:
    bench = Bench()
    bench.script.prepare("ListOffsets", failing(bench, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1))
    found = bench.cluster.list_offsets({T0: LATEST, T1: LATEST})
    assert {tp: each.offset for tp, each in found.items()} == {T0: 10, T1: 10}
    assert listed(bench) == [[0, 1], [1]]


@pytest.mark.conformance("OF-052")
def test_offsets_of_no_partition_need_no_request() -> None:
    bench = Bench()
    assert bench.cluster.list_offsets({}) == {} and listed(bench) == []


@pytest.mark.conformance("OF-032")
def test_errors_of_several_partitions_end_at_the_timeout() -> None:
    bench = Bench()
    bench.script.prepare("ListOffsets", *[failing(bench, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 1)] * 100)
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        bench.cluster.list_offsets({T0: EARLIEST, T1: EARLIEST}, timeout_ms=2_000)
    assert 1 < len(listed(bench)) < 20


@pytest.mark.conformance("OF-034")
def test_epochs_are_requested_from_each_leader_at_once() -> None:
    bench = Bench()
    bench.script.topics, bench.script.broker_racks = {"t": [[0], [0], [1]]}, {0: None, 1: None}
    topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult

    def respond(request: Any) -> Any:
        rows = [
            topic.EpochEndOffset(error_code=0, partition=p.partition, leader_epoch=p.leader_epoch, end_offset=10)
            for p in request.topics[0].partitions
        ]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[topic(topic="t", partitions=rows)])

    bench.script.prepare("OffsetForLeaderEpoch", respond, respond)
    requested = {T0._replace(partition=n): 7 for n in range(3)}
    assert bench.cluster.end_offsets_for_epochs(requested) == dict.fromkeys(requested, EpochEndOffset(7, 10))
    requests = bench.script.requests("OffsetForLeaderEpoch")
    assert sorted([p.partition for p in r.topics[0].partitions] for r in requests) == [[0, 1], [2]]


@pytest.mark.conformance("KC-107")
def test_committed_offsets_without_a_response_end_at_the_timeout() -> None:
    bench = Bench()
    bench.script.prepare("OffsetFetch", *[RequestTimeoutError("No response.")] * 100)
    with pytest.raises(NetworkError):
        bench.cluster.fetch_committed(GROUP, [T0])
    assert bench.clock.now_ms() <= 1_000 + bench.cluster.settings.default_api_timeout_ms


def test_last_heartbeat_of_a_task_does_not_wait_for_a_coordinator_that_was_replaced() -> None:
    bench = Bench()
    bench.script.prepare("Heartbeat", *[RequestTimeoutError("No response.")] * 2)
    heartbeat = TaskHeartbeat(bench.cluster, group_id=GROUP, member_id="m", generation_id=1)
    heartbeat.check_now()
    assert bench.clock.now_ms() < 17_000 and len(bench.script.requests("FindCoordinator")) == 3


def last_heartbeat(bench: Bench) -> None:
    TaskHeartbeat(bench.cluster, group_id=GROUP, member_id="m", generation_id=1).check_now()


def test_last_heartbeat_of_a_task_waits_until_the_coordinator_has_loaded_the_group() -> None:
    """It responds NONE to every Heartbeat meanwhile, also of a member that was removed."""
    bench = Bench()
    loading = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3

    def fence_once_loaded(request: Any) -> Any:
        has_loaded = len(bench.script.requests("OffsetFetch")) > len(loading)
        return bench.script.default_response(request, ErrorCode.UNKNOWN_MEMBER_ID) if has_loaded else None

    bench.script.prepare("OffsetFetch", *loading)
    bench.script.prepare("Heartbeat", *[fence_once_loaded] * 10)
    with pytest.raises(GenerationMismatchError, match="UNKNOWN_MEMBER_ID"):
        last_heartbeat(bench)


def test_coordinator_is_asked_once_whether_it_has_loaded_the_group() -> None:
    bench = Bench()
    for _ in range(3):
        last_heartbeat(bench)
    assert bench.script.sent_apis().count("OffsetFetch") == 1
    bench.script.prepare("Heartbeat", ErrorCode.NOT_COORDINATOR)
    last_heartbeat(bench)
    assert bench.script.sent_apis()[-2:] == ["OffsetFetch", "Heartbeat"], "the next coordinator may load"
    assert bench.script.sent_apis().count("OffsetFetch") == 2


def test_last_heartbeat_of_a_task_fails_after_the_timeout() -> None:
    bench = Bench()
    bench.script.prepare("Heartbeat", *[RequestTimeoutError("No response.")] * 100)
    heartbeat = TaskHeartbeat(bench.cluster, group_id=GROUP, member_id="m", generation_id=1)
    with pytest.raises(NetworkError):
        heartbeat.check_now()
    assert 55_000 < bench.clock.now_ms() <= 62_000


# -- settings and closing --------------------------------------------------------------------------------------------


@pytest.mark.conformance("KC-098")
def test_assignors_of_one_name_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="names assignors with equal names: range, range"):
        Bench(assignors=("range", "range"))


@pytest.mark.conformance("KC-106")
def test_group_id_of_spaces_is_accepted() -> None:
    assert GroupSettings("  ", topics=("t",)).group_id == "  "


@pytest.mark.conformance("KC-066")
def test_closing_twice_leaves_once() -> None:
    bench = joined()
    bench.client.close()
    bench.client.close()
    assert len(bench.script.requests("LeaveGroup")) == 1


@pytest.mark.conformance("KC-062", "KC-063")
def test_leaving_without_a_response_ends_after_its_timeout() -> None:
    bench = joined()
    bench.script.prepare("LeaveGroup", *[RequestTimeoutError("No response.")] * 100)
    before = bench.clock.now_ms()
    bench.client.close()
    assert bench.clock.now_ms() - before <= 10_000
    assert bench.client.view.partitions == ()


def test_leader_without_new_metadata_keeps_its_assignment() -> None:
    bench = joined(client={"metadata_max_age_ms": 5_000})
    bench.clock.advance_ms(6_000)
    before = bench.clock.now_ms()
    bench.script.prepare("Metadata", *[RequestTimeoutError("No response.")] * 100)
    assert bench.poll().partitions == (T0, T1)
    assert bench.script.requests("Metadata") and bench.clock.now_ms() - before <= 2_000


@pytest.mark.conformance("KC-071")
def test_topic_that_does_not_exist_has_no_partitions() -> None:
    bench = Bench()
    assert bench.cluster.metadata(["missing"]).partitions_of("missing") == ()


@pytest.mark.usefixtures("short_retries")
def test_unreachable_address_is_no_authentication_failure() -> None:
    with fake_broker() as broker, open_cluster(str(broker.address), **SASL) as client:
        with pytest.raises(NetworkError):
            client.metadata(["t"])
