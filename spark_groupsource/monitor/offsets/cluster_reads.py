"""Requests of the tables, each about many groups or partitions."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import Iterable, Mapping, Sequence

from spark_groupsource.client.admin import GroupDescription, batches_by_coordinator, list_groups, list_topics
from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient, ClusterMetadata, TopicInfo
from spark_groupsource.client.cluster.configs import describe_topic_configs
from spark_groupsource.client.cluster.metadata import MAX_TIMESTAMP
from spark_groupsource.client.records.partition_fetch import (
    FETCH_BY_NAME,
    PartitionState,
    fetch_request,
    partitions_of,
)
from spark_groupsource.errors import ErrorCode, GroupSourceError, NetworkError, UnsupportedVersionError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.monitor.near_names import suggests_topics
from spark_groupsource.monitor.offsets.lag import FirstBatch, LagRow, lag_rows
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.header import OldFormatError, iter_batches, last_batch
from spark_groupsource.records.message_sets import with_record_batches
from spark_groupsource.records.timestamp_lookup import timestamp_from
from spark_groupsource.wire.messages import DescribeLogDirsRequest, OffsetFetchRequest, OffsetFetchResponse

_log = logging.getLogger(__name__)

Commits = dict[TopicPartition, OffsetAndMetadata]

_OFFSET_FETCH_OF_GROUPS = 8
# bytes that are read of each partition at first and in the last attempt, and of all partitions together
_FIRST_FETCH_BYTES, _LAST_FETCH_BYTES = 4 << 10, 1 << 20
_FETCH_BUDGET_BYTES = 32 << 20
# two batches of a producer with the default batch.size
_BUDGET_BYTES_PER_PARTITION = 32 << 10
_PARTITIONS_PER_FETCH = 2_000


def selected_topics(cluster: ClusterClient, selection: NameSelection | None) -> list[TopicInfo]:
    """Describes the selected topics, sorted; internal ones only if they are selected.

    Raises: BrokerError for a named topic that does not exist.
    """
    if selection is not None and selection.names is not None:
        with suggests_topics(cluster, selection.names):
            found = dict(cluster.describe_topics(selection.names))
    else:
        found = list_topics(cluster, internal=selection is not None)
    return [found[name] for name in sorted(found) if selection is None or selection.matches(name)]


def topic_id_text(topic: TopicInfo) -> str | None:
    """Returns the id of a topic as Kafka's tools print it; None for brokers before 2.8."""
    return None if topic.topic_id is None else urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip("=")


