"""Checkpoint of a Spark query: batches, offsets, and where a restart continues.

Source: Spark `OffsetSeqLog`, `CommitLog`, `StreamMetadata`; which offset wins is decided by `position_decisions`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Collection, Iterator, Mapping, NamedTuple

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.commit_history import find_last_commits
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition
from spark_groupsource.monitor.offsets.cluster_reads import committed_offsets, log_end_offsets, log_start_offsets
from spark_groupsource.monitor.offsets.offset_reset import RestartPosition
from spark_groupsource.source.options.option_values import local_path
from spark_groupsource.source.positions.offset_json import GROUP_KEY, SourceOffset, decode_offset, logged_ranges
from spark_groupsource.source.positions.position_decisions import (
    PositionSource,
    checkpointed_positions,
    decide_positions,
)
from spark_groupsource.source.positions.stream_positions import StreamPositions
from spark_groupsource.values.registry.subjects import ReaderSchema
from spark_groupsource.wire.commit_reports import committed_topic_id

_VERSION = "v1"
_NO_OFFSET = "-"
_SPARKS_SOURCE = "checkpoint; Spark's Kafka source does not read committed offsets"
_RECREATED = "of a topic that was deleted and created again; the query fails unless failOnDataLoss=false"
_REACTIONS = {
    "follow": "the commit is followed",
    "fail": "the query fails (onGroupReset=fail)",
    "ignore": "the checkpoint is followed (onGroupReset=ignore)",
}


@dataclass(frozen=True)
class SourceCheckpoint:
    """Offsets of one source of the query.

    Attributes:
        index: position among the sources of the query.
        kind: ``groupsource``, ``kafka`` (Spark's source), or ``other``.
        planned: end offset of the last planned batch.
        committed: end offset of the last committed batch; None before the first.
        replayed: ranges that a restart reads again: the last planned batch, if it is not committed.
    """

    index: int
    kind: str
    planned: SourceOffset
    committed: SourceOffset | None
    replayed: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class Checkpoint:
    """The last batches of a query.

    Attributes:
        query_id: id of the query, which it keeps over restarts; None if the checkpoint lacks it.
        planned_batch, committed_batch: numbers of the last batch in the offset log and in the commit log, None before.
        watermark_ms: event-time watermark of the last planned batch, epoch ms; 0 without a watermark.
        planned_at_ms: when the last batch was planned, epoch ms.
        configs: Spark settings that the query keeps.
        sources: in the order of the query.
    """

    path: Path
    query_id: str | None
    planned_batch: int | None
    committed_batch: int | None
    watermark_ms: int
    planned_at_ms: int
    configs: Mapping[str, str]
    sources: tuple[SourceCheckpoint, ...]

    def restart_rule(self, cluster: ClusterClient, group_id: str) -> GroupRestart:
        """Returns the rule by which a restart of the query in this group finds the positions of its only source.

        Raises: ConfigurationError unless there is one source with Kafka offsets.
        """
        return GroupRestart(cluster, group_id, self.source(), "follow")

    def source(self, index: int | None = None) -> SourceCheckpoint:
        """Returns one source, by default the only one with Kafka offsets. Raises: ConfigurationError."""
        found = [s for s in self.sources if s.kind != "other" and index in (None, s.index)]
        if len(found) != 1:
            listed = ", ".join(f"{s.index} ({s.kind})" for s in self.sources) or "none"
            raise ConfigurationError(
                f"Checkpoint {self.path} does not have exactly one source with Kafka offsets; its sources: {listed}. "
                "Name one of them (--source)."
            )
        return found[0]


class GroupRestart:
    """Positions at a restart of a query in a group; see `monitor.offset_reset.RestartRule`."""

    def __init__(self, cluster: ClusterClient, group_id: str, source: SourceCheckpoint, on_group_reset: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._source = source
        self._on_group_reset = on_group_reset

    def restart_positions(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, RestartPosition]:
        """Returns the position of each partition of the checkpoint or with a committed offset.

        Raises: BrokerError, NetworkError.
        """
        start = self._source.planned
        if self._source.kind == "kafka":
            return {p: RestartPosition(offset, _SPARKS_SOURCE) for p, offset in start.positions.items()}
        previous = StreamPositions().checkpointed(start)
        named = {*start.positions, *previous.delivered, *committed}
        recreated = self._recreated(named, previous, committed)
        partitions = named - recreated.keys()
        commits = {p: committed.get(p) for p in partitions}
        decided = decide_positions(
            partitions,
            start,
            previous,
            commits,
            partial(find_last_commits, self._cluster, self._group_id),
            is_same_group=start.group_id == self._group_id,
        )
        checkpoint = checkpointed_positions(start, previous)
        found = dict(recreated)
        for p, (source, offset) in decided.items():
            text = source.value
            if source is PositionSource.COMMIT_RESET:
                text += f"; {_REACTIONS[self._on_group_reset]}"
                offset = offset if self._on_group_reset == "follow" else checkpoint.get(p)
            found[p] = RestartPosition(start.starting.get(p) if offset is None else offset, text)
        return found

    def _recreated(
        self,
        partitions: Collection[TopicPartition],
        previous: StreamPositions,
        committed: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> dict[TopicPartition, RestartPosition]:
        """Returns the positions in topics that have another id than in the checkpoint."""
        names = {p.topic for p in partitions}
        ids = self._cluster.metadata(names).topic_ids(names)
        topics = previous.recreated_topics(ids)
        recreated = [p for p in partitions if p.topic in topics]
        starts = log_start_offsets(self._cluster, recreated)
        found = {}
        for p in recreated:
            commit = committed.get(p)
            if commit is not None and committed_topic_id(commit.metadata) == ids[p.topic]:
                found[p] = RestartPosition(commit.offset, f"committed offset {_RECREATED}")
            else:
                found[p] = RestartPosition(starts.get(p), f"log start offset {_RECREATED}")
        return found


class ComparedRow(NamedTuple):
    """One partition: the checkpoint, the group and the log; None for what does not exist."""

    topic: str
    partition: int
    planned_offset: int | None
    committed_batch_offset: int | None
    group_offset: int | None
    log_start_offset: int | None
    log_end_offset: int | None
    restart: RestartPosition | None

    @property
    def lag(self) -> int | None:
        """Records that a restart reads in this partition up to the log end offset."""
        if self.restart is None or self.restart.offset is None or self.log_end_offset is None:
            return None
        return max(0, self.log_end_offset - max(self.restart.offset, self.log_start_offset or 0))


def compare(cluster: ClusterClient, group_id: str, source: SourceCheckpoint, on_group_reset: str) -> list[ComparedRow]:
    """Compares a checkpoint with the committed offsets of a group and with the logs, sorted by partition.

    Raises: BrokerError, NetworkError.
    """
    topics = {tp.topic for tp in source.planned.positions}
    commits = {tp: c for tp, c in committed_offsets(cluster, [group_id])[group_id].items() if tp.topic in topics}
    partitions = sorted({*source.planned.positions, *source.planned.delivered, *commits})
    starts, ends = log_start_offsets(cluster, partitions), log_end_offsets(cluster, partitions)
    restarts = GroupRestart(cluster, group_id, source, on_group_reset).restart_positions(commits)
    done = source.committed.positions if source.committed else {}
    return [
        ComparedRow(
            tp.topic,
            tp.partition,
            source.planned.positions.get(tp),
            done.get(tp),
            commits[tp].offset if tp in commits else None,
            starts.get(tp),
            ends.get(tp),
            restarts.get(tp),
        )
        for tp in partitions
    ]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint directory of a query with any sources.

    Raises: ConfigurationError for a path that is not a local checkpoint directory, and for files in another format.
    """
    root = local_path(path)
    if root is None:
        raise ConfigurationError(
            f"Reading checkpoint {path} failed: only local directories can be read. Copy its folders offsets and "
            "commits and its file metadata to a local directory."
        )
    if not (root / "offsets").is_dir():
        raise ConfigurationError(
            f"Reading checkpoint {root} failed: it has no folder offsets. Give the checkpointLocation of a query that "
            "has planned a batch."
        )
    planned, done = _last_batch(root / "offsets"), _last_batch(root / "commits")
    metadata, last = _read_offsets(root, planned) if planned is not None else ({}, [])
    before = _read_offsets(root, done)[1] if done is not None and done != planned else last if done == planned else []
    return Checkpoint(
        root,
        _query_id(root),
        planned,
        done,
        int(metadata.get("batchWatermarkMs", 0)),
        int(metadata.get("batchTimestampMs", 0)),
        {str(k): str(v) for k, v in metadata.get("conf", {}).items()},
        tuple(_sources(last, before, is_committed=planned == done)),
    )


def schemas_in_checkpoint(path: str) -> list[Mapping[str, ReaderSchema]]:
    """Returns the schemas of the columns of each source of a query; none before its first batch.

    Raises: as `read_checkpoint`.
    """
    root = local_path(path)
    if root is None:
        raise ConfigurationError(
            f"Option checkpointLocation of load() must be a local directory, got {path!r}. Leave it out of load(), and "
            "set value.schema.version to keep the columns."
        )
    return [] if _last_batch(root / "offsets") is None else [s.planned.schemas for s in read_checkpoint(root).sources]


def _sources(
    planned: list[dict[str, Any] | None], done: list[dict[str, Any] | None], is_committed: bool
) -> Iterator[SourceCheckpoint]:
    for index, encoded in enumerate(planned):
        earlier = done[index] if index < len(done) else None
        kind = _kind(encoded)
        if kind == "other" or encoded is None:
            yield SourceCheckpoint(index, "other", SourceOffset(), None, ())
            continue
        end, start = decode_offset(encoded), None if earlier is None else decode_offset(earlier)
        ranges = () if is_committed else tuple(logged_ranges(start or SourceOffset(), end)[0])
        yield SourceCheckpoint(index, kind, end, start, tuple(r for r in ranges if r.start < r.end))


def _kind(encoded: dict[str, Any] | None) -> str:
    """Returns the source, which the form of its offset shows."""
    if encoded is None:
        return "other"
    if GROUP_KEY in encoded:
        return "groupsource"
    values = encoded.values()
    is_kafka = all(isinstance(v, dict) and all(k.isdecimal() and type(n) is int for k, n in v.items()) for v in values)
    return "kafka" if encoded and is_kafka else "other"


def _last_batch(folder: Path) -> int | None:
    numbers = [int(file.name) for file in folder.glob("*") if file.name.isdecimal()] if folder.is_dir() else []
    return max(numbers, default=None)


def _read_offsets(root: Path, batch: int) -> tuple[dict[str, Any], list[dict[str, Any] | None]]:
    """Returns the metadata of a batch and the offset of each source.

    Raises: ConfigurationError.
    """
    path = root / "offsets" / str(batch)
    try:
        version, metadata, *offsets = path.read_text("utf-8").split("\n")
        if version.strip() != _VERSION:
            raise ValueError(f"its format is {version.strip()[:20]!r}, not {_VERSION!r}")
        lines = [line for line in offsets if line.strip()]
        return json.loads(metadata or "{}"), [None if line == _NO_OFFSET else _object(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Reading {path} of the checkpoint failed: {error}. Check that the directory is a complete checkpoint."
        ) from error


def _object(line: str) -> dict[str, Any]:
    """Returns the JSON object of an offset; an offset of another form, a number for example, becomes an empty one."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _query_id(root: Path) -> str | None:
    try:
        found = json.loads((root / "metadata").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return str(found["id"]) if isinstance(found, dict) and "id" in found else None
