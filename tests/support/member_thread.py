"""Base of group members that run in a thread."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from support.waiting import wait_until

from spark_groupsource.model import TopicPartition


class MemberThread:
    """A consumer that polls in a thread. A context manager.

    Attributes:
        partitions: the partitions that the member owns now.
        seen: number of received records by (partition, offset).
    """

    def __init__(self, name: str) -> None:
        self.partitions: set[TopicPartition] = set()
        self.seen: Counter[tuple[int, int]] = Counter()
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_and_keep_failure, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Commits, leaves the group and ends the thread."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self._thread.name} did not close within 30 s"

    def wait_for_partitions(self, count: int, timeout_s: float = 40) -> set[TopicPartition]:
        """Returns the owned partitions when they are `count`."""
        wait_until(
            lambda: len(self.partitions) == count or self._failure,
            f"{self._thread.name} owns {count} partitions",
            timeout_s,
        )
        assert self._failure is None, repr(self._failure)
        return set(self.partitions)

    def _run_and_keep_failure(self) -> None:
        try:
            self._run()
        except Exception as error:  # `wait_for_partitions` asserts that there is none
            self._failure = error

    def _run(self) -> None:
        raise NotImplementedError