def topic_overrides(cluster: ClusterClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the settings that each topic overrides; topics whose settings cannot be read are absent, and logged.

    Raises: NetworkError.
    """
    found, unknown = {}, []
    for name, configs in describe_topic_configs(cluster, topics).items():
        if isinstance(configs, GroupSourceError):
            unknown.append((name, configs))
        else:
            found[name] = {entry.name: entry.value or "" for entry in configs if entry.is_of_topic}
    if unknown:
        names = bounded_names(name for name, _ in unknown)
        _log.warning("[topic=%s] The settings of %d topics are unknown: %s", names, len(unknown), unknown[0][1])
    return found


def selected_groups(cluster: ClusterClient, selection: NameSelection | None) -> list[str]:
    """Returns the ids of the selected groups, sorted; named ones without a request."""
    if selection is not None and selection.names is not None:
        return sorted(selection.names)
    listed = [g.group_id for g in list_groups(cluster) if g.protocol_type in ("consumer", "")]
    return listed if selection is None else selection.selected(listed)


def committed_offsets(
    cluster: ClusterClient, group_ids: Sequence[str], partitions: Sequence[TopicPartition] | None = None
) -> dict[str, Commits]:
    """Fetches the committed offsets of groups, many with one request, without waiting for open transactions.

    Args:
        partitions: None for all committed offsets.
    Raises: BrokerError, NetworkError.
    """
    fetched: dict[str, Commits] = {}
    try:
        for node, batch in batches_by_coordinator(cluster, group_ids):
            request = _offset_fetch_request(batch, partitions)
            response = cluster.call_address(
                cluster.node_address(node), request, min_version=_OFFSET_FETCH_OF_GROUPS
            )
            fetched.update((g.group_id, _commits(g)) for g in response.groups if not g.error_code)
    except (NetworkError, UnsupportedVersionError):
        # the coordinator has moved, or the broker is older: group by group, with retries
        pass
    for group_id in group_ids:
        if group_id not in fetched:
            single = cluster.fetch_committed(group_id, partitions)
            fetched[group_id] = {tp: commit for tp, commit in single.items() if commit is not None}
    return fetched


def group_lag(
    cluster: ClusterClient, groups: Sequence[GroupDescription], topics: NameSelection | None = None
) -> dict[str, list[LagRow]]:
    """Returns the assigned or committed partitions of each group, of the selected topics, with their lag.

    Raises: BrokerError, NetworkError.
    """
    partitions = None
    if topics is not None:
        partitions = [TopicPartition(t.name, n) for t in selected_topics(cluster, topics) for n in t.partitions]
    committed = committed_offsets(cluster, [group.group_id for group in groups], partitions)
    assigned = {tp for group in groups for member in group.members for tp in member.assignment}
    ends = log_end_offsets(cluster, assigned.union(*committed.values()) if partitions is None else partitions)
    return {
        group.group_id: [
            row
            for row in lag_rows(group, committed[group.group_id], ends)
            if topics is None or topics.matches(row.topic_partition.topic)
        ]
        for group in groups
    }


def log_end_offsets(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the high watermarks of the partitions that exist and have a leader."""
    return _offsets(cluster, with_leader(cluster, partitions, refresh=True), LATEST)


def log_start_offsets(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the log start offsets of the partitions that exist and have a leader."""
    return _offsets(cluster, with_leader(cluster, partitions), EARLIEST)


def offsets_at(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """Returns the offset of the first record with the timestamp or a later one, -1 if there is none."""
    return _offsets(cluster, with_leader(cluster, partitions), timestamp_ms)


def newest_timestamps(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the largest timestamp of the partitions with records. Raises: UnsupportedVersionError."""
    wanted = with_leader(cluster, partitions)
    found = cluster.list_offsets(dict.fromkeys(wanted, MAX_TIMESTAMP), read_committed=False)
    return {tp: entry.timestamp_ms for tp, entry in found.items() if entry.timestamp_ms >= 0}


def with_leader(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], refresh: bool = False
) -> list[TopicPartition]:
    """Returns those of the partitions that exist and have a leader, each once."""
    wanted = dict.fromkeys(partitions)
    if not wanted:
        return []
    return _led(cluster.metadata({tp.topic for tp in wanted}, refresh=refresh), wanted)


def _led(view: ClusterMetadata, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    leaders = {
        name: {number for number, p in topic.partitions.items() if p.leader_id in view.nodes}
        for name, topic in view.topics.items()
    }
    return [tp for tp in partitions if tp.partition in leaders.get(tp.topic, ())]


def log_sizes(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the bytes of the log on each leader.

    Empty without permission (DESCRIBE on the cluster), and for brokers without DescribeLogDirs, which is logged.
    """
    sizes: dict[TopicPartition, int] = {}
    wanted = dict.fromkeys(partitions)
    view = cluster.metadata({tp.topic for tp in wanted}) if wanted else ClusterMetadata({}, {})
    by_node: dict[int, dict[str, list[int]]] = {}
    for tp in _led(view, wanted):
        leader_id = view.topics[tp.topic].partitions[tp.partition].leader_id
        by_node.setdefault(leader_id, {}).setdefault(tp.topic, []).append(tp.partition)
    row = DescribeLogDirsRequest.DescribableLogDirTopic
    for node_id, topics in by_node.items():
        request = DescribeLogDirsRequest(topics=[row(topic=t, partitions=numbers) for t, numbers in topics.items()])
        try:
            results = cluster.call_node(node_id, request).results
        except UnsupportedVersionError as error:
            _log.warning("[node=%d] The sizes of its logs are unknown: %s", node_id, error)
            continue
        for result in results:
            for topic in result.topics:
                for p in topic.partitions:
                    if not p.is_future_key:
                        sizes[TopicPartition(topic.name, p.partition_index)] = p.partition_size
    return sizes


def first_batches(cluster: ClusterClient, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, FirstBatch]:
    """Reads the record at a position of each partition, or at the log start offset if that is after the position.

    Larger batches are requested again with a larger limit, until the budget has been read. Partitions that cannot be
    read are absent.
    """
    found: dict[TopicPartition, FirstBatch] = {}
    removed: set[TopicPartition] = set()
    view = cluster.metadata({tp.topic for tp in positions}) if positions else ClusterMetadata({}, {})
    pending = {tp: positions[tp] for tp in _led(view, positions)}
    limit, left = _FIRST_FETCH_BYTES, max(_FETCH_BUDGET_BYTES, _BUDGET_BYTES_PER_PARTITION * len(pending))
    while pending and left > 0 and limit <= _LAST_FETCH_BYTES:
        before = len(pending)
        left -= _fetch_once(cluster, view, pending, found, removed, limit, left)
        # a response is bounded too, so the same limit is used while it makes progress
        if len(pending) > before * 0.9:
            limit *= 4
    starts = log_start_offsets(cluster, removed)
    moved = {tp: start for tp, start in starts.items() if start > positions[tp]}
    return found | first_batches(cluster, moved) if moved else found


def _fetch_once(
    cluster: ClusterClient,
    view: ClusterMetadata,
    pending: dict[TopicPartition, int],
    found: dict[TopicPartition, FirstBatch],
    removed: set[TopicPartition],
    partition_bytes: int,
    budget: int,
) -> int:
    """Requests every pending partition once and returns the bytes read.

    Partitions with a batch are moved to `found`, those whose position is not in the log to `removed`.
    """
    settings = replace(
        cluster.settings,
        isolation_level="read_uncommitted",
        max_partition_fetch_bytes=partition_bytes,
        fetch_max_wait_ms=0,
        fetch_min_bytes=0,
    )
    by_node: dict[int, list[PartitionState]] = {}
    for tp, position in pending.items():
        info = view.topics[tp.topic].partitions[tp.partition]
        state = PartitionState(tp, position, position + 1, leader_epoch=info.leader_epoch)
        by_node.setdefault(info.leader_id, []).append(state)
    size = 0
    for node_id, readings in by_node.items():
        for start in range(0, len(readings), _PARTITIONS_PER_FETCH):
            if size >= budget:
                break
            chosen = readings[start : start + _PARTITIONS_PER_FETCH]
            request = fetch_request(chosen, settings, min(budget - size, _FETCH_BUDGET_BYTES))
            response = cluster.call_node(node_id, request, max_version=FETCH_BY_NAME)
            for reading, data in partitions_of(response, FETCH_BY_NAME, chosen):
                tp = reading.topic_partition
                if data.error_code:
                    del pending[tp]
                    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        removed.add(tp)
                elif data.records:
                    size += len(data.records)
                    first = _first_batch(_batches(data.records), reading.position, data.log_start_offset)
                    if first is not None:
                        found[tp] = first
                        del pending[tp]
    return size


def _batches(records: bytes | bytearray | memoryview) -> memoryview:
    """Returns fetched bytes with messages of older formats as record batches."""
    view = memoryview(records)
    try:
        last_batch(view)
    except OldFormatError:
        return with_record_batches(view)
    return view


def _first_batch(records: memoryview, position: int, log_start_offset: int) -> FirstBatch | None:
    """Returns the first record at or after a position; None if the bytes have no whole batch with it."""
    for header in iter_batches(records):
        if header.last_offset < position:
            continue
        # no record may be left at the end of a compacted batch
        first_ms = None if header.base_offset >= position else timestamp_from(records, header, position)
        timestamp_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp
        timestamp_ms = timestamp_ms if first_ms is None else first_ms
        offsets, next_offset = header.last_offset_delta + 1, header.last_offset + 1
        return FirstBatch(timestamp_ms, header.size, offsets, log_start_offset, next_offset, header.max_timestamp)
    return None


def _offsets(cluster: ClusterClient, partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    found = cluster.list_offsets({tp: timestamp for tp in partitions}, read_committed=False)
    return {tp: entry.offset for tp, entry in found.items()}


def _offset_fetch_request(
    group_ids: Sequence[str], partitions: Sequence[TopicPartition] | None
) -> OffsetFetchRequest:
    row = OffsetFetchRequest.OffsetFetchRequestGroup
    topics: list[OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics] | None = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            by_topic.setdefault(topic, []).append(number)
        topics = [row.OffsetFetchRequestTopics(name=t, partition_indexes=n) for t, n in by_topic.items()]
    groups = [row(group_id=group_id, topics=topics) for group_id in group_ids]
    return OffsetFetchRequest(groups=groups, require_stable=False)


def _commits(group: OffsetFetchResponse.OffsetFetchResponseGroup) -> Commits:
    return {
        TopicPartition(topic.name, p.partition_index): OffsetAndMetadata(
            p.committed_offset, p.metadata or "", p.committed_leader_epoch
        )
        for topic in group.topics
        for p in topic.partitions
        if p.committed_offset >= 0 and not p.error_code
    }
