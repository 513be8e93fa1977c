"""Partition leaders and leader epochs of the nodes of one broker.

The nodes share a data directory, so each of them is a replica of every partition, in sync while it runs, and can become
leader at once. Topic name and partition number determine the first leader. Later leaders are in the data directory, in
``leaders.json``, because clients reject metadata whose leader epoch decreases. After an unclean shutdown every epoch
increases, because records may be lost: clients then compare their positions with the new log (KIP-320).

Source: Kafka `Partition.getLocalLog` (order of the checks), KIP-320 (epochs).
"""

from __future__ import annotations

import json
import logging
import zlib
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition

_FILE = "leaders.json"


class Leader(NamedTuple):
    """The leader of a partition; each change of leader increments `epoch`."""

    node_id: int
    epoch: int


class Leaders:
    """The leader of every partition among `node_ids`. Initially all nodes are in `running`.

    A change that cannot be stored is reported and applies until the next start.
    """

    def __init__(self, node_ids: Sequence[int], report: Reporter) -> None:
        self.node_ids = tuple(node_ids)
        self._report = report
        self.running = set(self.node_ids)
        self._first_epoch = 0
        self._moved: dict[TopicPartition, Leader] = {}
        self._only_leader = Leader(self.node_ids[0], -1)
        self._path: Path | None = None

    def open(self, directory: Path) -> None:
        """Reads the stored changes; if the node ids have changed, drops them and starts with a higher epoch.

        Raises: StorageError.
        """
        path = directory / _FILE
        if path.exists():
            self._read(path)
        self._path = path
        if path.exists() or len(self.node_ids) > 1:
            self._write(path)

    def raise_epochs(self, last_epoch: int) -> None:
        """Makes every leader epoch higher than it was, and higher than `last_epoch`, the largest one of any log."""
        self._first_epoch = max(self._first_epoch, last_epoch) + 1
        self._moved = {
            topic_partition: Leader(leader.node_id, max(leader.epoch, last_epoch) + 1)
            for topic_partition, leader in self._moved.items()
        }
        self._save()

    def leader(self, topic_partition: TopicPartition) -> Leader:
        """Returns the leader of a partition, which need not exist."""
        found = self.only_leader() or self._moved.get(topic_partition)
        if found is not None:
            return found
        first = zlib.crc32(topic_partition.topic.encode())
        return Leader(self.node_ids[(first + topic_partition.partition) % len(self.node_ids)], self._first_epoch)

    def only_leader(self) -> Leader | None:
        """Returns the leader of every partition, None if partitions may have different ones."""
        if self._moved or len(self.node_ids) > 1:
            return None
        if self._only_leader.epoch != self._first_epoch:
            self._only_leader = Leader(self.node_ids[0], self._first_epoch)
        return self._only_leader

    def replicas(self, topic_partition: TopicPartition) -> list[int]:
        """Returns every node, the leader first."""
        if len(self.node_ids) == 1:
            return [*self.node_ids]
        index = self.node_ids.index(self.leader(topic_partition).node_id)
        return [*self.node_ids[index:], *self.node_ids[:index]]

    def check_leader(self, node_id: int, topic_partition: TopicPartition, epoch: int = -1) -> Leader:
        """Returns the leader if it is `node_id` and the client's `epoch` (-1: unknown) is current.

        Raises: ApiError.
        """
        leader = self.leader(topic_partition)
        if epoch > leader.epoch:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if 0 <= epoch < leader.epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        if leader.node_id != node_id:
            text = f"Node {node_id} is not the leader of {topic_partition}: node {leader.node_id} is."
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        return leader

    def check_in_sync(self, topic_partition: TopicPartition, min_insync_replicas: int) -> None:
        """Checks that enough nodes run for a write with acks=all; as in Kafka, all replicas are always enough.

        Raises: ApiError.
        """
        required, running = min(min_insync_replicas, len(self.node_ids)), len(self.running)
        if running < required:
            text = f"Partition {topic_partition} has {running} replicas in sync, min.insync.replicas={required}."
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text)

    def move(self, topic_partition: TopicPartition, node_id: int) -> bool:
        """Makes a node the leader of a partition; returns False if it is the leader already.

        Raises: ValueError for a node that does not run.
        """
        if node_id not in self.running:
            raise ValueError(f"Node {node_id} cannot lead {topic_partition}: running nodes are {sorted(self.running)}.")
        leader = self.leader(topic_partition)
        if leader.node_id == node_id:
            return False
        self._moved[topic_partition] = Leader(node_id, leader.epoch + 1)
        self._save()
        return True

    def elect(self, topic_partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Elects the next running node for each partition without a running leader.

        Returns: the partitions with a new leader.
        """
        moved = []
        for topic_partition in topic_partitions:
            running = [node_id for node_id in self.replicas(topic_partition) if node_id in self.running]
            leader = self.leader(topic_partition)
            if running and running[0] != leader.node_id:
                self._moved[topic_partition] = Leader(running[0], leader.epoch + 1)
                moved.append(topic_partition)
        if moved:
            self._save()
        return tuple(moved)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Removes deleted partitions."""
        known = [topic_partition for topic_partition in topic_partitions if topic_partition in self._moved]
        for topic_partition in known:
            del self._moved[topic_partition]
        if known:
            self._save()

    def _read(self, path: Path) -> None:
        try:
            stored = json.loads(path.read_bytes())
            nodes, self._first_epoch = [int(node_id) for node_id in stored["nodes"]], int(stored["first_epoch"])
            moved = {
                TopicPartition(str(topic), int(number)): Leader(int(node_id), int(epoch))
                for topic, number, node_id, epoch in stored["moved"]
            }
        except OSError as error:
            raise StorageError(f"Reading {path} failed: {error.strerror}. Restore it from a backup.") from error
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"File {path} is corrupt: {error!r}. Restore it from a backup.") from error
        if nodes == list(self.node_ids):
            self._moved = moved
        else:
            self._first_epoch = max([self._first_epoch, *(leader.epoch for leader in moved.values())]) + 1

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            self._write(self._path)
        except StorageError as error:
            text = f"[broker] Storing leaders failed, the change applies until the next start: {error}"
            self._report(text, logging.ERROR)

    def _write(self, path: Path) -> None:
        moved = [[*topic_partition, *leader] for topic_partition, leader in sorted(self._moved.items())]
        stored = {"version": 1, "nodes": self.node_ids, "first_epoch": self._first_epoch, "moved": moved}
        replace_file(path, json.dumps(stored).encode())
