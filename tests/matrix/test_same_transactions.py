"""Transactions on both brokers: requests that a correct producer does not send."""

from __future__ import annotations

import pytest
from support.clusters import Cluster
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetch_request, produce_request
from support.raw_transactions import RawTransactions, latest
from support.waiting import wait_until

from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    AddPartitionsToTxnRequest,
    DeleteRecordsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
)

NONE = ErrorCode.NONE
_NOW_MS = 1_790_000_000_000


@pytest.fixture
def connection(cluster: Cluster, topic: str):
    with RawConnection(cluster.bootstrap_servers) as opened:
        create_topic(opened, topic, 2)
        wait_until(lambda: latest(opened, topic, 0) == latest(opened, topic, 0, partition=1) == 0, "leaders")
        yield opened


def producer_of(connection: RawConnection, transactional_id: str) -> RawTransactions:
    producer = RawTransactions(connection, transactional_id)
    wait_until(lambda: producer.find() is NONE, "a coordinator")
    wait_until(lambda: producer.init() is NONE, "a producer id")
    return producer


def wait_until_complete(producer: RawTransactions) -> None:
    def is_complete() -> bool:
        request = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
        (state,) = producer.connection.call(request, 0).transaction_states
        return state.transaction_state.startswith("Complete")

    wait_until(is_complete, "the markers are written")


def send(
    producer: RawTransactions, topic: str, sequence: int, version: int = 9, *, epoch: int | None = None,
    partition: int = 0, transactional: bool = True, named: bool = True, damaged: bool = False, codec: int = 0,
    acks: int = -1,
) -> tuple[ErrorCode, int]:  # fmt: skip
    """Returns the error and the log start offset of the response."""
    data = bytearray(
        batch(
            b"x", timestamp_ms=_NOW_MS, producer_id=producer.producer_id, base_sequence=sequence,
            producer_epoch=producer.epoch if epoch is None else epoch, transactional=transactional, codec=codec,
        )
    )  # fmt: skip
    data[-1] ^= damaged
    request = produce_request(
        topic, bytes(data), partition, transactional_id=producer.transactional_id if named else None, acks=acks
    )
    response = producer.connection.call(request, version).responses[0].partition_responses[0]
    return ErrorCode(response.error_code), response.log_start_offset


@pytest.mark.conformance("PS-048", "PS-050")
def test_a_failed_verification_is_remembered_with_the_lowest_sequence(connection, topic, group):
    producer = producer_of(connection, group)
    assert [send(producer, topic, sequence)[0] for sequence in (4, 2, 3)] == [ErrorCode.INVALID_TXN_STATE] * 3
    # also of a producer epoch that does not exist, and then for the batches of every epoch and without transaction
    assert send(producer, topic, 1, epoch=3)[0] is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(producer, topic, 2, transactional=False) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert producer.add(topic, 0) == [NONE]
    assert send(producer, topic, 2) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert [send(producer, topic, sequence) for sequence in (1, 2)] == [(NONE, 0)] * 2


def test_transactional_batches_are_verified_before_they_are_validated(connection, topic, group):
    producer = producer_of(connection, group)
    assert send(producer, topic, 0, named=False, damaged=True) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
    assert send(producer, topic, 0, damaged=True) == (ErrorCode.INVALID_TXN_STATE, -1)
    assert send(producer, topic, -1, epoch=-1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert producer.add(topic, 0) == [NONE]
    assert send(producer, topic, 0, damaged=True)[0] is ErrorCode.CORRUPT_MESSAGE
    assert send(producer, topic, 0) == (NONE, 0)
    assert producer.end(True) is NONE
    wait_until_complete(producer)
    assert producer.init() is NONE and producer.add(topic, 0) == [NONE]
    assert send(producer, topic, 0) == (NONE, 0)
    assert send(producer, topic, 0, epoch=producer.epoch - 1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_the_format_is_checked_before_the_transaction_and_this_before_everything_else(connection, topic, group):
    producer, internal = producer_of(connection, group), "__transaction_state"
    outside = ErrorCode.INVALID_TXN_STATE
    for version, codec, expected in ((6, 4, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, 4, outside), (6, 0, outside)):
        assert send(producer, topic, 0, version, codec=codec)[0] is expected
        assert send(producer, internal, 0, version, codec=codec)[0] is expected
        assert send(producer, topic, 0, version, codec=codec, acks=5)[0] is expected
    assert send(producer, topic, 0, 6, codec=4, partition=7)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert send(producer, topic, 0, 6, named=False, codec=4)[0] is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    plain = {"transactional": False, "named": False}
    assert send(producer, internal, 0, 6, codec=4, **plain)[0] is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert send(producer, internal, 0, acks=5, **plain)[0] is ErrorCode.INVALID_REQUIRED_ACKS
    assert send(producer, internal, 0, damaged=True, **plain)[0] is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert send(producer, topic, 0, 6, damaged=True, codec=4, **plain)[0] is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_produce_version_12_adds_the_partition_to_the_transaction(connection, topic, group):
    producer = producer_of(connection, group)
    assert send(producer, topic, 3, 12) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert send(producer, topic, 0, 12) == send(producer, topic, 0, 12, partition=1) == (NONE, 0)
    assert producer.end(True) is NONE
    wait_until_complete(producer)
    assert latest(connection, topic, 1) == latest(connection, topic, 1, partition=1) == 2


def test_an_idempotent_batch_without_epoch_is_stored(connection, topic, group):
    producer = producer_of(connection, group)
    assert send(producer, topic, 7, epoch=-1, transactional=False, named=False) == (NONE, 0)
    assert send(producer, topic, 5, epoch=-1, transactional=False, named=False) == (NONE, 0)


def test_offset_commits_are_verified_until_the_first_of_a_transaction(connection, topic, group):
    producer, stranger = producer_of(connection, group), RawTransactions(connection, "stranger")
    stranger.producer_id, stranger.epoch = producer.producer_id, producer.epoch
    assert producer.commit_offset("", topic, 1) == [ErrorCode.INVALID_GROUP_ID]
    assert producer.add_offsets(group) is NONE
    connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)  # Kafka creates the topic
    foreign = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    wait_until(lambda: stranger.commit_offset(group, topic, 1) == foreign, "a coordinator of the transaction")
    wait_until(lambda: producer.commit_offset(group, topic, 1) == [NONE], "a loaded coordinator of the group")
    assert stranger.commit_offset(group, topic, 1) == [NONE]
    stranger.producer_id += 10_000
    assert stranger.commit_offset(group, topic, 1) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producer.end(False) is NONE


def test_partitions_that_occur_twice_in_a_failed_request_are_returned_once(connection, topic, group):
    producer = producer_of(connection, group)
    failed = producer.add(topic, 7, 0, 0)
    assert sorted(failed) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED]
    assert producer.add(topic, 1, 0, 0) == [NONE] * 3


