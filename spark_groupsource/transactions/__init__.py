"""The transaction coordinator as a pure state machine: it decides, others append, write markers and keep the time."""

from spark_groupsource.transactions.states import TransactionOperation, is_ending
from spark_groupsource.transactions.transaction_shard import (
    Decision,
    ProducerIdAndEpoch,
    TransactionConfig,
    TransactionShard,
)

__all__ = [
    "Decision",
    "ProducerIdAndEpoch",
    "TransactionConfig",
    "TransactionOperation",
    "TransactionShard",
    "is_ending",
]
