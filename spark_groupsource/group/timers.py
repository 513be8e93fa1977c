"""Timer keys of the group coordinator.

A key has at most one timer: setting it again moves the deadline. Keys of different classes are never equal.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionTimer:
    """Ends the session of a member, the join timeout of a new member, or the lifetime of a pending member id."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """Ends a join phase, or one window of the initial rebalance delay."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Removes the members that have not sent SyncGroup within the rebalance timeout."""

    group_id: str


GroupTimer = SessionTimer | JoinTimer | SyncTimer
