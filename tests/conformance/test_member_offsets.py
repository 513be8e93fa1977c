"""Commits and committed offsets as a client sees them: cases of Kafka's ConsumerCoordinatorTest."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_group import GROUP, T0, T1, U0, Bench, follower, joined

from spark_groupsource.client.membership.state_machine import Generation
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
    """Generation, member id and instance id of each OffsetCommit."""
    return [
        (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id)
        for request in bench.script.of("OffsetCommit")
    ]


# -- commits ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-078", "CC-111")
def test_simple_consumer_commits_without_joining() -> None:
    bench = Bench(group_instance_id="i")
    bench.cluster.commit(GROUP, AT_5)
    assert bench.script.asked() == ["FindCoordinator", "OffsetCommit"]
    assert commits(bench) == [(-1, "", None)]


@pytest.mark.conformance("CC-090")
def test_commit_after_leaving_is_a_simple_consumers() -> None:
    bench = joined()
    bench.client.close()
    bench.cluster.commit(GROUP, AT_5)
    assert commits(bench) == [(-1, "", None)]


@pytest.mark.conformance("CC-088")
def test_commit_carries_metadata_and_epoch() -> None:
    bench = joined()
    bench.client.commit(AT_5)
    (request,) = bench.script.of("OffsetCommit")
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
def test_commit_is_repeated_until_it_succeeds(failure: Any, lookups: int) -> None:
    bench = joined()
    bench.script.once("OffsetCommit", failure, failure)
    bench.client.commit(AT_5)
    assert bench.script.asked().count("OffsetCommit") == 3
    assert bench.script.asked().count("FindCoordinator") == 2 * lookups


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
def test_refused_commit_is_raised_at_once(code: ErrorCode) -> None:
    bench = joined()
    bench.script.once("OffsetCommit", code)
    with pytest.raises(BrokerError, match="t-0") as raised:
        bench.client.commit(AT_5)
    assert raised.value.code == code and bench.member.is_settled


@pytest.mark.conformance("CC-114")
def test_commit_without_an_answer_ends_at_its_timeout() -> None:
    bench = joined(client={"default_api_timeout_ms": 10_000, "request_timeout_ms": 4_000})
    bench.script.once("OffsetCommit", *[RequestTimeoutError("no answer")] * 100)
    started_ms = bench.clock.now_ms()
    with pytest.raises(NetworkError):
        bench.client.commit(AT_5)
    assert 8_000 <= bench.clock.now_ms() - started_ms <= 12_000


@pytest.mark.conformance("CC-101", "CC-102", "CC-104", "CC-108", "CC-140")
@pytest.mark.parametrize(
    "code, left",
    [
        (ErrorCode.ILLEGAL_GENERATION, Generation(-1, "m1", None)),
        (ErrorCode.UNKNOWN_MEMBER_ID, Generation()),
        (ErrorCode.FENCED_INSTANCE_ID, Generation()),
    ],
)
def test_commit_of_a_fenced_member_raises_and_resets_the_generation(code: ErrorCode, left: Generation) -> None:
    bench = joined()
    bench.script.once("OffsetCommit", code)
    with pytest.raises(GenerationMismatchError, match=code.name) as raised:
        bench.client.commit(AT_5)
    assert (raised.value.member_id, raised.value.generation_id) == ("m1", 1)
    assert bench.member.generation == left and bench.client.rejoin_needed
    bench.poll()
    assert bench.told == [("lost", (T0, T1))]


def after_reset(bench: Bench, code: ErrorCode) -> Any:
    """A commit whose response arrives after a heartbeat response has reset the member's generation."""

    def step(request: Any) -> Any:
        bench.script.once("Heartbeat", code)
        bench.beat()
        return bench.script._OffsetCommit(request, code)

    return step


@pytest.mark.conformance("CC-105", "CC-107")
@pytest.mark.parametrize(
    "code, left",
    [(ErrorCode.ILLEGAL_GENERATION, Generation(-1, "m1", None)), (ErrorCode.UNKNOWN_MEMBER_ID, Generation())],
)
def test_commit_fails_if_the_generation_was_reset_meanwhile(code: ErrorCode, left: Generation) -> None:
    bench = joined()
    bench.script.once("OffsetCommit", after_reset(bench, code))
    with pytest.raises(GenerationMismatchError, match=code.name):
        bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", None)], "the commit is not retried"
    assert bench.member.generation == left and bench.client.rejoin_needed


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_commit_of_a_member_without_generation_is_not_sent(code: ErrorCode) -> None:
    bench = joined()
    bench.script.once("Heartbeat", code)
    bench.beat()
    with pytest.raises(GenerationMismatchError, match=code.name):
        bench.client.commit(AT_5)
    assert commits(bench) == []


