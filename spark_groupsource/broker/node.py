"""The broker itself, without sockets: takes decoded requests, answers each of them once, now or later.

One thread calls it: that thread is the single writer of every log and of every group. Time comes from the clock that
is handed in; what is due is done in `expire`.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Callable, Collection, Hashable, Iterable, Mapping, NamedTuple

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.coordinators.group_runtime import CoordinatorRuntime
from spark_groupsource.broker.coordinators.timers import (
    GroupShardTimer,
    MarkerRetryTimer,
    OffsetExpirationTimer,
    TransactionalIdExpirationTimer,
    TransactionTimer,
)
from spark_groupsource.broker.coordinators.transaction_runtime import TransactionRuntime
from spark_groupsource.broker.dynamic_config import DynamicSettings
from spark_groupsource.broker.fetch.delayed_fetch import Fetches
from spark_groupsource.broker.leaders import Leaders, save_first_epoch
from spark_groupsource.broker.network.authentication import Accounts
from spark_groupsource.clock import Clock
from spark_groupsource.deadlines import DeadlineHeap
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.storage.cleaner import LogCleaner
from spark_groupsource.storage.data_directory import DataDirectory, TopicEntry
from spark_groupsource.storage.log import Report
from spark_groupsource.storage.partition import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Partition
from spark_groupsource.storage.partitions import Partitions
from spark_groupsource.wire.messages import Message


class Call(NamedTuple):
    """Who asked which node and how: `token` names the answer, `client_host` is the peer's address."""

    token: int
    api_key: int
    api_version: int
    client_id: str
    client_host: str
    node_id: int


class Unanswered:
    """What a handler returns instead of a response."""


LATER = Unanswered()
"""The answer comes through `Broker.reply` when what it waits for has happened."""
NO_ANSWER = Unanswered()
"""The client expects none (a produce request with acks=0)."""

Send = Callable[[int, "Message | None"], None]
"""Takes the token of a call and its response, None where none is expected; a token that is gone is no error."""

Handle = Callable[["Broker", Call, Message], "Message | Unanswered"]


class Served(NamedTuple):
    """One API this broker serves, the versions that are proved, and who answers it."""

    min_version: int
    max_version: int
    handle: Handle


