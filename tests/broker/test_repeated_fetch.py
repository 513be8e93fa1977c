"""Fetches that a connection repeats: their responses, after any change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.partition_logs import batch

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import DELAYED, ApiRequestContext
from spark_groupsource.clock import ManualClock
from spark_groupsource.errors import StorageError
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.wire.frames import EncodedResponse, encode_request, encode_response, read_request_header
from spark_groupsource.wire.messages import FetchRequest

Topic = FetchRequest.FetchTopic
TOPICS = {"a": 3, "b": 1, "c": 2}
REPEATING, OTHERS = 1, 2


class Clients:
    """A broker without sockets: one connection that repeats its fetches, and others that fetch once."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.sent: dict[int, Any] = {}
        self.broker = Broker(
            broker_config({}), DataDirectory(directory), self.clock, self.sent.__setitem__, lambda *line: None
        )
        self.broker.start()
        self.broker.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
        for name, count in TOPICS.items():
            self.broker.create_topic(name, count, {})
        self._dispatcher = RequestDispatcher(self.broker, SERVED, self.sent.__setitem__, self._no_steps)
        self._token, self._next_connection = 0, OTHERS

    def _no_steps(self, *_: Any) -> None:
        raise AssertionError("a small fetch needs no further steps")

    def partition(self, name: str, number: int):
        return self.broker.partitions.find(TopicPartition(name, number))

    def append(self, name: str, number: int, values: int, **options: Any) -> None:
        data = batch(*[b"x" * 50] * values, **options)
        self.partition(name, number).append(data, 0)
        self.broker.on_append(TopicPartition(name, number), len(data))

    def fetch(self, connection: int, request: FetchRequest, version: int) -> bytes | None:
        """Returns the bytes of the response, None if it is delayed; the delayed fetch is dropped."""
        self._token += 1
        frame = memoryview(bytes(encode_request(request, version, 5, "c")))[4:]
        header, position = read_request_header(frame)
        context = ApiRequestContext(self._token, 1, version, "c", "127.0.0.1", 1, connection)
        self._dispatcher.handle_frame(context, frame, header, position)
        self.broker.fetch_manager.cancel(self._token)
        response = self.sent.pop(self._token, DELAYED)
        self.was_repeated = isinstance(response, EncodedResponse)
        return None if response is DELAYED else bytes(encode_response(response, version, 5))

    def fetch_once(self, request: FetchRequest, version: int) -> bytes | None:
        self._next_connection += 1
        return self.fetch(self._next_connection, request, version)

    def request(self, positions, version: int, names=TOPICS, **fields: Any) -> FetchRequest:
        topics, left = [], iter(positions)
        for name in names:
            rows = [
                Topic.FetchPartition(
                    partition=number, current_leader_epoch=fields.get("epoch", -1), fetch_offset=next(left),
                    last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=fields.get("part_bytes", 300),
                )
                for number in range(TOPICS[name])
            ]  # fmt: skip
            entry = self.broker.partitions.topics.get(name)
            topic_id = entry.topic_id if entry is not None else self.deleted_id
            named = {"topic": name} if version < 13 else {"topic_id": topic_id}
            topics.append(Topic(partitions=rows, **named))
        return FetchRequest(
            replica_id=-1, max_wait_ms=fields.get("wait_ms", 0), min_bytes=fields.get("min_bytes", 1),
            max_bytes=fields.get("max_bytes", 500), isolation_level=fields.get("isolation", 0), session_id=0,
            session_epoch=fields.get("session_epoch", -1), topics=topics, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip

    def ends(self, names=TOPICS) -> list[int]:
        found = [self.partition(name, number) for name in names for number in range(TOPICS[name])]
        return [0 if each is None else each.log.log_end_offset for each in found]


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    running = Clients(tmp_path)
    yield running
    running.broker.stop()


def begin(clients: Clients, version: int, **fields: Any) -> None:
    """Fetches until the requests of the connection are repeated ones."""
    for _ in range(2):
        assert clients.fetch(REPEATING, clients.request(clients.ends(), version, **fields), version) is not None
    assert clients.was_repeated


PARTITIONS = [(name, number) for name, count in TOPICS.items() for number in range(count)]
CHANGES = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(1, 6)),
    st.tuples(st.just("delete records"), st.sampled_from(PARTITIONS), st.integers(0, 3)),
    st.tuples(st.just("transaction"), st.sampled_from(PARTITIONS), st.booleans()),
    st.tuples(st.just("create topic again"), st.sampled_from(sorted(TOPICS)), st.none()),
    st.tuples(st.just("delete topic"), st.sampled_from(sorted(TOPICS)), st.none()),
    st.tuples(st.just("offline"), st.sampled_from(PARTITIONS), st.none()),
)


