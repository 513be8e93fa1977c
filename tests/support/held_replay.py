"""A replay of coordinators' logs that waits at its first record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from spark_groupsource.broker.coordinators import log_replay
from spark_groupsource.common.coroutines import next_turn


@contextmanager
def held_replay() -> Iterator[None]:
    """Lets logs of any length be replayed with pauses, which last until the end of the context."""
    may_continue = threading.Event()

    async def pause() -> bool:
        await next_turn()
        while not may_continue.is_set():
            await next_turn()
        return True

    # a private constant: a log of realistic length would make the tests slow
    with patch.object(log_replay, "_PART_WORK", 1), patch.object(log_replay, "pause", pause):
        try:
            yield
        finally:
            may_continue.set()