def advancing(bench: Bench, code: ErrorCode) -> Any:
    """A commit during which the member's own thread gets through a round."""

    def step(request: Any) -> Any:
        bench.pump()
        return bench.script._OffsetCommit(request, code)

    return step


@pytest.mark.conformance("CC-103", "CC-106", "CC-109")
@pytest.mark.parametrize("code", FENCING)
def test_commit_during_a_rebalance_is_retried_in_the_new_generation(code: ErrorCode) -> None:
    bench = follower(T0, **COOPERATIVE)
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.script.once("OffsetCommit", advancing(bench, code))
    bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", None), (2, "m1", None)]
    assert bench.member.generation == Generation(2, "m1", "cooperative-sticky")
    assert bench.settle().partitions == (T0,)


@pytest.mark.parametrize("code", FENCING)
def test_commit_that_is_refused_in_the_new_generation_too_is_final(code: ErrorCode) -> None:
    bench = follower(T0, **COOPERATIVE)
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.script.once("OffsetCommit", advancing(bench, code), code)
    with pytest.raises(GenerationMismatchError, match="generation 2"):
        bench.client.commit(AT_5)


def test_commit_waits_while_the_group_has_no_assignment_yet() -> None:
    bench = joined()
    bench.script.once("OffsetCommit", *[ErrorCode.REBALANCE_IN_PROGRESS] * 2)
    bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", None)] * 3
    assert bench.member.rejoin_needed and bench.member.generation.generation_id == 1
    assert bench.member.rejoin_reason == "offset commit failed since group is already rebalancing"


def test_static_member_commits_under_its_instance_id() -> None:
    bench = joined(group_instance_id="i")
    bench.client.commit(AT_5)
    assert commits(bench) == [(1, "m1", "i-0")]


# -- committed offsets -----------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-117", "CC-122")
def test_committed_offsets_come_with_epoch_and_metadata() -> None:
    bench = joined()
    bench.script.committed = AT_5
    assert bench.client.committed([T0, T1]) == {**AT_5, T1: None}


@pytest.mark.conformance("CC-118")
def test_all_topics_that_are_not_authorized_are_named() -> None:
    bench = joined()
    refused = {T0: ErrorCode.TOPIC_AUTHORIZATION_FAILED, U0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    bench.script.once("OffsetFetch", lambda request: bench.script.fetch_answer(request, refused))
    with pytest.raises(BrokerError, match="group 'g' failed: TOPIC_AUTHORIZATION_FAILED.* on t, u"):
        bench.client.committed([T0, T1, U0])


@pytest.mark.conformance("CC-119")
def test_group_that_may_not_be_read_is_raised() -> None:
    bench = joined()
    bench.script.once("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        bench.client.committed([T0])


@pytest.mark.conformance("CC-120", "CC-150")
def test_offsets_of_open_transactions_are_waited_for() -> None:
    bench = joined()
    bench.script.committed = AT_5
    unstable = {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    bench.script.once("OffsetFetch", *[lambda request: bench.script.fetch_answer(request, unstable)] * 3)
    started_ms = bench.clock.now_ms()
    assert bench.client.committed([T0]) == AT_5
    requests = bench.script.of("OffsetFetch")
    assert len(requests) == 4 and all(request.require_stable for request in requests)
    assert bench.clock.now_ms() - started_ms >= 0.8 * (100 + 200 + 400)


@pytest.mark.conformance("CC-121")
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_other_errors_of_a_partition_are_raised_at_once(code: ErrorCode) -> None:
    bench = joined()
    bench.script.once("OffsetFetch", lambda request: bench.script.fetch_answer(request, {T1: code}))
    with pytest.raises(BrokerError, match=f"t-1.*{code.name}"):
        bench.client.committed([T0, T1])
    assert len(bench.script.of("OffsetFetch")) == 1
