"""Number of random examples of a test, scaled to the hypothesis profile."""

from __future__ import annotations

from hypothesis import settings

# of the profile `soak`
_FULL_EXAMPLES = 100


def scaled(count: int, least: int = 2) -> int:
    """Returns `count` in `make soak`, and proportionally less, but `least`, in `make test` and `make check`."""
    # settings() has the values of the loaded profile
    return max(min(count, least), count * settings().max_examples // _FULL_EXAMPLES)
