"""Function calls of a coroutine between its pauses."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace
from typing import Any, Callable, Coroutine, NamedTuple
from unittest.mock import patch

from spark_groupsource.common import coroutines


class StepCalls(NamedTuple):
    """Attributes: `in_steps`, the calls between two pauses; `in_worker`, the functions for the worker thread."""

    in_steps: list[int]
    in_worker: int
    response: Any


def calls_of_steps(work: Coroutine[Any, Any, Any]) -> StepCalls:
    """Runs a coroutine, pauses it wherever it may pause, and counts the calls of functions, of Python and of C."""
    counts, in_worker = [0], 0

    def count(frame: FrameType, event: str, function: object) -> None:
        if event in ("call", "c_call"):
            counts[-1] += 1

    async def run_in_executor(_: None, function: Callable[[], Any]) -> Any:
        nonlocal in_worker
        in_worker += 1
        sys.setprofile(None)
        try:
            return function()
        finally:
            sys.setprofile(count)

    loop = SimpleNamespace(run_in_executor=run_in_executor)
    with patch.object(coroutines, "asyncio", SimpleNamespace(get_running_loop=lambda: loop)):
        while True:
            sys.setprofile(count)
            try:
                coroutines.begin(work, 0)
            except StopIteration as end:
                return StepCalls(counts, in_worker, end.value)
            finally:
                sys.setprofile(None)
            counts.append(0)
