"""Error codes that are retried or raised, as by Kafka's consumer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from support.scripted_group import GROUP, T0, Bench

from spark_groupsource.client.cluster.cluster_client import LATEST
from spark_groupsource.client.cluster.error_rules import (
    DELETE_RECORDS,
    FETCH,
    LEADER_EPOCHS,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Action,
    ErrorRules,
)
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.wire.messages import DeleteRecordsResponse, OffsetForLeaderEpochResponse

E = ErrorCode
MOVED_LEADER = {
    E.NOT_LEADER_OR_FOLLOWER,
    E.REPLICA_NOT_AVAILABLE,
    E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.UNKNOWN_TOPIC_OR_PARTITION,
}
# (rules, retried by Kafka's client, raised by it)
KAFKA = {
    "OffsetFetcherUtils": (
        LIST_OFFSETS,
        MOVED_LEADER | {E.LEADER_NOT_AVAILABLE, E.UNKNOWN_SERVER_ERROR, E.REQUEST_TIMED_OUT, E.CORRUPT_MESSAGE},
        {E.TOPIC_AUTHORIZATION_FAILED},
    ),
    "OffsetsForLeaderEpochUtils": (
        LEADER_EPOCHS,
        MOVED_LEADER | {E.LEADER_NOT_AVAILABLE, E.UNKNOWN_SERVER_ERROR},
        {E.TOPIC_AUTHORIZATION_FAILED},
    ),
    "FetchCollector": (
        FETCH,
        MOVED_LEADER | {E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID, E.UNKNOWN_SERVER_ERROR},
        {E.TOPIC_AUTHORIZATION_FAILED, E.CORRUPT_MESSAGE, E.INVALID_FETCH_SIZE},
    ),
    "DeleteRecordsHandler": (
        DELETE_RECORDS,
        MOVED_LEADER | {E.LEADER_NOT_AVAILABLE, E.REQUEST_TIMED_OUT},
        {E.TOPIC_AUTHORIZATION_FAILED, E.OFFSET_OUT_OF_RANGE, E.POLICY_VIOLATION},
    ),
    "ConsumerCoordinator.OffsetFetchResponseHandler": (
        OFFSET_FETCH,
        {E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.UNSTABLE_OFFSET_COMMIT},
        {E.GROUP_AUTHORIZATION_FAILED, E.TOPIC_AUTHORIZATION_FAILED, E.UNKNOWN_TOPIC_OR_PARTITION},
    ),
    "ConsumerCoordinator.OffsetCommitResponseHandler": (
        OFFSET_COMMIT,
        {E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.UNKNOWN_TOPIC_OR_PARTITION},
        {
            E.GROUP_AUTHORIZATION_FAILED,
            E.TOPIC_AUTHORIZATION_FAILED,
            E.OFFSET_METADATA_TOO_LARGE,
            E.INVALID_COMMIT_OFFSET_SIZE,
            E.UNKNOWN_SERVER_ERROR,
        },
    ),
}


@pytest.mark.parametrize(("rules", "retried", "raised"), KAFKA.values(), ids=KAFKA)
def test_errors_are_retried_or_raised_as_by_kafka(
    rules: ErrorRules, retried: set[ErrorCode], raised: set[ErrorCode]
) -> None:
    assert {code for code in retried if rules.action(code) is not Action.RETRY} == set()
    assert {code for code in raised if rules.action(code) is not Action.RAISE} == set()


def failing_epochs(code: ErrorCode) -> Callable[[Any], Any]:
    def respond(request: Any) -> Any:
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        row = topic.EpochEndOffset(error_code=code, partition=0, leader_epoch=1, end_offset=10)
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[topic(topic="t", partitions=[row])])

    return respond


def failing_deletion(code: ErrorCode) -> Callable[[Any], Any]:
    def respond(request: Any) -> Any:
        topic = DeleteRecordsResponse.DeleteRecordsTopicResult
        row = topic.DeleteRecordsPartitionResult(partition_index=0, low_watermark=4, error_code=code)
        return DeleteRecordsResponse(throttle_time_ms=0, topics=[topic(name="t", partitions=[row])])

    return respond


CALLS: dict[str, tuple[ErrorRules, Callable[[Bench], object], Callable[[ErrorCode], Any]]] = {
    "ListOffsets": (LIST_OFFSETS, lambda bench: bench.cluster.list_offsets({T0: LATEST}), lambda code: code),
    "OffsetForLeaderEpoch": (
        LEADER_EPOCHS,
        lambda bench: bench.cluster.end_offsets_for_epochs({T0: 0}),
        failing_epochs,
    ),
    "DeleteRecords": (DELETE_RECORDS, lambda bench: bench.cluster.delete_records({T0: 4}), failing_deletion),
    "OffsetFetch": (OFFSET_FETCH, lambda bench: bench.cluster.fetch_committed(GROUP, [T0]), lambda code: code),
    "OffsetCommit": (
        OFFSET_COMMIT,
        lambda bench: bench.cluster.commit(GROUP, {T0: OffsetAndMetadata(1)}),
        lambda code: code,
    ),
}
OTHERS = {E.UNKNOWN_SERVER_ERROR, E.UNSUPPORTED_VERSION, E.UNSUPPORTED_FOR_MESSAGE_FORMAT, E.NOT_CONTROLLER}


@pytest.mark.parametrize("api", CALLS)
def test_call_follows_the_table_of_its_request(api: str) -> None:
    rules, call, step = CALLS[api]
    ((retried, raised),) = ((retried, raised) for each, retried, raised in KAFKA.values() if each is rules)
    for code in sorted((retried | raised | OTHERS) - {E.REQUEST_TIMED_OUT}):
        bench = Bench(client={"retry_backoff_ms": 1})
        bench.script.prepare(api, step(code), step(E.NONE))
        if rules.action(code) is Action.RAISE:
            with pytest.raises(BrokerError, match=code.name):
                call(bench)
            assert len(bench.script.requests(api)) == 1
        else:
            call(bench)
            expected = 1 if rules.action(code) is Action.NO_RESULT else 2
            assert len(bench.script.requests(api)) == expected, code


@pytest.mark.parametrize("api", ["ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"])
def test_metadata_are_requested_before_each_retry(api: str) -> None:
    _, call, step = CALLS[api]
    bench = Bench()
    bench.script.prepare(api, *[step(E.NOT_LEADER_OR_FOLLOWER)] * 2, step(E.NONE))
    call(bench)
    assert bench.script.sent_apis() == ["Metadata", api] * 3


def test_error_that_is_retried_until_the_timeout_is_retriable() -> None:
    """The session retries it, too, after its shorter waits."""
    bench = Bench()
    bench.script.prepare("ListOffsets", *[E.UNKNOWN_SERVER_ERROR] * 100)
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR") as raised:
        bench.cluster.list_offsets({T0: LATEST}, timeout_ms=2_000)
    assert raised.value.retriable and pickle.loads(pickle.dumps(raised.value)).retriable
    assert not BrokerError(E.UNKNOWN_SERVER_ERROR, "A call").retriable


# -- topic ids of commits --------------------------------------------------------------------------------------------

OLD, NEW = {"t": str(UUID(int=1))}, {"t": str(UUID(int=2))}


@pytest.mark.parametrize("serves_topic_ids", [True, False], ids=["by id", "by name"])
def test_commit_of_a_topic_that_was_recreated_is_rejected(serves_topic_ids: bool) -> None:
    """A coordinator before version 10 accepts names only: the client compares the metadata."""
    bench = Bench(client={"retry_backoff_ms": 1})
    bench.script.topic_ids, bench.script.serves_topic_ids = {"t": UUID(int=2)}, serves_topic_ids
    bench.cluster.commit(GROUP, {T0: OffsetAndMetadata(1)}, topic_ids=NEW)
    (accepted,) = bench.script.requests("OffsetCommit")
    assert accepted.topics[0].name == "t" and accepted.topics[0].topic_id == UUID(int=2)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_ID") as raised:
        bench.cluster.commit(GROUP, {T0: OffsetAndMetadata(1)}, topic_ids=OLD, timeout_ms=100)
    assert raised.value.code == E.UNKNOWN_TOPIC_ID
    assert bench.script.sent_apis().count("Metadata") == (0 if serves_topic_ids else 2)
    assert (len(bench.script.requests("OffsetCommit")) == 1) == (not serves_topic_ids)
