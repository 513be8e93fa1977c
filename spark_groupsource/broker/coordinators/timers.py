"""Timer keys of the coordinator runtimes.

`shard_number` is the number of a loaded shard: a timer of a shard that was unloaded meanwhile has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_groupsource.group import GroupTimer


@dataclass(frozen=True, slots=True)
class GroupShardTimer:
    """A timer that a group shard has set."""

    partition: int
    shard_number: int
    timer: GroupTimer


@dataclass(frozen=True, slots=True)
class OffsetExpirationTimer:
    """Starts the removal of expired offsets (offsets.retention.check.interval.ms)."""


@dataclass(frozen=True, slots=True)
class TransactionTimer:
    """Aborts a transaction that exceeds its timeout."""

    partition: int
    shard_number: int
    transactional_id: str


@dataclass(frozen=True, slots=True)
class MarkerRetryTimer:
    """Retries the transaction markers that could not be written."""

    partition: int
    shard_number: int
    transactional_id: str


@dataclass(frozen=True, slots=True)
class TransactionalIdExpirationTimer:
    """Starts the removal of expired transactional ids."""


GroupRuntimeTimer = GroupShardTimer | OffsetExpirationTimer
TransactionRuntimeTimer = TransactionTimer | MarkerRetryTimer | TransactionalIdExpirationTimer