def apply(clients: Clients, kind: str, subject: Any, detail: Any) -> None:
    manager = clients.broker.partitions
    if kind in ("create topic again", "delete topic"):
        if subject in manager.topics:
            clients.deleted_id = manager.topics[subject].topic_id
            clients.broker.delete_topic(subject)
        if kind == "create topic again":
            clients.broker.create_topic(subject, TOPICS[subject], {})
        return
    partition = clients.partition(*subject)
    if partition is None or partition.offline_reason:
        return
    if kind == "append":
        clients.append(*subject, detail)
    elif kind == "delete records":
        partition.log.delete_records(max(partition.log.log_end_offset - detail, 0))
    elif kind == "offline":
        partition.mark_offline(StorageError("The disk failed."))
    elif detail and partition.last_stable_offset < partition.log.log_end_offset:
        partition.append_transaction_marker(7, 0, True, 0, 1_000)
    elif not partition.producers():
        data = encode_batch(
            [Record(None, b"t" * 50, 1_000)] * 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        partition.append(data, 0)


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(st.tuples(st.lists(CHANGES, max_size=3), st.lists(st.integers(-1, 4), min_size=6, max_size=6)),
                   min_size=1, max_size=6),
    version=st.sampled_from([4, 7, 11, 12, 13, 15, 17]),
    fields=st.fixed_dictionaries({
        "isolation": st.sampled_from([0, 1]), "part_bytes": st.sampled_from([1, 300]),
        "epoch": st.sampled_from([-1, 0]), "max_bytes": st.sampled_from([1, 500, 10_000]),
        "wait_ms": st.sampled_from([0, 100]),
        "min_bytes": st.sampled_from([0, 1, 200, 5_000]),
    }),
)  # fmt: skip
def test_a_repeated_fetch_has_the_response_of_a_fetch_that_is_not_repeated(tmp_path_factory, steps, version, fields):
    clients = Clients(tmp_path_factory.mktemp("broker"))
    try:
        begin(clients, version, **{**fields, "wait_ms": 0})
        for changes, behind in steps:
            for change in changes:
                apply(clients, *change)
            positions = [max(end - back, 0) for end, back in zip(clients.ends(), behind)]
            request = clients.request(positions, version, **fields)
            expected = clients.fetch_once(request, version)
            assert clients.fetch(REPEATING, request, version) == expected
            assert clients.fetch(REPEATING, request, version) == expected
    finally:
        clients.broker.stop()


@pytest.mark.parametrize("version", range(4, 19))
def test_requests_with_other_positions_are_repeated_ones(clients, version):
    begin(clients, version)
    for name, number in PARTITIONS:
        clients.append(name, number, 3)
        expected = clients.fetch_once(clients.request(clients.ends(), version), version)
        assert not clients.was_repeated
        assert clients.fetch(REPEATING, clients.request(clients.ends(), version), version) == expected
        assert clients.was_repeated
    expected = clients.fetch_once(clients.request([1] * 6, version), version)
    assert clients.fetch(REPEATING, clients.request([1] * 6, version), version) == expected
    assert clients.was_repeated


def test_a_fetch_that_waits_is_left_to_the_purgatory(clients):
    begin(clients, 11)
    request = clients.request(clients.ends(), 11, wait_ms=100)
    assert [clients.fetch(REPEATING, request, 11) for _ in range(3)] == [None] * 3
    clients.append("b", 0, 1)
    expected = clients.fetch_once(request, 11)
    assert clients.fetch(REPEATING, request, 11) == expected


def test_the_partitions_of_a_topic_that_was_created_again(clients):
    begin(clients, 11)
    clients.append("a", 0, 2)
    before = clients.fetch(REPEATING, clients.request(clients.ends(), 11), 11)
    apply(clients, "create topic again", "a", None)
    after = clients.fetch(REPEATING, clients.request([0] * 6, 11), 11)
    assert after == clients.fetch_once(clients.request([0] * 6, 11), 11)
    assert after != before


@pytest.mark.parametrize("fields", [{"session_epoch": 0}, {"epoch": 1}])
def test_requests_that_are_never_prepared(clients, fields):
    for _ in range(5):
        request = clients.request(clients.ends(), 11, **fields)
        assert clients.fetch(REPEATING, request, 11) is not None
        assert not clients.was_repeated


def test_a_fetch_with_an_authorizer_is_not_repeated(tmp_path):
    clients = Clients(tmp_path)
    try:
        begin(clients, 11)
        clients.broker.authorizer = object()  # type: ignore[assignment]
        assert not clients._dispatcher._may_repeat(ApiRequestContext(1, 1, 11, "c", "127.0.0.1", 1, REPEATING))
    finally:
        clients.broker.authorizer = None
        clients.broker.stop()


def test_the_memory_of_prepared_fetches_is_part_of_the_state(clients):
    before = clients.broker.budget.used_bytes
    begin(clients, 11)
    assert clients.broker.budget.used_bytes > before
