"""Commits of a source whose query writes exactly once (kafka.transactional.id).

The end offsets of a batch are committed by the transaction of its output alone. So the committed offset of a partition
is exactly what the group has published, and no OffsetCommit can arrive late and move it back. What the source commits
by itself, the first position of a partition, is in a transaction of its own.
"""

from __future__ import annotations

from typing import Any, Mapping

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.transactions import Transactions, can_begin_again
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.source.group.ownership import Ownership
from spark_groupsource.source.positions.published_progress import (
    WriterProgress,
    digest,
    progress_group,
    read_progress,
    reader_name,
)

# a transaction of offsets alone takes milliseconds; the offsets of a partition are not readable while one is open
_TIMEOUT_MS = 10_000


class TransactionalCommits:
    """Transactions of one source; used by one thread at a time."""

    def __init__(self, cluster: ClusterClient, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._has_begun = False
        self._published: list[WriterProgress] = []

    def begin(self) -> None:
        """Ends what a former run of the query left open, and reads its progress; the first call alone.

        Without it the offsets of the open transaction are not readable until its timeout.

        Raises: BrokerError, NetworkError, ConfigurationError.
        """
        if self._has_begun:
            return
        Transactions(self._cluster, self._transactional_id).init(_TIMEOUT_MS)
        group_id = progress_group(self._transactional_id)
        # one that is cut off from its controller responds with older progress
        self._cluster.confirm_coordinator(group_id)
        self._published = read_progress(self._cluster.fetch_committed(group_id).values())
        self._has_begun = True

    def is_published(self, reader: str, end: Mapping[str, Any], *, is_left_out: bool = False) -> bool:
        """Returns whether the batch with this end offset was published before the source started; see `digest`."""
        expected = digest(end, is_left_out=is_left_out)
        return any(progress.ends.get(reader_name(reader)) == expected for progress in self._published)

    def published_batch(self, reader: str) -> int | None:
        """Returns the last batch that the query of a reader had published before the source started."""
        batches = [progress.batch for progress in self._published if reader_name(reader) in progress.ends]
        return max(batches, default=None)

    def commit(self, ownership: Ownership, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits offsets in a transaction of their own.

        Raises: GenerationMismatchError, BrokerError, NetworkError.
        """
        transactions = Transactions(self._cluster, self._transactional_id)
        retry = self._cluster.retry()
        while True:
            transactions.init(_TIMEOUT_MS)
            try:
                ownership.commit_in_transaction(offsets, transactions)
                transactions.end(is_committed=True)
                return
            except GroupSourceError as error:
                if not can_begin_again(error):
                    transactions.abort()
                    raise
                retry.backoff_or_raise(error)

    def join(
        self,
        ownership: Ownership,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        producer: ProducerIdAndEpoch,
    ) -> None:
        """Adds offsets to the transaction of the query's output, which `producer` has begun.

        Raises: GenerationMismatchError, BrokerError, NetworkError; the transaction must be aborted then.
        """
        if offsets:
            ownership.commit_in_transaction(
                offsets, Transactions(self._cluster, self._transactional_id, producer)
            )
