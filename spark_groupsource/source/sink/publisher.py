"""Publishes a batch: output, offsets of its sources and progress together.

The order of steps gives the guarantee:

1. `Transactions.init` fences every other process that publishes for the query, and ends what it left open;
2. the progress is read after that, so nothing that a fenced process has committed is missed: a batch that is published
   already is not published again;
3. output, offsets of the sources, and progress are added, and committed together;
4. before the end, the progress is read again from the coordinator that has stored the new one. One that is cut off from
   its controller responds with older progress, but cannot store any: its followers have left it.

After an error that ends a transaction, or whose effect is unknown, everything begins with 1 again. Nothing of a task
attempt reaches the brokers: the tasks encode record batches, and this process sends those of the attempts that Spark
has chosen.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Mapping, NamedTuple, Optional, Protocol, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.retry import Retry
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.client.records.transactions import (
    Transactions,
    can_begin_again,
    is_aborted,
    is_producer_fenced,
)
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    TransactionAbortedError,
)
from spark_groupsource.model import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.positions.published_progress import (
    WriterProgress,
    offset_of_progress,
    progress_group,
    read_progress,
)

_log = logging.getLogger(__name__)

# an open transaction hides its records, and the offsets of its group, until its timeout
_MIN_TIMEOUT_MS = 10_000
_SLOWEST_BYTES_PER_S = 1_000_000
_SLOWEST_PARTITIONS_PER_S = 100
# two processes of one query fence each other until the members of one are removed from the group
_MAX_FENCED = 3
# coordinators and leaders that move agree again within seconds
_MAX_ABORTED = 10

# of the group of the progress
_Commits = Mapping[TopicPartition, Optional[OffsetAndMetadata]]


class JoinedOffsets(NamedTuple):
    """What the sources of a query have added to a transaction: see `TransactionReply`."""

    ends: Mapping[str, str]
    partition: TopicPartition | None


class Sources(Protocol):
    """The groupsource sources of the query."""

    def ends(self) -> Mapping[str, str]:
        """Returns the digests of the end offsets of the batch, by reader.

        Raises: as `join`.
        """

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        """Lets the sources add their offsets to a transaction.

        Args:
            known: the progress of the query, whose readers must take part.
        Raises: TransactionAbortedError; BrokerError, NetworkError where another transaction may succeed.
        """


@dataclass(frozen=True)
class Publication:
    """The output of one batch.

    Attributes:
        writer, number: see `WriterProgress`; None for a write without progress, which is published each time.
        topic: topic of the progress of a batch without records.
        settings: those of the producer: transaction.timeout.ms is the most that a transaction may take, and
            delivery.timeout.ms how long an error is retried that another transaction may not have.
        skips_earlier: a number below the published one is skipped, as txnVersion; else it is an error.
    """

    transactional_id: str
    batches: Sequence[EncodedBatch]
    writer: str | None = None
    number: int = -1
    topic: str | None = None
    settings: ProducerSettings = ProducerSettings()
    skips_earlier: bool = False

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(each.topic_partition for each in self.batches)

    @property
    def transaction_timeout_ms(self) -> int:
        """The timeout of the first transaction, in proportion to the bytes to send and the partitions."""
        size = sum(len(each.data) for each in self.batches)
        needed_s = size / _SLOWEST_BYTES_PER_S + len(self.partitions) / _SLOWEST_PARTITIONS_PER_S
        return min(_MIN_TIMEOUT_MS + int(needed_s * 1000), self.settings.transaction_timeout_ms)


def publish(cluster: ClusterClient, batch: Publication, sources: Sources) -> bool:
    """Publishes a batch; returns False if it was published before.

    Raises: ConfigurationError if the progress is of a later batch, so that the checkpoint was reset;
        TransactionAbortedError; BrokerError, NetworkError after delivery.timeout.ms.
    """
    transactions = Transactions(cluster, batch.transactional_id)
    retry = cluster.retry(batch.settings.delivery_timeout_ms)
    timeout_ms = batch.transaction_timeout_ms
    fenced = aborted = 0
    while True:
        started_ms = cluster.clock.now_ms()
        try:
            transactions.init(timeout_ms)
            commits = _progress(cluster, batch)
            known = _by_writer(commits).get(batch.writer or "")
            if known is not None and _is_published(known, batch, sources):
                return False
            _send(cluster, batch, transactions)
            joined = sources.join(transactions.producer, known)
            # a source without data has not joined
            ends = {**(known.ends if known is not None else {}), **joined.ends}
            if _add_progress(cluster, batch, transactions, joined.partition, ends, commits):
                _end(batch, transactions, retry)
            return True
        except GroupSourceError as error:
            fenced += is_producer_fenced(error)
            aborted += is_aborted(error)
            elapsed_ms = cluster.clock.now_ms() - started_ms
            try:
                if fenced >= _MAX_FENCED:
                    raise _fenced_error(batch, elapsed_ms, timeout_ms) from error
                if aborted >= _MAX_ABORTED:
                    raise _aborted_error(batch, error) from error
                if not can_begin_again(error):
                    raise
                if elapsed_ms >= timeout_ms:
                    # the brokers are slower than expected
                    timeout_ms = batch.settings.transaction_timeout_ms
                retry.backoff_or_raise(error)
            except GroupSourceError as raised:
                if transactions.has_begun and not isinstance(raised, NetworkError):
                    transactions.abort()
                raise


def _progress(cluster: ClusterClient, batch: Publication) -> _Commits:
    """Returns the offsets that are the progress; none for a write without progress."""
    if batch.writer is None:
        return {}
    return cluster.fetch_committed(progress_group(batch.transactional_id))


def _by_writer(commits: _Commits) -> dict[str, WriterProgress]:
    return {progress.writer: progress for progress in read_progress(commits.values())}


def _check_progress(cluster: ClusterClient, batch: Publication, known: Mapping[str, WriterProgress]) -> None:
    """Raises: NetworkError if the coordinator that has stored the progress did not have `known` before."""
    group_id = progress_group(batch.transactional_id)
    coordinator = cluster.cached_coordinator(group_id)
    found = _by_writer(cluster.fetch_committed(group_id, is_in_transaction=True))
    if found != known or cluster.cached_coordinator(group_id) != coordinator:
        raise NetworkError(f"The coordinator of group '{group_id}' has moved since its offsets were read.")


def _is_published(known: WriterProgress, batch: Publication, sources: Sources) -> bool:
    """Raises: ConfigurationError if the progress is of a later batch, or of other records with this number."""
    if known.batch < batch.number:
        return False
    if batch.skips_earlier:
        _log.info("[writer=%s] Version %d is published already.", batch.writer, batch.number)
        return True
    if known.batch > batch.number:
        raise ConfigurationError(
            f"Batch {known.batch} is committed, but batch {batch.number} is replayed: the checkpoint was reset, or "
            "another driver runs the query. Stop this one, or use another kafka.transactional.id than "
            f"{batch.transactional_id}."
        )
    ends = sources.ends()
    if any(known.ends.get(name, end) != end for name, end in ends.items()):
        raise ConfigurationError(
            f"Batch {batch.number} is committed with other offsets of the source: another driver of the query has "
            "published it meanwhile, or the checkpoint was reset. Restart the query; after a reset, use another "
            f"kafka.transactional.id than {batch.transactional_id}."
        )
    if ends:
        _log.info("[writer=%s] Batch %d is published already.", batch.writer, batch.number)
    else:
        # Spark does not show the offsets of another source to the sink
        _log.warning(
            "[writer=%s] Batch %d was published before, so its %d records are not written again. After a crash they "
            "are the same records. If the checkpoint was restored from a backup, they may be others: use another "
            "kafka.transactional.id than %s to write them.",
            batch.writer,
            batch.number,
            sum(each.record_count for each in batch.batches),
            batch.transactional_id,
        )
    return True


def _send(cluster: ClusterClient, batch: Publication, transactions: Transactions) -> None:
    if batch.batches:
        # one request for all topics; an error appears at its partition
        cluster.metadata({each.topic for each in batch.partitions})
        transactions.add_partitions(batch.partitions)
        transactions.send(batch.batches, batch.settings)


def _add_progress(
    cluster: ClusterClient,
    batch: Publication,
    transactions: Transactions,
    joined: TopicPartition | None,
    ends: Mapping[str, str],
    commits: _Commits,
) -> bool:
    """Adds the progress, at a partition of a source, of the output, or of the sink's topic.

    An offset needs READ on its topic, which the user of a source has, and a user that only writes has not.

    Returns: whether anything was added to the transaction, which has not begun otherwise.
    """
    added = topic_partition = min(batch.partitions, default=None) if joined is None else joined
    if topic_partition is None and batch.topic is not None:
        topic_partition = TopicPartition(batch.topic, 0)
    if batch.writer is not None and topic_partition is not None:
        known = _by_writer(commits)
        elsewhere = _by_writer({tp: each for tp, each in commits.items() if tp != topic_partition})
        progress = offset_of_progress(
            WriterProgress(batch.writer, batch.number, ends),
            known.values(),
            {writer for writer, each in elsewhere.items() if each == known[writer]},
        )
        _warn_of_lost(batch, known, {**commits, topic_partition: progress})
        try:
            transactions.commit_offsets(progress_group(batch.transactional_id), {topic_partition: progress})
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_METADATA_TOO_LARGE:
                raise
            hint = f"The progress of the query needs {len(progress.metadata)} bytes of the metadata of an offset."
            hint += " Increase offset.metadata.max.bytes of the brokers; its default, 4096, is enough."
            raise BrokerError(error.code, error.operation, hint) from error
        _check_progress(cluster, batch, known)
        added = topic_partition
    return added is not None


def _warn_of_lost(batch: Publication, known: Mapping[str, WriterProgress], commits: _Commits) -> None:
    """Logs how many batch queries have lost their progress: the next offsets have no room for it."""
    left = _by_writer(commits)
    lost = sum(each.is_of_batches for writer, each in known.items() if writer not in left)
    if lost:
        _log.warning(
            "[transactional_id=%s] The progress of %d applications (txnAppId) has no room in the metadata of an "
            "offset: a version that is repeated is written again. Use another kafka.transactional.id for some of them.",
            batch.transactional_id,
            lost,
        )


def _end(batch: Publication, transactions: Transactions, retry: Retry) -> None:
    """Commits the transaction.

    Without progress, which shows whether it is committed, the request is repeated while that is unknown.

    Raises: NetworkError if it remains unknown for delivery.timeout.ms.
    """
    while True:
        try:
            transactions.end(is_committed=True)
            return
        except (BrokerError, NetworkError) as error:
            if batch.writer is not None or isinstance(error, BrokerError) and not error.retriable:
                raise
            unknown = NetworkError(
                f"Whether the transaction of kafka.transactional.id={batch.transactional_id} is committed is unknown: "
                f"{error} Read the topic before you write the batch again, or set txnAppId and txnVersion, with which "
                "it is written once."
            )
            unknown.__cause__ = error
        retry.backoff_or_raise(unknown)


def _fenced_error(batch: Publication, elapsed_ms: int, timeout_ms: int) -> TransactionAbortedError:
    name = batch.transactional_id
    if elapsed_ms >= timeout_ms:
        return TransactionAbortedError(
            f"The transaction of kafka.transactional.id={name} took {elapsed_ms} ms, more than its timeout of "
            f"{timeout_ms} ms. Increase kafka.transaction.timeout.ms, or limit the batch with maxBytesPerTrigger."
        )
    return TransactionAbortedError(
        f"Another query uses kafka.transactional.id={name}, or another driver runs this one. Give each query its own."
    )


def _aborted_error(batch: Publication, error: GroupSourceError) -> TransactionAbortedError:
    return TransactionAbortedError(
        f"{_MAX_ABORTED} transactions of kafka.transactional.id={batch.transactional_id} were aborted, the last one "
        f"after an error: {error} Nothing of the batch is visible. Check the brokers, then restart the query."
    )
