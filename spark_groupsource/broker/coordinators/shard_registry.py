"""Coordinator shards: which partitions are loaded, by which leader; loading and unloading.

The node that leads a partition of the coordinator's topic serves the shard of that partition. A shard is loaded by
replaying its partition: at the first request for it, or soon after a node has become its leader. One long log is
replayed at a time.

Source: Kafka `CoordinatorRuntime` (group coordinator), `TransactionStateManager.loadTransactionsForTxnTopicPartition`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from functools import partial
from typing import (
    Any,
    Coroutine,
    Generic,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Protocol,
    Sequence,
    TypeVar,
)

from spark_groupsource.broker.coordinators.log_replay import LogReplay
from spark_groupsource.broker.coordinators.services import CoordinatorServices
from spark_groupsource.broker.group import coordinator_partition
from spark_groupsource.broker.leaders import Leader
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.segment_scan import StoredBatch
from spark_groupsource.common.coroutines import SLICE_NS, begin, pause, rest_of
from spark_groupsource.common.timers import TimerQueue
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition

StateMachine = TypeVar("StateMachine")
Key = TypeVar("Key", bound=Hashable)


class CoordinatorShard(Generic[StateMachine, Key]):
    """One partition of a coordinator at its leader, from the begin of loading until it is unloaded.

    Attributes: `epoch`, leader epoch of the partition when loading began; `timers`, of this shard alone: they do
    nothing once it is unloaded.
    """

    def __init__(
        self, partition: int, epoch: int, state_machine: StateMachine, timers: TimerQueue[Key]
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state_machine = state_machine
        self.timers = timers
        self.is_loaded = False


class CoordinatorTopic(NamedTuple):
    """The topic of a coordinator; `contents` names what its records describe, for operators.

    `settings` are those that Kafka gives the topic in addition to the cleanup policy and the segment size.
    """

    name: str
    partition_count: int
    segment_bytes: int
    contents: str
    settings: Mapping[str, str]


class Coordinator(Protocol[StateMachine, Key]):
    """Operations that differ between the group and the transaction coordinator."""

    @abstractmethod
    def new_state_machine(self, partition: int) -> StateMachine:
        """Creates the empty state machine of a partition."""

    @abstractmethod
    def replay(self, state_machine: StateMachine, key: bytes, value: bytes | None) -> None:
        """Replays one record outside of transactions, of which only the last one of a key counts.

        Raises: CorruptRecordError.
        """

    @abstractmethod
    def replay_transactional(self, state_machine: StateMachine, stored: StoredBatch) -> Iterator[None]:
        """Replays a control batch or a batch of a transaction, one record at a time.

        The order of these batches and of others counts. Raises: CorruptRecordError.
        """

    @abstractmethod
    def on_loaded(self, shard: CoordinatorShard[StateMachine, Key]) -> None:
        """Is called when the shard has replayed its whole log."""

    @abstractmethod
    def on_timer(self, shard: CoordinatorShard[StateMachine, Key], key: Key) -> None:
        """Is called when a timer of the shard expires."""


class ShardRegistry(Generic[StateMachine, Key]):
    """The loaded and loading shards of one coordinator. Called by the broker's event loop only."""

    def __init__(
        self, services: CoordinatorServices, topic: CoordinatorTopic, coordinator: Coordinator[StateMachine, Key]
    ) -> None:
        self._services = services
        self._topic = topic
        self._coordinator = coordinator
        self._shards: dict[int, CoordinatorShard[StateMachine, Key]] = {}
        self._loading = asyncio.Lock()
        # shards to load after a pause by a test, None without one
        self._paused: list[CoordinatorShard[StateMachine, Key]] | None = None
        self._creation_error = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Topic {topic.name} does not exist.")
        self._load_errors: dict[int, str] = {}

    # --- the topic ---

    @property
    def partition_count(self) -> int:
        """Partitions of the coordinator's topic, 0 before the topic exists."""
        entry = self._services.partitions.topics.get(self._topic.name)
        return 0 if entry is None else entry.partition_count

    async def ensure_topic(self) -> None:
        """Creates the coordinator's topic unless it exists. Raises: ApiError."""
        required = {"cleanup.policy": "compact", "segment.bytes": str(self._topic.segment_bytes)}
        settings = {**required, **self._topic.settings}
        try:
            await self._services.ensure_topic(self._topic.name, self._topic.partition_count, settings)
        except ApiError as error:
            self._creation_error = error.without_traceback()
            raise

    def existing_partition_count(self) -> int:
        """Returns the partitions of the coordinator's topic. Raises: ApiError if it could not be created."""
        count = self.partition_count
        if not count:
            raise ApiError(self._creation_error.code, self._creation_error.message)
        return count

    def log_partition(self, partition: int) -> Partition:
        """Raises: ApiError."""
        return self._services.partitions.partition(self._topic.name, partition)

    def writable_partition(self, partition: int) -> Partition:
        """As `log_partition`, for an append, which requires min.insync.replicas running nodes. Raises: ApiError."""
        found = self.log_partition(partition)
        self._services.leaders.check_in_sync(found.topic_partition, found.log.config.min_insync_replicas)
        return found

    # --- leadership ---

    def partition_of(self, coordinated_id: str) -> TopicPartition:
        """Returns the partition of a group id or transactional id. Raises: ApiError without the topic."""
        return TopicPartition(self._topic.name, coordinator_partition(coordinated_id, self.existing_partition_count()))

    def coordinator_node(self, coordinated_id: str) -> int:
        """Returns the id of the node that coordinates a group id or transactional id.

        Raises: ApiError when its shard cannot be loaded or its leader does not run.
        """
        topic_partition = self.partition_of(coordinated_id)
        self.get_or_load(topic_partition.partition)
        self.check_available(topic_partition.partition)
        node_id = self._services.leaders.leader(topic_partition).node_id
        if node_id not in self._services.nodes.ids():
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Node {node_id} does not run.")
        return node_id

    def is_leader(self, node_id: int, partition: int) -> bool:
        return self._leader(partition).node_id == node_id

    def check_available(self, partition: int) -> None:
        """Raises: ApiError with the cause when the partition's log could not be replayed."""
        if partition in self._load_errors:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._load_errors[partition])

    # --- shards ---

    def get_or_load(self, partition: int) -> CoordinatorShard[StateMachine, Key] | None:
        """Returns the shard, None when its log cannot be replayed. A shard with a long log may still be loading."""
        if partition not in self._shards and partition not in self._load_errors:
            self._begin_loading(self._new_shard(partition))
        return self._shards.get(partition)

    def find_loaded(self, partition: int) -> CoordinatorShard[StateMachine, Key] | None:
        """Returns the shard if it is loaded."""
        shard = self._shards.get(partition)
        return shard if shard is not None and shard.is_loaded else None

    def loaded_shard(self, partition: int) -> CoordinatorShard[StateMachine, Key]:
        """Returns the shard. Raises: ApiError while it is loading, or when its log cannot be replayed."""
        shard = self.get_or_load(partition)
        self.check_available(partition)
        if shard is None or not shard.is_loaded:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def loaded_shards(self) -> Iterator[CoordinatorShard[StateMachine, Key]]:
        """Returns the shards that are loaded at the time of the call."""
        return iter([shard for shard in self._shards.values() if shard.is_loaded])

    def unload(self, partition: int) -> CoordinatorShard[StateMachine, Key] | None:
        """Removes a shard whose partition has a new leader, and schedules loading there; returns the removed shard."""
        self.clear_load_error(partition)
        shard = self._shards.pop(partition, None)
        self._load_soon((partition,))
        return shard

    def clear_load_error(self, partition: int) -> None:
        """Permits another attempt to load a partition whose log could not be replayed."""
        self._load_errors.pop(partition, None)

    def _leader(self, partition: int) -> Leader:
        leaders = self._services.leaders
        return leaders.only_leader() or leaders.leader(TopicPartition(self._topic.name, partition))

    def _new_shard(self, partition: int) -> CoordinatorShard[StateMachine, Key]:
        def on_expiry(key: Key) -> None:
            if self._is_current(shard):
                self._coordinator.on_timer(shard, key)

        state_machine = self._coordinator.new_state_machine(partition)
        timers = self._services.timers.queue(on_expiry)
        shard = CoordinatorShard(partition, self._leader(partition).epoch, state_machine, timers)
        self._shards[partition] = shard
        return shard

    # --- loading ---

    def load_all(self) -> None:
        """Schedules loading of all partitions of the topic."""
        self._load_soon(range(self.partition_count))

    def pause_loading(self, paused: bool) -> None:
        """Stops the replay of shards that are not loaded yet, or continues it. For tests."""
        waiting, self._paused = self._paused or [], [] if paused else None
        for shard in waiting:
            self._begin_loading(shard)

    def _load_soon(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._services.start_task(self._load_each(partitions))

    async def _load_each(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            async with self._loading:
                if partition not in self._shards and partition not in self._load_errors:
                    await self._load(self._new_shard(partition))
            await pause()

    def _begin_loading(self, shard: CoordinatorShard[StateMachine, Key]) -> None:
        """Loads a shard; the rest of a long log is replayed when no other log is."""
        work = self._load(shard)
        try:
            begin(work, SLICE_NS)
        except StopIteration:
            return
        self._services.start_task(self._load_rest(work))

    async def _load_rest(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._loading:
            await rest_of(work)

    async def _load(self, shard: CoordinatorShard[StateMachine, Key]) -> None:
        if self._paused is not None:
            self._paused.append(shard)
            return
        machine, coordinator = shard.state_machine, self._coordinator
        replay = LogReplay(
            partial(self._batches, shard),
            partial(coordinator.replay, machine),
            partial(coordinator.replay_transactional, machine),
        )
        try:
            await replay.run()
        except (ApiError, CorruptRecordError, StorageError) as error:
            if self._is_current(shard):
                del self._shards[shard.partition]
                text = f"Loading {self._topic.contents} of {self._topic.name}-{shard.partition} failed: {error}"
                self._load_errors[shard.partition] = text
                self._services.report(f"[partition={self._topic.name}-{shard.partition}] {text}", logging.ERROR)
            return
        if self._is_current(shard):
            shard.is_loaded = True
            self._coordinator.on_loaded(shard)

    def _batches(self, shard: CoordinatorShard[StateMachine, Key], next_offset: int) -> Iterable[StoredBatch]:
        if not self._is_current(shard):
            return ()
        log = self.log_partition(shard.partition).log
        return log.batches(max(next_offset, log.log_start_offset))

    def _is_current(self, shard: CoordinatorShard[StateMachine, Key]) -> bool:
        """Returns whether the shard was not unloaded, during a pause or since a timer was set."""
        return self._shards.get(shard.partition) is shard
