"""Transaction coordinator as a state machine that performs no I/O."""

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
