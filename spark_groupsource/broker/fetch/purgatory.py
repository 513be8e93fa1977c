"""Delayed fetches by partition and missing bytes. Pure: deadlines are the caller's.

Source: Kafka's `DelayedOperationPurgatory`.
"""

from __future__ import annotations

from typing import Generic, Hashable, Iterable, TypeVar

from spark_groupsource.model import TopicPartition

Key = TypeVar("Key", bound=Hashable)


class ParkedFetches(Generic[Key]):
    """Fetches that wait until enough bytes have been appended to their partitions.

    A fetch is parked with the bytes it lacks; each append to one of its partitions is credited. Deadlines are the
    caller's, in a `DeadlineHeap`.
    """

    def __init__(self) -> None:
        self._missing: dict[Key, int] = {}
        self._partitions: dict[Key, tuple[TopicPartition, ...]] = {}
        self._waiting: dict[TopicPartition, dict[Key, None]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def park(self, token: Key, partitions: Iterable[TopicPartition], missing_bytes: int) -> None:
        """Parks `token` until `missing_bytes` more bytes are credited to any of `partitions`."""
        self._missing[token] = missing_bytes
        self._partitions[token] = tuple(partitions)
        for partition in self._partitions[token]:
            self._waiting.setdefault(partition, {})[token] = None

    def credit(self, partition: TopicPartition, appended_bytes: int) -> list[Key]:
        """Counts an append; returns the tokens that now have enough, no longer parked, oldest first."""
        waiting = self._waiting.get(partition)
        if not waiting:
            return []
        ready = []
        for token in list(waiting):
            self._missing[token] -= appended_bytes
            if self._missing[token] <= 0:
                ready.append(token)
                self.remove(token)
        return ready

    def wake(self, partition: TopicPartition) -> list[Key]:
        """Takes out every token that waits for `partition`: it was deleted or lost records, so the answer changes."""
        tokens = list(self._waiting.get(partition, ()))
        for token in tokens:
            self.remove(token)
        return tokens

    def remove(self, token: Key) -> bool:
        """Forgets `token`; False when it was not parked."""
        if self._missing.pop(token, None) is None:
            return False
        for partition in self._partitions.pop(token):
            waiting = self._waiting[partition]
            waiting.pop(token, None)
            if not waiting:
                del self._waiting[partition]
        return True
