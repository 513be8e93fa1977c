"""Topic catalog: topics, directories being deleted, allocated producer ids.

The catalog has the role of Kafka's metadata log: ``topics.json`` is a snapshot, ``topics.journal`` has the changes
since then. A start, a clean shutdown and a large journal write a new snapshot. A crash between a new snapshot and the
removal of the journal repeats the changes, which gives the same catalog.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Collection, Iterable, Mapping, NamedTuple

from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.broker.storage.journal import Journal
from spark_groupsource.broker.storage.metadata_files import corrupt_file, read_json
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.transaction_records import TRANSACTIONS_TOPIC

# Kafka's block size (`ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`): a crash wastes at most one block.
_PRODUCER_ID_BLOCK_SIZE = 1000
_FILE, _JOURNAL = "topics.json", "topics.journal"
# above it, and above the size of the snapshot, a new snapshot is written
_MAX_JOURNAL_BYTES = 1_048_576

COORDINATOR_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
INTERNAL_TOPICS = COORDINATOR_TOPICS | {GROUP_EVENTS_TOPIC}
"""Topics to which clients cannot produce."""
UNLISTED_TOPICS = frozenset({GROUP_EVENTS_TOPIC})
"""Topics that Kafka does not have: described if they are named, but not listed with all topics."""


@dataclass(frozen=True)
class TopicEntry:
    """One topic of the catalog; `settings` are those set for the topic, in Kafka's names."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.name, number) for number in range(self.partition_count))

    @property
    def encoded(self) -> dict[str, Any]:
        """The content in the files of the catalog."""
        return {"id": str(self.topic_id), "partitions": self.partition_count, "settings": dict(self.settings)}

    @classmethod
    def decode(cls, name: str, content: Mapping[str, Any]) -> TopicEntry:
        """Raises: KeyError, TypeError, ValueError or AttributeError for invalid content."""
        settings = {str(key): str(value) for key, value in content["settings"].items()}
        return cls(name, uuid.UUID(content["id"]), int(content["partitions"]), settings)


class _Change(NamedTuple):
    """One change of the catalog: topics that are added or replaced, and names with partition counts of removed ones.

    `deleted` are directories of removed topics that no longer exist; producer ids are allocated up to
    `allocated_until`, if it is set.
    """

    topics: Collection[TopicEntry] = ()
    removed: Mapping[str, int] = {}
    deleted: Collection[str] = ()
    allocated_until: int | None = None

    def encode(self) -> dict[str, Any]:
        return {
            "topics": {topic.name: topic.encoded for topic in self.topics},
            "removed": dict(self.removed),
            "deleted": list(self.deleted),
            "next_producer_id": self.allocated_until,
        }

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> _Change:
        """Raises: KeyError, TypeError, ValueError or AttributeError for invalid content."""
        allocated_until = content["next_producer_id"]
        return cls(
            [TopicEntry.decode(name, topic) for name, topic in content["topics"].items()],
            {str(name): int(count) for name, count in content["removed"].items()},
            [str(name) for name in content["deleted"]],
            None if allocated_until is None else int(allocated_until),
        )


class TopicCatalog:
    """The catalog of one data directory; every change is durable on return. Thread-safe.

    Attributes:
        topics: topic name -> topic.
        deleting: partition directories of deleted topics that may still exist under their names.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._journal = Journal(directory / _JOURNAL)
        self.topics: dict[str, TopicEntry] = {}
        self.deleting: set[str] = set()
        self._next_producer_id = 0
        self._allocated_until = 0
        self._snapshot_bytes = 0
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self) -> None:
        """Writes a catalog without topics. Raises: StorageError."""
        self._journal.clear()
        self._write_snapshot()

    def read(self) -> None:
        """Reads the snapshot and the journal, and writes a new snapshot if there were changes.

        Raises: StorageError when a file cannot be read or is corrupt, or the snapshot cannot be written.
        """
        content = read_json(self._path)
        try:
            self._allocated_until = int(content["next_producer_id"])
            self.deleting = {str(name) for name in content["deleting"]}
            self.topics = {name: TopicEntry.decode(name, topic) for name, topic in content["topics"].items()}
            for change in self._journal.read():
                self._apply(_Change.decode(change))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise corrupt_file(self._path, error) from error
        self._next_producer_id = self._allocated_until
        self.compact()

    def compact(self) -> None:
        """Writes a snapshot if the journal is not empty.

        Raises: StorageError; the catalog is then unchanged.
        """
        with self._lock:
            if self._journal.size or self._journal.has_failed:
                self._write_snapshot()

    def put(self, topics: Collection[TopicEntry]) -> None:
        """Adds or replaces topics, all or none of them.

        Raises: StorageError; the catalog is then unchanged.
        """
        self._change(_Change(topics=topics))

    def remove(self, names: Iterable[str]) -> None:
        """Removes topics and adds their directories to those being deleted.

        Raises: StorageError; the catalog is then unchanged.
        """
        self._change(_Change(removed={name: self.topics[name].partition_count for name in names}))

    def forget_deleted(self, directories: Collection[str]) -> None:
        """Removes directories from those being deleted.

        Raises: StorageError; the catalog is then unchanged.
        """
        self._change(_Change(deleted=directories))

    def next_producer_id(self) -> int:
        """Allocates a producer id that was never allocated in this directory.

        The block that contains it is durable before the id is returned (Kafka `ProducerIdControlManager`).

        Raises: StorageError; no id of the block is then allocated.
        """
        if self._next_producer_id >= self._allocated_until:
            self._change(_Change(allocated_until=self._next_producer_id + _PRODUCER_ID_BLOCK_SIZE))
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def _change(self, change: _Change) -> None:
        with self._lock:
            if self._journal.has_failed or self._journal.size > max(_MAX_JOURNAL_BYTES, self._snapshot_bytes):
                self._write_snapshot()  # the journal may have a change that was reported as failed
            self._journal.append(change.encode())
            self._apply(change)

    def _apply(self, change: _Change) -> None:
        self.topics.update((topic.name, topic) for topic in change.topics)
        for name, partition_count in change.removed.items():
            self.topics.pop(name, None)
            self.deleting.update(f"{name}-{number}" for number in range(partition_count))
        self.deleting.difference_update(change.deleted)
        if change.allocated_until is not None:
            self._allocated_until = max(self._allocated_until, change.allocated_until)

    def _write_snapshot(self) -> None:
        head = {"version": 1, "next_producer_id": self._allocated_until, "deleting": sorted(self.deleting)}
        # one call for all topics would stop the other threads until its end
        topics = ", ".join(f"{json.dumps(name)}: {json.dumps(topic.encoded)}" for name, topic in self.topics.items())
        data = f'{json.dumps(head)[:-1]}, "topics": {{{topics}}}}}'.encode()
        replace_file(self._path, data)
        self._snapshot_bytes = len(data)
        self._journal.clear()
