"""Data directory of a broker: catalog, checkpoints, ownership, dynamic settings.

Files beside the partition directories:

* ``.lock``: locked while a broker uses the directory;
* ``meta.properties``: cluster id and node id as in Kafka, with a mark that the directory belongs to this broker;
* ``topics.json``, ``topics.journal``: topic catalog, and its changes;
* ``log-start-offset-checkpoint``: log start offsets that DeleteRecords or retention moved, in Kafka's format;
* ``cleaner-offset-checkpoint``: end offsets of compacted parts, in Kafka's format; a log in it has gaps, but none
  above its recovery point;
* ``broker-settings.json``: settings that were altered at run time, by node;
* ``recovery-point-offset-checkpoint``: offsets below which the logs are on the disk, in Kafka's format;
* ``.kafka_cleanshutdown``: marks a clean shutdown, as in Kafka; absent while a broker runs, and after a crash.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Callable, Collection, Mapping

from spark_groupsource.broker.storage.catalog import TopicCatalog, TopicEntry
from spark_groupsource.broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offset_checkpoint,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offset_checkpoint,
)
from spark_groupsource.broker.storage.directory_owner import (
    DirectoryLock,
    prepare_directory,
    read_meta_properties,
    write_meta_properties,
)
from spark_groupsource.broker.storage.files import replace_file, sync_directory
from spark_groupsource.broker.storage.metadata_files import corrupt_file, read_json
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.common.config_def import INT64_MAX
from spark_groupsource.common.coroutines import in_thread, portions, run_at_once
from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition

_BROKER_SETTINGS = "broker-settings.json"
_DELETED = "-delete"
_LONGEST_FILE_NAME = 255
_RENAMED_PER_STEP, _DELETED_PER_STEP = 1_000, 100

IsCurrent = Callable[[TopicPartition], bool]
"""Whether a partition was not deleted since its offset was read. Called before the checkpoints of a deleted one are
removed, or after the partition was."""


class DataDirectory:
    """The data directory `path` of one broker, from `open` to `close`.

    Args: `report` receives the log lines.

    Attributes:
        had_clean_shutdown: whether the last broker closed every log.
        recovery_points: partition -> offset below which its log is on the disk.
    """

    def __init__(self, path: Path, report: Reporter = lambda line, level=0: None) -> None:
        self.path = path
        self._report = report
        self.cluster_id = ""
        self.log_start_offsets: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self.recovery_points: Mapping[TopicPartition, int] = {}
        self.had_clean_shutdown = True
        self._has_recovery_points = True
        self.broker_settings: dict[str, dict[str, str]] = {}
        self._catalog = TopicCatalog(path)
        self._checkpoints = threading.Lock()
        self._renamed: list[Path] = []  # directories of deleted partitions
        self._lock = DirectoryLock(path)

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """Topic name -> topic."""
        return self._catalog.topics

    def open(self, node_id: int, new_id: Callable[[], uuid.UUID] = uuid.uuid4) -> None:
        """Locks the directory, creates it if it is missing or empty, and reads its files.

        Raises: StorageError when another broker holds the directory, when it belongs to another owner, and when it
            cannot be used.
        """
        has_content = prepare_directory(self.path)
        self._lock.acquire()
        try:
            if has_content:
                self._read(node_id)
            else:
                self._create(node_id, new_id)
        except BaseException:
            self._lock.release()
            raise

    def close(self, is_clean: bool) -> None:
        """Releases the directory; `is_clean` if every log was closed and the recovery points are stored.

        Raises: StorageError.
        """
        try:
            if is_clean:
                with suppress(StorageError):
                    self._catalog.compact()  # so that one file has all topics
                write_clean_shutdown(self.path)
        finally:
            self._lock.release()

    def partition_directory(self, topic_partition: TopicPartition) -> Path:
        return self.path / str(topic_partition)

    # --- topics and producer ids ---

    def put_topics(self, *topics: TopicEntry) -> None:
        """Adds topics, or replaces their partition counts and settings; durable on return. May run in any thread.

        Raises: StorageError; every topic is then unchanged.
        """
        self._catalog.put(topics)

    def remove_topic(self, name: str) -> None:
        """Removes a topic from the catalog; durable on return. `delete_files` removes its files. May run in any thread.

        Raises: StorageError; the topic then remains.
        """
        self._catalog.remove([name])

    async def delete_files(self) -> None:
        """Deletes the partition directories of removed topics, and their checkpoints.

        Each directory is first renamed to one with suffix ``-delete``, so that a new topic can have its name. Open
        files must be closed. After an error, the next start removes the remaining files.

        Raises: StorageError.
        """
        await self._release_deleted_names()
        while self._renamed:
            await in_thread(self._delete_some_renamed)

    def _delete_some_renamed(self) -> None:
        for path in self._renamed[:_DELETED_PER_STEP]:
            self._renamed.remove(path)
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise StorageError(f"{error.filename} cannot be deleted: {error.strerror}. Check the disk.") from error

    async def prepare_new(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Removes remaining files of deleted partitions with the names of new ones; durable on return.

        Raises: StorageError; the partitions must then not be created.
        """
        if self._catalog.deleting and not self._catalog.deleting.isdisjoint(map(str, topic_partitions)):
            await self._release_deleted_names()
        checkpoints = (self.log_start_offsets, self.cleaner_offsets, self.recovery_points)
        if not all(each.keys().isdisjoint(topic_partitions) for each in checkpoints):
            await in_thread(self._remove_checkpoints, topic_partitions)

    async def _release_deleted_names(self) -> None:
        """Renames the directories of removed topics, as `LogManager.asyncDelete` of Kafka does."""
        deleting = sorted(self._catalog.deleting)
        if not deleting:
            return
        for some in portions(deleting, _RENAMED_PER_STEP):
            await in_thread(self._rename_deleted, some)
        await in_thread(self._forget_deleted, deleting)

    def _rename_deleted(self, names: Collection[str]) -> None:
        try:
            for name in names:
                if (self.path / name).exists():
                    suffix = f".{uuid.uuid4().hex}{_DELETED}"
                    renamed = self.path / (name[: _LONGEST_FILE_NAME - len(suffix)] + suffix)
                    os.rename(self.path / name, renamed)
                    self._renamed.append(renamed)
        except OSError as error:
            raise StorageError(f"{error.filename} cannot be renamed: {error.strerror}. Check the disk.") from error

    def _forget_deleted(self, names: Collection[str]) -> None:
        sync_directory(self.path)
        parts = (name.rpartition("-") for name in names)
        self._remove_checkpoints([TopicPartition(topic, int(number)) for topic, _, number in parts])
        self._catalog.forget_deleted(names)

    def _remove_checkpoints(self, removed: Collection[TopicPartition]) -> None:
        with self._checkpoints:
            if not self.log_start_offsets.keys().isdisjoint(removed):
                self._write_log_start_offsets(_without(self.log_start_offsets, removed))
            if not self.cleaner_offsets.keys().isdisjoint(removed):
                self._write_cleaner_offsets(_without(self.cleaner_offsets, removed))
            if not self.recovery_points.keys().isdisjoint(removed):
                self._write_recovery_points(_without(self.recovery_points, removed))

    def next_producer_id(self) -> int:
        """Allocates a producer id that was never allocated in this directory.

        Raises: StorageError.
        """
        return self._catalog.next_producer_id()

    # --- checkpoints ---

    def set_log_start_offsets(
        self, offsets: Mapping[TopicPartition, int], is_current: IsCurrent = lambda topic_partition: True
    ) -> None:
        """Stores log start offsets; durable on return. May run in any thread.

        Partitions that are not current are left out: they were deleted meanwhile, and a new one may have the same name.

        Raises: StorageError.
        """
        with self._checkpoints:
            current = {each: offset for each, offset in offsets.items() if is_current(each)}
            self._write_log_start_offsets({**self.log_start_offsets, **current})

    def set_cleaner_offset(self, topic_partition: TopicPartition, offset: int) -> None:
        """Stores the end offset of the compacted part of a log; durable on return.

        Raises: StorageError.
        """
        with self._checkpoints:
            self._write_cleaner_offsets({**self.cleaner_offsets, topic_partition: offset})

    def gaps_end(self, topic_partition: TopicPartition, is_compacted: bool) -> int:
        """Returns the offset below which compaction may have left gaps: 0 without gaps, `INT64_MAX` if it is unknown.

        Args: `is_compacted`, whether the topic is compacted now: its cleaner offset may have been removed by hand.
        """
        has_gaps = topic_partition in self.cleaner_offsets
        if not (has_gaps or is_compacted):
            return 0
        recovery_point = self.recovery_points.get(topic_partition, 0)
        return INT64_MAX if not self._has_recovery_points or (has_gaps and not recovery_point) else recovery_point

    def set_recovery_points(
        self, offsets: Mapping[TopicPartition, int], is_current: IsCurrent = lambda topic_partition: True
    ) -> None:
        """Stores the offsets below which the logs are on the disk; durable on return. May run in any thread.

        Partitions that are not current are left out, and no offset is lowered: `raise_recovery_point` may have been
        called since they were read.

        Raises: StorageError.
        """
        with self._checkpoints:
            known = self.recovery_points
            current = {each: max(offset, known.get(each, 0)) for each, offset in offsets.items() if is_current(each)}
            if current != known:
                self._write_recovery_points(current)

    def raise_recovery_point(self, topic_partition: TopicPartition, offset: int, is_current: IsCurrent) -> None:
        """Stores that a log is on the disk below `offset`, if it is current; durable on return. May run in any thread.

        Raises: StorageError.
        """
        with self._checkpoints:
            if is_current(topic_partition) and self.recovery_points.get(topic_partition, 0) < offset:
                self._write_recovery_points({**self.recovery_points, topic_partition: offset})

    def _write_recovery_points(self, offsets: dict[TopicPartition, int]) -> None:
        write_offset_checkpoint(self.path / RECOVERY_POINTS, offsets)
        self.recovery_points = offsets

    def _write_log_start_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        write_offset_checkpoint(self.path / LOG_START_OFFSETS, offsets)
        self.log_start_offsets = offsets

    def _write_cleaner_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        write_offset_checkpoint(self.path / CLEANER_OFFSETS, offsets)
        self.cleaner_offsets = offsets

    # --- dynamic broker settings ---

    def put_broker_settings(self, name: str, settings: Mapping[str, str]) -> None:
        """Replaces the settings that were altered for one node, or for all nodes (empty name); durable on return.

        Raises: StorageError.
        """
        changed = {**self.broker_settings, name: dict(settings)}
        # an unknown setting may be a password
        replace_file(self.path / _BROKER_SETTINGS, json.dumps(changed, indent=1).encode(), private=True)
        self.broker_settings = changed

    def _read_broker_settings(self) -> None:
        path = self.path / _BROKER_SETTINGS
        if not path.exists():
            return
        altered = read_json(path)
        try:
            self.broker_settings = {name: {str(k): str(v) for k, v in each.items()} for name, each in altered.items()}
        except AttributeError as error:
            raise corrupt_file(path, error) from error

    # --- opening ---

    def _create(self, node_id: int, new_id: Callable[[], uuid.UUID]) -> None:
        self.cluster_id = base64.urlsafe_b64encode(new_id().bytes).rstrip(b"=").decode()
        properties = {"version": "1", "cluster.id": self.cluster_id, "node.id": str(node_id)}
        write_meta_properties(self.path, properties)
        write_offset_checkpoint(self.path / RECOVERY_POINTS, {})
        self._catalog.create()
        sync_directory(self.path.absolute().parent)

    def _read(self, node_id: int) -> None:
        properties = read_meta_properties(self.path)
        self.cluster_id = properties.get("cluster.id", "")
        if properties.get("node.id") != str(node_id):
            raise StorageError(
                f"Data directory {self.path} belongs to node {properties.get('node.id')}, this broker is node "
                f"{node_id}. Set node.id to match or choose another directory."
            )
        if self._catalog.exists or any(entry.is_dir() for entry in self.path.iterdir()):
            self._catalog.read()
        else:
            self._catalog.create()  # a crash interrupted the first start
        self.log_start_offsets = read_offset_checkpoint(self.path / LOG_START_OFFSETS)
        self.cleaner_offsets = read_offset_checkpoint(self.path / CLEANER_OFFSETS)
        self._read_broker_settings()
        self.recovery_points = self._read_recovery_points()
        self.had_clean_shutdown = take_clean_shutdown(self.path)
        self._renamed = list(self.path.glob(f"*{_DELETED}"))
        try:
            run_at_once(self.delete_files())
        except StorageError as error:
            self._report(f"[broker] Files of deleted topics remain until the next start: {error}")

    def _read_recovery_points(self) -> dict[TopicPartition, int]:
        try:
            self._has_recovery_points = (self.path / RECOVERY_POINTS).exists()
            return read_offset_checkpoint(self.path / RECOVERY_POINTS)
        except StorageError as error:
            self._has_recovery_points = False
            self._report(f"[broker] After an unclean shutdown, every segment is recovered: {error}")
            return {}


def _without(
    offsets: Mapping[TopicPartition, int], removed: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    known = frozenset(removed)
    return {topic_partition: offset for topic_partition, offset in offsets.items() if topic_partition not in known}
