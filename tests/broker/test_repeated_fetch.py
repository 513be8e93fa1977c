"""Fetches that a connection repeats: their responses, after any change."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repeating_clients import PARTITIONS, REQUESTS, TOPICS, RepeatingClients

from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage.partition import Partition
from spark_groupsource.wire.messages import FetchRequest

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

Topic = FetchRequest.FetchTopic


def fetch_request(clients: RepeatingClients, positions, version: int, **fields: Any) -> FetchRequest:
    def row(number: int, position: int) -> Any:
        return Topic.FetchPartition(
            partition=number, current_leader_epoch=fields.get("epoch", -1), fetch_offset=position,
            last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=fields.get("part_bytes", 300),
        )  # fmt: skip

    topics = clients.topics(Topic, "topic" if version < 13 else None, positions, row)
    return FetchRequest(
        replica_id=-1, max_wait_ms=fields.get("wait_ms", 0), min_bytes=fields.get("min_bytes", 1),
        max_bytes=fields.get("max_bytes", 500), isolation_level=fields.get("isolation", 0), session_id=0,
        session_epoch=fields.get("session_epoch", -1), topics=topics, forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


def ends(clients: RepeatingClients) -> list[int]:
    found = [clients.partition(name, number) for name, number in PARTITIONS]
    return [0 if each is None else each.log.log_end_offset for each in found]


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[RepeatingClients]:
    running = RepeatingClients(tmp_path)
    yield running
    running.broker.stop()


def begin(clients: RepeatingClients, version: int, **fields: Any) -> None:
    """Fetches until the requests of the connection are repeated ones."""
    for _ in range(REQUESTS):
        assert clients.repeat(fetch_request(clients, ends(clients), version, **fields), version) is not None
    assert clients.was_repeated


CHANGES = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(1, 6)),
    st.tuples(st.just("delete records"), st.sampled_from(PARTITIONS), st.integers(0, 3)),
    st.tuples(st.just("transaction"), st.sampled_from(PARTITIONS), st.booleans()),
    st.tuples(st.just("create topic again"), st.sampled_from(sorted(TOPICS)), st.none()),
    st.tuples(st.just("delete topic"), st.sampled_from(sorted(TOPICS)), st.none()),
    st.tuples(st.just("offline"), st.sampled_from(PARTITIONS), st.none()),
)


def apply(clients: RepeatingClients, kind: str, subject: Any, detail: Any) -> None:
    manager = clients.broker.partitions
    if kind in ("create topic again", "delete topic"):
        if subject in manager.topics:
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
    clients = RepeatingClients(tmp_path_factory.mktemp("broker"))
    try:
        begin(clients, version, **{**fields, "wait_ms": 0})
        for changes, behind in steps:
            for change in changes:
                apply(clients, *change)
            positions = [max(end - back, 0) for end, back in zip(ends(clients), behind)]
            request = fetch_request(clients, positions, version, **fields)
            expected = clients.call_once(request, version)
            assert clients.repeat(request, version) == expected
            assert clients.repeat(request, version) == expected
    finally:
        clients.broker.stop()


@pytest.mark.parametrize("version", range(4, 19))
def test_requests_with_other_positions_are_repeated_ones(clients, version):
    begin(clients, version)
    for name, number in PARTITIONS:
        clients.append(name, number, 3)
        expected = clients.call_once(fetch_request(clients, ends(clients), version), version)
        assert clients.repeat(fetch_request(clients, ends(clients), version), version) == expected
        assert clients.was_repeated
    expected = clients.call_once(fetch_request(clients, [1] * 6, version), version)
    assert clients.repeat(fetch_request(clients, [1] * 6, version), version) == expected
    assert clients.was_repeated


def test_a_fetch_that_waits_is_left_to_the_purgatory(clients):
    begin(clients, 11)
    request = fetch_request(clients, ends(clients), 11, wait_ms=100)
    assert [clients.repeat(request, 11) for _ in range(3)] == [None] * 3
    clients.append("b", 0, 1)
    expected = clients.call_once(request, 11)
    assert clients.repeat(request, 11) == expected


def test_the_partitions_of_a_topic_that_was_created_again(clients):
    begin(clients, 11)
    clients.append("a", 0, 2)
    before = clients.repeat(fetch_request(clients, ends(clients), 11), 11)
    apply(clients, "create topic again", "a", None)
    after = clients.repeat(fetch_request(clients, [0] * 6, 11), 11)
    assert after == clients.call_once(fetch_request(clients, [0] * 6, 11), 11)
    assert after != before


@pytest.mark.parametrize("fields", [{"session_epoch": 0}, {"epoch": 1}])
def test_requests_that_are_never_prepared(clients, fields):
    for _ in range(2 * REQUESTS):
        request = fetch_request(clients, ends(clients), 11, **fields)
        assert clients.repeat(request, 11) is not None
        assert not clients.was_repeated


def test_a_fetch_with_an_authorizer_is_not_repeated(tmp_path):
    authorizer = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    clients = RepeatingClients(tmp_path, authorizer)
    try:
        for _ in range(2 * REQUESTS):
            assert clients.repeat(fetch_request(clients, ends(clients), 11), 11) is not None
            assert not clients.was_repeated
    finally:
        clients.broker.stop()


def test_a_response_has_at_most_fetch_max_bytes(tmp_path):
    clients = RepeatingClients(tmp_path, {"fetch.max.bytes": "1024"})
    try:
        clients.broker.fetch_manager.available_bytes = lambda: 1 << 20
        begin(clients, 11, max_bytes=1 << 20, part_bytes=1 << 20)
        for name, number in PARTITIONS:
            clients.append(name, number, 20)
        request = fetch_request(clients, [0] * 6, 11, max_bytes=1 << 20, part_bytes=1 << 20)
        expected = clients.call_once(request, 11)
        assert clients.repeat(request, 11) == expected and len(expected) < 2_500
        assert clients.was_repeated
    finally:
        clients.broker.stop()


def test_partitions_of_a_deleted_topic_are_not_kept(clients):
    begin(clients, 11)
    clients.broker.delete_topic("a")
    gc.collect()
    kept = [each.topic_partition for each in gc.get_objects() if isinstance(each, Partition)]
    assert TopicPartition("b", 0) in kept and TopicPartition("a", 0) not in kept


def test_the_memory_of_prepared_fetches_is_part_of_the_state(clients):
    before = clients.broker.budget.used_bytes
    begin(clients, 11)
    assert clients.broker.budget.used_bytes > before
