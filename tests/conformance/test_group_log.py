"""Kafka's GroupMetadataManagerTest and GroupMetadataTest: group records in the log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from support.commit_requests import commit_topics
from support.group_context import GROUP, GroupContext

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.group import Outcome
from spark_groupsource.broker.group.group_states import DEAD, STABLE
from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.group_records import GroupKey, decode_key
from spark_groupsource.wire.messages import JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest

TP = TopicPartition("topic", 0)
CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


# -- commits before their append ------------------------------------------------------------------------------------


class PendingAppendContext(GroupContext):
    """A context in which the appends of commits are delayed until `append_next`."""

    def __init__(self) -> None:
        self.pending: list[Outcome] = []
        self._is_holding = False
        super().__init__()

    def settle(self, outcome: Outcome) -> None:
        if self._is_holding and outcome.records:
            self.pending.append(outcome)
        else:
            super().settle(outcome)

    def start_commit(self, offset: int) -> Any:
        """Handles the commit of a simple consumer without appending it; returns its response handle."""
        topics = commit_topics(OffsetCommitRequest, {"topic": {0: offset}})
        self._is_holding = True
        response = self.send(OffsetCommitRequest(group_id=GROUP, topics=topics), 8)
        self._is_holding = False
        assert response.is_delayed
        return response

    def append_next(self, error: ErrorCode | None = None) -> None:
        """Appends the first pending commit, or fails with `error`."""
        self.append_error = error
        self.settle(self.pending.pop(0))
        self.append_error = None

    def fetched(self) -> tuple[int | None, int]:
        """Returns the offset from a fetch of all partitions and from one of the partition."""
        return self.fetch().get(TP), self.fetch(TP)[TP]


def code_of(handle: Any) -> int:
    return int(handle.response.topics[0].partitions[0].error_code)


@pytest.mark.conformance("ST-031", "OM-029", "OM-033")
def test_commit_is_visible_after_its_append() -> None:
    context = PendingAppendContext()
    first = context.start_commit(1)
    assert context.fetched() == (None, -1)
    context.append_next()
    assert context.fetched() == (1, 1) and code_of(first) == 0
    later = context.start_commit(2)
    assert context.fetched() == (1, 1)
    context.append_next()
    assert context.fetched() == (2, 2) and code_of(later) == 0


@pytest.mark.conformance("ST-032")
def test_commit_whose_append_fails_leaves_no_offset() -> None:
    context = PendingAppendContext()
    first = context.start_commit(1)
    context.append_next(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert code_of(first) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.fetched() == (None, -1) and context.shard.store.offsets == {}


@pytest.mark.conformance("ST-033")
def test_failed_commit_does_not_affect_a_later_one() -> None:
    context = PendingAppendContext()
    first, second = context.start_commit(1), context.start_commit(2)
    context.append_next(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert context.fetched() == (None, -1)
    context.append_next()
    assert context.fetched() == (2, 2)
    assert (code_of(first), code_of(second)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)


@pytest.mark.conformance("ST-034")
def test_commits_become_visible_in_the_order_of_the_log() -> None:
    context = PendingAppendContext()
    context.start_commit(1), context.start_commit(2)
    context.append_next()
    assert context.fetched() == (1, 1)
    context.append_next()
    assert context.fetched() == (2, 2)


@pytest.mark.conformance("SM-024")
def test_group_is_created_once() -> None:
    context = GroupContext()
    context.join()
    first = context.group()
    context.join()
    context.commit(1, group="other")
    assert context.group() is first and context.group("other") is not first
    assert sorted(context.list()) == [GROUP, "other"]


@pytest.mark.conformance("SM-018")
def test_shard_can_be_unloaded_twice_and_loaded_again() -> None:
    context = GroupContext()
    (member,) = context.stable()
    context.commit(7, member.member_id, 1)
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    context.settle(context.shard.on_unloaded(context.clock.instant()))
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NOT_COORDINATOR
    for key, value in context.log:
        context.shard.replay(key, value)
    context.settle(context.shard.on_loaded(context.clock.instant()))
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NONE
    assert context.state() is STABLE and context.fetch() == {TP: 7}
    assert context.state("other") is DEAD


# -- loading from disk -----------------------------------------------------------------------------------------------


@contextmanager
def client_of(directory: Path, **config: str) -> Iterator[ClusterClient]:
    """Runs a broker on `directory` and a client of it."""
    settings = {**CONFIG, **{name.replace("_", "."): value for name, value in config.items()}}
    with EmbeddedBroker(directory, config=settings) as broker:
        parsed = ClientSettings.parse({"bootstrap.servers": broker.bootstrap_servers})
        with ClusterClient(parsed.bootstrap, parsed) as cluster:
            yield cluster


def group_log(directory: Path) -> Path:
    return directory / "__consumer_offsets-0" / f"{0:020d}.log"


def empty_control_batch(base_offset: int) -> bytes:
    """Returns what compaction leaves of a transaction marker: a control batch without records."""
    is_control_and_transactional = 0x30
    tail = struct.pack(">hiqqqhii", is_control_and_transactional, 0, 0, 0, 7, 0, -1, 0)
    crc = google_crc32c.value(tail)
    return struct.pack(">qiibI", base_offset, 9 + len(tail), 0, 2, crc) + tail


@pytest.mark.conformance("SM-065")
def test_control_batch_without_records_is_skipped(tmp_path: Path) -> None:
    with client_of(tmp_path) as cluster:
        admin.create_topics(cluster, [admin.NewTopic("t", 1)])
        cluster.commit(GROUP, {TopicPartition("t", 0): OffsetAndMetadata(5)})
    path = group_log(tmp_path)
    *_, last = iter_batches(path.read_bytes())
    with path.open("ab") as log:
        log.write(empty_control_batch(last.next_offset))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with client_of(tmp_path) as cluster:
        assert cluster.fetch_committed(GROUP) == {TopicPartition("t", 0): OffsetAndMetadata(5)}
        cluster.commit(GROUP, {TopicPartition("t", 0): OffsetAndMetadata(6)})
    with client_of(tmp_path) as cluster:
        assert cluster.fetch_committed(GROUP) == {TopicPartition("t", 0): OffsetAndMetadata(6)}


@pytest.mark.conformance("SM-020")
def test_large_group_record_is_loaded(tmp_path: Path) -> None:
    metadata = bytes(3_000_000)
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    join = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="i",
        protocol_type="other",
        protocols=[protocol],
    )
    with client_of(tmp_path, message_max_bytes="10000000") as cluster:
        joined = cluster.call_coordinator(GROUP, join)
        assert joined.error_code == 0
        row = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"x")
        known = {"group_id": GROUP, "generation_id": 1, "member_id": joined.member_id, "group_instance_id": "i"}
        sync = SyncGroupRequest(**known, protocol_type="other", protocol_name="range", assignments=[row])
        assert cluster.call_coordinator(GROUP, sync).error_code == 0
    assert max(header.size for header in iter_batches(group_log(tmp_path).read_bytes())) > len(metadata)
    with client_of(tmp_path) as cluster:
        response = cluster.call_coordinator(GROUP, sync)
        assert (response.error_code, bytes(response.assignment)) == (0, b"x")


@pytest.mark.conformance("SM-049")
def test_deleted_group_stays_deleted_with_log_append_time(tmp_path: Path) -> None:
    config = {"log_message_timestamp_type": "LogAppendTime"}
    with client_of(tmp_path, **config) as cluster:
        admin.create_topics(cluster, [admin.NewTopic("t", 1)])
        cluster.commit(GROUP, {TopicPartition("t", 0): OffsetAndMetadata(5)})
        admin.delete_groups(cluster, [GROUP])
    with client_of(tmp_path, **config) as cluster:
        assert cluster.fetch_committed(GROUP) == {} and admin.list_groups(cluster) == []


@pytest.mark.conformance("SM-048")
def test_tombstone_of_an_empty_group_has_the_time_of_its_deletion(tmp_path: Path) -> None:
    clock = SystemClock()
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with client_of(tmp_path) as cluster:
        # the group has a pending member id, and neither members nor offsets
        assert cluster.call_coordinator(GROUP, request).error_code == ErrorCode.MEMBER_ID_REQUIRED
        before = clock.timestamp_ms()
        admin.delete_groups(cluster, [GROUP])
        after = clock.timestamp_ms()
        assert admin.list_groups(cluster) == []
    data = group_log(tmp_path).read_bytes()
    *_, last = iter_batches(data)
    ((key, value),) = [(record.key, record.value) for record in decode_records(data, last)]
    assert value is None and decode_key(bytes(key)) == GroupKey(GROUP)
    assert not last.is_log_append_time and before <= last.max_timestamp <= after
