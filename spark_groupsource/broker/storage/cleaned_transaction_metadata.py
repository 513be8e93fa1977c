"""Transactions during compaction: aborted batches and retained markers.

Compaction removes aborted records at once, and a transaction marker when no batch of its transaction is left. The
caller passes the batches of a log in offset order.

Source: Kafka `CleanedTransactionMetadata`, `Cleaner.shouldDiscardBatch`; KIP-98.
"""

from __future__ import annotations

from collections import deque
from typing import Sequence

from spark_groupsource.broker.storage.transaction_index import AbortedTxn
from spark_groupsource.records.decode import CONTROL_ABORT, CONTROL_COMMIT, control_type
from spark_groupsource.records.header import BatchHeader


class CleanedTransactionMetadata:
    """Transaction state at the current offset of a compaction.

    `retained` are the aborted transactions with a batch so far, in the order of their markers.
    """

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._upcoming = deque(sorted(aborted, key=lambda row: row.first_offset))
        self._aborting: dict[int, AbortedTxn] = {}
        # producers with a batch of their current transaction, with or without records
        self._seen: set[int] = set()
        self.retained: list[AbortedTxn] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Returns whether a data batch belongs to an aborted transaction."""
        self._start_until(header.last_offset)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        return header.producer_id in self._aborting

    def should_retain_marker(self, buffer: bytes, header: BatchHeader) -> bool:
        """Returns whether a batch of the marker's transaction is left.

        Raises: CorruptRecordError.
        """
        self._start_until(header.last_offset)
        if not header.record_count:
            return False  # an earlier pass removed the marker
        kind = control_type(buffer, header)
        if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return True  # an unknown control record
        row = self._aborting.pop(header.producer_id, None)
        if header.producer_id not in self._seen:
            return False
        self._seen.discard(header.producer_id)
        if row is not None:
            self.retained.append(row)
        return True

    def _start_until(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0].first_offset <= offset:
            row = self._upcoming.popleft()
            self._aborting[row.producer_id] = row