class Broker:
    """One or several nodes over one data directory; `leaders` says which of them leads what.

    Attributes: `nodes`, those that run, by id, as clients are told.
    """

    def __init__(
        self,
        config: BrokerConfig,
        data: DataDirectory,
        clock: Clock,
        served: Mapping[int, Served],
        send: Send,
        report: Report,
        node_count: int = 1,
        add_scram: Collection[str] = (),
    ) -> None:
        self.config = config
        self.clock = clock
        self.served = served
        self.leaders = Leaders(range(config.node_id, config.node_id + node_count), report)
        self.nodes: tuple[Node, ...] = ()
        self.report = report
        self.data = data
        self.accounts = Accounts(config)
        self.dynamic = DynamicSettings(data, config, self.leaders.node_ids)
        self._add_scram = add_scram
        self.partitions = Partitions(data, config.topic, report)
        self.timers: DeadlineHeap[Hashable] = DeadlineHeap()
        self.fetches = Fetches(
            self.partitions, self.leaders, self.timers, clock, config, lambda: self.nodes, send
        )
        self.coordinator = CoordinatorRuntime(self, send)
        self.transactions = TransactionRuntime(self)
        self._coordinators: dict[str, CoordinatorRuntime | TransactionRuntime] = {
            OFFSETS_TOPIC: self.coordinator,
            TRANSACTIONS_TOPIC: self.transactions,
        }
        self.cleaner = LogCleaner(
            self.partitions, data, self.timers, clock, config.log_cleaner_backoff_ms, report
        )
        self._send = send

    @property
    def cluster_id(self) -> str:
        return self.data.cluster_id

    @property
    def controller_id(self) -> int:
        """The node clients are told to change topics at; each of them can."""
        return min(self.leaders.running, default=-1)

    def start(self) -> None:
        """Opens the data directory and every log.

        Raises: StorageError.
        """
        self.data.open(self.config.node_id, save_leader_epoch=partial(save_first_epoch, self.data.path))
        try:
            self.accounts.open(self.data.path, self._add_scram)
            self.leaders.open(self.data.path)
            self.reconfigure()
            self.partitions.open_all()
            self._assign_leader_epochs(self.partitions)
        except BaseException:
            self.data.close(None)
            raise
        self.coordinator.start()
        self.transactions.start()
        self._set_retention_timer()
        self._set_producers_timer()
        if self.config.log_cleaner_enable:
            self.cleaner.start()

    def reconfigure(self) -> None:
        """What the broker was given while it runs, or ran before, holds from now on.

        Raises: ConfigurationError for a kept value that this version does not take.
        """
        self.config = self.dynamic.effective()
        self.partitions.reconfigure(self.config.topic)
        self.cleaner.backoff_ms = self.config.log_cleaner_backoff_ms

    def give_settings(self, name: str, settings: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Gives a node, by its id, or under the empty name all of them, other settings; they hold at once.

        Raises: ApiError.
        """
        self.dynamic.put(name, settings, validate_only=validate_only)
        if not validate_only:
            self.reconfigure()

    def stop(self) -> None:
        """Closes every log and gives the directory back.

        Raises: StorageError.
        """
        self.cleaner.stop()
        self.data.close(self.partitions.close_all())

    def handle(self, call: Call, request: Message) -> None:
        """Answers a request of a served API and version, now or later."""
        response = self.served[call.api_key].handle(self, call, request)
        if response is NO_ANSWER:
            self._send(call.token, None)
        elif response is not LATER:
            self._send(call.token, response)

    def forget(self, token: int) -> None:
        """The client of a call is gone: nothing of it needs to wait any longer."""
        self.fetches.forget(token)

    def next_deadline_ms(self) -> int | None:
        """When `expire` must be called (monotonic ms), None when nothing waits."""
        return self.timers.next_deadline_ms()

    def expire(self) -> None:
        """Does everything whose time has come."""
        while (key := self.timers.pop_expired(self.clock.now_ms())) is not None:
            match key:
                case ("fetch", int(token)):
                    self.fetches.expire(token)
                case ("retention",):
                    self._apply_retention()
                case ("producers",):
                    self._expire_producers()
                case ("clean",):
                    self.cleaner.look()
                case ("clean-slice",):
                    self.cleaner.slice()
                case ("load", str(topic)):
                    self._coordinators[topic].seats.load_next()
                case GroupShardTimer() | OffsetExpirationTimer():
                    self.coordinator.expire(key)
                case TransactionTimer() | MarkerRetryTimer() | TransactionalIdExpirationTimer():
                    self.transactions.expire(key)

    # --- topics, where more than the partitions is concerned ---

    def create_topic(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> TopicEntry:
        """Makes a topic. Raises: ApiError."""
        entry = self.partitions.create_topic(name, partition_count, settings)
        self._lead(entry.partitions)
        return entry

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Raises the number of partitions of a topic. Raises: ApiError."""
        self.partitions.add_partitions(name, partition_count)
        self._lead(self.partitions.topic(name).partitions)

    def delete_topic(self, name: str) -> None:
        """Removes a topic and its committed offsets and completes fetches that wait for it. Raises: ApiError."""
        if name in INTERNAL_TOPICS:
            text = f"{name} holds what every group has committed; delete groups instead"
            if name == TRANSACTIONS_TOPIC:
                text = f"{name} holds every transaction; it goes with the data directory alone"
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        gone = self.partitions.delete_topic(name)
        self.leaders.forget(gone)
        self.fetches.wake(gone)
        self.coordinator.partitions_deleted(gone)

    def delete_records(self, topic_partition: TopicPartition, before_offset: int) -> int:
        """Moves a log start and answers the fetches that wait there; returns the log start.

        Records of a compacted topic, the group log among them, are given up only where they are damaged: its groups can
        then be loaded again.

        Raises: ApiError.
        """
        internal = topic_partition.topic in INTERNAL_TOPICS
        log = self.partitions.partition(*topic_partition).log
        if log.config.cleanup_policy == ("compact",) and log.damage is None:
            text = f"Records of partition {topic_partition} can not be deleted due to the configured policy"
            if internal:
                text = f"{topic_partition.topic} keeps the latest of all groups or transactions; delete groups instead"
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        log_start_offset = self.partitions.delete_records(topic_partition, before_offset)
        self.fetches.wake([topic_partition])
        if internal:
            self._coordinators[topic_partition.topic].seats.forget_failure(topic_partition.partition)
        return log_start_offset

    # --- nodes ---

    def move_leader(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Lets another running node lead a partition, from the next epoch on.

        Raises: ApiError for a partition that is not there; ValueError for a node that does not run.
        """
        self.partitions.partition(*topic_partition)
        if self.leaders.move(topic_partition, node_id):
            self._moved((topic_partition,))

    def node_started(self, node: Node) -> None:
        """Clients can reach a node: it is told to others, and leads what nobody led."""
        self.leaders.running.add(node.node_id)
        self.nodes = tuple(sorted({*self.nodes, node}))
        self._elect()

    def node_stopped(self, node_id: int) -> None:
        """Clients cannot reach a node any longer: others lead what it has led."""
        self.leaders.running.discard(node_id)
        self.fetches.node_stopped(node_id)
        self.nodes = tuple(node for node in self.nodes if node.node_id != node_id)
        self._elect()

    def _elect(self) -> None:
        self._moved(self.leaders.elect(partition.topic_partition for partition in self.partitions))

    def _lead(self, new: Collection[TopicPartition]) -> None:
        self.leaders.elect(new)
        self._assign_leader_epochs(self.partitions.partition(*topic_partition) for topic_partition in new)

    def _assign_leader_epochs(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            partition.assign_leader_epoch(self.leaders.leader(partition.topic_partition).epoch)

    def _moved(self, topic_partitions: Collection[TopicPartition]) -> None:
        moved = set(topic_partitions)
        self._assign_leader_epochs(partition for partition in self.partitions if partition.topic_partition in moved)
        for topic, number in topic_partitions:
            if topic in INTERNAL_TOPICS:
                self._coordinators[topic].resign(number)
        self.fetches.wake(topic_partitions)

    # --- records ---

    def appended(self, topic_partition: TopicPartition, size: int) -> None:
        """Records were appended: fetches that waited for them are answered."""
        self.fetches.appended(topic_partition, size)

    def new_id(self) -> uuid.UUID:
        return uuid.uuid4()

    def _set_retention_timer(self) -> None:
        self.timers.set(("retention",), self.clock.now_ms() + self.config.log_retention_check_interval_ms)

    def _set_producers_timer(self) -> None:
        interval_ms = self.config.producer_id_expiration_check_interval_ms
        self.timers.set(("producers",), self.clock.now_ms() + interval_ms)

    def _expire_producers(self) -> None:
        for partition in self.partitions:
            partition.expire_producers(self.clock.timestamp_ms() - self.config.producer_id_expiration_ms)
        self._set_producers_timer()

    def _apply_retention(self) -> None:
        for partition in self.partitions:
            if partition.offline:
                continue
            try:
                limit = partition.log.expired_before(self.clock.timestamp_ms())
                if limit > partition.log.log_start_offset:
                    if limit == partition.log.log_end_offset:
                        partition.log.roll()  # the active segment is expired too
                    self.partitions.delete_records(partition.topic_partition, limit)
                    self.fetches.wake([partition.topic_partition])
            except (ApiError, StorageError) as error:
                self.report(f"old segments of {partition.topic_partition} cannot be removed: {error}")
        self._set_retention_timer()
