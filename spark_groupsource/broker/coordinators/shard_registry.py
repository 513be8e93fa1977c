"""Where the shards of a coordinator are served: each by the node that leads its partition of the coordinator's topic.

A shard is loaded by replaying its partition, when it is first asked for or soon after the node has become its leader,
whichever is first; a long log is replayed in slices, and requests are served between them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, Iterator, NamedTuple, Protocol, TypeVar

from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.group import coordinator_partition
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.storage.partition import Partition
from spark_groupsource.storage.segment import StoredBatch

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Broker

# between two slices, so that requests are served meanwhile
_LOAD_PAUSE_MS = 1
_SLICE_RECORDS = 2_000

Shard = TypeVar("Shard")


class Seat(Generic[Shard]):
    """A shard where it is served; `number` tells its timers from those of the shards that had the partition before.

    `epoch` is that of the leader it was seated with.
    """

    def __init__(self, number: int, partition: int, epoch: int, shard: Shard) -> None:
        self.number = number
        self.partition = partition
        self.epoch = epoch
        self.shard = shard
        self.loaded = False
        self.next_offset = -1  # where to go on with replaying, -1 at the beginning


class CoordinatorTopic(NamedTuple):
    """The log of a coordinator: how its topic is made, and what operators call that which is in it."""

    name: str
    partition_count: int
    segment_bytes: int
    contents: str


class Coordinator(Protocol[Shard]):
    """What differs between the coordinators whose shards are seated."""

    @abstractmethod
    def new_shard(self, partition: int) -> Shard:
        """A shard that has replayed nothing."""

    @abstractmethod
    def replay_batch(self, shard: Shard, stored: StoredBatch) -> int:
        """Takes a batch of the log into a shard; returns how many records were replayed.

        Raises: CorruptRecordError.
        """

    @abstractmethod
    def loaded(self, seat: Seat[Shard]) -> None:
        """The shard has replayed its whole log and is to be served from now on."""


class Seats(Generic[Shard]):
    """The shards of one coordinator that are served or being loaded. The one caller is the broker's loop."""

    def __init__(self, broker: Broker, topic: CoordinatorTopic, coordinator: Coordinator[Shard]) -> None:
        self._broker = broker
        self._topic = topic
        self._coordinator = coordinator
        self._seats: dict[int, Seat[Shard]] = {}
        self._seated = 0
        self._to_load: deque[int] = deque()
        self._held = False
        self._failed: dict[int, str] = {}

    # --- the topic ---

    @property
    def partition_count(self) -> int:
        """Partitions of the coordinator's topic, 0 as long as it does not exist."""
        entry = self._broker.partitions.topics.get(self._topic.name)
        return 0 if entry is None else entry.partition_count

    def ensure_topic(self) -> int:
        """Makes the coordinator's topic if there is none; returns the number of its partitions.

        Raises: ApiError.
        """
        if not self.partition_count:
            settings = {"cleanup.policy": "compact", "segment.bytes": str(self._topic.segment_bytes)}
            self._broker.create_topic(self._topic.name, self._topic.partition_count, settings)
        return self.partition_count

    def log_partition(self, partition: int) -> Partition:
        """Raises: ApiError."""
        return self._broker.partitions.partition(self._topic.name, partition)

    # --- who serves ---

    def partition_of(self, coordinated_id: str) -> TopicPartition:
        """The partition whose leader coordinates a group or a transactional id. Raises: ApiError."""
        return TopicPartition(self._topic.name, coordinator_partition(coordinated_id, self.ensure_topic()))

    def node_of(self, coordinated_id: str) -> Node:
        """The node that coordinates a group or a transactional id. Raises: ApiError when its shard cannot be served."""
        topic_partition = self.partition_of(coordinated_id)
        self.seat(topic_partition.partition)
        self.check(topic_partition.partition)
        node_id = self._broker.leaders.leader(topic_partition).node_id
        for node in self._broker.nodes:
            if node.node_id == node_id:
                return node
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"node {node_id} does not run")

    def leads(self, node_id: int, partition: int) -> bool:
        return self._leader(partition)[0] == node_id

    def check(self, partition: int) -> None:
        """Raises: ApiError with the cause, for a partition whose log could not be replayed."""
        if partition in self._failed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._failed[partition])

    def seat(self, partition: int) -> Seat[Shard] | None:
        """The shard, loaded unless that takes long or is held up; None when its log cannot be replayed."""
        seat = self._seats.get(partition)
        if seat is not None or partition in self._failed:
            return seat
        self._seated += 1
        epoch = self._leader(partition)[1]
        self._seats[partition] = seat = Seat(self._seated, partition, epoch, self._coordinator.new_shard(partition))
        if not self._held:
            self._load_slice(seat)
        if partition in self._failed:
            return None
        if not seat.loaded:
            self._to_load.appendleft(partition)
            self.load_soon()
        return seat

    def seated(self, partition: int, number: int | None = None) -> Seat[Shard] | None:
        """The shard if it is served or being loaded already; with a number, only if it is still that one."""
        seat = self._seats.get(partition)
        return None if seat is None or number not in (None, seat.number) else seat

    def loaded(self) -> Iterator[Seat[Shard]]:
        """The shards served at the moment of the call."""
        return iter([seat for seat in self._seats.values() if seat.loaded])

    def resign(self, partition: int) -> Seat[Shard] | None:
        """Another node leads the partition now, where the shard is loaded; returns the one that is no longer served."""
        self.forget_failure(partition)
        seat = self._seats.pop(partition, None)
        self.load_soon(partition)
        return seat

    def forget_failure(self, partition: int) -> None:
        """Lets a partition whose log could not be replayed be tried again when it is next asked for."""
        self._failed.pop(partition, None)

    def _leader(self, partition: int) -> tuple[int, int]:
        leader = self._broker.leaders.leader(TopicPartition(self._topic.name, partition))
        return leader.node_id, leader.epoch

    # --- loading ---

    def load_all(self) -> None:
        """Begins to load every shard there is."""
        self.load_soon(*range(self.partition_count))

    def hold_loading(self, held: bool) -> None:
        """Stops the replaying of shards that are not loaded yet, or lets it go on."""
        self._held = held
        for _ in range(0 if held else len(self._to_load)):
            self.load_next()

    def load_soon(self, *partitions: int) -> None:
        self._to_load.extend(partitions)
        if self._to_load and not self._held:
            self._broker.timers.set(("load", self._topic.name), self._broker.clock.now_ms() + _LOAD_PAUSE_MS)

    def load_next(self) -> None:
        """Replays one slice of one shard; called when the timer ``("load", topic)`` is over."""
        if self._held or not self._to_load:
            return
        partition = self._to_load.popleft()
        known = self._seats.get(partition)
        if known is None:
            self.seat(partition)
        elif not known.loaded:
            self._load_slice(known)
            if partition not in self._failed and not known.loaded:
                self._to_load.appendleft(partition)
        self.load_soon()

    def _load_slice(self, seat: Seat[Shard]) -> None:
        try:
            seat.loaded = self._replay_slice(seat)
        except (ApiError, CorruptRecordError, StorageError) as error:
            del self._seats[seat.partition]
            text = f"the {self._topic.contents} of {self._topic.name}-{seat.partition} cannot be loaded: {error}"
            self._failed[seat.partition] = text
            self._broker.report(text)
            return
        if seat.loaded:
            self._coordinator.loaded(seat)

    def _replay_slice(self, seat: Seat[Shard]) -> bool:
        """True when the end of the log is reached."""
        log = self.log_partition(seat.partition).log
        replayed = 0
        for stored in log.batches(max(seat.next_offset, log.log_start_offset)):
            if replayed >= _SLICE_RECORDS:
                return False
            replayed += self._coordinator.replay_batch(seat.shard, stored)
            seat.next_offset = stored.header.next_offset
        return True
