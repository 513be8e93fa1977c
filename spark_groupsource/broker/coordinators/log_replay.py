"""Replay of a coordinator's log in slices.

Records are read first; the last one of each key is applied before the next batch whose order counts, and at the end.
The log has each offset as often as it was committed since the last compaction, and to apply a record takes several
times as long as to read it.
"""

from __future__ import annotations

from typing import Callable, Iterable, Iterator, Optional

from spark_groupsource.broker.storage.segment_scan import StoredBatch
from spark_groupsource.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from spark_groupsource.records.key_values import key_value_slices

# at most about 10 ms, and a slice of a batch; the unit is the time to read a record of a batch, about 0.5 us. Shorter
# slices would load slower: the broker waits between two of them
_SLICE_WORK, _BATCH_WORK, _APPLY_WORK = 10_000, 12, 6
_MAX_READ = 50_000
_ORDERED_FLAGS = CONTROL_FLAG | TRANSACTIONAL_FLAG


class LogReplay:
    """State between two slices. `next_offset` is the offset of the next batch to read, -1 at the start of the log.

    Args:
        apply: applies a record outside of transactions.
        apply_ordered: applies a control batch or a batch of a transaction, one record at a time.
    """

    def __init__(
        self, apply: Callable[[bytes, Optional[bytes]], None], apply_ordered: Callable[[StoredBatch], Iterator[None]]
    ) -> None:
        self.next_offset = -1
        self._apply, self._apply_ordered = apply, apply_ordered
        self._read: dict[bytes, bytes | None] = {}
        # keys of tombstones in `_read`, also if a value follows: a tombstone removes pending offsets of transactions
        self._removed: set[bytes] = set()
        self._has_transactions = False
        self._batch: Iterator[int] = iter(())  # the rest of the last batch; yields the work that was done
        self._applying: Iterator[tuple[bytes, bytes | None]] | None = None

    def replay_slice(self, batches: Iterable[StoredBatch]) -> bool:
        """Replays the next batches, which begin at `next_offset`; returns True after the last one.

        Raises: CorruptRecordError.
        """
        work = self._continue(0)
        for stored in batches:
            if work >= _SLICE_WORK:
                return False
            header = stored.header
            is_ordered = bool(header.attributes & _ORDERED_FLAGS)
            if self._applying is not None or len(self._read) > _MAX_READ or (is_ordered and self._read):
                work += _APPLY_WORK * self._apply_read((_SLICE_WORK - work) // _APPLY_WORK)
                if work >= _SLICE_WORK or self._applying is not None:
                    return False
            if is_ordered:
                self._has_transactions = True
            self._batch = self._in_order(stored) if is_ordered else self._read_records(stored)
            self.next_offset = header.next_offset
            work = self._continue(work + _BATCH_WORK)
        if work >= _SLICE_WORK:
            return False
        self._apply_read((_SLICE_WORK - work) // _APPLY_WORK)
        return not self._read

    def _continue(self, work: int) -> int:
        """Continues with the last batch until it or the slice ends; returns the work of the slice."""
        while work < _SLICE_WORK:
            done = next(self._batch, 0)
            if not done:
                break
            work += done
        return work

    def _read_records(self, stored: StoredBatch) -> Iterator[int]:
        """Adds the records of a batch to `_read`, later than those that it has."""
        for found in key_value_slices(stored.buffer, stored.header):
            self._read.update((key, value) for key, value in found if key is not None)
            if self._has_transactions:
                self._removed.update(key for key, value in found if value is None and key is not None)
            yield 1 + len(found)

    def _in_order(self, stored: StoredBatch) -> Iterator[int]:
        for _ in self._apply_ordered(stored):
            yield _APPLY_WORK

    def _apply_read(self, limit: int) -> int:
        """Applies at least one and at most `limit` of the records that were read; returns their number."""
        if self._applying is None:
            self._applying = iter(self._read.items())
        applied, removed = 0, self._removed
        for key, value in self._applying:
            if removed and value is not None and key in removed:
                self._apply(key, None)
            self._apply(key, value)
            applied += 1
            if applied >= limit:
                return applied
        self._read, self._removed, self._applying = {}, set(), None
        return applied
