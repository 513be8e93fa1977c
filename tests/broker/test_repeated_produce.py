"""Produce requests that a connection repeats: responses and logs, after any change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.partition_logs import batch
from support.repeating_clients import REQUESTS, TOPICS, RepeatingClients

from spark_groupsource.broker.api import dispatch, repeated_produce
from spark_groupsource.broker.repeated_produce import produce_pattern
from spark_groupsource.errors import ErrorCode, RemoteProtocolError, StorageError
from spark_groupsource.model import Node
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage import segment
from spark_groupsource.storage.steps import run_steps
from spark_groupsource.wire.frames import decode_response, encode_request
from spark_groupsource.wire.messages import FetchRequest, ProduceRequest

Topic = ProduceRequest.TopicProduceData
Data = Topic.PartitionProduceData
VERSIONS = range(3, 14)
NOW = 1_700_000_000_000


class Producers:
    """Two brokers that get the same requests: one over a connection that repeats them, one over new connections."""

    def __init__(self, directory: Path, config: Mapping[str, str] = {}) -> None:
        self.repeated, self.once = (RepeatingClients(directory / name, config) for name in ("repeated", "once"))
        self.both = (self.repeated, self.once)

    @property
    def was_repeated(self) -> bool:
        return self.repeated.was_repeated

    def request(self, clients: RepeatingClients, records: bytes | None, version: int, **fields: Any) -> ProduceRequest:
        name, number = fields.get("topic", "a"), fields.get("number", 0)
        entry = clients.broker.partitions.topics.get(name)
        key = {"name": name} if version < 13 else {"topic_id": None if entry is None else entry.topic_id}
        return ProduceRequest(
            transactional_id=fields.get("transactional_id"), acks=fields.get("acks", 1), timeout_ms=1_000,
            topic_data=[Topic(partition_data=[Data(index=number, records=records)], **key)],
        )  # fmt: skip

    def send(self, records: bytes | None, version: int = 9, **fields: Any) -> ErrorCode:
        """Sends the request to both brokers; returns the error code of the response, which both of them give."""
        found = []
        for clients, call in ((self.repeated, self.repeated.repeat), (self.once, self.once.call_once)):
            request = self.request(clients, records, version, **fields)
            response = call(request, version)
            for entry in clients.broker.partitions.topics.values():
                response = response and response.replace(entry.topic_id.bytes, bytes(16))
            found.append(response)
        assert found[0] == found[1]
        assert self.logs(self.repeated) == self.logs(self.once)
        return ErrorCode.NONE if found[0] is None else error_of(found[0], request, version)

    def logs(self, clients: RepeatingClients) -> list[Any]:
        logs = []
        for name, count in TOPICS.items():
            for number in range(count):
                partition = clients.partition(name, number)
                if partition is not None:
                    log = partition.log
                    producers = {key: vars_of(value) for key, value in partition.producers().items()}
                    logs.append((name, number, log.log_end_offset, _content(log), producers))
        return logs

    def begin(self, version: int = 9, most: int = REQUESTS, **fields: Any) -> None:
        for number in range(most):
            assert self.send(batch(b"x" * number, timestamp_ms=NOW), version, **fields) is ErrorCode.NONE
            if self.was_repeated:
                return
        raise AssertionError("the requests are not repeated ones")

    def stop(self) -> None:
        for clients in self.both:
            clients.broker.stop()


def vars_of(entry: Any) -> tuple[Any, ...]:
    return tuple(getattr(entry, name) for name in type(entry).__slots__)


def _content(log: Any) -> bytes:
    return bytes(log.read(log.log_start_offset, 1 << 24)) if log.log_end_offset > log.log_start_offset else b""


@pytest.fixture
def producers(tmp_path: Path) -> Iterator[Producers]:
    running = Producers(tmp_path)
    yield running
    running.stop()


def error_of(response: bytes, request: Any, version: int) -> ErrorCode:
    (topic,) = decode_response(memoryview(response)[4:], request, version, 5).responses
    (row,) = topic.partition_responses
    assert row.index == request.topic_data[0].partition_data[0].index
    return ErrorCode(row.error_code)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_of_any_size_for_any_partition_are_repeated_ones(producers, version):
    producers.begin(version)
    for number, count in enumerate((1, 2, 200, 1, 1_000)):
        records = batch(*[b"v" * 30] * count, timestamp_ms=NOW)
        assert producers.send(records, version, number=number % 3) is ErrorCode.NONE
        assert producers.was_repeated


@pytest.mark.parametrize("acks", [-1, 0])
def test_other_acknowledgments_are_repeated_too(producers, monkeypatch, acks):
    for _ in range(REQUESTS):
        producers.send(batch(b"a", timestamp_ms=NOW), acks=acks)

    def decode(*_: Any) -> Any:
        raise AssertionError("a repeated request is not decoded")

    request = producers.request(producers.repeated, batch(b"last", timestamp_ms=NOW), 9, acks=acks)
    monkeypatch.setattr(dispatch, "decode_request", decode)
    assert (producers.repeated.repeat(request, 9) is None) is (acks == 0)
    assert b"last" in _content(producers.repeated.partition("a", 0).log)


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_batches_are_repeated_ones(producers, codec):
    producers.begin()
    producers.send(batch(b"a" * 500, b"b", timestamp_ms=NOW, codec=codec))
    assert producers.was_repeated


def test_a_delayed_fetch_is_completed(producers):
    producers.begin()
    clients = producers.repeated
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=clients.partition("a", 0).log.log_end_offset, partition_max_bytes=1_000,
        log_start_offset=-1, current_leader_epoch=-1,
    )  # fmt: skip
    topic = FetchRequest.FetchTopic(topic="a", partitions=[partition])
    request = FetchRequest(
        replica_id=-1, max_wait_ms=10_000, min_bytes=1, max_bytes=1_000, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[topic], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    manager, responses = clients.broker.fetch_manager, []
    manager._send = lambda token, response: responses.append((token, response))  # private: the sender is fixed
    steps = manager.fetch(77, 1, request, 11)
    with pytest.raises(StopIteration):
        next(steps)
    assert not responses
    producers.send(batch(b"new", timestamp_ms=NOW))
    assert producers.was_repeated
    ((token, response),) = responses
    assert token == 77 and b"new" in bytes(response.responses[0].partitions[0].records)


def idempotent(sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    records = [Record(None, b"v", NOW)] * count
    return encode_batch(records, producer_id=5, producer_epoch=epoch, base_sequence=sequence)


def test_idempotent_batches_are_checked(producers):
    for sequence in range(REQUESTS):
        producers.send(idempotent(sequence), acks=-1)
    assert producers.was_repeated
    end = producers.repeated.partition("a", 0).log.log_end_offset
    assert producers.send(idempotent(REQUESTS - 1), acks=-1) is ErrorCode.NONE
    assert producers.was_repeated
    assert producers.repeated.partition("a", 0).log.log_end_offset == end
    assert producers.send(idempotent(REQUESTS + 5), acks=-1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not producers.was_repeated
    producers.send(idempotent(REQUESTS, count=3), acks=-1)
    assert producers.was_repeated
    producers.send(idempotent(0, epoch=1), acks=-1)
    assert producers.send(idempotent(REQUESTS + 3), acks=-1) is ErrorCode.INVALID_PRODUCER_EPOCH


GOOD = batch(b"v", timestamp_ms=NOW)
REJECTED = {
    "empty": b"",
    "null": None,
    "truncated": GOOD[:-1],
    "changed": GOOD[:-1] + b"\x01",
    "two batches": GOOD * 2,
    "no records": GOOD[:57] + bytes(4),
    "control": batch(b"v", control=True),
    "transactional": encode_batch(
        [Record(None, b"v", NOW)], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
    ),
    "no sequence": encode_batch([Record(None, b"v", NOW)], producer_id=5, producer_epoch=0),
    "offsets": encode_batch([Record(None, b"v", NOW), Record(None, b"v", NOW, offset_delta=3)]),
    "too large": batch(b"v" * 2_000_000),
    "format v1": GOOD[:16] + b"\x01" + GOOD[17:],
    "far in the future": batch(b"v", timestamp_ms=NOW + 10_000_000),
}


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("kind", REJECTED)
def test_a_rejected_batch_has_the_response_of_a_request_that_is_not_repeated(producers, kind, version):
    producers.begin(version)
    assert producers.send(REJECTED[kind], version) is not ErrorCode.NONE
    assert not producers.was_repeated
    producers.begin(version, 3 * REQUESTS)


def test_an_error_without_acknowledgment_closes_the_connection_as_before(producers):
    for _ in range(REQUESTS):
        producers.send(GOOD, acks=0)
    for clients, call in ((producers.repeated, producers.repeated.repeat), (producers.once, producers.once.call_once)):
        with pytest.raises(RemoteProtocolError, match="acks=0 failed for a-0 .CORRUPT_MESSAGE"):
            call(producers.request(clients, REJECTED["changed"], 9, acks=0), 9)


SETTINGS = {
    "compacted": {"cleanup.policy": "compact"},
    "broker's timestamps": {"message.timestamp.type": "LogAppendTime"},
    "other codec": {"compression.type": "gzip"},
    "small batches": {"max.message.bytes": "300"},
    "small segments": {"segment.bytes": "1048576", "segment.ms": "1"},
    "in sync": {"min.insync.replicas": "2"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_settings_of_the_topic_apply(tmp_path, setting):
    producers = Producers(tmp_path)
    try:
        producers.begin(acks=-1)
        for clients in producers.both:
            run_steps(clients.broker.partitions.alter_topic_steps("a", SETTINGS[setting]))
        for number in range(2 * REQUESTS):
            for clients in producers.both:
                clients.clock.advance_ms(7)
            producers.send(batch(b"a" * 20 * number, timestamp_ms=NOW + number), acks=-1)
            producers.send(encode_batch([Record(b"k", b"v", NOW)]), acks=-1)
    finally:
        producers.stop()


def delete(clients: RepeatingClients, name: str) -> None:
    if name in clients.broker.partitions.topics:
        clients.broker.delete_topic(name)


def recreate(clients: RepeatingClients, name: str) -> None:
    delete(clients, name)
    clients.broker.create_topic(name, TOPICS[name], {})


def take_offline(clients: RepeatingClients, name: str) -> None:
    partition = clients.partition(name, 0)
    if partition is not None:
        partition.mark_offline(StorageError("The disk failed."))


CHANGES = {"delete": delete, "recreate": recreate, "offline": take_offline}
BATCHES = st.one_of(
    st.builds(
        lambda values, codec: batch(*values, timestamp_ms=NOW, codec=codec),
        st.lists(st.binary(max_size=40), min_size=1, max_size=100),
        st.sampled_from([0, 0, 0, 1, 4]),
    ),
    st.builds(idempotent, st.integers(0, 6), st.integers(1, 3), st.integers(0, 2)),
    st.sampled_from([REJECTED[kind] for kind in REJECTED if kind != "too large"]),
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={"number": st.integers(-1, 3), "topic": st.sampled_from(["a", "b"]), "acks": st.sampled_from([-1, 1, 2])},
)
STEPS = st.tuples(
    st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.sampled_from(["a", "b"])), max_size=1), BATCHES, FIELDS
)


@settings(deadline=None, max_examples=scaled(40, 25))
@given(steps=st.lists(STEPS, min_size=1, max_size=8), version=st.sampled_from(VERSIONS))
def test_a_repeated_request_does_what_one_that_is_not_repeated_does(tmp_path_factory, steps, version):
    producers = Producers(tmp_path_factory.mktemp("broker"))
    try:
        producers.begin(version)
        for changes, records, fields in steps:
            for change, name in changes:
                for clients in producers.both:
                    CHANGES[change](clients, name)
            producers.send(records, version, **fields)
            producers.send(GOOD, version)
    finally:
        producers.stop()


@pytest.mark.parametrize("version", [12, 13])
def test_the_topic_is_looked_up_again(producers, version):
    producers.begin(version)
    clients = producers.repeated
    request = producers.request(clients, GOOD, version)
    recreate(clients, "a")
    code = error_of(clients.repeat(request, version), request, version)
    assert code is (ErrorCode.NONE if version == 12 else ErrorCode.UNKNOWN_TOPIC_ID)


def test_requests_to_one_of_several_nodes_are_not_repeated(tmp_path):
    clients = RepeatingClients(tmp_path)
    try:
        request = ProduceRequest(
            transactional_id=None, acks=1, timeout_ms=1_000,
            topic_data=[Topic(name="b", partition_data=[Data(index=0, records=GOOD)])],
        )  # fmt: skip
        for _ in range(REQUESTS):
            clients.repeat(request, 9)
        assert clients.was_repeated
        clients.broker.leaders.node_ids = (1, 2)
        clients.broker.leaders.running = {1, 2}
        clients.broker.node_started(2, {"PLAINTEXT": Node(2, "127.0.0.1", 9093)})
        clients.broker.leaders.move(clients.partition("b", 0).topic_partition, 2)
        assert error_of(clients.repeat(request, 9), request, 9) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not clients.was_repeated
    finally:
        clients.broker.stop()


def test_requests_with_a_transactional_id_are_not_repeated(producers):
    for clients in producers.both:
        clients.broker.transaction_coordinator.shards.ensure_topic()
    for _ in range(2 * REQUESTS):
        assert producers.send(GOOD, transactional_id="t") is ErrorCode.NONE
        assert not producers.was_repeated


def test_requests_of_several_partitions_are_not_repeated(producers):
    clients = producers.repeated
    request = producers.request(clients, GOOD, 9)
    request.topic_data[0].partition_data.append(Data(index=1, records=GOOD))
    for _ in range(2 * REQUESTS):
        clients.repeat(request, 9)
        assert not clients.was_repeated


def test_internal_topics_reject_repeated_requests(producers):
    for _ in range(2 * REQUESTS):
        assert producers.send(GOOD, topic="__consumer_offsets") is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert not producers.was_repeated


@pytest.mark.parametrize("acks", [1, 0])
def test_a_failed_append_is_tried_and_reported_once(producers, monkeypatch, acks):
    for _ in range(REQUESTS):
        producers.send(GOOD, acks=acks)
    clients, tried = producers.repeated, []

    def full_disk(*_: Any) -> None:
        tried.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment, "write_exactly", full_disk)
    request, end = producers.request(clients, GOOD, 9, acks=acks), clients.partition("a", 0).log.log_end_offset
    if acks:
        assert error_of(clients.repeat(request, 9), request, 9) is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        with pytest.raises(RemoteProtocolError, match="KAFKA_STORAGE_ERROR"):
            clients.repeat(request, 9)
    assert len(tried) == 1
    assert clients.partition("a", 0).log.log_end_offset == end


def test_a_large_request_is_not_prepared(producers, monkeypatch):
    clients = producers.repeated
    for _ in range(REQUESTS - 2):
        clients.repeat(producers.request(clients, GOOD, 9), 9)
    prepared = []
    monkeypatch.setattr(repeated_produce, "prepare_produce", lambda *_: prepared.append(1))
    for size in (1_000_000, 100_000):
        for _ in range(3 * REQUESTS):
            clients.repeat(producers.request(clients, batch(bytes(size), timestamp_ms=NOW), 9), 9)
    assert not prepared


def test_the_memory_of_prepared_requests_is_part_of_the_state(producers):
    before = producers.repeated.broker.budget.used_bytes
    producers.begin()
    assert producers.repeated.broker.budget.used_bytes >= before + 2_500


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [GOOD, b"", None, b"\0" * 300, batch(b"v" * 20_000)])
def test_the_pattern_finds_partition_and_records(version, records):
    key = {"name": "topic"} if version < 13 else {}
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=7,
        topic_data=[Topic(partition_data=[Data(index=9, records=records)], **key)],
    )  # fmt: skip
    # length, API, version, correlation id, null client id, tags
    body = memoryview(bytes(encode_request(request, version, 1, None)))[14 + (version >= 9) :]
    pattern = produce_pattern(request, version, body)
    if not records:
        assert pattern is None
        return
    found = pattern.match(body)
    assert found is not None
    partition, start, end = found
    assert partition == 9 and bytes(body[start:end]) == records
    length_bytes = 4 if version < 9 else 1 if len(records) < 127 else 2 if len(records) < 16_383 else 3
    partition_at = start - length_bytes - 4
    for at in (*range(start + 5), *range(end - 5, len(body))):
        changed = bytearray(body)
        changed[at] ^= 1
        may_differ = partition_at <= at < partition_at + 4 or start <= at < end
        assert (pattern.match(memoryview(changed)) is not None) == may_differ
    for size in (*range(start + 5), *range(end - 5, len(body))):
        assert pattern.match(body[:size]) is None
    assert pattern.match(memoryview(bytes(body) + b"\0")) is None
