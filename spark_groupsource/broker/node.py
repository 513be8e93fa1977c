"""Broker composition: logs, leaders, coordinators, fetch, maintenance.

One thread calls the broker; it is the only writer of every log and every coordinator. The caller passes the clock and
calls `run_timers` at each deadline.
"""

from __future__ import annotations

import asyncio
from typing import Collection, Iterable, Mapping, Sequence

from spark_groupsource.broker.acls import Authorizer
from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.coordinators.group_runtime import GroupRuntime
from spark_groupsource.broker.coordinators.services import CoordinatorServices
from spark_groupsource.broker.coordinators.transaction_runtime import TransactionRuntime
from spark_groupsource.broker.credentials import CredentialStore
from spark_groupsource.broker.dynamic_config import DynamicSettings
from spark_groupsource.broker.fetch.delayed_fetch import FetchManager
from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.broker.log_maintenance import LogMaintenance
from spark_groupsource.broker.periodic_work import StartTask
from spark_groupsource.broker.requests import SendResponse
from spark_groupsource.broker.running_nodes import RunningNodes
from spark_groupsource.broker.state_budget import PARTITION_BYTES, StateBudget
from spark_groupsource.broker.storage.catalog import COORDINATOR_TOPICS, INTERNAL_TOPICS, UNLISTED_TOPICS, TopicEntry
from spark_groupsource.broker.storage.cleaner import LogCleaner
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.log_manager import LogManager, TopicPlan
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.coroutines import enter_task, in_thread, pause, run_at_once
from spark_groupsource.common.timers import Timers
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.transaction_records import TRANSACTIONS_TOPIC

_PARTITIONS_PER_STEP = 100
_STATE_BYTES = 67_108_864
_DEFAULTS = BrokerConfig()


def _state_budget(config: BrokerConfig) -> StateBudget:
    """Returns the memory of all state: 64 MB, and what settings permit in addition to their defaults."""
    limit = config.group.group_coordinator_max_state_bytes
    groups = max(limit - _DEFAULTS.group.group_coordinator_max_state_bytes, 0)
    partitions = max(config.max_broker_partitions - _DEFAULTS.max_broker_partitions, 0)
    return StateBudget(_STATE_BYTES + groups + partitions * PARTITION_BYTES)


