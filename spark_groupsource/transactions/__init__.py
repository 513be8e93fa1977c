"""The transaction coordinator as a pure state machine: it decides, others append, write markers and keep the time."""

from spark_groupsource.transactions.shard import Decision, Producer, TransactionConfig, TransactionShard
from spark_groupsource.transactions.states import Ask, ends

__all__ = ["Ask", "Decision", "Producer", "TransactionConfig", "TransactionShard", "ends"]
