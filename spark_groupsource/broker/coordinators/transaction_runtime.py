"""Drives the transaction coordinator: decide, append, replay, write markers; one shard per `__transaction_state` log.

Everything a transaction touches lies in this broker, so between the decision in the log and its markers nothing else
happens, and the client is answered when all is done. What cannot be marked, because its partition is offline, is tried
again; until then the transactional id is busy.

When a shard is loaded, what was decided is marked, and the time of open transactions goes on.

Source: Kafka `TransactionStateManager`, `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection

from spark_groupsource.broker.coordinators.shard_registry import CoordinatorTopic, Seat, Seats
from spark_groupsource.broker.coordinators.timers import (
    MarkerRetryTimer,
    TransactionalIdExpirationTimer,
    TransactionRuntimeTimer,
    TransactionTimer,
)
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.group.error_responses import append_error
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage.partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from spark_groupsource.storage.segment import StoredBatch
from spark_groupsource.transactions import Decision, ProducerIdAndEpoch, TransactionConfig, TransactionShard, is_ending
from spark_groupsource.transactions.states import ONGOING, PREPARE_COMMIT
from spark_groupsource.wire.transaction_records import TransactionValue, encode_key, encode_value

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Broker

_RETRY_MS = 1_000
_FORGET_INTERVAL_MS = 3_600_000
# a marker that comes too late has nothing to end any more
_OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


class TransactionRuntime:
    """Every transaction of this broker. The one caller is the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        self._config = TransactionConfig(config.transaction_max_timeout_ms, config.transactional_id_expiration_ms)
        topic = CoordinatorTopic(
            TRANSACTIONS_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_segment_bytes,
            "transactions",
        )
        self.seats = Seats(broker, topic, self)
        self._stuck: set[str] = set()

    # --- the life of a shard ---

    def start(self) -> None:
        """Begins to load the shards, and to look for transactional ids that nobody uses from time to time."""
        self.seats.load_all()
        self._set_forget_timer()

    def new_shard(self, partition: int) -> TransactionShard:
        return TransactionShard(self._config)

    def replay_batch(self, shard: TransactionShard, stored: StoredBatch) -> int:
        """Takes a batch of the transaction log into a shard; returns the number of its records.

        Raises: CorruptRecordError.
        """
        replayed = 0
        if not stored.header.is_control:
            for record in decode_records(stored.buffer, stored.header):
                if record.key is not None:
                    shard.replay(record.key, record.value)
                    replayed += 1
        return replayed

    def loaded(self, seat: Seat[TransactionShard]) -> None:
        """Ends what was decided, and lets the time of open transactions go on."""
        for transactional_id, value in list(seat.shard.transactions.items()):
            self._set_timeout(seat, transactional_id)
            if is_ending(value.status):
                self._finish(seat, transactional_id)

    def resign(self, partition: int) -> None:
        """Another node leads the partition now, where the shard is loaded."""
        self.seats.resign(partition)

    def expire(self, timer: TransactionRuntimeTimer) -> None:
        """Handles an expired timer of this runtime."""
        if isinstance(timer, TransactionalIdExpirationTimer):
            self._forget_unused()
            return
        seat = self.seats.seated(timer.partition, timer.shard_number)
        if seat is None:
            return
        if isinstance(timer, TransactionTimer):
            self._time_out(seat, timer.transactional_id)
        else:
            self._finish(seat, timer.transactional_id)

    # --- requests: each returns what is to be answered, and raises ApiError when this node cannot say ---

    def init(
        self, node_id: int, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        """The producer id and epoch of a transactional id's new producer; of no meaning with an error."""
        seat = self._own_seat(node_id, transactional_id)
        fresh_id = self._broker.data.next_producer_id
        try:
            decision = seat.shard.init_producer_id(transactional_id, timeout_ms, expected, self._timestamp_ms, fresh_id)
        except StorageError as error:
            self._broker.report(str(error))
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        error_code = self._apply(seat, transactional_id, decision)
        value = decision.value
        if error_code is not ErrorCode.NONE or value is None:
            return error_code, ProducerIdAndEpoch(-1, -1)
        return error_code, ProducerIdAndEpoch(value.producer_id, value.producer_epoch)

    def add(
        self, node_id: int, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> ErrorCode:
        """Takes partitions into a transaction, which begins with the first."""
        seat = self._own_seat(node_id, transactional_id)
        decision = seat.shard.add_partitions(transactional_id, producer, partitions, self._timestamp_ms)
        return self._apply(seat, transactional_id, decision)

    def end(self, node_id: int, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool) -> ErrorCode:
        """Ends a transaction; its markers are written when this returns, unless a partition cannot be written."""
        seat = self._own_seat(node_id, transactional_id)
        decision = seat.shard.end_transaction(transactional_id, producer, committed, self._timestamp_ms)
        return self._apply(seat, transactional_id, decision)

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, topic_partition: TopicPartition) -> ErrorCode:
        """Whether records in a partition belong to an open transaction, whichever node coordinates it."""
        try:
            seat = self._loaded_seat(self.seats.partition_of(transactional_id).partition)
        except ApiError as error:
            return error.code
        return seat.shard.verify(transactional_id, producer, topic_partition)

    def shards(self, node_id: int) -> list[TransactionShard] | None:
        """The shards a node serves, without those that cannot be loaded; None while one is still being loaded."""
        found = []
        for partition in range(self.seats.partition_count):
            seat = self.seats.seat(partition) if self.seats.leads(node_id, partition) else None
            if seat is not None and not seat.loaded:
                return None
            if seat is not None:
                found.append(seat.shard)
        return found

    def transaction(self, node_id: int, transactional_id: str) -> TransactionValue | None:
        """Where a transactional id stands, None when it is not known. Raises: ApiError."""
        return self._own_seat(node_id, transactional_id).shard.transactions.get(transactional_id)

    def _own_seat(self, node_id: int, transactional_id: str) -> Seat[TransactionShard]:
        partition = self.seats.partition_of(transactional_id).partition
        if not self.seats.leads(node_id, partition):
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"node {node_id} does not coordinate {transactional_id}")
        return self._loaded_seat(partition)

    def _loaded_seat(self, partition: int) -> Seat[TransactionShard]:
        seat = self.seats.seat(partition)
        self.seats.check(partition)
        if seat is None or not seat.loaded:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return seat

    # --- decide, append, replay, mark ---

    def _apply(self, seat: Seat[TransactionShard], transactional_id: str, decision: Decision) -> ErrorCode:
        if decision.value is None:
            return decision.error
        try:
            self._store(seat, transactional_id, decision.value)
        except ApiError as error:
            return append_error(error.code)
        seat.shard.on_stored(transactional_id, decision)
        self._set_timeout(seat, transactional_id)
        if is_ending(decision.value.status):
            self._finish(seat, transactional_id)
        return decision.error

    def _store(self, seat: Seat[TransactionShard], transactional_id: str, value: TransactionValue | None) -> None:
        key, data = encode_key(transactional_id), None if value is None else encode_value(value)
        target = self.seats.log_partition(seat.partition)
        timestamp_ms = self._timestamp_ms
        appended = target.append_own(encode_batch([Record(key, data, timestamp_ms)]), timestamp_ms)
        seat.shard.replay(key, data)
        self._broker.appended(target.topic_partition, appended.size)

    def _finish(self, seat: Seat[TransactionShard], transactional_id: str) -> None:
        """Writes the markers of a transaction whose end is decided, then that they are written."""
        value = seat.shard.transactions.get(transactional_id)
        if value is None or not is_ending(value.status):
            return
        trouble = self._mark(seat, value)
        if not trouble:
            decision = seat.shard.complete_transaction(transactional_id, self._timestamp_ms)
            assert decision.value is not None
            try:
                self._store(seat, transactional_id, decision.value)
            except ApiError as error:
                trouble = str(error)
        if not trouble:
            seat.shard.on_stored(transactional_id, decision)
            self._stuck.discard(transactional_id)
            return
        if transactional_id not in self._stuck:
            self._stuck.add(transactional_id)
            self._broker.report(f"the transaction of {transactional_id} cannot be ended yet, it is tried on: {trouble}")
        key = MarkerRetryTimer(seat.partition, seat.number, transactional_id)
        self._broker.timers.set(key, self._broker.clock.now_ms() + _RETRY_MS)

    def _mark(self, seat: Seat[TransactionShard], value: TransactionValue) -> str:
        """Writes a marker to every partition; returns what was in the way of one, empty if nothing was."""
        trouble = ""
        committed = value.status is PREPARE_COMMIT
        for topic_partition in sorted(value.partitions):
            try:
                partition = self._broker.partitions.partition(*topic_partition)
                marked = partition.append_marker(
                    value.producer_id, value.producer_epoch, committed, seat.epoch, self._timestamp_ms
                )
            except ApiError as error:
                if error.code not in _OVERTAKEN:
                    trouble = str(error)
                continue
            if topic_partition.topic == OFFSETS_TOPIC:
                self._broker.coordinator.transaction_ended(topic_partition.partition, value.producer_id, committed)
            self._broker.appended(topic_partition, marked.size)
            self._broker.fetches.transaction_ended(topic_partition)
        return trouble

    def _set_timeout(self, seat: Seat[TransactionShard], transactional_id: str) -> None:
        key = TransactionTimer(seat.partition, seat.number, transactional_id)
        if seat.shard.transactions[transactional_id].status is not ONGOING:
            self._broker.timers.cancel(key)
            return
        left_ms = seat.shard.time_left_ms(transactional_id, self._timestamp_ms)
        self._broker.timers.set(key, self._broker.clock.now_ms() + max(left_ms, 0))

    def _time_out(self, seat: Seat[TransactionShard], transactional_id: str) -> None:
        decision = seat.shard.abort_timed_out(transactional_id, self._timestamp_ms)
        if decision.value is not None:
            self._broker.report(f"the transaction of {transactional_id} is aborted: transaction.timeout.ms is over")
            self._apply(seat, transactional_id, decision)
        value = seat.shard.transactions.get(transactional_id)
        if value is not None and value.status is ONGOING:  # it could not be stored, or the clock was set back
            key = TransactionTimer(seat.partition, seat.number, transactional_id)
            self._broker.timers.set(key, self._broker.clock.now_ms() + _RETRY_MS)

    def _set_forget_timer(self) -> None:
        self._broker.timers.set(TransactionalIdExpirationTimer(), self._broker.clock.now_ms() + _FORGET_INTERVAL_MS)

    def _forget_unused(self) -> None:
        for seat in self.seats.loaded():
            for transactional_id in list(seat.shard.expired_ids(self._timestamp_ms)):
                try:
                    self._store(seat, transactional_id, None)
                except ApiError as error:
                    self._broker.report(f"the unused transactional id {transactional_id} is kept for now: {error}")
        self._set_forget_timer()

    @property
    def _timestamp_ms(self) -> int:
        return self._broker.clock.timestamp_ms()
