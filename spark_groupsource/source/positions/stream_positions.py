"""Positions of a stream: an immutable value with pure methods."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Iterable, Mapping

from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.positions.offset_json import SourceOffset

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StreamPositions:
    """Owned partitions and their offsets, as of the last call of Spark.

    Attributes:
        owned: partitions of the current assignment.
        acquired: start offsets of the partitions whose position is not that of the checkpoint: acquired since the
            checkpoint was written, reset, truncated or recreated.
        committed: the group's committed offsets of owned partitions and of those in `delivered`, as far as known.
        delivered: positions of partitions that are no longer owned, where the group's committed offset is below.
        uncommitted: positions whose commit failed and is retried.
        topic_ids: topic -> id of the subscribed topics.
        partition_counts: topic -> number of partitions for each subscribed topic when the query started. A partition
            beyond it was added later, as was every partition of a topic that was recreated since.
        starting: `startingOffsets` as resolved when the query started; empty for earliest.
        checkpoint: the checkpointed offset that `acquired` refers to; None before the first call.
    """

    owned: frozenset[TopicPartition] = frozenset()
    acquired: Offsets = field(default_factory=dict)
    committed: Offsets = field(default_factory=dict)
    delivered: Offsets = field(default_factory=dict)
    uncommitted: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    starting: Offsets = field(default_factory=dict)
    checkpoint: SourceOffset | None = None

    def checkpointed(self, start: SourceOffset) -> StreamPositions:
        """Returns the positions after Spark has checkpointed `start`."""
        if self.checkpoint is None:
            return replace(
                self,
                topic_ids=dict(start.topic_ids),
                partition_counts=dict(start.partition_counts),
                starting=dict(start.starting),
                committed=dict(start.committed),
                delivered=dict(start.delivered),
                checkpoint=start,
            )
        # a new checkpoint contains the positions acquired before
        is_same = start is self.checkpoint or start == self.checkpoint
        return self if is_same else replace(self, acquired={}, checkpoint=start)

    def started(
        self, topic_ids: Mapping[str, str], partition_counts: Mapping[str, int], starting: Offsets
    ) -> StreamPositions:
        """Returns the positions of a new query, with the facts that its checkpoint keeps."""
        return replace(
            self, topic_ids=dict(topic_ids), partition_counts=dict(partition_counts), starting=dict(starting)
        )

    def is_added(self, topic_partition: TopicPartition) -> bool:
        """True if the partition was added after the query started, or the query has no number of partitions."""
        return topic_partition.partition >= self.partition_counts.get(topic_partition.topic, 0)

    def to_commit(
        self, start: SourceOffset, owners: Iterable[TopicPartition], *, repeated: bool = False
    ) -> dict[TopicPartition, int]:
        """Returns the checkpointed positions that the group does not have yet, and those whose commit failed.

        Args:
            owners: partitions that this query owns now; for those not in `owned` it is undecided which offset applies.
            repeated: returns also the positions that were committed, because the group may have lost them, or a commit
                that was sent before may have arrived after them.
        """
        eligible = self.owned & frozenset(owners)
        # among them the first position of a partition, which no checkpoint contains yet
        retried = {p: offset for p, offset in self.uncommitted.items() if p in eligible}
        return retried | {
            p: offset
            for p, offset in start.positions.items()
            if p in eligible and p not in self.acquired and (repeated or self.committed.get(p) != offset)
        }

    def commit_succeeded(self, offsets: Offsets) -> StreamPositions:
        return replace(self, committed={**self.committed, **offsets}, uncommitted={})

    def commit_failed(self, offsets: Offsets) -> StreamPositions:
        return replace(self, uncommitted=dict(offsets))

    def commit_dropped(self) -> StreamPositions:
        """Returns the positions without uncommitted ones.

        For what is not to be committed again: the coordinator has fenced the commit, or the partitions are no longer
        owned or do not exist.
        """
        return replace(self, uncommitted={}) if self.uncommitted else self

    def is_committed(self, start: SourceOffset, owners: Iterable[TopicPartition]) -> bool:
        """True if the group has every position of `start` in `owners`, so a new owner repeats nothing."""
        owned = frozenset(owners)
        return not self.uncommitted and all(
            self.committed.get(p) == offset for p, offset in start.positions.items() if p in owned
        )

    def assigned(
        self,
        owned: frozenset[TopicPartition],
        acquired: Offsets,
        commits: Mapping[TopicPartition, OffsetAndMetadata | None],
        delivered: Offsets,
    ) -> StreamPositions:
        """Returns the positions of a new assignment; `commits` are the group's committed offsets."""
        return replace(
            self,
            owned=owned,
            acquired=dict(acquired),
            delivered=dict(delivered),
            committed={p: commit.offset for p, commit in commits.items() if commit is not None},
            # the others were resolved again
            uncommitted={p: offset for p, offset in self.uncommitted.items() if p in owned and p not in acquired},
        )

    def with_acquired(self, offsets: Offsets) -> StreamPositions:
        """Returns the positions with other start offsets for some partitions."""
        if not offsets:
            return self
        uncommitted = {p: offset for p, offset in self.uncommitted.items() if p not in offsets}
        return replace(self, acquired={**self.acquired, **offsets}, uncommitted=uncommitted)

    def recreated_topics(self, topic_ids: Mapping[str, str]) -> frozenset[str]:
        """Returns the topics whose present id is another than that of the positions."""
        return frozenset(t for t, topic_id in topic_ids.items() if self.topic_ids.get(t, topic_id) != topic_id)

    def with_topic_ids(self, topic_ids: Mapping[str, str]) -> StreamPositions:
        """Returns the positions with the present ids, without facts about recreated topics."""
        recreated = self.recreated_topics(topic_ids)
        return replace(
            self,
            topic_ids={**self.topic_ids, **topic_ids},
            partition_counts={t: count for t, count in self.partition_counts.items() if t not in recreated},
            starting={p: offset for p, offset in self.starting.items() if p.topic not in recreated},
            committed={p: offset for p, offset in self.committed.items() if p.topic not in recreated},
            delivered={p: offset for p, offset in self.delivered.items() if p.topic not in recreated},
            uncommitted={p: offset for p, offset in self.uncommitted.items() if p.topic not in recreated},
        )

    def begins(self, start: SourceOffset) -> dict[TopicPartition, int]:
        """Returns the start offset of the next batch for each owned partition."""
        known = {**start.positions, **self.acquired}
        return {p: known.get(p, 0) for p in _in_order(self.owned)}

    def differs_from(self, start: SourceOffset) -> bool:
        """True if the checkpoint must be rewritten although there is nothing to read."""
        return bool(self.acquired) or self.owned != set(start.positions) or not start.reader

    def end_offset(self, ends: Offsets, generation_id: int, reader: str, group_id: str = "") -> SourceOffset:
        """Returns the end offset of a batch that reads to `ends`."""
        return SourceOffset(
            ends,
            self.acquired,
            generation_id,
            reader,
            self.topic_ids,
            self.partition_counts,
            {p: offset for p, offset in self.starting.items() if p not in ends},
            {p: offset for p, offset in self.committed.items() if p in ends or p in self.delivered},
            self.delivered,
            group_id,
        )


@lru_cache(maxsize=2)  # the same for every batch between two rebalances; thousands of partitions take 10 ms
def _in_order(partitions: frozenset[TopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(partitions))
