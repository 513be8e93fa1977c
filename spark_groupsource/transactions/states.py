"""The states of a transactional id, who may follow whom, and what each state answers: as data.

Theory. A transactional id has one producer at a time, known by its producer id and epoch. InitProducerId raises the
epoch, which fences whoever had it before. A transaction begins with the first partition added, and ends in two steps:

    Empty ---> Ongoing ---EndTxn---> PrepareCommit ---markers are written---> CompleteCommit --+
                 ^  |                PrepareAbort  -------------------------> CompleteAbort  --+
                 |  +--InitProducerId, or time is up: fence and abort--^                       |
                 +-----------------------------------next transaction--------------------------+

The Prepare record is the decision: once it is in the log the transaction ends so, whoever dies. Markers may be written
twice, so a coordinator that finds a Prepare record at its start writes all of them.

Fencing stores the raised epoch and the abort in one record, and the client is told to ask again, so that its own epoch
is a later one than that of the markers.

Source: KIP-98, KIP-360; Kafka's TransactionMetadata and TransactionCoordinator (transaction protocol 1).
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.transaction_records import TransactionStatus

EMPTY = TransactionStatus.EMPTY
ONGOING = TransactionStatus.ONGOING
PREPARE_COMMIT = TransactionStatus.PREPARE_COMMIT
PREPARE_ABORT = TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT = TransactionStatus.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionStatus.COMPLETE_ABORT

TRANSACTION_TRANSITIONS: Mapping[TransactionStatus, frozenset[TransactionStatus]] = {
    EMPTY: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    ONGOING: frozenset({ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: frozenset({ONGOING}),
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}
"""status -> those it may be entered from."""

TRANSACTION_STATE_NAMES: Mapping[TransactionStatus, str] = {
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    PREPARE_COMMIT: "PrepareCommit",
    PREPARE_ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
}
"""status -> how Kafka's tools name it."""

EXPIRABLE_STATES = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""A transactional id that is not used any more is forgotten in these alone."""

COMPLETED_STATES: Mapping[TransactionStatus, TransactionStatus] = {
    PREPARE_COMMIT: COMPLETE_COMMIT,
    PREPARE_ABORT: COMPLETE_ABORT,
}
"""What a decision becomes when every marker is written."""


class TransactionOperation(Enum):
    """What is asked of a transactional id."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn or AddOffsetsToTxn"
    COMMIT = "EndTxn that commits"
    ABORT = "EndTxn that aborts"
    EXPIRE = "transaction.timeout.ms is over"


class TransactionAction(Enum):
    """What the coordinator does about it."""

    REJECT = "answer the error"
    CONFIRM = "it is so already"
    RAISE_EPOCH = "hand out the next epoch, or another producer id after the last"
    FENCE = "raise the epoch and abort; who asked is to ask again"
    BEGIN = "begin a transaction"
    EXTEND = "add what is not in it yet"
    END = "store the decision; markers follow"


class TransactionRule(NamedTuple):
    """One cell: the action and the error it answers with."""

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
        TransactionOperation.ABORT: _INVALID,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
    PREPARE_ABORT: {
        TransactionOperation.INIT: _BUSY,
        TransactionOperation.ADD: _BUSY,
        TransactionOperation.COMMIT: _INVALID,
        TransactionOperation.ABORT: _BUSY,
        TransactionOperation.EXPIRE: _CONFIRM,
    },
    COMPLETE_COMMIT: {
        TransactionOperation.INIT: _RAISE,
        TransactionOperation.ADD: _BEGIN,
        # the answer was lost and the client asks again
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
"""status -> ask -> answer; complete."""


def is_ending(status: TransactionStatus) -> bool:
    """Whether it is decided how the transaction ends, and markers are to be written."""
    return status in COMPLETED_STATES