class Broker:
    """One or several nodes that share a data directory; `leaders` assigns each partition to a node.

    Args: `send` sends delayed responses; `report` takes one line for the operator at a time; `add_scram`, SCRAM users
    to add, in the format of ``--add-scram``; `start_task` runs work beside requests.
    """

    def __init__(
        self,
        config: BrokerConfig,
        data: DataDirectory,
        clock: Clock,
        send: SendResponse,
        report: Reporter,
        node_count: int = 1,
        add_scram: Collection[str] = (),
        start_task: StartTask = run_at_once,
    ) -> None:
        self.config = config
        self.clock, self.report, self.data = clock, report, data
        self.alteration = asyncio.Lock()  # of settings: the new ones depend on the old ones
        self._creation = asyncio.Lock()  # of the coordinators' topics
        self.nodes = RunningNodes()
        self.leaders = Leaders(range(config.node_id, config.node_id + node_count), report)
        self.credentials = CredentialStore(config, clock.timestamp_ms)
        self.authorizer = Authorizer(config.security) if config.security.authorizer_class_name else None
        self._add_scram = add_scram
        self.dynamic = DynamicSettings(data, config, self.leaders.node_ids)
        self.partitions = LogManager(data, config.topic, report)
        self.timers = Timers()
        self.budget = _state_budget(config)
        self.budget.add_part(self._state_bytes)
        self.partitions.producer_count.is_budget_full = self.budget.is_full
        self.fetch_manager = FetchManager(
            self.partitions, self.leaders, self.nodes, self.timers, clock, config, send, self.budget, start_task
        )
        services = CoordinatorServices(
            self.partitions,
            self.leaders,
            self.nodes,
            self.timers,
            clock,
            start_task,
            self._ensure_topic,
            self.on_append,
            report,
            self.budget,
        )
        self.group_coordinator = GroupRuntime(services, config, send)
        self.transaction_coordinator = TransactionRuntime(services, config, data.next_producer_id, self._on_marker)
        self._coordinators: Mapping[str, GroupRuntime | TransactionRuntime] = {
            OFFSETS_TOPIC: self.group_coordinator,
            TRANSACTIONS_TOPIC: self.transaction_coordinator,
        }
        self.maintenance = LogMaintenance(
            self.partitions,
            self.timers,
            clock,
            start_task,
            lambda: self.config,
            self.fetch_manager.complete_all,
            report,
        )
        self.cleaner = LogCleaner(
            self.partitions, data, self.timers, clock, config.log_cleaner_backoff_ms, report, start_task
        )

    def _state_bytes(self) -> int:
        return len(self.partitions) * PARTITION_BYTES + self.partitions.producer_count.total_bytes

    @property
    def cluster_id(self) -> str:
        return self.data.cluster_id

    @property
    def controller_id(self) -> int:
        """The node that clients use as controller: the running one with the lowest id, -1 without one."""
        return min(self.leaders.running, default=-1)

    def start(self) -> None:
        """Opens the data directory and every log.

        Raises: StorageError.
        """
        self.data.open(self.config.node_id)
        try:
            self.credentials.open(self.data.path, self._add_scram)
            if self.authorizer is not None:
                self.authorizer.open(self.data.path)
            self.leaders.open(self.data.path)
            run_at_once(self._apply_dynamic_config())
            self.partitions.open_all(self.clock.timestamp_ms() - self.config.producer_id_expiration_ms)
            if not self.data.had_clean_shutdown:
                self.leaders.raise_epochs(self.partitions.last_leader_epoch())
            self._assign_leader_epochs(self.partitions)
        except BaseException:
            self.data.close(is_clean=False)
            raise
        self.group_coordinator.start()
        self.transaction_coordinator.start()
        self.maintenance.start()
        if self.config.log_cleaner_enable:
            self.cleaner.start()

    def stop(self) -> None:
        """Closes every log and releases the directory.

        Raises: StorageError.
        """
        self.cleaner.stop()
        run_at_once(self.group_coordinator.stop())
        self.data.close(is_clean=self.partitions.close_all())

    def next_deadline_ms(self) -> int | None:
        """When `run_timers` must be called (monotonic ms), None without timers."""
        return self.timers.next_deadline_ms()

    def run_timers(self) -> None:
        """Runs timers that are due, for about 10 ms; a timer that is left is due at once."""
        self.timers.run_expired(self.clock.now_ms)

    # --- dynamic configuration ---

    async def _apply_dynamic_config(self) -> None:
        """Applies the stored dynamic settings.

        Raises: ConfigurationError for a stored value that this version rejects.
        """
        self.config = self.dynamic.effective()
        self.cleaner.backoff_ms = self.config.log_cleaner_backoff_ms
        await self.partitions.set_topic_defaults(self.config.topic)

    async def alter_config(
        self, name: str, settings: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replaces the dynamic settings of a node (by its id), or of all nodes (empty name), and applies them.

        Raises: ApiError.
        """
        self.dynamic.check(name, settings)
        if validate_only:
            return
        await in_thread(self.dynamic.put, name, settings)
        await self._apply_dynamic_config()

    # --- topics ---

    async def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> TopicEntry:
        """Creates a topic and elects its leaders. Raises: ApiError."""
        (created,) = await self.create_topics([TopicPlan(name, partition_count, settings)])
        if isinstance(created, ApiError):
            raise created
        return created

    async def _ensure_topic(self, name: str, partition_count: int, settings: Mapping[str, str]) -> None:
        """Creates a topic of the coordinators unless it exists. Raises: ApiError."""
        await enter_task()
        async with self._creation:
            if name not in self.partitions.topics:
                await self.create_topic(name, partition_count, settings)

    async def create_topics(self, new: Sequence[TopicPlan]) -> list[TopicEntry | ApiError]:
        """Creates topics, with one write for all; returns the topic or the error of each."""
        created = await self.partitions.create_topics(
            new, lambda topic: self._check_partition_limit(topic.name, topic.partition_count)
        )
        for entry in created:
            if not isinstance(entry, ApiError):
                await self._elect_new(entry.partitions)
        return created

    async def add_partitions(self, name: str, partition_count: int) -> TopicEntry:
        """Adds partitions to a topic, up to `partition_count`. Raises: ApiError."""
        self._check_partition_limit(name, partition_count - self.partitions.topic(name).partition_count)
        entry = await self.partitions.add_partitions(name, partition_count)
        await self._elect_new(entry.partitions)
        return entry

    def _check_partition_limit(self, name: str, added: int) -> None:
        limit = self.config.max_broker_partitions
        unlisted = sum(topic in self.partitions.topics for topic in UNLISTED_TOPICS)
        count = len(self.partitions) - unlisted
        if name not in INTERNAL_TOPICS and count + added > limit:
            text = (
                f"The broker has {count:,} partitions, {added:,} more exceed max.broker.partitions={limit}. Delete "
                "topics or increase the limit."
            )
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        if name not in INTERNAL_TOPICS and self.budget.is_full(added * PARTITION_BYTES):
            text = "The broker's memory of groups, transactions, producers and partitions is used. Delete some of them."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with its files and committed offsets. Raises: ApiError."""
        if name == OFFSETS_TOPIC:
            text = f"Topic {name} stores the committed offsets of all groups. Delete groups instead."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        if name == TRANSACTIONS_TOPIC:
            text = f"Topic {name} stores all transactions. It can only be removed with the data directory."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        deleted = await self.partitions.remove_topic(name)
        self.leaders.remove(deleted)
        await pause()
        self.fetch_manager.complete_all(deleted)
        await pause()
        await self.group_coordinator.partitions_deleted(deleted)
        await self.partitions.delete_files(name)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ApiError]:
        """Moves log start offsets, as `check_deletion` returns them, and completes delayed fetches of the partitions.

        After that, a coordinator partition can be loaded again.

        Returns: the error of each partition that failed.
        """
        errors = await self.partitions.checkpoints.log_start_offsets(offsets)
        moved = [topic_partition for topic_partition in offsets if topic_partition not in errors]
        self.fetch_manager.complete_all(moved)
        for topic, number in moved:
            if topic in COORDINATOR_TOPICS:
                self._coordinators[topic].shards.clear_load_error(number)
        return errors

    def check_deletion(self, topic_partition: TopicPartition, before_offset: int) -> int:
        """Returns the log start offset after deletion of the records before `before_offset` (-1: high watermark).

        Records of a compacted topic can be deleted only if they are damaged.

        Raises: ApiError.
        """
        log = self.partitions.partition(*topic_partition).log
        if topic_partition.topic in COORDINATOR_TOPICS and log.corrupt_range is None:
            topic = topic_partition.topic
            text = f"Topic {topic} stores the state of groups or transactions. Delete groups instead."
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        if log.config.cleanup_policy == ("compact",) and log.corrupt_range is None:
            text = f"Records of partition {topic_partition} can not be deleted due to the configured policy"
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        return self.partitions.new_log_start_offset(topic_partition, before_offset)

    # --- nodes and leaders ---

    def move_leader(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Makes another running node the leader of a partition, with the next leader epoch.

        Raises: ApiError for an unknown partition; ValueError for a node that does not run.
        """
        self.partitions.partition(*topic_partition)
        if self.leaders.move(topic_partition, node_id):
            self._on_new_leaders((topic_partition,))

    def node_started(self, node_id: int, endpoints: Mapping[str, Node]) -> None:
        """Adds a running node to the metadata, by listener, and elects it for partitions without a running leader."""
        self.leaders.running.add(node_id)
        self.nodes.add(node_id, endpoints)
        self._elect()

    def node_stopped(self, node_id: int) -> None:
        """Removes a node from the metadata and elects other leaders for its partitions."""
        self.leaders.running.discard(node_id)
        self.fetch_manager.node_stopped(node_id)
        self.nodes.remove(node_id)
        self._elect()

    def _elect(self) -> None:
        self._on_new_leaders(self.leaders.elect(partition.topic_partition for partition in self.partitions))

    async def _elect_new(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for start in range(0, len(topic_partitions), _PARTITIONS_PER_STEP):
            new = [each for each in topic_partitions[start : start + _PARTITIONS_PER_STEP] if each in self.partitions]
            self.leaders.elect(new)
            self._assign_leader_epochs(self.partitions.partition(*each) for each in new)
            await pause()

    def _assign_leader_epochs(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            partition.assign_leader_epoch(self.leaders.leader(partition.topic_partition).epoch)

    def _on_new_leaders(self, topic_partitions: Collection[TopicPartition]) -> None:
        moved = set(topic_partitions)
        self._assign_leader_epochs(partition for partition in self.partitions if partition.topic_partition in moved)
        for topic, number in topic_partitions:
            if topic in COORDINATOR_TOPICS:
                self._coordinators[topic].unload(number)
        self.fetch_manager.complete_all(topic_partitions)

    # --- appends ---

    def on_append(self, topic_partition: TopicPartition, size: int) -> None:
        """Completes delayed fetches after an append of `size` bytes."""
        self.fetch_manager.on_append(topic_partition, size)

    def _on_marker(self, topic_partition: TopicPartition, size: int, producer_id: int, committed: bool) -> None:
        if topic_partition.topic == OFFSETS_TOPIC:
            self.group_coordinator.transaction_ended(topic_partition.partition, producer_id, committed)
        self.fetch_manager.on_append(topic_partition, size)
        self.fetch_manager.transaction_ended(topic_partition)
