"""Offset resets: plans of new committed offsets of a group.

Source: Kafka 4.3 `org.apache.kafka.tools.OffsetsUtils` and `ConsumerGroupCommand.resetOffsets`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from enum import Enum
from html import escape
from typing import Iterable, Mapping, NamedTuple, Protocol, Sequence

from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.config_def import INT64_MAX, parse_duration_ms, parse_integer
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.monitor.offsets.cluster_reads import (
    committed_offsets,
    log_end_offsets,
    log_start_offsets,
    offsets_at,
)

_SHOWN_NOTES = 5
_INACTIVE_STATES = ("Empty", "Dead")
_EXAMPLES = "earliest, latest, current, an offset, +<n> or -<n> (shift), -<n>m (time back in ms, s, m, h or d)"


class ResetScope(NamedTuple):
    """The partitions to reset: those listed and all of `topics`; with neither, all with a committed offset."""

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()


ALL_COMMITTED = ResetScope()
"""All partitions with a committed offset of the group (``--all-topics`` of Kafka's tool)."""


class TargetKind(Enum):
    """Rule for the new offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"


class ResetTarget(NamedTuple):
    """The new offsets: `value` is the offset, the shift or the epoch ms; `offsets` has one offset per partition."""

    kind: TargetKind
    value: int = 0
    offsets: Mapping[TopicPartition, int] = {}


class RestartPosition(NamedTuple):
    """Where a query with a checkpoint continues in one partition, and which of the offsets decides."""

    offset: int | None
    source: str


class RestartRule(Protocol):
    """Decides where a query continues that restarts with a checkpoint (`source.checkpoint.Checkpoint`)."""

    def restart_positions(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, RestartPosition]:
        """Returns the position of each partition with the given committed offsets."""


class ResetRow(NamedTuple):
    """One partition of a plan.

    Attributes:
        current_offset: the committed offset before; None if there is none.
        note: why the new offset is not the requested one; empty if it is.
        restart: where a query with the given checkpoint continues after the reset; None without a checkpoint.
    """

    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    log_start_offset: int
    log_end_offset: int
    note: str = ""
    restart: RestartPosition | None = None

    @property
    def lag(self) -> int:
        """Lag after the reset."""
        return self.log_end_offset - self.new_offset


class ResetPlan:
    """New committed offsets of one group, until `execute` only planned.

    Attributes:
        group_id: the group.
        rows: sorted by partition.
        is_executed: whether `execute` has committed the offsets.
        warnings: sentences about members and the checkpoint.
    """

    def __init__(self, cluster: ClusterClient, group: GroupDescription, rows: Sequence[ResetRow]) -> None:
        self._cluster = cluster
        self.group_id = group.group_id
        self.rows = tuple(rows)
        self.is_executed = False
        self.warnings = (*_member_warnings(group), *_restart_warnings(rows))

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The new committed offset of each partition."""
        return {TopicPartition(row.topic, row.partition): row.new_offset for row in self.rows}

    def execute(self) -> ResetPlan:
        """Commits the new offsets; returns the plan, which shows what was committed.

        Raises: GroupSourceError while the group has members; BrokerError, NetworkError.
        """
        (group,) = describe_groups(self._cluster, [self.group_id]).values()
        check_inactive(group)
        commits = {tp: OffsetAndMetadata(offset) for tp, offset in self.offsets.items()}
        self._cluster.commit(self.group_id, commits)
        self.is_executed = True
        return self

    def __repr__(self) -> str:
        lines = self._lines()
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        texts = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([self._title(), *texts, *self._after()])

    def _repr_html_(self) -> str:
        header, *rows = self._lines()
        head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header)
        body = "".join(f"<tr>{''.join(_html_cell(cell) for cell in row)}</tr>" for row in rows)
        after = "".join(f"<p>{escape(text)}</p>" for text in self._after())
        caption = f"<caption>{escape(self._title())}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{after}"

    def _title(self) -> str:
        return f"Reset of group {self.group_id!r}, {'executed' if self.is_executed else 'not executed'}"

    def _lines(self) -> list[tuple[str, ...]]:
        has_restart = any(row.restart is not None for row in self.rows)
        restart = ("QUERY-CONTINUES-AT", "DECIDED-BY") if has_restart else ()
        header = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "LOG-START-OFFSET", "LOG-END-OFFSET", "LAG")
        lines = [(*_cells(row), *(_restart_cells(row) if has_restart else ())) for row in self.rows]
        return [(*header, *restart), *lines]

    def _after(self) -> list[str]:
        notes = list(dict.fromkeys(row.note for row in self.rows if row.note))[:_SHOWN_NOTES]
        call = [] if self.is_executed else ["Call execute() to commit the new offsets."]
        return [*notes, *self.warnings, *call]


