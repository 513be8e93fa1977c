"""Which node leads which partition and since which epoch; whoever leads one of the group log coordinates its groups.

The nodes of one broker program share one data directory, so each of them is a replica of every partition, in sync while
it runs, and can lead at once. Partitions are spread over the nodes by name and number; what was moved is kept in
``leaders.json`` of the data directory, because clients do not believe in an epoch that falls.

Source: Kafka `Partition.getLocalLog` (order of the checks), KIP-320 (epochs).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence

from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.storage.files import replace_file

_FILE = "leaders.json"


class Leader(NamedTuple):
    """Who leads a partition; `epoch` rises with each change of leader."""

    node_id: int
    epoch: int


def save_first_epoch(directory: Path, epoch: int) -> None:
    """Makes the first leader epoch in `directory` higher than `epoch`, the last one of an adopted broker.

    Raises: StorageError.
    """
    kept = {"version": 1, "nodes": [], "first_epoch": epoch, "moved": []}
    replace_file(directory / _FILE, json.dumps(kept).encode())


class Leaders:
    """The leaders of every partition, over the nodes `node_ids`; all of them run at first.

    A change that cannot be written down is reported and stands until the next start.
    """

    def __init__(self, node_ids: Sequence[int], report: Callable[[str], None]) -> None:
        self.node_ids = tuple(node_ids)
        self._report = report
        self.running = set(self.node_ids)
        self._first_epoch = 0
        self._moved: dict[TopicPartition, Leader] = {}
        self._path: Path | None = None

    def open(self, directory: Path) -> None:
        """Takes over what an earlier run has moved; other nodes than then begin with a higher epoch.

        Raises: StorageError.
        """
        path = directory / _FILE
        if path.exists():
            self._read(path)
        self._path = path
        if path.exists() or len(self.node_ids) > 1:
            self._write(path)

    def leader(self, topic_partition: TopicPartition) -> Leader:
        """Who leads a partition, also one that does not exist yet."""
        found = self._moved.get(topic_partition)
        if found is not None:
            return found
        if len(self.node_ids) == 1:
            return Leader(self.node_ids[0], self._first_epoch)
        first = zlib.crc32(topic_partition.topic.encode())
        return Leader(self.node_ids[(first + topic_partition.partition) % len(self.node_ids)], self._first_epoch)

    def replicas(self, topic_partition: TopicPartition) -> list[int]:
        """Every node, the leader first."""
        at = self.node_ids.index(self.leader(topic_partition).node_id)
        return [*self.node_ids[at:], *self.node_ids[:at]]

    def check_leader(self, node_id: int, topic_partition: TopicPartition, epoch: int = -1) -> Leader:
        """The leader, when that is `node_id`, and when the client's `epoch` (-1: it knows none) is the present one.

        Raises: ApiError.
        """
        leader = self.leader(topic_partition)
        if epoch > leader.epoch:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if 0 <= epoch < leader.epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        if leader.node_id != node_id:
            text = f"node {leader.node_id} leads {topic_partition}, not node {node_id}"
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        return leader

    def move(self, topic_partition: TopicPartition, node_id: int) -> bool:
        """Gives a partition to another node; False when it leads already.

        Raises: ValueError for a node that does not run.
        """
        if node_id not in self.running:
            raise ValueError(f"node {node_id} cannot lead {topic_partition}: {sorted(self.running)} run")
        leader = self.leader(topic_partition)
        if leader.node_id == node_id:
            return False
        self._moved[topic_partition] = Leader(node_id, leader.epoch + 1)
        self._keep()
        return True

    def elect(self, topic_partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Gives each partition whose leader does not run to the next node that does; returns those partitions."""
        moved = []
        for topic_partition in topic_partitions:
            running = [node_id for node_id in self.replicas(topic_partition) if node_id in self.running]
            leader = self.leader(topic_partition)
            if running and running[0] != leader.node_id:
                self._moved[topic_partition] = Leader(running[0], leader.epoch + 1)
                moved.append(topic_partition)
        if moved:
            self._keep()
        return tuple(moved)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Drops what is known of partitions that are gone."""
        known = [topic_partition for topic_partition in topic_partitions if topic_partition in self._moved]
        for topic_partition in known:
            del self._moved[topic_partition]
        if known:
            self._keep()

    def _read(self, path: Path) -> None:
        try:
            kept = json.loads(path.read_bytes())
            nodes, self._first_epoch = [int(node_id) for node_id in kept["nodes"]], int(kept["first_epoch"])
            moved = {
                TopicPartition(str(topic), int(number)): Leader(int(node_id), int(epoch))
                for topic, number, node_id, epoch in kept["moved"]
            }
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from error
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path} is damaged ({error!r}); restore it from a copy") from error
        if nodes == list(self.node_ids):
            self._moved = moved
        else:
            self._first_epoch = max([self._first_epoch, *(leader.epoch for leader in moved.values())]) + 1

    def _keep(self) -> None:
        if self._path is None:
            return
        try:
            self._write(self._path)
        except StorageError as error:
            self._report(f"a change of leaders will be forgotten at the next start: {error}")

    def _write(self, path: Path) -> None:
        moved = [[*topic_partition, *leader] for topic_partition, leader in sorted(self._moved.items())]
        kept = {"version": 1, "nodes": self.node_ids, "first_epoch": self._first_epoch, "moved": moved}
        replace_file(path, json.dumps(kept).encode())
