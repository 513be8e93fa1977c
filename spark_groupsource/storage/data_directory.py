"""The data directory of a broker: whose it is, which topics exist, where their logs begin and ended.

Knows files and names; knows no protocol. Files beside the partitions' directories:

* ``.lock``: held while a broker uses the directory;
* ``meta.properties``: cluster id and node id, as Kafka has it, with a mark that the directory is ours;
* ``topics.json``: the topic catalogue, replaced as a whole with each change;
* ``log-start-offset-checkpoint``: log starts moved by DeleteRecords, in Kafka's format;
* ``cleaner-offset-checkpoint``: up to where compacted logs are clean, in Kafka's format; a log named there has gaps;
* ``broker-settings.json``: settings that the broker was given while it ran, by node;
* ``clean-shutdown.json``: where each log ended at a clean stop; absent while a broker runs, and after a crash.

The directory of an Apache Kafka broker has the same partitions and checkpoints, but no catalogue: it is taken over when
that is asked for, and is ours from then on.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping

from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.storage.adoption import read_kafka_directory
from spark_groupsource.storage.files import replace_file, sync_directory

_MARK = "groupsource.format"
_FORMAT = "1"
_META = "meta.properties"
_TOPICS = "topics.json"
_LOG_STARTS = "log-start-offset-checkpoint"
_CLEANED = "cleaner-offset-checkpoint"
_CLEAN = "clean-shutdown.json"
_BROKER_SETTINGS = "broker-settings.json"
_LOCK = ".lock"
_KAFKA_CLEAN = ".kafka_cleanshutdown"
_PRODUCER_ID_BLOCK = 1000
# names that say nothing about whose a directory is
_IGNORED = frozenset({_LOCK, "lost+found"})


@dataclass(frozen=True)
class TopicEntry:
    """One topic of the catalogue; `settings` are those given for it, in Kafka's names."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.name, number) for number in range(self.partition_count))


