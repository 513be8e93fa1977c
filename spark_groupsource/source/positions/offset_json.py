"""Offset JSON that Spark writes to the checkpoint of a stream.

``{"<topic>": {"<partition>": <next offset>}, "@group": {...}}``: the first part is the format of Spark's Kafka source,
whose checkpoints can be continued; ``@group`` is not a legal topic name. Spark compares offsets as text, so topics and
partitions are sorted and equal offsets have equal texts.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from typing import Any, Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.values.registry.subjects import ReaderSchema

GROUP_KEY = "@group"

_PARTITION_FIELDS = ("starting", "committed", "delivered")


@dataclass(frozen=True)
class SourceOffset:
    """End offset of one micro-batch.

    Attributes:
        positions: next offset of exactly the partitions that were owned when the batch was planned.
        acquired: start offsets of the partitions that the batch is the first to read.
        generation_id: the group's generation when the batch was planned.
        reader: permanent name of the query; empty in the initial offset.
        topic_ids: ids of the topics; a recreated topic has another id.
        partition_counts: number of partitions of each subscribed topic when the query started; partitions beyond it
            were added later.
        starting: `startingOffsets` as resolved for each partition when the query started; empty for earliest.
        committed: the group's committed offsets when the batch was planned, as far as known; none for a
            partition without a commit.
        delivered: positions of partitions that this query has lost, where the group's committed offset was below.
        group_id: the group that the query was in; empty if unknown.
        schemas: column -> the version of a subject that is its schema.
        cluster_id: id of the cluster of the positions; empty if unknown.
    """

    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    acquired: Mapping[TopicPartition, int] = field(default_factory=dict)
    generation_id: int = -1
    reader: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    starting: Mapping[TopicPartition, int] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    delivered: Mapping[TopicPartition, int] = field(default_factory=dict)
    group_id: str = ""
    schemas: Mapping[str, ReaderSchema] = field(default_factory=dict)
    cluster_id: str = ""


class DecodedOffsets:
    """The last offsets of a query: Spark passes each of them several times, and an idle query always the same."""

    def __init__(self) -> None:
        self._last: list[tuple[Mapping[str, Any], SourceOffset]] = []

    def decode(self, encoded: Mapping[str, Any]) -> SourceOffset:
        """As `decode_offset`; returns the same object for an equal one of the last two offsets."""
        for known, offset in self._last:
            if known == encoded:
                return offset
        return self._add(encoded, decode_offset(encoded))

    def encode(self, offset: SourceOffset) -> dict[str, Any]:
        """As `encode_offset`."""
        encoded = encode_offset(offset)
        self._add(encoded, offset)
        return encoded

    def _add(self, encoded: Mapping[str, Any], offset: SourceOffset) -> SourceOffset:
        self._last = [(encoded, offset), *self._last[:1]]
        return offset


def encode_offset(offset: SourceOffset) -> dict[str, Any]:
    """Returns the JSON object of `offset`; equal offsets have equal texts."""
    encoded: dict[str, Any] = nest_positions(offset.positions)
    if offset.reader:
        acquired = nest_positions(offset.acquired)
        group = {"acquired": acquired, "generation": offset.generation_id, "reader": offset.reader}
        if offset.group_id:
            group["group_id"] = offset.group_id
        if offset.cluster_id:
            group["cluster_id"] = offset.cluster_id
        if offset.topic_ids:
            group["topic_ids"] = dict(sorted(offset.topic_ids.items()))
        if offset.partition_counts:
            group["partitions"] = dict(sorted(offset.partition_counts.items()))
        if offset.schemas:
            group["schemas"] = {column: each.to_json() for column, each in sorted(offset.schemas.items())}
        group |= {name: nest_positions(each) for name in _PARTITION_FIELDS if (each := getattr(offset, name))}
        encoded[GROUP_KEY] = group
    return {key: encoded[key] for key in sorted(encoded)}


def decode_offset(encoded: Mapping[str, Any]) -> SourceOffset:
    """Parses an offset of this source, the empty initial offset, or an offset of Spark's Kafka source.

    Fields that an earlier version did not write are empty.

    Raises: ConfigurationError for any other JSON.
    """
    try:
        group = encoded.get(GROUP_KEY) or {}
        counts = {topic: int(count) for topic, count in group.get("partitions", {}).items()}
        return SourceOffset(
            positions=_flatten({topic: value for topic, value in encoded.items() if topic != GROUP_KEY}),
            acquired=_flatten(group.get("acquired", {})),
            generation_id=int(group.get("generation", -1)),
            reader=str(group.get("reader", "")),
            topic_ids={topic: str(topic_id) for topic, topic_id in group.get("topic_ids", {}).items()},
            group_id=str(group.get("group_id", "")),
            cluster_id=str(group.get("cluster_id", "")),
            partition_counts=counts or _spark_counts(encoded),
            schemas={column: ReaderSchema.from_json(each) for column, each in group.get("schemas", {}).items()},
            **{name: _flatten(group.get(name, {})) for name in _PARTITION_FIELDS},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"The checkpoint contains an offset that is not of a Kafka source: {str(encoded)[:200]}. Give the query "
            "its own checkpoint location."
        ) from error


def parse_progress_offset(offset: Any) -> Any:
    """Parses an offset of a progress report: JSON text, an object, or Python's form of it; ``null`` before a batch.

    PySpark 4.0 and 4.1 write ``str`` of the object.
    """
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return ast.literal_eval(offset)


def _spark_counts(encoded: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of partitions in an offset of Spark's Kafka source, which reads every partition of a topic."""
    # older offsets of this source have no counts
    return {} if GROUP_KEY in encoded else {topic: len(partitions) for topic, partitions in encoded.items()}


def logged_ranges(start: SourceOffset, end: SourceOffset) -> tuple[list[OffsetRange], list[TopicPartition]]:
    """Returns the ranges of a logged batch, empty ones included, sorted by partition.

    Returns also the partitions whose start is in neither offset: Spark's Kafka source, which starts added partitions at
    the earliest offset, does not write it.

    Raises: ConfigurationError for a batch that ends before it starts.
    """
    ranges, unknown = [], []
    for topic_partition in sorted(end.positions):
        begin = end.acquired.get(topic_partition, start.positions.get(topic_partition))
        if begin is None:
            unknown.append(topic_partition)
        else:
            ranges.append(OffsetRange(topic_partition, begin, _checked_end(begin, topic_partition, end)))
    return ranges, unknown


def _checked_end(begin: int, topic_partition: TopicPartition, end: SourceOffset) -> int:
    stop = end.positions[topic_partition]
    if stop < begin:
        raise ConfigurationError(
            f"The checkpoint contains a batch that reads {topic_partition} backward, from {begin} to {stop}: it was "
            "edited or is shared with another query. Give the query its own checkpoint location."
        )
    return stop


def nest_positions(positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Returns ``{"<topic>": {"<partition>": <offset>}}``, sorted."""
    nested: dict[str, Any] = {}
    for topic_partition in sorted(positions):
        nested.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = positions[topic_partition]
    return nested


def _flatten(nested: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }
