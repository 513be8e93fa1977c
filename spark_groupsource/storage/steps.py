"""Operations in steps of some milliseconds, between which other requests are served."""

from __future__ import annotations

from typing import Any, Callable, Generator, TypeVar, Union

Result = TypeVar("Result")
StorageSteps = Generator[Union[None, Callable[[], Any]], Any, Result]
"""Yields None between two steps, or a pure function to be called in another thread, and is sent its result.

A log may change between two steps.
"""


def run_steps(steps: StorageSteps[Result]) -> Result:
    """Runs all steps at once. An error of a function is raised in the steps, which may handle it."""
    try:
        function = next(steps)
        while True:
            try:
                result = None if function is None else function()
            except Exception as error:
                function = steps.throw(error)
            else:
                function = steps.send(result)
    except StopIteration as end:
        value: Result = end.value
        return value
