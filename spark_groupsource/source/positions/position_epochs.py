"""Leader epochs of a reader's positions: truncated logs, epochs of commits (KIP-320)."""

from __future__ import annotations

import logging
from typing import Iterable, Mapping, NamedTuple

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.metadata import EpochEndOffset
from spark_groupsource.errors import BrokerError, NetworkError, UnsupportedVersionError
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition, bounded_names

_log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]

# an epoch without records is rare, two in a row even more
_MAX_EARLIER_EPOCHS = 4
_COMMIT_LOOKUP_MS = 2_000


class _EpochAtOffset(NamedTuple):
    """Everything before `offset` was in the log in `leader_epoch`."""

    offset: int
    leader_epoch: int


class PositionEpochs:
    """The leader epoch in which the log of each partition contained everything up to an offset."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, _EpochAtOffset] = {}
        # (partition, epoch) -> the epoch before it and the offset where it starts
        self._starts: dict[tuple[TopicPartition, int], EpochEndOffset] = {}
        self._topic_ids: Mapping[str, str] = {}

    def use_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Drops what is known of topics that were recreated since the last call: their epochs start again."""
        if topic_ids is self._topic_ids:
            return
        known, self._topic_ids = self._topic_ids, topic_ids
        recreated = {topic for topic, topic_id in topic_ids.items() if known.get(topic, topic_id) != topic_id}
        if recreated:
            self._known = {p: each for p, each in self._known.items() if p.topic not in recreated}
            self._starts = {at: each for at, each in self._starts.items() if at[0].topic not in recreated}

    def restore(
        self, commits: Mapping[TopicPartition, OffsetAndMetadata | None], retained: Iterable[TopicPartition]
    ) -> None:
        """Stores the epochs of committed offsets for the partitions of a new assignment.

        Args:
            retained: partitions that were owned before; their epochs are kept.
        """
        kept = {p: self._known[p] for p in retained if p in self._known}
        restored = {
            p: _EpochAtOffset(commit.offset, commit.leader_epoch)
            for p, commit in commits.items()
            if commit is not None and commit.leader_epoch >= 0
        }
        self._known = {**restored, **kept}

    def diverged(self, begins: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Returns where the log was truncated, for positions that records of another leader have replaced since.

        Args:
            begins: the positions.
            ends: log end offsets that `ClusterClient.list_offsets` has just returned, or those of its last call.

        Returns: partition -> first offset with other records, -1 if it is unknown.
        Raises: NetworkError.
        """
        current = self._cluster.cached_leader_epochs(begins)
        moved = {
            p: known.leader_epoch
            for p, begin in begins.items()
            if (known := self._known.get(p)) and known.leader_epoch < current[p] and begin <= known.offset
        }
        found: dict[TopicPartition, EpochEndOffset] = {}
        if moved:
            try:
                found = self._cluster.ends_of_former_epochs(moved)
            except UnsupportedVersionError as error:
                _log.debug("[partition=%s] Leader epochs are not validated: %s", bounded_names(moved), error)
            except BrokerError as error:
                if not error.retriable:
                    raise
                # the positions are validated by the next call
                names = bounded_names(moved)
                _log.warning("[partition=%s] Leader epochs were not validated, retrying: %s", names, error)
                current.update(dict.fromkeys(moved, -1))
        validated = {p: _EpochAtOffset(ends[p], epoch) for p, epoch in current.items() if epoch >= 0 and p in ends}
        self._known.update(validated)
        return {p: end.end_offset for p, end in found.items() if end.end_offset < begins[p]}

    def of_ranges(self, ranges: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
        """Returns the leader epoch in which each range was in the log, for those where it is known."""
        known = ((r, self._known.get(r.topic_partition)) for r in ranges)
        return {r.topic_partition: each.leader_epoch for r, each in known if each is not None and r.end <= each.offset}

    def of_records(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """Returns the leader epoch of the last record before each offset, for those where it is known.

        A log whose leader knows no earlier epoch has none: its message format is older than v2. Kafka's consumer would
        validate the epoch of a commit there, and take the log for truncated.
        """
        known = {p: self._known.get(p) for p in offsets}
        epochs = {p: each.leader_epoch for p, each in known.items() if each and offsets[p] <= each.offset}
        for _ in range(_MAX_EARLIER_EPOCHS):
            self._find_starts(epochs)
            starts = {p: self._starts.get((p, epoch)) for p, epoch in epochs.items()}
            earlier = {
                p: start.leader_epoch
                for p, start in starts.items()
                if start and start.leader_epoch >= 0 and offsets[p] <= start.end_offset
            }
            if not earlier:
                break
            epochs.update(earlier)
        return {p: epoch for p, epoch in epochs.items() if not _is_without_epochs(self._starts.get((p, epoch)))}

    def _find_starts(self, epochs: Mapping[TopicPartition, int]) -> None:
        unknown = {p: epoch - 1 for p, epoch in epochs.items() if epoch > 0 and (p, epoch) not in self._starts}
        if not unknown:
            return
        try:
            found = self._cluster.end_offsets_for_epochs(unknown, _COMMIT_LOOKUP_MS)
        except (BrokerError, NetworkError, UnsupportedVersionError) as error:
            # the present epoch serves as well: a truncation ends it too
            names = bounded_names(unknown)
            _log.debug("[partition=%s] Leader epochs of committed offsets are not looked up: %s", names, error)
            return
        self._starts.update({(p, epochs[p]): end for p, end in found.items()})


def _is_without_epochs(start: EpochEndOffset | None) -> bool:
    return start is not None and start.leader_epoch < 0 and start.end_offset < 0
