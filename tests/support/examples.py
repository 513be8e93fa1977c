"""Number of random examples of a test, scaled to the hypothesis profile."""

from __future__ import annotations

from hypothesis import settings

_SUITE_EXAMPLES = 100


def scaled(count: int, least: int = 2) -> int:
    """Returns `count` in a run of the whole suite, and proportionally less, but `least`, in `make check`."""
    # settings() has the values of the loaded profile
    return max(min(count, least), count * settings().max_examples // _SUITE_EXAMPLES)
