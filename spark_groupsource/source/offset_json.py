"""The offset JSON of a stream: what Spark writes into its checkpoint and hands back.

``{"<topic>": {"<partition>": <next offset>}, "@group": {...}}``: the first part is that of Spark's own Kafka source, so
its checkpoints are readable here; ``@group`` is not a legal topic name. Spark compares offsets as text, so the same
offset always has the same text: topics and partitions are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition

GROUP_KEY = "@group"


@dataclass(frozen=True)
class SourceOffset:
    """The end of one micro-batch.

    `positions`: the next offset of exactly the partitions owned when the batch was planned. `acquired`: where reading
    began for partitions this batch took over. `reader` is the query's lasting name, empty for the initial offset.
    `topic_ids` tells which topics the positions belong to, a topic made anew under the same name being another one.
    `counts` is how many partitions each subscribed topic had, whoever owned them: further ones were added later.
    """

    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    acquired: Mapping[TopicPartition, int] = field(default_factory=dict)
    generation_id: int = -1
    reader: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def encode_offset(offset: SourceOffset) -> dict[str, Any]:
    """The JSON object of `offset`; its text is a function of the value alone."""
    encoded: dict[str, Any] = _nest(offset.positions)
    if offset.reader:
        group = {"acquired": _nest(offset.acquired), "generation": offset.generation_id, "reader": offset.reader}
        if offset.topic_ids:
            group["topic_ids"] = dict(sorted(offset.topic_ids.items()))
        if offset.counts:
            group["partitions"] = dict(sorted(offset.counts.items()))
        encoded[GROUP_KEY] = group
    return {key: encoded[key] for key in sorted(encoded)}


def decode_offset(encoded: Mapping[str, Any]) -> SourceOffset:
    """Reads an offset of ours, the empty initial one, or one of Spark's own Kafka source.

    Raises: ConfigurationError when the checkpoint holds something else.
    """
    try:
        group = encoded.get(GROUP_KEY) or {}
        return SourceOffset(
            positions=_flatten({topic: value for topic, value in encoded.items() if topic != GROUP_KEY}),
            acquired=_flatten(group.get("acquired", {})),
            generation_id=int(group.get("generation", -1)),
            reader=str(group.get("reader", "")),
            topic_ids={topic: str(topic_id) for topic, topic_id in group.get("topic_ids", {}).items()},
            counts={topic: int(count) for topic, count in group.get("partitions", {}).items()} or _counts(encoded),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the checkpoint holds an offset that is not Kafka's ({str(encoded)[:200]}); "
            "was it written by another source? Give the query a checkpoint location of its own"
        ) from error


def _counts(encoded: Mapping[str, Any]) -> dict[str, int]:
    """Of Spark's own source, which reads every partition of a topic; an older offset of ours does not tell."""
    return {} if GROUP_KEY in encoded else {topic: len(partitions) for topic, partitions in encoded.items()}


def logged_ranges(start: SourceOffset, end: SourceOffset) -> tuple[list[OffsetRange], list[TopicPartition]]:
    """The ranges a logged batch covers, empty ones included, sorted by partition.

    Returns: the ranges, and the partitions whose begin neither offset tells (only in checkpoints of Spark's own source,
    which starts partitions found later at their earliest offset).

    Raises: ConfigurationError when the batch would read backward.
    """
    ranges, unknown = [], []
    for topic_partition in sorted(end.positions):
        begin = end.acquired.get(topic_partition, start.positions.get(topic_partition))
        if begin is None:
            unknown.append(topic_partition)
        else:
            ranges.append(OffsetRange(topic_partition, begin, _not_before(begin, topic_partition, end)))
    return ranges, unknown


def _not_before(begin: int, topic_partition: TopicPartition, end: SourceOffset) -> int:
    stop = end.positions[topic_partition]
    if stop < begin:
        raise ConfigurationError(
            f"the checkpoint holds a batch that reads {topic_partition} backward, from {begin} to {stop}; "
            "was it edited, or is it shared with another query? Give the query a checkpoint location of its own"
        )
    return stop


def nest_positions(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """``{"<topic>": {"<partition>": <offset>}}``, sorted."""
    return _nest(positions)


def _nest(positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
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
