"""Embedded broker with a planted defect, which histories must show.

    python tests/histories/planted_broker.py DEFECT broker ...
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

from spark_groupsource.broker.coordinators.transaction_runtime import TransactionRuntime
from spark_groupsource.broker.fetch import partition_reads
from spark_groupsource.broker.storage.partition import AppendResult, Partition
from spark_groupsource.broker.transactions.transaction_shard import TransactionShard
from spark_groupsource.cli.__main__ import main
from spark_groupsource.records.header import BatchHeader

# a defect that occurs each time would end the clients before they record anything
_EVERY = 4


def commit_is_dropped() -> None:
    """Acknowledges some commits, and aborts their transactions."""
    correct, calls = TransactionShard.end_transaction, count(1)

    def planted(self: TransactionShard, name: str, producer: Any, committed: bool, timestamp_ms: int) -> Any:
        return correct(self, name, producer, committed and next(calls) % _EVERY != 0, timestamp_ms)

    TransactionShard.end_transaction = planted  # type: ignore[method-assign]


def aborted_records_are_read() -> None:
    """Does not list aborted transactions to readers of committed records."""
    # private: the defect is within a read
    partition_reads._aborted = lambda partition, start, records: []


def commit_is_torn() -> None:
    """Aborts some transactions in one of their partitions."""
    correct, calls = TransactionRuntime.write_marker, count(1)

    def planted(self: TransactionRuntime, at: Any, producer: Any, committed: bool, *rest: Any) -> None:
        is_torn = at.partition == 1 and next(calls) % _EVERY == 0
        correct(self, at, producer, committed and not is_torn, *rest)

    TransactionRuntime.write_marker = planted  # type: ignore[method-assign]


def batch_is_stored_twice() -> None:
    """Appends some batches of producers twice."""
    # private: the defect is after the checks of a batch
    correct, calls = Partition._store, count(1)

    def planted(self: Partition, records: Any, header: Any, timestamp_ms: int) -> Any:
        if _is_of_history(self, header) and next(calls) % _EVERY == 0:
            self.log.append(bytearray(records), header, timestamp_ms, None)
        return correct(self, records, header, timestamp_ms)

    Partition._store = planted  # type: ignore[method-assign]


def acknowledged_batch_is_not_stored() -> None:
    """Acknowledges some batches without storing them."""
    # private: the defect is after the checks of a batch
    correct, calls = Partition._store, count(1)

    def planted(self: Partition, records: Any, header: Any, timestamp_ms: int) -> Any:
        if _is_of_history(self, header) and next(calls) % _EVERY == 0:
            self._update_producers(records, header, self.log.log_end_offset)
            return AppendResult(self.log.log_end_offset, -1, header.size)
        return correct(self, records, header, timestamp_ms)

    Partition._store = planted  # type: ignore[method-assign]


def _is_of_history(partition: Partition, header: BatchHeader) -> bool:
    return partition.topic_partition.topic.startswith("h") and not header.is_control


DEFECTS = {
    each.__name__: each
    for each in (
        commit_is_dropped,
        aborted_records_are_read,
        commit_is_torn,
        batch_is_stored_twice,
        acknowledged_batch_is_not_stored,
    )
}

if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    sys.exit(main())
