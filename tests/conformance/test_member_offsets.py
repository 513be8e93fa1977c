"""Kafka's ConsumerCoordinatorTest: commits and committed offsets."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_group import GROUP, T0, T1, U0, Bench, follower, joined

from spark_groupsource.client.membership.membership_values import Generation
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
    RequestTimeoutError,
)
from spark_groupsource.model import OffsetAndMetadata

COOPERATIVE = {"assignors": ("cooperative-sticky",)}
AT_5 = {T0: OffsetAndMetadata(5, "by a test", 3)}
FENCING = [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]


def commits(bench: Bench) -> list[tuple[int, str, str | None]]:
    """Returns generation, member id and group instance id of each OffsetCommit."""
    return [
        (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id)
        for request in bench.script.requests("OffsetCommit")
    ]


# -- commits ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-078", "CC-111")
@pytest.mark.conformance("KC-033")
def test_simple_consumer_commits_without_joining() -> None:
    bench = Bench(group_instance_id="i")
    bench.cluster.commit(GROUP, AT_5)
    assert bench.script.sent_apis() == ["FindCoordinator", "OffsetCommit"]
    assert commits(bench) == [(-1, "", None)]


@pytest.mark.conformance("CC-090")
def test_commit_after_leaving_is_that_of_a_simple_consumer() -> None:
    bench = joined()
    bench.client.close()
    bench.cluster.commit(GROUP, AT_5)
    assert commits(bench) == [(-1, "", None)]


@pytest.mark.conformance("CC-088")
def test_commit_has_metadata_and_leader_epoch() -> None:
    bench = joined()
    bench.client.commit(AT_5)
    (request,) = bench.script.requests("OffsetCommit")
    ((partition,),) = (topic.partitions for topic in request.topics)
    assert (partition.committed_offset, partition.committed_metadata) == (5, "by a test")
    assert partition.committed_leader_epoch == 3 and commits(bench) == [(1, "m1", None)]


@pytest.mark.conformance("CC-095", "CC-096", "CC-097", "CC-099")
@pytest.mark.parametrize(
    "failure, lookups",
    [
        (ErrorCode.NOT_COORDINATOR, 1),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 1),
        (ErrorCode.REQUEST_TIMED_OUT, 1),
        (NetworkError("peer closed"), 1),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ],
)
def test_commit_is_retried_until_it_succeeds(failure: Any, lookups: int) -> None:
    bench = joined()
    bench.script.prepare("OffsetCommit", failure, failure)
    bench.client.commit(AT_5)
    assert bench.script.sent_apis().count("OffsetCommit") == 3
    assert bench.script.sent_apis().count("FindCoordinator") == 2 * lookups


@pytest.mark.conformance("CC-100", "CC-113")
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_rejected_commit_is_raised_without_retry(code: ErrorCode) -> None:
    bench = joined()
    bench.script.prepare("OffsetCommit", code)
    with pytest.raises(BrokerError, match="t-0") as raised:
        bench.client.commit(AT_5)
    assert raised.value.code == code and bench.member.is_settled


@pytest.mark.conformance("CC-114")
def test_commit_without_a_response_ends_at_its_timeout() -> None:
    bench = joined(client={"default_api_timeout_ms": 10_000, "request_timeout_ms": 4_000})
    bench.script.prepare("OffsetCommit", *[RequestTimeoutError("no response")] * 100)
    started_ms = bench.clock.now_ms()
    with pytest.raises(NetworkError):
        bench.client.commit(AT_5)
    assert 8_000 <= bench.clock.now_ms() - started_ms <= 12_000


@pytest.mark.conformance("CC-101", "CC-102", "CC-104", "CC-108")
@pytest.mark.parametrize(
    "code, left",
    [
        (ErrorCode.ILLEGAL_GENERATION, Generation(-1, "m1", None)),
        (ErrorCode.UNKNOWN_MEMBER_ID, Generation()),
    ],
)
def test_commit_of_a_fenced_member_raises_and_resets_the_generation(code: ErrorCode, left: Generation) -> None:
    bench = joined()
    bench.script.prepare("OffsetCommit", code)
    with pytest.raises(GenerationMismatchError, match=code.name) as raised:
        bench.client.commit(AT_5)
    assert (raised.value.member_id, raised.value.generation_id) == ("m1", 1)
    assert bench.member.generation == left and bench.client.rejoin_needed
    bench.poll()
    assert bench.callbacks() == [("lost", (T0, T1))]


@pytest.mark.conformance("CC-140")
def test_commit_of_a_replaced_static_member_ends_its_membership() -> None:
    bench = joined(group_instance_id="i")
    bench.script.prepare("OffsetCommit", ErrorCode.FENCED_INSTANCE_ID)
    with pytest.raises(GenerationMismatchError, match="FENCED_INSTANCE_ID"):
        bench.client.commit(AT_5)
    assert bench.client.rejoin_needed
    with pytest.raises(GenerationMismatchError, match="FENCED_INSTANCE_ID"):
        bench.poll()
    bench.run_members()
    assert bench.script.requests("JoinGroup") == [], "a join would fence the process that replaced this one"


def after_reset(bench: Bench, code: ErrorCode) -> Any:
    """Returns a step: an error response, after a heartbeat response has reset the member's generation."""

    def step(request: Any) -> Any:
        bench.script.prepare("Heartbeat", code)
        bench.heartbeat()
        return bench.script.default_response(request, code)

    return step


