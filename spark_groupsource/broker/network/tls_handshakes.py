"""Queue of TLS handshakes, of which a limited number is in progress.

A handshake in progress needs 45 kB, and a client can leave it so until `authentication.timeout.ms`. Clients therefore
wait with the first record of theirs while many others are in progress, alternately the one that waits for the longest
time and the newest, and those that stall are closed while others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

_MAX_IN_PROGRESS = 200
_STALLED_MS = 1_000
_CLOSED_AT_ONCE = 32


class Handshake(Protocol):
    """A handshake. `is_pending`: whether its next step is the broker's."""

    is_pending: bool

    def start_step(self) -> None:
        """Runs the next step later."""

    def reject(self, reason: str) -> None:
        """Reports the reason and closes the connection."""


class HandshakeQueue:
    """The handshakes of all listeners of a broker."""

    def __init__(self) -> None:
        self._in_progress: dict[Handshake, int | None] = {}  # the first check since the last step
        self._waiting: dict[Handshake, None] = {}
        self._is_newest_next = False

    def add(self, handshake: Handshake) -> None:
        """Runs the next step of a handshake, when it may begin if it has not begun."""
        if handshake in self._in_progress:
            self._in_progress[handshake] = None
            handshake.start_step()
        else:
            self._waiting[handshake] = None
            self._begin_waiting()

    def remove(self, handshake: Handshake) -> None:
        """Must be called when a handshake is complete, or its connection is closed."""
        self._in_progress.pop(handshake, None)
        self._waiting.pop(handshake, None)
        self._begin_waiting()

    def close_stalled(self, now_ms: int) -> Iterator[None]:
        """Closes connections that others wait for, some per step. To be called every second."""
        closed = 0
        for handshake, since_ms in list(self._in_progress.items()):
            if not self._waiting:
                return
            if handshake.is_pending or handshake not in self._in_progress:
                continue
            if since_ms is None:
                self._in_progress[handshake] = now_ms
            elif now_ms - since_ms >= _STALLED_MS:
                handshake.reject("the TLS handshake stalls while others wait.")
                closed += 1
                if closed % _CLOSED_AT_ONCE == 0:
                    yield

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._in_progress) < _MAX_IN_PROGRESS:
            handshake = next(reversed(self._waiting) if self._is_newest_next else iter(self._waiting))
            self._is_newest_next = not self._is_newest_next
            del self._waiting[handshake]
            self._in_progress[handshake] = None
            handshake.start_step()