def plan(
    cluster: ClusterClient,
    group_id: str,
    scope: ResetScope,
    target: ResetTarget,
    checkpoint: RestartRule | None = None,
) -> ResetPlan:
    """Plans new committed offsets of a group, which need not exist; changes nothing.

    Offsets outside the log are moved to its nearest end, and a time after the last record becomes the log end offset.

    Raises: ConfigurationError for a shift without a committed offset; GroupSourceError for partitions that do not
        exist or have no leader; BrokerError, NetworkError.
    """
    (group,) = describe_groups(cluster, [group_id]).values()
    committed = {tp: commit.offset for tp, commit in committed_offsets(cluster, [group_id])[group_id].items()}
    partitions = _partitions(cluster, scope, target, committed)
    _check_partitions(cluster, partitions)
    starts, ends = log_start_offsets(cluster, partitions), log_end_offsets(cluster, partitions)
    found = offsets_at(cluster, partitions, target.value) if target.kind is TargetKind.TIMESTAMP else {}
    rows = [
        _row(tp, _requested(tp, target, committed, starts, ends, found), committed.get(tp), starts[tp], ends[tp])
        for tp in partitions
    ]
    if checkpoint is not None:
        commits = {TopicPartition(r.topic, r.partition): OffsetAndMetadata(r.new_offset) for r in rows}
        restarts = checkpoint.restart_positions(commits)
        rows = [r._replace(restart=restarts.get(TopicPartition(r.topic, r.partition))) for r in rows]
    return ResetPlan(cluster, group, rows)


def check_inactive(group: GroupDescription) -> None:
    """Raises: GroupSourceError if the group has members, which would overwrite the new offsets."""
    if group.state not in _INACTIVE_STATES:
        raise GroupSourceError(
            f"Assignments can only be reset if the group '{group.group_id}' is inactive, but the current state is "
            f"{group.state}."
        )


def parse_scope(texts: Iterable[str]) -> ResetScope:
    """Parses ``topic`` and ``topic:0,1``, as option ``--topic`` of Kafka's tool.

    Raises: ConfigurationError.
    """
    topics: list[str] = []
    partitions: list[TopicPartition] = []
    for text in texts:
        topic, *parts = text.split(":")
        if not parts:
            topics.append(topic)
        elif len(parts) > 1 or not parts[0]:
            raise ConfigurationError(f"Invalid topic arg '{text}', expected topic name and partitions")
        else:
            partitions += [TopicPartition(topic, _partition_number(number, text)) for number in parts[0].split(",")]
    return ResetScope(tuple(dict.fromkeys(topics)), tuple(dict.fromkeys(partitions)))


