"""Transaction coordinator as a state machine that performs no I/O."""

from spark_groupsource.broker.transactions.transaction_shard import (
    Decision,
    TransactionConfig,
    TransactionShard,
)
from spark_groupsource.broker.transactions.transaction_states import TransactionOperation, is_ending

__all__ = [
    "Decision",
    "TransactionConfig",
    "TransactionOperation",
    "TransactionShard",
    "is_ending",
]
