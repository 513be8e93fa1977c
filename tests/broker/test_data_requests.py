"""Produce and Fetch: error codes, producer state, limits of a response."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Iterator

import pytest
from support.broker_without_sockets import TOPICS, BrokerWithoutSockets
from support.partition_logs import batch

from spark_groupsource.broker.storage import segment
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ErrorCode, RemoteProtocolError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import FetchRequest, ProduceRequest

NOW = 1_700_000_000_000
RECORD = Record(None, b"v", NOW)
GOOD = batch(b"v", timestamp_ms=NOW)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[BrokerWithoutSockets]:
    running = BrokerWithoutSockets(tmp_path)
    yield running
    running.broker.stop()


def produce_request(clients: BrokerWithoutSockets, records: bytes | None, version: int = 9, acks: int = 1) -> Any:
    """A Produce of one batch for partition a-0."""
    topic_class = ProduceRequest.TopicProduceData
    data = topic_class.PartitionProduceData(index=0, records=records)
    entry = clients.broker.partitions.topic("a")
    key: dict[str, Any] = {"name": "a"} if version < 13 else {"topic_id": entry.topic_id}
    return ProduceRequest(
        transactional_id=None, acks=acks, timeout_ms=1_000, topic_data=[topic_class(partition_data=[data], **key)]
    )


def sent(clients: BrokerWithoutSockets, request: Any, version: int = 9) -> ErrorCode:
    ((result,),) = (topic.partition_responses for topic in clients.call(request, version).responses)
    return ErrorCode(result.error_code)


def produce(clients: BrokerWithoutSockets, records: bytes | None, version: int = 9, acks: int = 1) -> ErrorCode:
    return sent(clients, produce_request(clients, records, version, acks), version)


def end_of(clients: BrokerWithoutSockets) -> int:
    found: int = clients.partition("a", 0).log.log_end_offset
    return found


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends_batches_of_any_size(clients, version):
    ends = []
    for count in (1, 2, 200, 1_000):
        assert produce(clients, batch(*[b"v" * 30] * count, timestamp_ms=NOW), version) is ErrorCode.NONE
        ends.append(end_of(clients))
    assert ends == [1, 3, 203, 1_203]


def idempotent(sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    return encode_batch([RECORD] * count, producer_id=5, producer_epoch=epoch, base_sequence=sequence)


def test_sequence_numbers_and_epochs_of_producers_are_checked(clients):
    for sequence in range(10):
        assert produce(clients, idempotent(sequence), acks=-1) is ErrorCode.NONE
    assert produce(clients, idempotent(9), acks=-1) is ErrorCode.NONE
    assert end_of(clients) == 10  # the last one is a duplicate
    assert produce(clients, idempotent(15), acks=-1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(clients, idempotent(10, count=3), acks=-1) is ErrorCode.NONE
    assert produce(clients, idempotent(0, epoch=1), acks=-1) is ErrorCode.NONE
    assert produce(clients, idempotent(13), acks=-1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_of(clients) == 14


REJECTED = {
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "truncated": (GOOD[:-1], ErrorCode.INVALID_RECORD),
    "changed": (GOOD[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE),
    "two batches": (GOOD * 2, ErrorCode.INVALID_RECORD),
    "no records": (GOOD[:57] + bytes(4), ErrorCode.INVALID_RECORD),
    "control": (batch(b"v", control=True), ErrorCode.INVALID_RECORD),
    "transactional": (
        encode_batch([RECORD], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "no sequence": (encode_batch([RECORD], producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "offsets": (encode_batch([RECORD, RECORD._replace(offset_delta=3)]), ErrorCode.INVALID_RECORD),
    "too large": (batch(b"v" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    "format v1": (GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "far in the future": (batch(b"v", timestamp_ms=NOW + 10_000_000), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("kind", REJECTED)
def test_a_rejected_batch_is_not_appended(clients, kind, version):
    produce(clients, GOOD, version)
    records, code = REJECTED[kind]
    assert produce(clients, records, version) is code
    assert end_of(clients) == 1


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_id_is_not_that_of_the_recreated_topic(clients, version):
    produce(clients, GOOD, version)
    request = produce_request(clients, GOOD, version)
    run_at_once(clients.broker.delete_topic("a"))
    run_at_once(clients.broker.create_topic("a", TOPICS["a"], {}))
    assert sent(clients, request, version) is (ErrorCode.NONE if version == 12 else ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("acks", [1, 0])
def test_a_failed_append_is_tried_once(clients, monkeypatch, acks):
    clients.call(produce_request(clients, GOOD, acks=acks), 9)
    tried = []

    def full_disk(*_: Any) -> None:
        tried.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment, "write_exactly", full_disk)
    if acks:
        assert produce(clients, GOOD) is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        with pytest.raises(RemoteProtocolError, match="acks=0 failed for a-0 .KAFKA_STORAGE_ERROR"):
            clients.call(produce_request(clients, GOOD, acks=0), 9)
    assert (len(tried), end_of(clients)) == (1, 1)


def fetch_request(max_bytes: int) -> FetchRequest:
    """A full fetch of all partitions from offset 0."""
    topic_class = FetchRequest.FetchTopic

    def topic(name: str, count: int) -> Any:
        rows = [
            topic_class.FetchPartition(
                partition=number, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
                partition_max_bytes=max_bytes,
            )
            for number in range(count)
        ]  # fmt: skip
        return topic_class(topic=name, partitions=rows)

    return FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[topic(*each) for each in TOPICS.items()], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


def test_a_response_has_at_most_fetch_max_bytes(tmp_path):
    clients = BrokerWithoutSockets(tmp_path, {"fetch.max.bytes": "1024"})
    try:
        clients.broker.fetch_manager.available_bytes = lambda: 1 << 20
        for name, count in TOPICS.items():
            for number in range(count):
                clients.partition(name, number).append(batch(*[b"x" * 50] * 10, timestamp_ms=NOW), NOW)
        response = clients.call(fetch_request(1 << 20), 11)
        sizes = [len(entry.records or b"") for topic in response.responses for entry in topic.partitions]
        assert len(sizes) == 6 and 0 < sum(sizes) <= 1_024
    finally:
        clients.broker.stop()


@pytest.mark.slow
def test_partitions_of_a_deleted_topic_are_not_kept(clients):
    for _ in range(3):
        produce(clients, GOOD)
        clients.call(fetch_request(1_000), 11)
    run_at_once(clients.broker.delete_topic("a"))
    gc.collect()
    kept = [each.topic_partition for each in gc.get_objects() if isinstance(each, Partition)]
    assert TopicPartition("b", 0) in kept and TopicPartition("a", 0) not in kept
