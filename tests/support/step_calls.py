"""Function calls of each step of a request."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NamedTuple

from spark_groupsource.broker.requests import Steps


class StepCalls(NamedTuple):
    """Attributes: `in_steps`, the calls of each step; `in_worker`, the number of functions for the worker thread."""

    in_steps: list[int]
    in_worker: int
    response: Any


def calls_of_steps(steps: Steps) -> StepCalls:
    """Performs all steps of a handler and counts the calls of functions, of Python and of C, in each."""
    counts, in_worker = [0], 0

    def count(frame: FrameType, event: str, function: object) -> None:
        if event in ("call", "c_call"):
            counts[-1] += 1

    value = None
    while True:
        sys.setprofile(count)
        try:
            function = steps.send(value)
        except StopIteration as end:
            return StepCalls(counts, in_worker, end.value)
        finally:
            sys.setprofile(None)
        value = function() if function is not None else None
        in_worker += function is not None
        counts.append(0)
