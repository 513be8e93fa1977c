"""Lag of groups: joins committed offsets, log end offsets and owners.

Source: Kafka `ConsumerGroupCommand.collectConsumerAssignment`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Iterable, Mapping, NamedTuple

from spark_groupsource.client.admin import GroupDescription, MemberDescription
from spark_groupsource.model import OffsetAndMetadata, TopicPartition


class LagRow(NamedTuple):
    """One partition of a group: committed offset, log end offset and owner; None if unknown or absent."""

    topic_partition: TopicPartition
    committed: OffsetAndMetadata | None
    log_end_offset: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """Log end offset minus committed offset; None if either is unknown."""
        if self.committed is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.committed.offset


class LogSpan(NamedTuple):
    """Log of a partition; `size` is its bytes, None if unknown."""

    start: int
    end: int
    size: int | None = None


class FirstBatch(NamedTuple):
    """The record at a position: its timestamp, the bytes and offsets of its batch, the start of the log.

    `next_offset` and `max_timestamp_ms` are those of the batch.
    """

    timestamp_ms: int
    size: int
    offsets: int
    log_start_offset: int = 0
    next_offset: int = -1
    max_timestamp_ms: int = -1


def lag_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    log_end_offsets: Mapping[TopicPartition, int],
) -> list[LagRow]:
    """Rows in Kafka's order: the members by descending number of partitions, then unassigned partitions."""
    rows: list[LagRow] = []
    owned: set[TopicPartition] = set()
    owners = sorted((m for m in group.members if m.assignment), key=lambda member: -len(member.assignment))
    for member in owners:
        owned.update(member.assignment)
        rows += [LagRow(tp, committed.get(tp), log_end_offsets.get(tp), member) for tp in sorted(member.assignment)]
    rows += [LagRow(tp, committed[tp], log_end_offsets.get(tp), None) for tp in sorted(set(committed) - owned)]
    return rows


def lag_ms(lag: int | None, first: FirstBatch | None, timestamp_ms: int) -> int | None:
    """Returns the age of the first record that is not read, 0 without lag; None if it is unknown."""
    if lag is None:
        return None
    if lag <= 0:
        return 0
    return None if first is None or first.timestamp_ms < 0 else max(0, timestamp_ms - first.timestamp_ms)


def log_end_lag_ms(lag: int | None, first: FirstBatch | None, newest_ms: int | None) -> int | None:
    """Returns the time from the first record that is not read to the newest one; 0 without lag, None if unknown."""
    return None if lag and newest_ms is None else lag_ms(lag, first, newest_ms or 0)


def lag_bytes(lag: int | None, log: LogSpan | None, first: FirstBatch | None) -> int | None:
    """Returns the estimated number of bytes that are not read.

    Lag times the mean bytes of an offset in the log, or in the first batch.
    """
    if lag is None:
        return None
    if lag <= 0:
        return 0
    if log is not None and log.size is not None and log.end > log.start:
        # records before the log start offset were deleted and will not be read
        return round(min(lag, log.end - log.start) * log.size / (log.end - log.start))
    return None if first is None else round(lag * first.size / first.offsets)


def growth_per_second(before: int, before_timestamp_ms: int, now: int, timestamp_ms: int) -> float | None:
    """Returns the growth of an offset between two moments; None if they are less than one second apart."""
    elapsed_ms = timestamp_ms - before_timestamp_ms
    return None if elapsed_ms < 1_000 else max(0.0, (now - before) * 1_000 / elapsed_ms)


def catch_up_ms(lag: int | None, consumed: float | None, produced: float | None) -> int | None:
    """Returns the estimated time until the lag is 0; None if it is unknown or the lag does not decrease."""
    if lag is None:
        return None
    if lag <= 0:
        return 0
    if consumed is None or produced is None or consumed <= produced:
        return None
    return round(lag * 1_000 / (consumed - produced))


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    """``flights:0,1;weather:3``; empty without partitions."""
    by_topic = groupby(sorted(partitions), key=lambda tp: tp.topic)
    return ";".join(f"{topic}:{','.join(str(tp.partition) for tp in tps)}" for topic, tps in by_topic)


def member_row(group_id: str, member: MemberDescription) -> dict[str, Any]:
    """Returns a member as a row of columns."""
    return {
        "group": group_id,
        "consumer_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "host": member.client_host,
        "client_id": member.client_id,
        "partitions": len(member.assignment),
        "assignment": assignment_text(member.assignment),
    }