class DataDirectory:
    """One broker's files under `path`. `open` must come first, `close` last.

    With `adopt` the directory of an Apache Kafka broker is taken over; `report` is told what that did.
    """

    def __init__(self, path: Path, adopt: bool = False, report: Callable[[str], None] = lambda line: None) -> None:
        self.path = path
        self._adopt = adopt
        self._report = report
        self.cluster_id = ""
        self.topics: dict[str, TopicEntry] = {}
        self.log_start_offsets: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self.broker_settings: dict[str, dict[str, str]] = {}
        self._deleting: list[str] = []
        self._next_producer_id = 0
        self._producer_ids_until = 0
        self._lock: int | None = None
        self._clean_ends: dict[TopicPartition, int] | None = None

    def open(
        self,
        node_id: int,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        save_leader_epoch: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """Takes the directory, making it if it is missing or empty, and reads the catalogue.

        `save_leader_epoch` is called with the largest leader epoch of an adopted directory, before it is marked as
        adopted; the epoch must be durable when it returns.

        Raises: StorageError when another broker has it, when it holds something else, and when it cannot be used.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.path.iterdir()} - _IGNORED
        except OSError as error:
            text = f"data directory {self.path} cannot be used: {error.strerror}; choose another"
            raise StorageError(text) from error
        # before the lock file is made: a directory that is not ours is left as it was found
        self._check_owner(names)
        self._take_lock()
        try:
            self._read_or_create(names, node_id, new_id, save_leader_epoch)
        except BaseException:
            self._release_lock()
            raise

    def close(self, end_offsets: Mapping[TopicPartition, int] | None) -> None:
        """Gives the directory back; `end_offsets` are the log ends of a clean stop, None after trouble.

        Raises: StorageError.
        """
        try:
            if end_offsets is not None:
                ends = [[tp.topic, tp.partition, offset] for tp, offset in end_offsets.items()]
                replace_file(self.path / _CLEAN, json.dumps({"version": 1, "log_ends": ends}).encode())
        finally:
            self._release_lock()

    def recovery_point(self, topic_partition: TopicPartition) -> int | None:
        """Where the log ended at the last stop, None when that was not a clean one."""
        return None if self._clean_ends is None else self._clean_ends.get(topic_partition)

    def partition_directory(self, topic_partition: TopicPartition) -> Path:
        return self.path / str(topic_partition)

    # --- topics ---

    def put_topic(self, entry: TopicEntry) -> None:
        """Adds a topic, or changes its partition count or settings; durable when this returns.

        Raises: StorageError.
        """
        self._write_topics({**self.topics, entry.name: entry}, self._deleting)

    def remove_topic(self, name: str, remove_files: Callable[[], None]) -> None:
        """Takes a topic out of the catalogue, then its files; a crash in between is made good at the next start.

        Raises: StorageError.
        """
        rest = {key: entry for key, entry in self.topics.items() if key != name}
        doomed = [str(partition) for partition in self.topics[name].partitions]
        self._write_topics(rest, [*self._deleting, *doomed])
        remove_files()
        starts = {tp: offset for tp, offset in self.log_start_offsets.items() if tp.topic != name}
        if starts != self.log_start_offsets:
            self._write_checkpoint(_LOG_STARTS, starts)
            self.log_start_offsets = starts
        cleaned = {tp: offset for tp, offset in self.cleaner_offsets.items() if tp.topic != name}
        if cleaned != self.cleaner_offsets:
            self._write_checkpoint(_CLEANED, cleaned)
            self.cleaner_offsets = cleaned
        self._write_topics(rest, [])

    def set_log_start_offset(self, topic_partition: TopicPartition, offset: int) -> None:
        """Keeps a log start over restarts.

        Raises: StorageError.
        """
        starts = {**self.log_start_offsets, topic_partition: offset}
        self._write_checkpoint(_LOG_STARTS, starts)
        self.log_start_offsets = starts

    def set_cleaner_offset(self, topic_partition: TopicPartition, offset: int) -> None:
        """Keeps over restarts that a log is compacted up to `offset`.

        Raises: StorageError.
        """
        cleaned = {**self.cleaner_offsets, topic_partition: offset}
        self._write_checkpoint(_CLEANED, cleaned)
        self.cleaner_offsets = cleaned

    def put_broker_settings(self, name: str, settings: Mapping[str, str]) -> None:
        """Replaces what one node, or under the empty name all nodes were given; durable when this returns.

        Raises: StorageError.
        """
        changed = {**self.broker_settings, name: dict(settings)}
        replace_file(self.path / _BROKER_SETTINGS, json.dumps(changed, indent=1).encode())
        self.broker_settings = changed

    def next_producer_id(self) -> int:
        """A producer id that no producer of this directory ever had.

        Raises: StorageError.
        """
        if self._next_producer_id >= self._producer_ids_until:
            # a block at a time, as Kafka takes them: a crash wastes at most one block
            self._producer_ids_until = self._next_producer_id + _PRODUCER_ID_BLOCK
            self._write_topics(self.topics, self._deleting)
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # --- files ---

    def _check_owner(self, names: set[str]) -> None:
        if not names:
            if self._adopt:
                raise StorageError(f"{self.path} is empty, there is nothing to adopt; name a Kafka broker's directory")
            return
        if _META not in names:
            example = ", ".join(sorted(names)[:3])
            raise StorageError(
                f"data directory {self.path} is not empty and not a groupsource broker's (it holds {example}); "
                "choose an empty or a new directory"
            )
        meta = self._read_meta()
        if _MARK in meta:
            if meta[_MARK] != _FORMAT:
                text = f"data directory {self.path} belongs to a newer groupsource broker"
                raise StorageError(f"{text}; choose an empty or a new directory")
        elif not self._adopt:
            raise StorageError(
                f"data directory {self.path} belongs to an Apache Kafka broker; choose an empty or a new directory, or "
                "stop that broker, copy its directory and start on the copy with --adopt (adopt=True), which takes it "
                "over for good"
            )

    def _take_lock(self) -> None:
        path = self.path / _LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"{path} cannot be created: {error.strerror}; check permissions") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind that Kafka takes
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StorageError(
                f"data directory {self.path} is in use by another broker (process {holder or 'unknown'}); "
                "stop it or choose another directory"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # the lock goes with it
            self._lock = None

    def _read_or_create(
        self,
        names: set[str],
        node_id: int,
        new_id: Callable[[], uuid.UUID],
        save_leader_epoch: Callable[[int], None],
    ) -> None:
        if _META not in names:
            self.cluster_id = base64.urlsafe_b64encode(new_id().bytes).rstrip(b"=").decode()
            self._write_topics({}, [])
            meta = {"version": "1", "cluster.id": self.cluster_id, "node.id": str(node_id), _MARK: _FORMAT}
            replace_file(self.path / _META, "".join(f"{key}={value}\n" for key, value in meta.items()).encode())
            return
        meta = self._read_meta()
        if _MARK not in meta:
            meta = self._take_over(meta, node_id, save_leader_epoch)
        self.cluster_id = meta.get("cluster.id", "")
        if meta.get("node.id") != str(node_id):
            raise StorageError(
                f"data directory {self.path} is that of node {meta.get('node.id')}, this broker is node {node_id}; "
                "set node.id to match or choose another directory"
            )
        self._read_topics()
        self.log_start_offsets = self._read_checkpoint(_LOG_STARTS)
        self.cleaner_offsets = self._read_checkpoint(_CLEANED)
        self._read_broker_settings()
        self._read_clean_ends()
        for name in self._deleting:
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)
        if self._deleting:
            self._write_topics(self.topics, [])

    def _take_over(
        self, meta: dict[str, str], node_id: int, save_leader_epoch: Callable[[int], None]
    ) -> dict[str, str]:
        """Writes down what a Kafka broker's directory holds; the mark comes last, so a crash lets it be done again.

        Raises: StorageError.
        """
        found = read_kafka_directory(
            self.path, self._read_checkpoint(_LOG_STARTS), self._read_checkpoint(_CLEANED), self._report
        )
        self._next_producer_id = self._producer_ids_until = found.next_producer_id
        topics = [TopicEntry(each.name, each.topic_id, each.partition_count, each.settings) for each in found.topics]
        self._write_topics({entry.name: entry for entry in topics}, [])
        self._write_checkpoint(_LOG_STARTS, found.log_start_offsets)
        self._write_checkpoint(_CLEANED, found.cleaner_offsets)
        save_leader_epoch(found.leader_epoch)
        former = meta.get("node.id", meta.get("broker.id", "unknown"))
        meta = {**meta, "node.id": str(node_id), _MARK: _FORMAT}
        (self.path / _KAFKA_CLEAN).unlink(missing_ok=True)
        replace_file(self.path / _META, "".join(f"{key}={value}\n" for key, value in meta.items()).encode())
        for path in self.path.glob("*/*.deleted"):
            path.unlink()  # what Kafka had given up and would have removed a minute later
        count = sum(entry.partition_count for entry in topics)
        self._report(
            f"{self.path} of Kafka broker {former} is taken over: {len(topics)} topics, {count} partitions, cluster "
            f"{meta.get('cluster.id', '')}"
        )
        return meta

    def _read_meta(self) -> dict[str, str]:
        lines = self._read(_META).decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def _read_topics(self) -> None:
        catalogue = self._read_json(_TOPICS)
        try:
            self._next_producer_id = self._producer_ids_until = int(catalogue["next_producer_id"])
            self._deleting = [str(name) for name in catalogue["deleting"]]
            for name, about in catalogue["topics"].items():
                topic_id, count = uuid.UUID(about["id"]), int(about["partitions"])
                self.topics[name] = TopicEntry(name, topic_id, count, dict(about["settings"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(_TOPICS, error) from error

    def _read_broker_settings(self) -> None:
        if not (self.path / _BROKER_SETTINGS).exists():
            return
        given = self._read_json(_BROKER_SETTINGS)
        try:
            self.broker_settings = {name: {str(k): str(v) for k, v in each.items()} for name, each in given.items()}
        except AttributeError as error:
            raise self._damaged(_BROKER_SETTINGS, error) from error

    def _write_topics(self, topics: dict[str, TopicEntry], deleting: list[str]) -> None:
        catalogue = {
            "version": 1,
            "next_producer_id": self._producer_ids_until,
            "deleting": deleting,
            "topics": {
                entry.name: {
                    "id": str(entry.topic_id),
                    "partitions": entry.partition_count,
                    "settings": dict(entry.settings),
                }
                for entry in topics.values()
            },
        }
        replace_file(self.path / _TOPICS, json.dumps(catalogue, indent=1).encode())
        self.topics, self._deleting = topics, deleting

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        if not (self.path / name).exists():
            return offsets
        try:
            for line in self._read(name).decode().split("\n")[2:]:
                if line:
                    topic, partition, offset = line.split(" ")
                    offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as error:
            raise self._damaged(name, error) from error
        return offsets

    def _write_checkpoint(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        lines = [f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in sorted(offsets.items())]
        replace_file(self.path / name, f"0\n{len(lines)}\n{''.join(lines)}".encode())

    def _read_clean_ends(self) -> None:
        path = self.path / _CLEAN
        if not path.exists():
            return
        try:
            ends = self._read_json(_CLEAN)["log_ends"]
            self._clean_ends = {TopicPartition(str(topic), int(number)): int(end) for topic, number, end in ends}
        except (KeyError, TypeError, ValueError, StorageError):
            self._clean_ends = None  # what cannot be read is no proof of a clean stop: the logs are scanned
        # from now on the logs change: a crash must not be taken for a clean stop
        path.unlink()
        sync_directory(self.path)

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            text = f"{self.path / name} cannot be read: {error.strerror}; restore it from a copy"
            raise StorageError(text) from error

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except ValueError as error:
            raise self._damaged(name, error) from error

    def _damaged(self, name: str, error: Exception) -> StorageError:
        return StorageError(f"{self.path / name} is damaged ({error!r}); restore it from a copy")