def parse_target(to: str | int | datetime | timedelta, timestamp_ms: int) -> ResetTarget:
    """Parses the target of a Python call.

    Args:
        to: ``earliest``, ``latest``, ``current``, an offset (``100``), a shift (``"+10"``, ``"-10"``), a time back
            (``"-1h"``, a timedelta) or a time (``"2026-01-31T10:00:00"``, a datetime; without a time zone in UTC).
        timestamp_ms: the current time in epoch ms.
    Raises: ConfigurationError.
    """
    if isinstance(to, timedelta):
        return ResetTarget(TargetKind.TIMESTAMP, timestamp_ms - abs(to) // timedelta(milliseconds=1))
    if isinstance(to, datetime):
        return ResetTarget(TargetKind.TIMESTAMP, datetime_ms(to))
    text = str(to).strip()
    if text in (TargetKind.EARLIEST.value, TargetKind.LATEST.value, TargetKind.CURRENT.value):
        return ResetTarget(TargetKind(text))
    number = parse_integer(text)
    if number is not None and abs(number) <= INT64_MAX:
        return ResetTarget(TargetKind.SHIFT if text.startswith(("+", "-")) else TargetKind.OFFSET, number)
    back_ms = parse_duration_ms(text[1:]) if text.startswith("-") else None
    if back_ms is not None:
        return ResetTarget(TargetKind.TIMESTAMP, timestamp_ms - back_ms)
    try:
        return ResetTarget(TargetKind.TIMESTAMP, datetime_ms(datetime.fromisoformat(text.replace("Z", "+00:00"))))
    except ValueError:
        raise ConfigurationError(
            f"Argument to must be {_EXAMPLES} or a time such as 2026-01-31T10:00:00, got {text!r}."
        ) from None


def datetime_ms(time: datetime) -> int:
    """Returns epoch ms; a time without time zone is UTC, as in Kafka's tool."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    return (aware - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


def _partition_number(text: str, argument: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"Invalid partition '{text}' specified in topic arg '{argument}'")
    return int(text)


def _partitions(
    cluster: ClusterClient, scope: ResetScope, target: ResetTarget, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    if target.kind is TargetKind.OFFSETS:
        return sorted(target.offsets)
    if scope == ALL_COMMITTED:
        return sorted(committed)
    described = cluster.describe_topics(scope.topics) if scope.topics else {}
    listed = {TopicPartition(name, number) for name, topic in described.items() for number in topic.partitions}
    return sorted(listed.union(scope.partitions))


def _check_partitions(cluster: ClusterClient, partitions: Sequence[TopicPartition]) -> None:
    """Raises: GroupSourceError with the words of Kafka's tool; BrokerError for a topic that does not exist."""
    if not partitions:
        return
    topics = cluster.describe_topics(sorted({tp.topic for tp in partitions}))
    missing = [tp for tp in partitions if tp.partition not in topics[tp.topic].partitions]
    if missing:
        raise GroupSourceError(f'The partitions "{bounded_names(missing)}" do not exist')
    nodes = cluster.metadata({tp.topic for tp in partitions}).nodes
    unled = [tp for tp in partitions if topics[tp.topic].partitions[tp.partition].leader_id not in nodes]
    if unled:
        raise GroupSourceError(f'The partitions "{bounded_names(unled)}" have no leader')


def _requested(
    tp: TopicPartition,
    target: ResetTarget,
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int],
) -> int | None:
    """Returns the requested offset; None for a time after the last record."""
    if target.kind is TargetKind.EARLIEST:
        return starts[tp]
    if target.kind is TargetKind.LATEST:
        return ends[tp]
    if target.kind is TargetKind.CURRENT:
        return committed.get(tp, ends[tp])
    if target.kind is TargetKind.SHIFT:
        if tp not in committed:
            raise ConfigurationError(
                f"Cannot shift offset for partition {tp} since there is no current committed offset"
            )
        return committed[tp] + target.value
    if target.kind is TargetKind.TIMESTAMP:
        return found[tp] if found[tp] >= 0 else None
    return target.offsets[tp] if target.kind is TargetKind.OFFSETS else target.value


def _row(tp: TopicPartition, requested: int | None, current: int | None, start: int, end: int) -> ResetRow:
    note, offset = "", end if requested is None else min(max(requested, start), end)
    if requested is None:
        note = f"Partition {tp.partition} from topic {tp.topic} is empty. Falling back to latest known offset."
    elif requested != offset:
        relation = "higher than latest" if requested > end else "lower than earliest"
        note = f"New offset ({requested}) is {relation} offset for topic partition {tp}. Value will be set to {offset}"
    return ResetRow(tp.topic, tp.partition, current, offset, start, end, note)


def _member_warnings(group: GroupDescription) -> list[str]:
    if group.state in _INACTIVE_STATES:
        return []
    return [
        f"Group '{group.group_id}' is {group.state} with {len(group.members)} members. Stop them before the reset: "
        "they do not read committed offsets while they run, and overwrite them."
    ]


def _restart_warnings(rows: Iterable[ResetRow]) -> list[str]:
    others = [r for r in rows if r.restart is not None and r.restart.offset != r.new_offset]
    if not others:
        return []
    texts = (f"{r.topic}-{r.partition} at {r.restart.offset} ({r.restart.source})" for r in others if r.restart)
    return [
        f"A query that restarts with the checkpoint does not continue at the new offset in {len(others)} partitions: "
        f"{bounded_names(texts)}."
    ]


def _restart_cells(row: ResetRow) -> tuple[str, ...]:
    if row.restart is None:
        return "-", "-"
    return "-" if row.restart.offset is None else str(row.restart.offset), row.restart.source


def _html_cell(cell: str) -> str:
    align = "right" if cell.isdigit() or cell == "-" else "left"
    return f'<td style="text-align:{align}">{escape(cell)}</td>'


def _cells(row: ResetRow) -> tuple[str, ...]:
    current = "-" if row.current_offset is None else str(row.current_offset)
    numbers = (row.new_offset, row.log_start_offset, row.log_end_offset, row.lag)
    return (row.topic, str(row.partition), current, *map(str, numbers))
