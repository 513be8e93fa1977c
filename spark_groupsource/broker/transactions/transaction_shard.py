"""Transaction coordinator shard: the transactional ids of one partition of `__transaction_state`.

A request is handled in four steps: decide, append, replay, reply. A method that decides changes nothing; it returns a
`Decision`, and the caller

1. without a `value` returns `error` to the client;
2. otherwise appends the record of `value`; if that fails, returns an error to the client;
3. otherwise replays the record and calls `on_stored`, then returns `error` to the client, and if
   `is_ending(value.status)` writes the markers and appends what `complete_transaction` returns.

The shard uses no clock, log or randomness: the caller passes the time and new producer ids. Not thread-safe.

Source: KIP-98, KIP-360 (epochs raised by the client), KIP-890 part 1 (verification); Kafka's TransactionCoordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Collection, Iterator, NamedTuple

from spark_groupsource.broker.state_transitions import check_transition
from spark_groupsource.broker.transactions.transaction_states import (
    COMPLETED_STATES,
    EMPTY,
    EXPIRABLE_STATES,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TRANSACTION_RULES,
    TRANSACTION_STATE_NAMES,
    TRANSACTION_TRANSITIONS,
    TransactionAction,
    TransactionOperation,
    is_ending,
)
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.wire.transaction_records import (
    MAX_TRANSACTIONAL_ID_BYTES,
    TransactionValue,
    decode_key,
    decode_value,
)

NO_EPOCH = -1
_TRANSACTION_BYTES, _PARTITION_BYTES = 1_000, 250
_LARGEST_EPOCH = 2**15 - 1


@dataclass(frozen=True)
class TransactionConfig:
    """Broker settings of the transaction coordinator."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000


class Decision(NamedTuple):
    """`error` for the client, after `value` is stored if there is one; `last_epoch` is for `on_stored`."""

    error: ErrorCode
    value: TransactionValue | None = None
    last_epoch: int = NO_EPOCH


