"""Rows of the tables, read from a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping

from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import CorruptRecordError, GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.monitor.near_names import missing_group_text
from spark_groupsource.monitor.offsets.cluster_reads import (
    committed_offsets,
    group_lag,
    log_end_offsets,
    log_sizes,
    log_start_offsets,
    selected_groups,
    selected_topics,
    topic_id_text,
    topic_overrides,
)
from spark_groupsource.monitor.offsets.lag import member_row
from spark_groupsource.monitor.offsets.offsets_log import (
    Corruption,
    Entry,
    entries,
    fetch_batches,
    log_partitions,
    log_ranges,
)
from spark_groupsource.monitor.rebalances.group_history import last_group_records
from spark_groupsource.monitor.rebalances.rebalance import Actor, Origin, Rebalance
from spark_groupsource.monitor.rebalances.rebalance_sources import group_rebalances
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.monitor.tables.estimates import ESTIMATES, estimates

Row = dict[str, Any]
"""Column -> value; absent columns are null."""

_YEAR_10000_MS = 253_402_300_800_000


@dataclass(frozen=True)
class TableQuery:
    """Selected columns and rows of a table.

    Attributes:
        columns: the selected columns; the others need not be computed.
        group, topic: None selects all.
    """

    table: str
    columns: frozenset[str]
    group: NameSelection | None = None
    topic: NameSelection | None = None


def read_rows(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    """Yields the rows of a table, with at least the selected columns.

    Raises: BrokerError, NetworkError; GroupSourceError for a group that does not exist.
    """
    return _READERS[query.table](cluster, query)


def _topics(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    topics = selected_topics(cluster, query.topic)
    names = [topic.name for topic in topics]
    overrides = topic_overrides(cluster, names) if "configs" in query.columns else {}
    for topic in topics:
        settings = overrides.get(topic.name)
        yield {
            "topic": topic.name,
            "topic_id": topic_id_text(topic),
            "partition_count": len(topic.partitions),
            "replication_factor": len(topic.partitions[min(topic.partitions)].replicas) if topic.partitions else None,
            "is_internal": topic.is_internal,
            "configs": None if settings is None else ",".join(f"{k}={v}" for k, v in settings.items()),
        }


def _partitions(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    topics = selected_topics(cluster, query.topic)
    partitions = [TopicPartition(topic.name, number) for topic in topics for number in sorted(topic.partitions)]
    starts = log_start_offsets(cluster, partitions) if "log_start_offset" in query.columns else {}
    ends = log_end_offsets(cluster, partitions) if "log_end_offset" in query.columns else {}
    sizes = log_sizes(cluster, partitions) if "size" in query.columns else {}
    by_name = {topic.name: topic for topic in topics}
    for tp in partitions:
        info = by_name[tp.topic].partitions[tp.partition]
        yield {
            "topic": tp.topic,
            "partition": tp.partition,
            "leader": _known(info.leader_id),
            "leader_epoch": _known(info.leader_epoch),
            "replicas": list(info.replicas),
            "isr": list(info.in_sync),
            "log_start_offset": starts.get(tp),
            "log_end_offset": ends.get(tp),
            "size": sizes.get(tp),
        }


def _groups(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    described = existing_groups(cluster, query.group)
    records = last_group_records(cluster, described) if "generation" in query.columns else {}
    for group in described.values():
        record = records.get(group.group_id)
        node = group.coordinator
        yield {
            "group": group.group_id,
            "coordinator": f"{node.host}:{node.port} ({node.node_id})",
            "assignment_strategy": group.protocol or None,
            "state": group.state,
            "generation": None if record is None else record.generation_id,
            "members": len(group.members),
        }


def _members(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    described = existing_groups(cluster, query.group)
    records = last_group_records(cluster, described) if "is_leader" in query.columns else {}
    for group in described.values():
        record = records.get(group.group_id)
        leader = None if record is None else record.leader
        # during a rebalance the record is of the generation before
        is_known = any(member.member_id == leader for member in group.members)
        for member in group.members:
            yield {
                **member_row(group.group_id, member),
                "is_leader": member.member_id == leader if is_known else None,
            }


def _offsets(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    partitions = None
    if query.topic is not None:
        partitions = [TopicPartition(t.name, n) for t in selected_topics(cluster, query.topic) for n in t.partitions]
    for group_id, committed in committed_offsets(cluster, selected_groups(cluster, query.group), partitions).items():
        for tp, commit in sorted(committed.items()):
            yield {
                "group": group_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "current_offset": commit.offset,
                "leader_epoch": _known(commit.leader_epoch),
                "metadata": commit.metadata,
            }


def _lag(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    found_lags = group_lag(cluster, list(existing_groups(cluster, query.group).values()), query.topic)
    # the command line has Kafka's order, by member
    lags = {group: sorted(rows, key=lambda row: row.topic_partition) for group, rows in found_lags.items()}
    wanted = query.columns.intersection(ESTIMATES)
    more = estimates(cluster, lags, wanted) if wanted else None
    for group_id, rows in lags.items():
        for row in rows:
            member = row.member
            found: Row = {
                "group": group_id,
                "topic": row.topic_partition.topic,
                "partition": row.topic_partition.partition,
                "current_offset": None if row.committed is None else row.committed.offset,
                "log_end_offset": row.log_end_offset,
                "lag": row.lag,
                "consumer_id": None if member is None else member.member_id,
                "host": None if member is None else member.client_host,
                "client_id": None if member is None else member.client_id,
            }
            yield found if more is None else found | next(more)


def _rebalances(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    for found in group_rebalances(cluster, query.group).values():
        yield from map(rebalance_row, found)


def rebalance_row(rebalance: Rebalance) -> Row:
    """Returns the row of table rebalances; unknown values are absent."""
    actor = rebalance.actor or Actor()
    return {
        "group": rebalance.group,
        "generation": rebalance.generation,
        "cause": rebalance.cause.value,
        "reason": rebalance.reason,
        "difference": rebalance.difference,
        "client_id": actor.client_id,
        "host": actor.host,
        "group_instance_id": actor.group_instance_id,
        "application": actor.application,
        "query": actor.query,
        "started_at": None if rebalance.started_ms is None else _microseconds(rebalance.started_ms),
        "completed_at": _microseconds(rebalance.completed_ms),
        **rebalance.phases._asdict(),
        "slowest_member": rebalance.slowest_member,
        "members": rebalance.members,
        "partitions_moved": rebalance.partitions_moved,
        "partitions_unassigned": rebalance.partitions_unassigned,
        "unowned_seconds": rebalance.unowned_seconds,
        "repeated_records": rebalance.repeated_records,
        "lag_added": rebalance.lag_added,
        "inferred": _inferred(rebalance),
    }


def _inferred(rebalance: Rebalance) -> str | None:
    columns = {"actor": "client_id", "started_ms": "started_at"}
    names = [name for name, origin in rebalance.origins.items() if origin is Origin.INFERRED]
    return ",".join(columns.get(name, name) for name in names) or None


def _offsets_log(cluster: ClusterClient, query: TableQuery) -> Iterator[Row]:
    for part in log_ranges(cluster, log_partitions(cluster, query.group)):
        yield from offsets_log_rows(cluster, part, query.group)


def offsets_log_rows(cluster: ClusterClient, part: OffsetRange, group: NameSelection | None = None) -> Iterator[Row]:
    """Yields the rows of table offsets_log of a range of one partition.

    Raises: BrokerError, NetworkError; DataLossError for records that retention or compaction has removed.
    """
    for batch in fetch_batches(cluster, part):
        if isinstance(batch, Corruption):
            yield {"partition": part.topic_partition.partition, "type": "error", "value": batch.text}
            continue
        try:
            decoded = list(entries(batch.partition, batch.buffer, batch.header))
        except CorruptRecordError as error:
            offset = batch.header.base_offset
            yield {"partition": batch.partition, "offset": offset, "type": "error", "value": str(error)}
            continue
        for entry in decoded:
            is_selected = group is None or (entry.group is not None and group.matches(entry.group))
            if is_selected and part.start <= entry.record.offset < part.end:
                yield _entry_row(entry)


def _entry_row(entry: Entry) -> Row:
    record = entry.record
    row: Row = {
        "partition": entry.partition,
        "offset": record.offset,
        "timestamp": _microseconds(record.timestamp_ms),
        "type": entry.kind,
        "group": entry.group,
        "is_tombstone": record.value is None,
        "producer_id": entry.batch.producer_id if entry.batch.is_transactional else None,
    }
    if entry.key is None:
        return row | {"value": entry.marker or entry.problem or f"record type {entry.unknown_type}"}
    key, data = entry.key["data"], {} if entry.payload is None else entry.payload["data"]
    row |= {"key": _json(entry.key), "value": None if entry.payload is None else _json(entry.payload)}
    if entry.kind == "offset":
        row |= {"topic": key["topic"], "topic_partition": key["partition"], "committed_offset": data.get("offset")}
        row |= {"leader_epoch": _known(data.get("leaderEpoch", -1)), "metadata": data.get("metadata")}
    elif entry.kind == "group" and data:
        row |= {"generation": data["generation"], "protocol": data["protocol"], "leader": data["leader"]}
        row |= {"members": len(data["members"])}
    return row


def existing_groups(cluster: ClusterClient, selection: NameSelection | None) -> Mapping[str, GroupDescription]:
    """Describes the selected groups.

    Raises: GroupSourceError for a named group that does not exist.
    """
    described = describe_groups(cluster, selected_groups(cluster, selection))
    missing = [name for name, group in described.items() if group.state == "Dead"]
    if missing and selection is not None and selection.names is not None:
        raise GroupSourceError(missing_group_text(cluster, missing[0]))
    return described


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _microseconds(timestamp_ms: int) -> int | None:
    """Returns epoch microseconds; None for no timestamp and for one after the year 9999."""
    return timestamp_ms * 1_000 if 0 <= timestamp_ms < _YEAR_10000_MS else None


def _json(form: Any) -> str:
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"))


_READERS: Mapping[str, Callable[[ClusterClient, TableQuery], Iterator[Row]]] = {
    "topics": _topics,
    "partitions": _partitions,
    "groups": _groups,
    "members": _members,
    "offsets": _offsets,
    "lag": _lag,
    "rebalances": _rebalances,
    "offsets_log": _offsets_log,
}
