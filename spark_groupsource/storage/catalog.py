"""Topic catalog: topics, directories being deleted, allocated producer ids.

The catalog is one file, ``topics.json``, which is replaced as a whole with each change. It has the role of Kafka's
metadata log.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Collection, Mapping, Sequence

from spark_groupsource.model import TopicPartition
from spark_groupsource.storage.files import replace_file
from spark_groupsource.storage.metadata_files import corrupt_file, read_json
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC

# Kafka's block size (`ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`): a crash wastes at most one block.
PRODUCER_ID_BLOCK_SIZE = 1000
_FILE = "topics.json"

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
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

    @cached_property
    def encoded(self) -> str:
        """Name and content in the catalog, which is encoded again with each change of any topic."""
        content = {"id": str(self.topic_id), "partitions": self.partition_count, "settings": dict(self.settings)}
        return f"{json.dumps(self.name)}: {json.dumps(content)}"


class TopicCatalog:
    """The catalog of one data directory; every change is durable on return. Thread-safe.

    Attributes:
        topics: topic name -> topic.
        deleting: partition directories of deleted topics that may still exist under their names.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self.topics: Mapping[str, TopicEntry] = {}
        self.deleting: Sequence[str] = ()
        self._next_producer_id = 0
        self._allocated_until = 0
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self, topics: Mapping[str, TopicEntry], next_producer_id: int = 0) -> None:
        """Writes a new catalog.

        Raises: StorageError.
        """
        self._next_producer_id = self._allocated_until = next_producer_id
        self._replace(topics, (), next_producer_id)

    def read(self) -> None:
        """Raises: StorageError when the file cannot be read or is corrupt."""
        content = read_json(self._path)
        try:
            self._next_producer_id = self._allocated_until = int(content["next_producer_id"])
            self.deleting = [str(name) for name in content["deleting"]]
            self.topics = {
                name: TopicEntry(name, uuid.UUID(topic["id"]), int(topic["partitions"]), dict(topic["settings"]))
                for name, topic in content["topics"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise corrupt_file(self._path, error) from error

    def put(self, topic: TopicEntry) -> None:
        """Adds or replaces a topic.

        Raises: StorageError; the catalog is then unchanged.
        """
        with self._lock:
            self._replace({**self.topics, topic.name: topic}, self.deleting, self._allocated_until)

    def remove(self, name: str, directories: Collection[str]) -> None:
        """Removes a topic and adds its directories to those being deleted.

        Raises: StorageError; the catalog is then unchanged.
        """
        with self._lock:
            rest = {key: topic for key, topic in self.topics.items() if key != name}
            self._replace(rest, [*self.deleting, *directories], self._allocated_until)

    def forget_deleted(self, directories: Collection[str]) -> None:
        """Removes directories from those being deleted.

        Raises: StorageError; the catalog is then unchanged.
        """
        forgotten = frozenset(directories)
        with self._lock:
            rest = [directory for directory in self.deleting if directory not in forgotten]
            self._replace(self.topics, rest, self._allocated_until)

    def next_producer_id(self) -> int:
        """Allocates a producer id that was never allocated in this directory.

        The block that contains it is durable before the id is returned (Kafka `ProducerIdControlManager`).

        Raises: StorageError; no id of the block is then allocated.
        """
        if self._next_producer_id >= self._allocated_until:
            with self._lock:
                self._replace(self.topics, self.deleting, self._next_producer_id + PRODUCER_ID_BLOCK_SIZE)
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def _replace(self, topics: Mapping[str, TopicEntry], deleting: Sequence[str], allocated_until: int) -> None:
        head = json.dumps({"version": 1, "next_producer_id": allocated_until, "deleting": list(deleting)})
        members = ", ".join([topic.encoded for topic in topics.values()])
        replace_file(self._path, f'{head[:-1]}, "topics": {{{members}}}}}'.encode())
        self.topics, self.deleting, self._allocated_until = topics, deleting, allocated_until
