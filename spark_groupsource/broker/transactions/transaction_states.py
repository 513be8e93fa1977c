"""State tables of a transactional id: transitions and rules of operations.

A transactional id has one current producer, identified by producer id and epoch. InitProducerId raises the epoch, which
fences the previous producer. A transaction starts with its first partition and ends in two steps:

    Empty ---> Ongoing ---EndTxn---> PrepareCommit ---markers are written---> CompleteCommit --+
                 ^  |                PrepareAbort  -------------------------> CompleteAbort  --+
                 |  +--InitProducerId or transaction timeout: fence and abort-^                |
                 +-----------------------------next transaction--------------------------------+

The Prepare record is the decision: once it is in the log, the transaction ends this way after any failure. Markers may
be written twice, so a coordinator that finds a Prepare record while loading writes all markers.

Fencing stores the raised epoch and the abort in one record. The client gets a retriable error, so that the epoch of its
next InitProducerId is greater than that of the markers.

Source: KIP-98, KIP-360; Kafka's TransactionMetadata and TransactionCoordinator (transaction protocol 1).
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.broker.state_transitions import Transitions
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.transaction_records import TransactionStatus

EMPTY = TransactionStatus.EMPTY
ONGOING = TransactionStatus.ONGOING
PREPARE_COMMIT = TransactionStatus.PREPARE_COMMIT
PREPARE_ABORT = TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT = TransactionStatus.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionStatus.COMPLETE_ABORT

TRANSACTION_TRANSITIONS: Transitions[TransactionStatus] = {
    EMPTY: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    ONGOING: frozenset({ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: frozenset({ONGOING}),
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}

TRANSACTION_STATE_NAMES: Mapping[TransactionStatus, str] = {
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    PREPARE_COMMIT: "PrepareCommit",
    PREPARE_ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
}
"""State -> its name in responses and in Kafka's tools."""

EXPIRABLE_STATES = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""States in which an unused transactional id expires."""

COMPLETED_STATES: Mapping[TransactionStatus, TransactionStatus] = {
    PREPARE_COMMIT: COMPLETE_COMMIT,
    PREPARE_ABORT: COMPLETE_ABORT,
}
"""Prepare state -> the state after all markers are written."""


class TransactionOperation(Enum):
    """Operations on a transactional id."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn or AddOffsetsToTxn"
    COMMIT = "EndTxn that commits"
    ABORT = "EndTxn that aborts"
    EXPIRE = "transaction timeout"


class TransactionAction(Enum):
    """Reaction of the coordinator to an operation."""

    REJECT = "return the error"
    CONFIRM = "succeed without a change: a retry"
    RAISE_EPOCH = "return the next epoch, or a new producer id after the last epoch"
    FENCE = "raise the epoch and abort; return a retriable error"
    BEGIN = "start a transaction"
    EXTEND = "add the partitions that are not in the transaction yet"
    END = "store the decision, then write markers"


class TransactionRule(NamedTuple):
    """Action for an operation, and its error."""

    action: TransactionAction
    error: ErrorCode = ErrorCode.NONE


_RAISE = TransactionRule(TransactionAction.RAISE_EPOCH)
_BEGIN = TransactionRule(TransactionAction.BEGIN)
_BUSY = TransactionRule(TransactionAction.REJECT, ErrorCode.CONCURRENT_TRANSACTIONS)
_INVALID = TransactionRule(TransactionAction.REJECT, ErrorCode.INVALID_TXN_STATE)
_CONFIRM = TransactionRule(TransactionAction.CONFIRM)
_END = TransactionRule(TransactionAction.END)

TRANSACTION_RULES: Mapping[TransactionStatus, Mapping[TransactionOperation, TransactionRule]] = {
    EMPTY: {
        TransactionOperation.INIT: _RAISE,
        TransactionOperation.ADD: _BEGIN,
        TransactionOperation.COMMIT: _INVALID,
        TransactionOperation.ABORT: _INVALID,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
    ONGOING: {
        TransactionOperation.INIT: TransactionRule(TransactionAction.FENCE, ErrorCode.CONCURRENT_TRANSACTIONS),
        TransactionOperation.ADD: TransactionRule(TransactionAction.EXTEND),
        TransactionOperation.COMMIT: _END,
        TransactionOperation.ABORT: _END,
        TransactionOperation.EXPIRE: TransactionRule(TransactionAction.FENCE),
    },
    PREPARE_COMMIT: {
        TransactionOperation.INIT: _BUSY,
        TransactionOperation.ADD: _BUSY,
        TransactionOperation.COMMIT: _BUSY,
        TransactionOperation.ABORT: _BUSY,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
    PREPARE_ABORT: {
        TransactionOperation.INIT: _BUSY,
        TransactionOperation.ADD: _BUSY,
        TransactionOperation.COMMIT: _BUSY,
        TransactionOperation.ABORT: _BUSY,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
    COMPLETE_COMMIT: {
        TransactionOperation.INIT: _RAISE,
        TransactionOperation.ADD: _BEGIN,
        # a retry after the response was lost
        TransactionOperation.COMMIT: _CONFIRM,
        TransactionOperation.ABORT: _INVALID,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
    COMPLETE_ABORT: {
        TransactionOperation.INIT: _RAISE,
        TransactionOperation.ADD: _BEGIN,
        TransactionOperation.COMMIT: _INVALID,
        TransactionOperation.ABORT: _CONFIRM,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
}
"""State -> operation -> rule; complete."""


def is_ending(status: TransactionStatus) -> bool:
    """Returns whether the end of the transaction is decided and its markers have to be written."""
    return status in COMPLETED_STATES
