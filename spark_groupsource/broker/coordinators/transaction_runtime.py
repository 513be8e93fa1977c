"""Transaction coordinator runtime: decide, append, replay, write transaction markers.

Each partition of `__transaction_state` has one shard. All partitions of a transaction belong to this broker, so the
runtime writes the markers directly after it has stored the decision, and responds when both are done. A marker is
retried if its partition is offline or has a newer producer epoch or coordinator epoch; until it is written, the
transactional id gets CONCURRENT_TRANSACTIONS. A deleted partition needs no marker.

Loading a shard completes the transactions whose end is stored and restarts the timeouts of ongoing ones.

Source: Kafka `TransactionStateManager`, `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Callable, Collection, Iterator, Protocol, Tuple

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.coordinators.services import CoordinatorServices, report_unexpected
from spark_groupsource.broker.coordinators.shard_registry import CoordinatorShard, CoordinatorTopic, ShardRegistry
from spark_groupsource.broker.group.error_responses import append_error
from spark_groupsource.broker.periodic_work import PeriodicWork
from spark_groupsource.broker.storage.segment_scan import StoredBatch
from spark_groupsource.broker.transactions import Decision, TransactionConfig, TransactionShard, is_ending
from spark_groupsource.broker.transactions.transaction_states import ONGOING, PREPARE_COMMIT
from spark_groupsource.common.coroutines import next_turn, pause, run_at_once
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.key_values import key_value_slices
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.transaction_records import TRANSACTIONS_TOPIC, TransactionValue, encode_key, encode_value

_RETRY_MS = 1_000
MAX_STATE_BYTES = 16_777_216
"""Approximate memory of all transactional ids above which no id is added; at twice as much, no partition."""
_MARKERS_AT_ONCE = 25  # the first record of a partition also creates its files
# Kafka `TransactionStateManager.transactionStateTopicConfigs`; there is one copy of each log
_TOPIC_SETTINGS = {
    "compression.type": "uncompressed", "min.insync.replicas": "1", "unclean.leader.election.enable": "false",
}  # fmt: skip
_ID_EXPIRATION_INTERVAL_MS = 3_600_000


class TransactionTimer(Enum):
    """Timers of one transactional id."""

    TIMEOUT = "transaction.timeout.ms has passed"
    COMPLETION = "retry writing the markers"


TimerKey = Tuple[TransactionTimer, str]
"""Timer and transactional id."""

_Shard = CoordinatorShard[TransactionShard, TimerKey]


class MarkerListener(Protocol):
    """Is called after a transaction marker was appended to a partition."""

    def __call__(self, topic_partition: TopicPartition, size: int, producer_id: int, committed: bool) -> None: ...


class TransactionRuntime:
    """The transaction coordinator of all nodes. Called by the broker's event loop only.

    Args: `next_producer_id` allocates a producer id, raises StorageError; `on_marker` is called for each marker.
    """

    def __init__(
        self,
        services: CoordinatorServices,
        config: BrokerConfig,
        next_producer_id: Callable[[], int],
        on_marker: MarkerListener,
    ) -> None:
        self._services = services
        self._clock = services.clock
        self._next_producer_id = next_producer_id
        self._on_marker = on_marker
        self._config = TransactionConfig(config.transaction_max_timeout_ms, config.transactional_id_expiration_ms)
        topic = CoordinatorTopic(
            TRANSACTIONS_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_segment_bytes,
            "transactions",
            _TOPIC_SETTINGS,
        )
        self.shards: ShardRegistry[TransactionShard, TimerKey] = ShardRegistry(services, topic, self)
        self._expiration = PeriodicWork(
            services.timers,
            services.clock,
            services.start_task,
            self.expire_transactional_ids,
            lambda: _ID_EXPIRATION_INTERVAL_MS,
        )
        services.budget.add_part(self._state_bytes)
        self._reported_incomplete: set[str] = set()
        self._completing: set[tuple[_Shard, str]] = set()  # with tasks

    # --- shard lifecycle ---

    def start(self) -> None:
        """Schedules loading of all shards and the periodic expiration of transactional ids."""
        self.shards.load_all()
        self._expiration.start()

    def new_state_machine(self, partition: int) -> TransactionShard:
        return TransactionShard(self._config)

    def replay(self, state_machine: TransactionShard, key: bytes, value: bytes | None) -> None:
        """Replays a record of `__transaction_state`. Raises: CorruptRecordError."""
        state_machine.replay(key, value)

    def replay_transactional(self, state_machine: TransactionShard, stored: StoredBatch) -> Iterator[None]:
        """Replays as `replay`: no coordinator writes such batches into `__transaction_state`."""
        slices = () if stored.header.is_control else key_value_slices(stored.buffer, stored.header)
        for key, value in chain.from_iterable(slices):
            if key is not None:
                state_machine.replay(key, value)
            yield

    def on_loaded(self, shard: _Shard) -> None:
        """Completes transactions whose end is stored and starts the timeouts of ongoing ones."""
        for transactional_id in list(shard.state_machine.transactions):
            self._set_timeout(shard, transactional_id)
            self._complete(shard, transactional_id)

    def on_timer(self, shard: _Shard, key: TimerKey) -> None:
        timer, transactional_id = key
        if timer is TransactionTimer.TIMEOUT:
            self._time_out(shard, transactional_id)
        else:
            self._complete(shard, transactional_id)

    def unload(self, partition: int) -> None:
        """Unloads the shard of a partition with a new leader."""
        self.shards.unload(partition)

    # --- requests: each returns the content of the response; raises ApiError if this node does not serve the id ---

    def init(
        self, node_id: int, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        """Assigns a producer id and epoch to a transactional id; the producer has no meaning with an error."""
        shard = self._own_shard(node_id, transactional_id)
        if transactional_id not in shard.state_machine.transactions:
            self._check_memory(MAX_STATE_BYTES)
        timestamp_ms = self._clock.timestamp_ms()
        with self._legal_state(transactional_id):
            try:
                decision = shard.state_machine.init_producer_id(
                    transactional_id, timeout_ms, expected, timestamp_ms, self._next_producer_id
                )
            except StorageError as error:
                text = f"[transactional.id={transactional_id}] Allocating a producer id failed: {error}"
                self._services.report(text, logging.ERROR)
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        error_code = self._apply(shard, transactional_id, decision)
        value = decision.value
        if error_code is not ErrorCode.NONE or value is None:
            return error_code, ProducerIdAndEpoch(-1, -1)
        return error_code, ProducerIdAndEpoch(value.producer_id, value.producer_epoch)

    def add(
        self, node_id: int, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> ErrorCode:
        """Adds partitions to a transaction; the first one starts it."""
        return self._add(self._own_shard(node_id, transactional_id), transactional_id, producer, partitions)

    def add_produced(
        self, transactional_id: str, producer: ProducerIdAndEpoch, topic_partition: TopicPartition
    ) -> ErrorCode:
        """Adds the partition of a produced batch to a transaction, whichever node coordinates it."""
        try:
            shard = self.shards.loaded_shard(self.shards.partition_of(transactional_id).partition)
            return self._add(shard, transactional_id, producer, [topic_partition])
        except ApiError as error:
            return error.code

    def _add(
        self,
        shard: _Shard,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> ErrorCode:
        self._check_memory(2 * MAX_STATE_BYTES)  # new ids leave half of it to the transactions of known ones
        timestamp_ms = self._clock.timestamp_ms()
        with self._legal_state(transactional_id):
            decision = shard.state_machine.add_partitions(transactional_id, producer, partitions, timestamp_ms)
        return self._apply(shard, transactional_id, decision)

    def end(self, node_id: int, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool) -> ErrorCode:
        """Ends a transaction; its markers are written on return, unless it has many partitions or some are offline.

        Until all of them are written, later requests of the producer get CONCURRENT_TRANSACTIONS, as in Kafka.
        """
        shard = self._own_shard(node_id, transactional_id)
        timestamp_ms = self._clock.timestamp_ms()
        with self._legal_state(transactional_id):
            decision = shard.state_machine.end_transaction(transactional_id, producer, committed, timestamp_ms)
        return self._apply(shard, transactional_id, decision)

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, topic_partition: TopicPartition) -> ErrorCode:
        """Checks that a partition belongs to an ongoing transaction, whichever node coordinates it."""
        try:
            shard = self.shards.loaded_shard(self.shards.partition_of(transactional_id).partition)
        except ApiError as error:
            return error.code
        return shard.state_machine.verify(transactional_id, producer, topic_partition)

    def state_machines(self, node_id: int) -> list[TransactionShard] | None:
        """Returns the shards that a node serves, None while one of them is loading. Omits those that failed to load."""
        found = []
        for partition in range(self.shards.partition_count):
            shard = self.shards.get_or_load(partition) if self.shards.is_leader(node_id, partition) else None
            if shard is not None and not shard.is_loaded:
                return None
            if shard is not None:
                found.append(shard.state_machine)
        return found

    def transaction(self, node_id: int, transactional_id: str) -> TransactionValue | None:
        """Returns the state of a transactional id, while it is ending with the partitions that need a marker; None if
        unknown.

        Raises: ApiError.
        """
        state_machine = self._own_shard(node_id, transactional_id).state_machine
        value = state_machine.transactions.get(transactional_id)
        if value is None or not is_ending(value.status):
            return value
        return replace(value, partitions=frozenset(state_machine.unmarked_partitions(transactional_id)))

    def _check_memory(self, limit: int) -> None:
        """Raises: ApiError if the state of all transactional ids has reached a limit."""
        if self._state_bytes() >= limit or self._services.budget.is_full():
            text = "The transactional ids and partitions of transactions exceed their memory."
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)

    def _state_bytes(self) -> int:
        return sum(shard.state_machine.size_bytes for shard in self.shards.loaded_shards())

    def _own_shard(self, node_id: int, transactional_id: str) -> _Shard:
        partition = self.shards.partition_of(transactional_id).partition
        if not self.shards.is_leader(node_id, partition):
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"Node {node_id} does not coordinate {transactional_id}.")
        return self.shards.loaded_shard(partition)

    @contextmanager
    def _legal_state(self, transactional_id: str) -> Iterator[None]:
        """Raises: ApiError with UNKNOWN_SERVER_ERROR instead of the state machine's error about an illegal state."""
        try:
            yield
        except RuntimeError as error:
            report_unexpected(self._services.report, f"transactional.id={transactional_id}", error)
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    # --- decide, append, replay, mark ---

    def _apply(self, shard: _Shard, transactional_id: str, decision: Decision) -> ErrorCode:
        if decision.value is None:
            return decision.error
        try:
            self._store(shard, transactional_id, decision.value)
        except ApiError as error:
            return append_error(error.code)
        shard.state_machine.on_stored(transactional_id, decision)
        self._set_timeout(shard, transactional_id)
        self._complete(shard, transactional_id)
        return decision.error

    def _store(self, shard: _Shard, transactional_id: str, value: TransactionValue | None) -> None:
        key, data = encode_key(transactional_id), None if value is None else encode_value(value)
        target = self.shards.writable_partition(shard.partition)
        timestamp_ms = self._clock.timestamp_ms()
        appended = target.append_from_coordinator(encode_batch([Record(key, data, timestamp_ms)]), timestamp_ms)
        shard.state_machine.replay_value(transactional_id, value)
        self._services.on_append(target.topic_partition, appended.size)

    def _complete(self, shard: _Shard, transactional_id: str) -> None:
        """Completes a transaction whose end is stored; one of many partitions beside the requests."""
        value = shard.state_machine.transactions.get(transactional_id)
        if value is None or not is_ending(value.status) or (shard, transactional_id) in self._completing:
            return
        work = self._write_markers(shard, transactional_id, value)
        if len(value.partitions) > _MARKERS_AT_ONCE:
            self._completing.add((shard, transactional_id))
            self._services.start_task(work)
        else:
            run_at_once(work)

    async def _write_markers(self, shard: _Shard, transactional_id: str, value: TransactionValue) -> None:
        """Writes the markers that are not written yet, then stores the completion; retries on failure."""
        state_machine, failure = shard.state_machine, ""
        producer = ProducerIdAndEpoch(value.producer_id, value.producer_epoch)
        try:
            for topic_partition in state_machine.unmarked_partitions(transactional_id):
                await pause()
                if self.shards.find_loaded(shard.partition) is not shard:
                    return  # the new coordinator writes the others
                try:
                    self.write_marker(topic_partition, producer, value.status is PREPARE_COMMIT, shard.epoch)
                except ApiError as error:
                    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # else the topic was deleted
                        failure = failure or f"{topic_partition}: {error.code.name}: {error}"
                        continue
                state_machine.marker_written(transactional_id, topic_partition)
                if topic_partition.topic == OFFSETS_TOPIC:
                    await next_turn()  # thousands of offsets may have become visible
        finally:
            self._completing.discard((shard, transactional_id))
        if not failure:
            decision = state_machine.complete_transaction(transactional_id, self._clock.timestamp_ms())
            assert decision.value is not None
            try:
                self._store(shard, transactional_id, decision.value)
            except ApiError as error:
                failure = str(error)
        if not failure:
            state_machine.on_stored(transactional_id, decision)
            self._reported_incomplete.discard(transactional_id)
            return
        if transactional_id not in self._reported_incomplete:
            self._reported_incomplete.add(transactional_id)
            self._services.report(
                f"[transactional.id={transactional_id}] Completing the transaction failed, retrying every "
                f"{_RETRY_MS} ms: {failure}"
            )
        shard.timers.set((TransactionTimer.COMPLETION, transactional_id), self._clock.now_ms() + _RETRY_MS)

    def write_marker(
        self,
        topic_partition: TopicPartition,
        producer: ProducerIdAndEpoch,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int = 1,
    ) -> None:
        """Appends a marker to one partition and applies it to the group coordinator. Raises: ApiError."""
        marker = self._services.partitions.partition(*topic_partition).append_transaction_marker(
            *producer, committed, coordinator_epoch, self._clock.timestamp_ms(), transaction_version
        )
        self._on_marker(topic_partition, marker.size, producer.producer_id, committed)

    # --- timeouts ---

    def _set_timeout(self, shard: _Shard, transactional_id: str) -> None:
        key = (TransactionTimer.TIMEOUT, transactional_id)
        if shard.state_machine.transactions[transactional_id].status is not ONGOING:
            shard.timers.cancel(key)
            return
        left_ms = shard.state_machine.time_left_ms(transactional_id, self._clock.timestamp_ms())
        shard.timers.set(key, self._clock.now_ms() + max(left_ms, 0))

    def _time_out(self, shard: _Shard, transactional_id: str) -> None:
        decision = shard.state_machine.abort_timed_out(transactional_id, self._clock.timestamp_ms())
        if decision.value is not None:
            text = f"[transactional.id={transactional_id}] Aborting: transaction.timeout.ms has passed."
            self._services.report(text, logging.INFO)
            self._apply(shard, transactional_id, decision)
        value = shard.state_machine.transactions.get(transactional_id)
        if value is not None and value.status is ONGOING:  # the append failed, or the clock was set back
            shard.timers.set((TransactionTimer.TIMEOUT, transactional_id), self._clock.now_ms() + _RETRY_MS)

    async def expire_transactional_ids(self) -> None:
        """Removes the transactional ids that are unused for transactional.id.expiration.ms."""
        for shard in self.shards.loaded_shards():
            expired = list(shard.state_machine.expired_ids(self._clock.timestamp_ms()))
            await pause()
            for transactional_id in expired:
                # during the pause the shard may have been unloaded, and the id used
                if self.shards.find_loaded(shard.partition) is not shard:
                    break
                if not shard.state_machine.is_expired(transactional_id, self._clock.timestamp_ms()):
                    continue
                try:
                    self._store(shard, transactional_id, None)
                except ApiError as error:
                    self._services.report(
                        f"[transactional.id={transactional_id}] Expiring the unused transactional id failed: {error}"
                    )
                await pause()
