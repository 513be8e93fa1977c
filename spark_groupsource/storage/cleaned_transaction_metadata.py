"""What compaction makes of transactions: aborted records go at once, a marker when nothing of its transaction is left.

Fed with the batches of a log in their order. Knows batches and the list of aborted transactions; no file.

Source: Kafka's `CleanedTransactionMetadata`, `Cleaner.shouldDiscardBatch`; KIP-98.
"""

from __future__ import annotations

from collections import deque
from typing import Sequence

from spark_groupsource.records.decode import CONTROL_ABORT, CONTROL_COMMIT, control_type
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.storage.transaction_index import AbortedTransaction


class CleanedTransactionMetadata:
    """Tells aborted batches and needed markers apart.

    `kept` are the aborted transactions of which something was met, in the order of their markers.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda row: row.first_offset))
        self._aborting: dict[int, AbortedTransaction] = {}
        # producers of whose present transaction a batch was met, with or without records
        self._met: set[int] = set()
        self.kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to a transaction that was aborted."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        self._met.add(header.producer_id)
        return header.producer_id in self._aborting

    def should_retain_marker(self, buffer: bytes, header: BatchHeader) -> bool:
        """Whether a control batch has still something to end.

        Raises: CorruptRecordError.
        """
        self._begin(header.last_offset)
        if not header.record_count:
            return False  # its record went in an earlier pass
        kind = control_type(buffer, header)
        if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return True  # of a newer kind: who knows
        row = self._aborting.pop(header.producer_id, None)
        if header.producer_id not in self._met:
            return False
        self._met.discard(header.producer_id)
        if row is not None:
            self.kept.append(row)
        return True

    def _begin(self, offset: int) -> None:
        while self._to_come and self._to_come[0].first_offset <= offset:
            row = self._to_come.popleft()
            self._aborting[row.producer_id] = row
