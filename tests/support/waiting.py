"""Waits for a condition with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 30, interval_s: float = 0.02) -> T:
    """Returns the first truthy value of `condition`.

    Raises: AssertionError naming `what` and the last value, at the deadline.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s} s; last seen: {value!r}")
        time.sleep(interval_s)
