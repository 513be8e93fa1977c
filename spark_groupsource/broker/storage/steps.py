"""Operations in steps of some milliseconds, between which other requests are served."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Callable, Generator, Iterator, Sequence, TypeVar, Union

Result = TypeVar("Result")
Value = TypeVar("Value")
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


def background_steps(
    steps: StorageSteps[Result], run_in_background: Callable[[Callable[[], Any]], Future[Any]]
) -> Generator[bool, None, Result]:
    """Runs the functions of `steps` with `run_in_background`; yields True while it waits for one."""
    try:
        function = next(steps)
        while True:
            if function is None:
                yield False
                function = next(steps)
                continue
            done = run_in_background(function)
            while not done.done():
                yield True
            error = done.exception()
            function = steps.send(done.result()) if error is None else steps.throw(error)
    except StopIteration as end:
        value: Result = end.value
        return value


def portions(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    """Divides values into portions of at most `size`."""
    return (values[start : start + size] for start in range(0, len(values), size))
