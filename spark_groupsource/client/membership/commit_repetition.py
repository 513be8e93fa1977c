"""When commits are repeated: after a lost response or a lost coordinator.

Pure: the caller passes the time. The broker may receive a request without a response after later ones, and set a
committed offset back. A coordinator that is lost, or is one no more, may lose what it has acknowledged. Kafka's
consumer does not repeat: the next commit corrects the offset, but an idle query has none.
"""

from __future__ import annotations

REPEAT_INTERVAL_MS = 5_000
LATE_REQUEST_MS = 120_000
"""How long a request without a response may take to arrive: a connection that the client has closed delivers it."""
_NEVER_MS = 2**62


class CommitRepetition:
    """Timer of one member."""

    def __init__(self) -> None:
        self.due_ms = _NEVER_MS
        self._until_ms = 0

    def start(self, now_ms: int) -> None:
        """Repeats from now on for as long as a request that was sent before could still arrive."""
        self._until_ms = now_ms + LATE_REQUEST_MS
        self.due_ms = min(self.due_ms, now_ms + REPEAT_INTERVAL_MS)

    def is_due(self, now_ms: int) -> bool:
        return now_ms >= self.due_ms

    def repeated(self, now_ms: int) -> None:
        """Sets the time of the next repetition, if any."""
        next_ms = now_ms + REPEAT_INTERVAL_MS
        # the last one is after the request could arrive
        self.due_ms = next_ms if self.due_ms <= self._until_ms else _NEVER_MS

    def cancel(self) -> None:
        """Ends the repetition: the coordinator rejects the request, because it is of an earlier generation."""
        self.due_ms = _NEVER_MS