class TransactionShard:
    """The transactional ids of one partition. `transactions` is the replayed state, read-only for callers."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.transactions: dict[str, TransactionValue] = {}
        self.size_bytes = 0  # approximate memory of the transactions
        # transactional id -> previous epoch, for retries of InitProducerId; in memory only, as in Kafka
        self._last_epochs: dict[str, int] = {}
        # transactional id -> partitions that need the marker of the ending transaction; in memory only, as in Kafka
        self._unmarked: dict[str, dict[TopicPartition, None]] = {}

    # --- replay

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replays one record, while loading and after each append.

        Raises: CorruptRecordError.
        """
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        self.replay_value(transactional_id, None if value is None else decode_value(value))

    def replay_value(self, transactional_id: str, value: TransactionValue | None) -> None:
        """As `replay`, without the time of decoding, which is long for a transaction of thousands of partitions."""
        known = self.transactions.pop(transactional_id, None)
        if known is not None:
            self.size_bytes -= _size_bytes(transactional_id, known)
        if value is None:
            self._last_epochs.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = value
            self.size_bytes += _size_bytes(transactional_id, value)
        self._unmarked.pop(transactional_id, None)

    def on_stored(self, transactional_id: str, decision: Decision) -> None:
        """Is called after the value of a decision was stored and replayed."""
        self._last_epochs[transactional_id] = decision.last_epoch

    # --- decisions

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        timestamp_ms: int,
        next_producer_id: Callable[[], int],
    ) -> Decision:
        """InitProducerId: returns the next epoch, which fences the previous producer.

        `expected` is the current epoch of a producer that recovers from an error (KIP-360).

        Raises: RuntimeError for a producer that was fenced in its last epoch.
        """
        if not transactional_id or len(transactional_id.encode()) > MAX_TRANSACTIONAL_ID_BYTES:
            return Decision(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            return Decision(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.transactions.get(transactional_id)
        if known is None:
            new = TransactionValue(next_producer_id(), 0, timeout_ms, EMPTY, updated_ms=timestamp_ms)
            return self._store(transactional_id, new)
        rule = TRANSACTION_RULES[known.status][TransactionOperation.INIT]
        if rule.action is TransactionAction.REJECT:  # before other checks: the state changes without the producer
            return Decision(rule.error)
        if expected is not None and not _may_expect(expected, known):
            return Decision(ErrorCode.PRODUCER_FENCED)
        if rule.action is TransactionAction.FENCE:
            return self._fence(transactional_id, known, timestamp_ms, rule.error)
        renewed = replace(
            known, timeout_ms=timeout_ms, status=EMPTY, partitions=frozenset(), updated_ms=timestamp_ms, start_ms=-1
        )
        if _is_exhausted(known.producer_epoch) and (expected is None or expected.epoch == known.producer_epoch):
            rotated = replace(
                renewed, producer_id=next_producer_id(), producer_epoch=0, previous_producer_id=known.producer_id
            )
            return self._store(transactional_id, rotated, NO_EPOCH if expected is None else known.producer_epoch)
        return self._raise_epoch(transactional_id, known, renewed, expected)

    def _raise_epoch(
        self,
        transactional_id: str,
        known: TransactionValue,
        renewed: TransactionValue,
        expected: ProducerIdAndEpoch | None,
    ) -> Decision:
        if _is_exhausted(known.producer_epoch):
            # the producer was fenced in its last epoch; only a new producer can be given another producer id
            raise RuntimeError(f"Producer id {known.producer_id} of '{transactional_id}' has no further epoch.")
        raised = replace(renewed, producer_epoch=known.producer_epoch + 1)
        if expected is None:
            return self._store(transactional_id, raised)
        if expected.epoch == known.producer_epoch:
            return self._store(transactional_id, raised, known.producer_epoch)
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        if expected.epoch == last_epoch:
            # a retry after the response was lost; a new producer would have cleared the last epoch
            return self._store(transactional_id, renewed, last_epoch)
        return Decision(ErrorCode.PRODUCER_FENCED)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        timestamp_ms: int,
    ) -> Decision:
        """AddPartitionsToTxn, AddOffsetsToTxn: adds the partitions to the transaction, or starts one."""
        known = self.transactions.get(transactional_id)
        if known is not None and is_ending(known.status):  # before other checks, as Kafka does
            return Decision(TRANSACTION_RULES[known.status][TransactionOperation.ADD].error)
        error = self._check(transactional_id, producer)
        if known is None or error is not ErrorCode.NONE:
            return Decision(error)
        rule = TRANSACTION_RULES[known.status][TransactionOperation.ADD]
        if rule.action is TransactionAction.EXTEND and known.partitions.issuperset(partitions):
            return Decision(ErrorCode.NONE)
        start_ms = known.start_ms if rule.action is TransactionAction.EXTEND else timestamp_ms
        together = known.partitions.union(partitions)
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        began = replace(known, status=ONGOING, partitions=together, updated_ms=timestamp_ms, start_ms=start_ms)
        return self._store(transactional_id, began, last_epoch)

    def end_transaction(
        self, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool, timestamp_ms: int
    ) -> Decision:
        """EndTxn: decides to commit or to abort."""
        error = self._check(transactional_id, producer)
        if error is not ErrorCode.NONE:
            return Decision(error)
        known = self.transactions[transactional_id]
        rule = TRANSACTION_RULES[known.status][TransactionOperation.COMMIT if committed else TransactionOperation.ABORT]
        if rule.action is not TransactionAction.END:
            return Decision(rule.error)
        status = PREPARE_COMMIT if committed else PREPARE_ABORT
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        return self._store(transactional_id, replace(known, status=status, updated_ms=timestamp_ms), last_epoch)

    def abort_timed_out(self, transactional_id: str, timestamp_ms: int) -> Decision:
        """Fences the producer and aborts, if the transaction has exceeded its timeout."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return Decision(ErrorCode.NONE)
        rule = TRANSACTION_RULES[known.status][TransactionOperation.EXPIRE]
        if rule.action is not TransactionAction.FENCE:
            return Decision(ErrorCode.NONE)
        if self.time_left_ms(transactional_id, timestamp_ms) > 0:
            return Decision(ErrorCode.NONE)
        return self._fence(transactional_id, known, timestamp_ms)

    def _fence(
        self, transactional_id: str, known: TransactionValue, timestamp_ms: int, error: ErrorCode = ErrorCode.NONE
    ) -> Decision:
        """Raises the epoch and aborts; the fenced producer may continue with the raised epoch (KIP-588)."""
        raised = min(known.producer_epoch + 1, _LARGEST_EPOCH)
        fenced = replace(known, producer_epoch=raised, status=PREPARE_ABORT, updated_ms=timestamp_ms)
        return self._store(transactional_id, fenced, known.producer_epoch, error)

    def complete_transaction(self, transactional_id: str, timestamp_ms: int) -> Decision:
        """Returns the state to store after all markers are written."""
        known = self.transactions[transactional_id]
        done = replace(known, status=COMPLETED_STATES[known.status], partitions=frozenset(), updated_ms=timestamp_ms)
        return self._store(transactional_id, done, self._last_epochs.get(transactional_id, NO_EPOCH))

    # --- markers

    def unmarked_partitions(self, transactional_id: str) -> list[TopicPartition]:
        """Returns the partitions of an ending transaction that still need its marker."""
        unmarked = self._unmarked.get(transactional_id)
        if unmarked is None:
            # as plain tuples, which are compared three times faster
            partitions = sorted(self.transactions[transactional_id].partitions, key=tuple)
            unmarked = self._unmarked[transactional_id] = dict.fromkeys(partitions)
        return list(unmarked)

    def marker_written(self, transactional_id: str, partition: TopicPartition) -> None:
        """Is called after the marker was appended to a partition, or the partition was deleted."""
        self._unmarked[transactional_id].pop(partition, None)

    # --- queries

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition) -> ErrorCode:
        """Returns NONE if a partition is in the producer's open transaction, else the error."""
        error = self._check(transactional_id, producer)
        if error is not ErrorCode.NONE:
            return error
        known = self.transactions[transactional_id]
        if is_ending(known.status):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def time_left_ms(self, transactional_id: str, timestamp_ms: int) -> int:
        """Returns the time until the transaction times out, 0 or negative afterwards."""
        known = self.transactions[transactional_id]
        return known.start_ms + known.timeout_ms - timestamp_ms

    def expired_ids(self, timestamp_ms: int) -> Iterator[str]:
        """Returns the transactional ids that were not used for transactional.id.expiration.ms."""
        return (each for each in self.transactions if self.is_expired(each, timestamp_ms))

    def is_expired(self, transactional_id: str, timestamp_ms: int) -> bool:
        """Returns whether an id exists and was not used for transactional.id.expiration.ms."""
        value = self.transactions.get(transactional_id)
        if value is None or value.status not in EXPIRABLE_STATES:
            return False
        return value.updated_ms <= timestamp_ms - self.config.transactional_id_expiration_ms

    def _store(
        self,
        transactional_id: str,
        value: TransactionValue,
        last_epoch: int = NO_EPOCH,
        error: ErrorCode = ErrorCode.NONE,
    ) -> Decision:
        known = self.transactions.get(transactional_id)
        check_transition(
            f"Transactional id '{transactional_id}'",
            TRANSACTION_TRANSITIONS,
            EMPTY if known is None else known.status,
            value.status,
            TRANSACTION_STATE_NAMES.__getitem__,
        )
        return Decision(error, value, last_epoch)

    def _check(self, transactional_id: str, producer: ProducerIdAndEpoch) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        known = self.transactions.get(transactional_id)
        if known is None or known.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if known.producer_epoch == producer.epoch else ErrorCode.PRODUCER_FENCED


def _size_bytes(transactional_id: str, value: TransactionValue) -> int:
    return _TRANSACTION_BYTES + 2 * len(transactional_id) + _PARTITION_BYTES * len(value.partitions)


def _is_exhausted(epoch: int) -> bool:
    # one epoch is reserved for fencing an open transaction
    return epoch >= _LARGEST_EPOCH - 1


def _may_expect(expected: ProducerIdAndEpoch, known: TransactionValue) -> bool:
    """Returns whether the producer id is the current or the previous one; `_raise_epoch` checks the epoch."""
    if expected.producer_id == known.producer_id:
        return True
    return expected.producer_id == known.previous_producer_id and _is_exhausted(expected.epoch)