@pytest.mark.conformance("CC-105", "CC-107")
@pytest.mark.parametrize(
    "code, left",
    [(ErrorCode.ILLEGAL_GENERATION, Generation(-1, "m1", None)), (ErrorCode.UNKNOWN_MEMBER_ID, Generation())],
)
def test_commit_fails_if_the_generation_is_reset_before_its_response(code: ErrorCode, left: Generation) -> None:
    bench = joined()
    bench.script.prepare("OffsetCommit", after_reset(bench, code))
    with pytest.raises(GenerationMismatchError, match=code.name):
        bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", None)], "the commit is not retried"
    assert bench.member.generation == left and bench.client.rejoin_needed


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_commit_of_a_member_without_generation_is_not_sent(code: ErrorCode) -> None:
    bench = joined()
    bench.script.prepare("Heartbeat", code)
    bench.heartbeat()
    with pytest.raises(GenerationMismatchError, match=code.name):
        bench.client.commit(AT_5)
    assert commits(bench) == []


def advancing(bench: Bench, code: ErrorCode) -> Any:
    """Returns a step: an error response, after the member's thread has completed a rebalance."""

    def step(request: Any) -> Any:
        bench.run_members()
        return bench.script.default_response(request, code)

    return step


@pytest.mark.conformance("CC-103", "CC-106", "CC-109")
@pytest.mark.parametrize("code", FENCING)
def test_commit_during_a_rebalance_is_retried_in_the_new_generation(code: ErrorCode) -> None:
    bench = follower(T0, **COOPERATIVE)
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.script.prepare("OffsetCommit", advancing(bench, code))
    bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", None), (2, "m1", None)]
    assert bench.member.generation == Generation(2, "m1", "cooperative-sticky")
    assert bench.settle().partitions == (T0,)


@pytest.mark.parametrize("code", FENCING)
def test_commit_that_is_rejected_in_the_new_generation_too_is_not_retried(code: ErrorCode) -> None:
    bench = follower(T0, **COOPERATIVE)
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.script.prepare("OffsetCommit", advancing(bench, code), code)
    with pytest.raises(GenerationMismatchError, match="generation 2"):
        bench.client.commit(AT_5)


def test_commit_is_retried_while_the_group_completes_its_rebalance() -> None:
    bench = joined()
    bench.script.prepare("OffsetCommit", *[ErrorCode.REBALANCE_IN_PROGRESS] * 2)
    bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", None)] * 3
    # the member has its assignment of this generation: the response is late, and another JoinGroup would be in vain
    assert bench.member.is_settled and bench.member.generation.generation_id == 1


def test_static_member_commits_under_its_instance_id() -> None:
    bench = joined(group_instance_id="i")
    bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", "i-0")]


# -- committed offsets -----------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-117", "CC-122")
def test_committed_offsets_have_leader_epoch_and_metadata() -> None:
    bench = joined()
    bench.script.committed = AT_5
    assert bench.client.committed([T0, T1]) == {**AT_5, T1: None}


@pytest.mark.conformance("CC-118")
def test_error_names_all_topics_that_are_not_authorized() -> None:
    bench = joined()
    errors = {T0: ErrorCode.TOPIC_AUTHORIZATION_FAILED, U0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    bench.script.prepare("OffsetFetch", lambda request: bench.script.fetch_response(request, errors))
    with pytest.raises(BrokerError, match="group 'g' failed: TOPIC_AUTHORIZATION_FAILED.* on t, u"):
        bench.client.committed([T0, T1, U0])


@pytest.mark.conformance("CC-119")
def test_group_authorization_error_is_raised() -> None:
    bench = joined()
    bench.script.prepare("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        bench.client.committed([T0])


@pytest.mark.conformance("CC-120", "CC-150")
@pytest.mark.conformance("KC-040", "KC-041", "KC-042")
def test_fetch_is_retried_while_a_transaction_is_open() -> None:
    bench = joined()
    bench.script.committed = AT_5
    unstable = {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    bench.script.prepare("OffsetFetch", *[lambda request: bench.script.fetch_response(request, unstable)] * 3)
    started_ms = bench.clock.now_ms()
    assert bench.client.committed([T0]) == AT_5
    requests = bench.script.requests("OffsetFetch")
    assert len(requests) == 4 and all(request.require_stable for request in requests)
    assert bench.clock.now_ms() - started_ms >= 0.8 * (100 + 200 + 400)


@pytest.mark.conformance("CC-121")
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_other_errors_of_a_partition_are_raised_without_retry(code: ErrorCode) -> None:
    bench = joined()
    bench.script.prepare("OffsetFetch", lambda request: bench.script.fetch_response(request, {T1: code}))
    with pytest.raises(BrokerError, match=f"t-1.*{code.name}"):
        bench.client.committed([T0, T1])
    assert len(bench.script.requests("OffsetFetch")) == 1
