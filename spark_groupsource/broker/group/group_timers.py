"""Timer keys of the group coordinator.

A key has at most one timer: setting it again moves the deadline. Each heartbeat creates and hashes a key, so keys are
named tuples, which take half the time of dataclasses. `kind` keeps keys of different classes unequal; it always has its
default.
"""

from __future__ import annotations

from typing import NamedTuple


class SessionTimer(NamedTuple):
    """Ends the session of a member, the join timeout of a new member, or the lifetime of a pending member id."""

    group_id: str
    member_id: str
    kind: str = "session"


class JoinTimer(NamedTuple):
    """Ends a join phase, or one window of the initial rebalance delay."""

    group_id: str
    kind: str = "join"


class SyncTimer(NamedTuple):
    """Removes the members that have not sent SyncGroup within the rebalance timeout."""

    group_id: str
    kind: str = "sync"


GroupTimer = SessionTimer | JoinTimer | SyncTimer
