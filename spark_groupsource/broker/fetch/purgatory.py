"""Delayed fetches by partition and missing bytes.

Pure: the caller keeps the deadlines.

Source: Kafka's `DelayedOperationPurgatory`.
"""

from __future__ import annotations

from typing import Generic, Hashable, Iterable, TypeVar

from spark_groupsource.model import TopicPartition

Token = TypeVar("Token", bound=Hashable)


class DelayedFetchPurgatory(Generic[Token]):
    """Fetches that wait until enough bytes are appended to their partitions. A token identifies a fetch."""

    def __init__(self) -> None:
        self._missing_bytes: dict[Token, int] = {}
        self._partitions: dict[Token, tuple[TopicPartition, ...]] = {}
        self._watchers: dict[TopicPartition, dict[Token, None]] = {}

    def __len__(self) -> int:
        return len(self._missing_bytes)

    def watch(self, token: Token, partitions: Iterable[TopicPartition], missing_bytes: int) -> None:
        """Adds a fetch that completes when `missing_bytes` have been appended to `partitions` in total."""
        self._missing_bytes[token] = missing_bytes
        self._partitions[token] = tuple(partitions)
        for partition in self._partitions[token]:
            self._watchers.setdefault(partition, {})[token] = None

    def record_append(self, partition: TopicPartition, appended_bytes: int) -> list[Token]:
        """Counts an append; removes and returns the fetches that it completes, the oldest first."""
        watchers = self._watchers.get(partition)
        if not watchers:
            return []
        completed = []
        for token in list(watchers):
            self._missing_bytes[token] -= appended_bytes
            if self._missing_bytes[token] <= 0:
                completed.append(token)
                self.remove(token)
        return completed

    def remove_watchers(self, partition: TopicPartition) -> list[Token]:
        """Removes and returns every fetch of `partition`: after deletion or truncation its response has changed."""
        tokens = list(self._watchers.get(partition, ()))
        for token in tokens:
            self.remove(token)
        return tokens

    def remove(self, token: Token) -> bool:
        """Removes a fetch; returns False if it is not present."""
        if self._missing_bytes.pop(token, None) is None:
            return False
        for partition in self._partitions.pop(token):
            watchers = self._watchers[partition]
            watchers.pop(token, None)
            if not watchers:
                del self._watchers[partition]
        return True