def test_topics_that_occur_twice_in_a_failed_request_are_returned_once(connection, topic, group):
    producer = producer_of(connection, group)
    row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

    def results(*topics: tuple[str, list[int]]) -> list[tuple[str, dict[int, int]]]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=group, v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[row(name=name, partitions=numbers) for name, numbers in topics],
        )  # fmt: skip
        found = connection.call(request, 3).results_by_topic_v3_and_below
        return [(t.name, {p.partition_index: p.partition_error_code for p in t.results_by_partition}) for t in found]

    refused, not_attempted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    found = results((topic, [0]), ("unknown", [3]), (topic, [1, 7]), ("unknown", [4]))
    assert sorted(found, key=lambda each: each[0]) == [
        (topic, {0: not_attempted, 1: not_attempted, 7: refused}), ("unknown", {3: refused, 4: refused}),
    ]  # fmt: skip
    assert results((topic, [0]), (topic, [1])) == [(topic, {0: NONE}), (topic, {1: NONE})]


def test_clients_neither_write_to_nor_delete_from_internal_topics(connection, group):
    producer, name = producer_of(connection, group), "__transaction_state"
    assert producer.add(name, 0, 99) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    row = DeleteRecordsRequest.DeleteRecordsTopic
    numbers = [row.DeleteRecordsPartition(partition_index=number, offset=-1) for number in (0, 999)]
    request = DeleteRecordsRequest(topics=[row(name=name, partitions=numbers)], timeout_ms=1_000)
    found = connection.call(request, 2).topics[0].partitions
    assert {entry.partition_index: ErrorCode(entry.error_code) for entry in found} == {
        0: ErrorCode.INVALID_TOPIC_EXCEPTION, 999: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip


def test_every_state_of_kafka_is_a_known_filter(connection, group):
    producer_of(connection, group)
    names = ["Ongoing", "Dead", "PrepareEpochFence", "ongoing", "dead", "x"]
    request = ListTransactionsRequest(state_filters=names, producer_id_filters=[], duration_filter=-1)
    found = connection.call(request, 1)
    assert (found.error_code, sorted(found.unknown_state_filters)) == (0, ["dead", "ongoing", "x"])


def test_the_latest_timestamp_may_be_below_the_log_start_offset(connection, topic):
    request = produce_request(topic, batch(b"a", b"b", timestamp_ms=5_000))
    assert connection.call(request, 9).responses[0].partition_responses[0].error_code == 0
    row = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = row(name=topic, partitions=[row.DeleteRecordsPartition(partition_index=0, offset=-1)])
    deleted = connection.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=1_000), 2).topics[0].partitions[0]
    assert (deleted.error_code, deleted.low_watermark) == (0, 2)
    assert latest(connection, topic, 0, timestamp=-3) == 1
    request = produce_request(topic, batch(b"c", timestamp_ms=-1), partition=1)
    assert connection.call(request, 9).responses[0].partition_responses[0].error_code == 0
    assert latest(connection, topic, 0, timestamp=-3, partition=1) == 0


def test_a_diverging_epoch_has_no_list_of_aborted_transactions(connection, topic):
    assert connection.call(produce_request(topic, batch(b"a")), 9).responses[0].partition_responses[0].error_code == 0
    request = fetch_request(topic, 9)
    request.isolation_level, request.topics[0].partitions[0].last_fetched_epoch = 1, 0
    found = connection.call(request, 12).responses[0].partitions[0]
    assert (found.error_code, found.diverging_epoch.end_offset, found.aborted_transactions) == (0, 1, None)
