"""Operations of a history."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """What the client of an operation knows."""

    OK = "it took effect"
    FAILED = "it did not take effect, and never will"
    UNKNOWN = "it may have taken effect, or may yet"


class Sent(NamedTuple):
    """A value that was sent to a log; every value is sent once. `offset` is None if the client does not know it."""

    log: str
    value: int
    offset: int | None = None


class Polled(NamedTuple):
    """A value that was received from a log."""

    log: str
    offset: int
    value: int


@dataclass(frozen=True)
class Operation:
    """One operation of one client: a transaction, or a send or poll of its own.

    Attributes:
        process: the client; its operations do not overlap.
        sent, polled: in order.
        is_reassigned: the client has other partitions or positions than in its operation before.
        is_transaction: the values were sent in one transaction.
        group: the group whose offset is below; each has one transactional id.
        committed: the offset that the transaction commits, or None.
        fetched: the offset that was committed when the operation began, -1 for none; None if it was not fetched.
        error: the error that ended it; empty if there was none.
    """

    process: str
    outcome: Outcome = Outcome.OK
    sent: tuple[Sent, ...] = ()
    polled: tuple[Polled, ...] = ()
    is_reassigned: bool = False
    is_transaction: bool = False
    group: str = ""
    committed: int | None = None
    fetched: int | None = None
    error: str = ""


History = list[Operation]
"""Operations in the order in which they ended."""
