"""Commits that a connection repeats: responses, offsets and records, after any change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.repeating_clients import REQUESTS, TOPICS, RepeatingClients

from spark_groupsource.errors import ErrorCode, StorageError
from spark_groupsource.group.group_store import GroupStore
from spark_groupsource.model import coordinator_partition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.frames import decode_response
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue, decode_key
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Row = Topic.OffsetCommitRequestPartition
# of one shard, so that both are affected alike
REPEATED, ONCE = "ga", "gc"
SESSION_MS = 10_000


def records_of(log: Any) -> Iterator[Any]:
    data = log.read(0, 1 << 24)
    for header in iter_batches(data):
        yield from decode_records(data, header)


class Commits:
    """Two groups that get the same commits: one over a connection that repeats them, one over new connections."""

    def __init__(self, directory: Path) -> None:
        self.clients = RepeatingClients(directory)
        self.broker = self.clients.broker
        self.members: dict[str, tuple[str, int]] = {}
        for group in (REPEATED, ONCE):
            self.join(group)

    def decoded(self, request: Any, version: int) -> Any:
        response = self.clients.call_once(request, version)
        return None if response is None else decode_response(memoryview(response)[4:], request, version, 5)

    def join(self, group: str) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        request = JoinGroupRequest(
            group_id=group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS, member_id="",
            group_instance_id=None, protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        assert self.decoded(request, 3) is None
        self.broker.run_timers()
        (joined,) = self.clients.sent.values()
        self.clients.sent.clear()
        self.members[group] = joined.member_id, joined.generation_id
        sync = SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
        )
        assert self.decoded(sync, 2).error_code == 0

    def request(self, group: str, offsets, version: int, **fields: Any) -> OffsetCommitRequest:
        member_id, generation = self.members[group]

        def row(number: int, offset: int) -> Any:
            return Row(
                partition_index=number, committed_offset=offset, committed_leader_epoch=fields.get("leader_epoch", 3),
                committed_metadata=fields.get("metadata", ""),
            )  # fmt: skip

        topics = self.clients.topics(Topic, "name" if version < 10 else None, offsets, row)
        return OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, group_instance_id=None,
            retention_time_ms=fields.get("retention_ms", -1), topics=topics,
        )  # fmt: skip

    def stored(self, group: str) -> dict[Any, Any]:
        return dict(self.broker.group_coordinator.committed_offsets(group))

    def records(self, group: str) -> list[Any]:
        """The records of the offsets of a group, without its name."""
        log, found = self.clients.partition("__consumer_offsets", coordinator_partition(group, 2)).log, []
        for record in records_of(log):
            key = decode_key(record.key)
            if isinstance(key, OffsetKey) and key.group_id == group:
                found.append((key.topic, key.partition, record.value, record.timestamp_ms))
        return found

    def commit(self, offsets, version: int, is_read: bool = True, **fields: Any) -> bytes | None:
        """Sends the commit of both groups; returns the response, which both of them get.

        Args: `is_read`, whether the stored offsets are read and compared.
        """
        expected = self.clients.call_once(self.request(ONCE, offsets, version, **fields), version)
        assert self.clients.repeat(self.request(REPEATED, offsets, version, **fields), version) == expected
        if is_read:
            assert self.stored(REPEATED) == self.stored(ONCE)
        self.check_size()
        return expected

    def check_size(self) -> None:
        """Compares the counted memory with that of a shard that is loaded from the records."""
        found = shard_of(self)
        loaded = GroupStore()
        log = self.clients.partition("__consumer_offsets", found.partition).log
        for record in records_of(log):
            loaded.replay(record.key, record.value)
        assert found.state_machine.store.size_bytes == loaded.size_bytes

    def call_of_another_client(self, offsets, **fields: Any) -> None:
        for group in (ONCE, REPEATED):
            assert self.clients.call_once(self.request(group, offsets, 8, **fields), 8) is not None

    def begin(self, version: int, **fields: Any) -> None:
        for _ in range(REQUESTS):
            self.commit([1] * 6, version, **fields)
        assert self.clients.was_repeated


@pytest.fixture
def commits(tmp_path: Path) -> Iterator[Commits]:
    running = Commits(tmp_path)
    yield running
    running.broker.stop()


def test_both_groups_are_in_one_shard():
    assert coordinator_partition(REPEATED, 2) == coordinator_partition(ONCE, 2)


def apply(commits: Commits, kind: str, subject: Any) -> None:
    broker, members = commits.broker, commits.members
    if kind in ("create topic again", "delete topic"):
        if subject in broker.partitions.topics:
            broker.delete_topic(subject)
        if kind == "create topic again":
            broker.create_topic(subject, TOPICS[subject], {})
    elif kind == "delete offsets":
        topics = OffsetDeleteRequest.OffsetDeleteRequestTopic
        row = topics.OffsetDeleteRequestPartition(partition_index=0)
        for group in members:
            commits.decoded(OffsetDeleteRequest(group_id=group, topics=[topics(name="a", partitions=[row])]), 0)
    elif kind == "offline":
        shard = commits.clients.partition("__consumer_offsets", coordinator_partition(REPEATED, 2))
        shard.mark_offline(StorageError("The disk failed."))
    elif kind == "pending":
        store = shard_of(commits).state_machine.store
        for producer_id, group in enumerate(members):
            store.pending.put(producer_id, OffsetKey(group, "a", 0), OffsetValue(7))
    elif kind == "time":
        commits.clients.clock.advance_ms(subject)
        broker.run_timers()
    elif kind == "heartbeat":
        for group, (member_id, generation) in members.items():
            commits.decoded(HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id), 0)


def shard_of(commits: Commits) -> Any:
    return commits.broker.group_coordinator.shards.find_loaded(coordinator_partition(REPEATED, 2))


CHANGES = st.one_of(
    st.tuples(st.sampled_from(["create topic again", "delete topic"]), st.sampled_from(sorted(TOPICS))),
    st.tuples(st.sampled_from(["delete offsets", "offline", "heartbeat"]), st.none()),
    st.tuples(st.just("time"), st.sampled_from([1, SESSION_MS - 1, SESSION_MS])),
)
FIELDS = st.fixed_dictionaries({}, optional={"metadata": st.sampled_from(["m", "mm"]), "leader_epoch": st.just(4)})
COMMITS = st.tuples(
    st.lists(CHANGES, max_size=2), st.lists(st.integers(-1, 2**62), min_size=6, max_size=6), FIELDS, st.booleans()
)


@settings(deadline=None, max_examples=scaled(60, 40))
@given(steps=st.lists(COMMITS, min_size=1, max_size=6), version=st.sampled_from([2, 3, 7, 8, 9, 10]), first=FIELDS)
def test_a_repeated_commit_does_what_a_commit_that_is_not_repeated_does(tmp_path_factory, steps, version, first):
    commits = Commits(tmp_path_factory.mktemp("broker"))
    try:
        commits.begin(version, **first)
        for changes, offsets, fields, is_read in steps:
            for change in changes:
                apply(commits, *change)
            commits.commit(offsets, version, is_read, **fields)
            commits.commit(offsets, version, is_read, **first)
            commits.commit(offsets[::-1], version, is_read, **first)
        assert commits.stored(REPEATED) == commits.stored(ONCE)
        assert commits.records(REPEATED) == commits.records(ONCE)
    finally:
        commits.broker.stop()


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_of_other_offsets_are_repeated_ones(commits, version):
    commits.begin(version)
    for number in range(5):
        commits.clients.clock.advance_ms(10)
        offsets = [number * 1_000 + index for index in range(6)]
        commits.commit(offsets, version)
        assert commits.clients.was_repeated
        assert [value.offset for value in commits.stored(REPEATED).values()] == offsets
    assert len(commits.records(ONCE)) == (REQUESTS + 5) * 6
    assert commits.records(REPEATED) == commits.records(ONCE)


def test_offsets_of_repeated_commits_survive_a_restart(tmp_path):
    commits = Commits(tmp_path)
    commits.begin(8, metadata="text")
    commits.commit([10, 11, 12, 13, 14, 15], 8, metadata="text")
    assert commits.clients.was_repeated
    before = commits.stored(REPEATED)
    commits.broker.stop()
    again = RepeatingClients(tmp_path, creates_topics=False)
    try:
        for _ in range(3):
            again.clock.advance_ms(1_000)
            again.broker.run_timers()
        found = dict(again.broker.group_coordinator.committed_offsets(REPEATED))
        assert found == before and [value.offset for value in found.values()] == [10, 11, 12, 13, 14, 15]
    finally:
        again.broker.stop()


def test_a_repeated_commit_restarts_the_session_timeout(commits):
    commits.begin(8)
    for _ in range(3):
        commits.clients.clock.advance_ms(SESSION_MS - 1)
        commits.broker.run_timers()
        commits.commit([2] * 6, 8)
        assert commits.clients.was_repeated
    commits.clients.clock.advance_ms(SESSION_MS)
    commits.broker.run_timers()
    response = commits.commit([3] * 6, 8)
    assert ErrorCode.UNKNOWN_MEMBER_ID.to_bytes(2, "big") in response


@pytest.mark.parametrize("version", [8, 10])
def test_a_failed_append_has_the_response_of_a_commit_that_is_not_repeated(commits, version):
    commits.begin(version)
    apply(commits, "offline", None)
    before = commits.stored(REPEATED)
    commits.commit([9] * 6, version)
    assert commits.stored(REPEATED) == before


def test_a_repeated_commit_replaces_a_pending_offset_of_a_transaction(commits):
    commits.begin(8)
    apply(commits, "pending", None)
    commits.commit([9] * 6, 8)
    assert commits.clients.was_repeated
    for producer_id in range(2):
        shard_of(commits).state_machine.end_transaction(producer_id, True)
    assert [value.offset for value in commits.stored(REPEATED).values()] == [9] * 6
    assert commits.stored(REPEATED) == commits.stored(ONCE)


def test_a_retention_time_is_not_repeated(commits):
    for _ in range(2 * REQUESTS):
        commits.commit([1] * 6, 3, retention_ms=60_000)
        assert not commits.clients.was_repeated


def test_metadata_that_became_too_long_is_not_repeated(commits):
    commits.begin(8, metadata="mm")
    object.__setattr__(shard_of(commits).state_machine.config, "offset_metadata_max_bytes", 1)
    response = commits.commit([2] * 6, 8, metadata="mm")
    assert ErrorCode.OFFSET_METADATA_TOO_LARGE.to_bytes(2, "big") in response


def test_an_empty_text_replaces_metadata(commits):
    commits.begin(8)
    for _ in range(3):
        commits.call_of_another_client([2] * 6, metadata="m" * 100)
        commits.commit([3] * 6, 8)
    commits.commit([4] * 6, 8)
    assert {value.metadata for value in commits.stored(REPEATED).values()} == {""}


@pytest.mark.parametrize("length, is_repeated", [(2_500, True), (3_000, False)])
def test_commits_with_large_records_are_not_prepared(commits, length, is_repeated):
    for _ in range(REQUESTS):
        commits.commit([1] * 6, 8, metadata="m" * length)
    assert commits.clients.was_repeated is is_repeated


def test_the_memory_of_prepared_commits_is_part_of_the_state(commits):
    before = commits.broker.budget.used_bytes
    commits.begin(8)
    assert commits.broker.budget.used_bytes > before + 6 * 500
