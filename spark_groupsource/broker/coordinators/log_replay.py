"""Replay of a coordinator's log.

Records are read first; the last one of each key is applied before the next batch whose order counts, and at the end.
The log has each offset as often as it was committed since the last compaction, and to apply a record takes several
times as long as to read it.
"""

from __future__ import annotations

from typing import Callable, Iterable, Iterator, Optional

from spark_groupsource.broker.storage.segment_scan import StoredBatch
from spark_groupsource.common.coroutines import pause
from spark_groupsource.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from spark_groupsource.records.key_values import key_value_slices

# at most about 1 ms between two pauses, and a slice of a batch; the unit is the time to read a record of a batch, about
# 0.5 us. A log with less work is replayed without a pause
_PART_WORK, _BATCH_WORK, _APPLY_WORK = 2_000, 12, 6
_MAX_READ = 50_000
_ORDERED_FLAGS = CONTROL_FLAG | TRANSACTIONAL_FLAG


class LogReplay:
    """The replay of one log.

    Args:
        batches: returns the batches from an offset on, -1 for the start of the log.
        apply: applies a record outside of transactions.
        apply_ordered: applies a control batch or a batch of a transaction, one record at a time.
    """

    def __init__(
        self,
        batches: Callable[[int], Iterable[StoredBatch]],
        apply: Callable[[bytes, Optional[bytes]], None],
        apply_ordered: Callable[[StoredBatch], Iterator[None]],
    ) -> None:
        self._batches, self._apply, self._apply_ordered = batches, apply, apply_ordered
        self._read: dict[bytes, bytes | None] = {}
        # keys of tombstones in `_read`, also if a value follows: a tombstone removes pending offsets of transactions
        self._removed: set[bytes] = set()
        self._has_transactions = False
        self._work = 0
        self._has_paused = True

    async def run(self) -> None:
        """Replays the log to its end. Raises: CorruptRecordError, and what `batches` raises."""
        next_offset = -1
        while self._has_paused:  # then the log may have other segments
            self._has_paused = False
            for stored in self._batches(next_offset):
                await self._replay(stored)
                next_offset = stored.header.next_offset
                if self._has_paused:
                    break
        await self._apply_read()

    async def _replay(self, stored: StoredBatch) -> None:
        await self._done(_BATCH_WORK)
        is_ordered = bool(stored.header.attributes & _ORDERED_FLAGS)
        if is_ordered or len(self._read) > _MAX_READ:
            await self._apply_read()
        if is_ordered:
            self._has_transactions = True
            for _ in self._apply_ordered(stored):
                await self._done(_APPLY_WORK)
            return
        for found in key_value_slices(stored.buffer, stored.header):
            self._read.update((key, value) for key, value in found if key is not None)
            if self._has_transactions:
                self._removed.update(key for key, value in found if value is None and key is not None)
            await self._done(1 + len(found))

    async def _apply_read(self) -> None:
        """Applies the last record of each key that was read."""
        read, removed = self._read, self._removed
        self._read, self._removed = {}, set()
        for key, value in read.items():
            if removed and value is not None and key in removed:
                self._apply(key, None)
            self._apply(key, value)
            await self._done(_APPLY_WORK)

    async def _done(self, work: int) -> None:
        """Counts work that was done, and pauses after each part."""
        self._work += work
        if self._work >= _PART_WORK:
            self._work = 0
            self._has_paused |= await pause()
