"""Transaction coordinator: a pure state machine; the broker appends its records and writes markers."""

from spark_groupsource.transactions.states import TransactionOperation, is_ending
from spark_groupsource.transactions.transaction_shard import (
    Decision,
    TransactionConfig,
    TransactionShard,
)

__all__ = [
    "Decision",
    "TransactionConfig",
    "TransactionOperation",
    "TransactionShard",
    "is_ending",
]
