"""Memory of Arrow columns that is used again.

The kernel clears new memory before its first use.
"""

from __future__ import annotations

import weakref

import numpy as np

from spark_groupsource.records.parser import Bytes

_MAX_FREE_BYTES = 48 << 20
_ROUNDED_BYTES = 1 << 20


class BufferPool:
    """Memory that returns to the pool when no array, buffer or view refers to it.

    Threads may share a pool: `pop` and `append` of a list are atomic, and what one thread looks at is not in the list.
    """

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """Returns `size` bytes; their content is undefined."""
        memory = self._fitting(size)
        # NumPy refers to the owner of memory instead of to a view of it, but not beyond a memoryview: all views refer
        # to this array, directly or not, so it ends when the last of them does
        lent = np.asarray(memory.data)
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return lent[:size]

    def _fitting(self, size: int) -> Bytes:
        others: list[Bytes] = []
        try:
            while not size <= (memory := self._free.pop()).size <= max(4 * size, _ROUNDED_BYTES):
                others.append(memory)
        except IndexError:
            memory = np.empty(-(-max(size, 1) // _ROUNDED_BYTES) * _ROUNDED_BYTES, np.uint8)
        self._free += others
        return memory

    def _give_back(self, memory: Bytes) -> None:
        self._free.append(memory)
        # the oldest is released first
        while sum(map(len, self._free)) > _MAX_FREE_BYTES:
            del self._free[:1]
