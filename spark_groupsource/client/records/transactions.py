"""Transactions of one transactional id, step by step.

Every process with the producer id and epoch of the transaction may perform a step. The steps are those of the first
transaction protocol, which every broker since 0.11 serves: partitions and groups are added explicitly, and the epoch
changes with `init` only. A step is repeated after the errors that Kafka's producer retries, until its timeout. After
others a transaction cannot continue: the caller begins with `init` again, which aborts what is open, where another one
may succeed (`can_begin_again`), and raises the rest. Kafka's producer calls the first ones abortable, or fatal where
its application has to create it again, which begins with `init`, too.

Source: KIP-98, KIP-447; Kafka `TransactionManager` (the handlers of its requests).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, TypeVar

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.error_rules import TRANSACTION
from spark_groupsource.client.cluster.group_offsets import (
    NO_MEMBER,
    CommittingMember,
    errors_of_commits,
    split_commits,
)
from spark_groupsource.client.cluster.routing import CoordinatorKey, TransactionalId, top_level_error
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.errors import (
    RETRIABLE,
    BrokerError,
    ConfigurationError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_groupsource.model import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition, bounded_names, by_topic
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    Request,
    Response,
    TxnOffsetCommitRequest,
)

_log = logging.getLogger(__name__)

R = TypeVar("R", bound="Response")

# error code of a partition, or of a response as a whole
_Code = tuple[Optional[TopicPartition], int]
# OPERATION_NOT_ATTEMPTED is that of the partitions that another one made fail
_NO_CAUSE = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})

# member id and generation in TxnOffsetCommit (KIP-447)
_MEMBERS_SINCE = 3
_PRODUCER_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_ABORTED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)


def is_producer_fenced(error: Exception) -> bool:
    """Returns whether another process has begun with `init` since, or the transaction took longer than its timeout."""
    return isinstance(error, BrokerError) and error.code in _PRODUCER_FENCED


def is_aborted(error: Exception) -> bool:
    """Returns whether brokers no longer know the transaction, or regard it as ended; another one may succeed."""
    return isinstance(error, BrokerError) and error.code in _ABORTED


def can_begin_again(error: Exception) -> bool:
    """Returns whether a transaction that failed may succeed when it begins with `init` again."""
    if not isinstance(error, BrokerError):
        return isinstance(error, NetworkError)
    # the step was repeated until the topic was regarded as missing
    is_missing = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return (error.retriable and not is_missing) or is_aborted(error) or is_producer_fenced(error)


class Transactions:
    """Steps of the transactions of one transactional id; `producer` is set by `init`, or given by its caller.

    Raises (every step): BrokerError, NetworkError; UnsupportedVersionError for a broker before 0.11.
    """

    def __init__(
        self, cluster: ClusterClient, transactional_id: str, producer: ProducerIdAndEpoch | None = None
    ) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self._producer = producer
        self._timeout_ms = 0

    @property
    def has_begun(self) -> bool:
        """True after `init`, or with the producer of the caller."""
        return self._producer is not None

    @property
    def producer(self) -> ProducerIdAndEpoch:
        assert self._producer is not None, "init was not called"
        return self._producer

    def init(self, timeout_ms: int) -> ProducerIdAndEpoch:
        """Aborts the open transaction of the id, fences the process that began it, and waits until it has ended.

        Args:
            timeout_ms: the coordinator aborts the next transaction when it is open for longer.
        """
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        try:
            response = self._call(request, "InitProducerId", _of_response)
        except BrokerError as error:
            if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise ConfigurationError(
                f"Option kafka.transaction.timeout.ms is larger than transaction.max.timeout.ms of the brokers: "
                f"{timeout_ms} ms. Set it to less."
            ) from error
        self._producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        self._timeout_ms = timeout_ms
        return self._producer

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds partitions, before the first record is sent to them."""
        row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        added = sorted(partitions)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[row(name=name, partitions=numbers) for name, numbers in by_topic(added).items()],
        )
        self._call(request, "AddPartitionsToTxn", _of_added)

    def send(
        self, batches: Iterable[EncodedBatch], settings: ProducerSettings = ProducerSettings()
    ) -> dict[TopicPartition, int]:
        """Sends record batches to partitions that were added; returns as `BatchProducer.send`.

        A batch is sent again for half of the transaction's timeout at most. A leader that cannot ask the coordinator
        about a transaction responds as one with too few replicas (NOT_ENOUGH_REPLICAS), also if there is none any more.
        """
        bounded = replace(settings, delivery_timeout_ms=min(settings.delivery_timeout_ms, self._timeout_ms // 2))
        producer = BatchProducer(
            self._cluster, bounded, transactional_id=self.transactional_id, identity=self.producer
        )
        return producer.send(batches)

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: CommittingMember = NO_MEMBER
    ) -> None:
        """Adds a group and its offsets; they are its committed offsets once the transaction is committed.

        Raises: BrokerError with a code of `FENCING_ERRORS` if the group has fenced the member; ConfigurationError for
            a member and a broker before 2.5.
        """
        (error,) = self.commit_offsets_each(group_id, [(member, offsets)])
        if error is not None:
            raise error

    def commit_offsets_each(
        self,
        group_id: str,
        commits: Sequence[tuple[CommittingMember, Mapping[TopicPartition, OffsetAndMetadata]]],
    ) -> list[GroupSourceError | None]:
        """Adds a group and the offsets of several members, whose requests do not wait for each other.

        A commit that is too large for one record batch of the coordinator is sent in several requests.

        Returns: the error of each commit, as `commit_offsets` raises it, or None.
        Raises: the errors of adding the group; ConfigurationError as `commit_offsets`.
        """
        producer = self.producer
        add = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group_id,
        )
        self._call(add, f"AddOffsetsToTxn of group '{group_id}'", _of_response)
        parts = split_commits(group_id, commits)
        try:
            outcomes = self._call_each(
                [self._commit_request(group_id, part.offsets, part.member) for part in parts],
                f"TxnOffsetCommit of group '{group_id}'",
                _of_offsets,
                key=group_id,
                min_version=_MEMBERS_SINCE if any(member.member_id for member, _ in commits) else 0,
            )
        except UnsupportedVersionError as error:
            raise ConfigurationError(
                f"Offsets of group {group_id} cannot be in a transaction: exactly-once with a group needs Kafka 2.5. "
                "Upgrade the brokers, or leave out kafka.transactional.id."
            ) from error
        return errors_of_commits(parts, outcomes)

    def _commit_request(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: CommittingMember
    ) -> TxnOffsetCommitRequest:
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offsets[TopicPartition(name, number)].offset,
                            committed_leader_epoch=offsets[TopicPartition(name, number)].leader_epoch,
                            committed_metadata=offsets[TopicPartition(name, number)].metadata,
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(offsets).items()
            ],
        )

    def end(self, *, is_committed: bool) -> None:
        """Commits or aborts the transaction."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            committed=is_committed,
        )
        self._call(request, "EndTxn", _of_response)

    def abort(self) -> None:
        """Ends the transaction early, after an error that the caller raises; without success it ends at its timeout."""
        try:
            self.end(is_committed=False)
        except GroupSourceError as error:
            _log.debug("[transactional_id=%s] Aborting failed: %s", self.transactional_id, error)

    def _call(
        self, request: Request[R], operation: str, codes_of: Callable[[R], Sequence[_Code]]
    ) -> R:
        """Sends one request to the coordinator of the transaction, as `_call_each`."""
        key = TransactionalId(self.transactional_id)
        (outcome,) = self._call_each([request], operation, codes_of, key=key)
        if isinstance(outcome, GroupSourceError):
            raise outcome
        return outcome

    def _call_each(
        self,
        requests: Sequence[Request[R]],
        operation: str,
        codes_of: Callable[[R], Sequence[_Code]],
        *,
        key: CoordinatorKey,
        min_version: int = 0,
    ) -> list[R | GroupSourceError]:
        """Sends requests to a coordinator; returns the response to each, or its error."""
        return self._cluster.call_coordinator_each(
            key,
            requests,
            errors=lambda response: [code for _, code in codes_of(response)],
            error_of=lambda _, response: self._error(codes_of(response), operation),
            rules=TRANSACTION,
            min_version=min_version,
        )

    def _error(self, codes: Sequence[_Code], operation: str) -> BrokerError | None:
        """Returns the error of a response: one that no repetition ends, else the first one; None without errors."""
        failed = [each for each in codes if each[1] not in _NO_CAUSE]
        if not failed:
            return None
        shown = next((code for _, code in failed if code not in RETRIABLE), failed[0][1])
        names = [tp for tp, code in failed if tp is not None and code == shown]
        listed = f" ({bounded_names(sorted(names))})" if names else ""
        return BrokerError(shown, f"{operation}{listed} for transactional id '{self.transactional_id}'")


def _of_response(response: Any) -> list[_Code]:
    return [(None, code) for code in top_level_error(response)]


def _of_added(response: Any) -> list[_Code]:
    return [
        (TopicPartition(topic.name, p.partition_index), p.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for p in topic.results_by_partition
    ]


def _of_offsets(response: Any) -> list[_Code]:
    return [
        (TopicPartition(topic.name, p.partition_index), p.error_code)
        for topic in response.topics
        for p in topic.partitions
    ]
