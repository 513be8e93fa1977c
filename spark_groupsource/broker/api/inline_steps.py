"""Runs the first steps of a request without a time slice."""

from __future__ import annotations

from typing import Any, Callable

from spark_groupsource.broker.requests import ResponseAction, Steps, in_a_slice
from spark_groupsource.common.clock import monotonic_ns
from spark_groupsource.wire.messages import ApiMessage


def run_inline(steps: Steps, limit_ns: int) -> ApiMessage | ResponseAction | Steps:
    """Runs steps for about `limit_ns`; returns their result, or the remaining steps.

    Raises: the errors of the steps.
    """
    end_ns = monotonic_ns() + limit_ns
    try:
        while monotonic_ns() < end_ns:
            function = next(steps)
            if function is in_a_slice:
                return _after_a_slice(steps)
            if function is not None:
                return _remaining(function, steps)
    except StopIteration as end:
        result: ApiMessage | ResponseAction = end.value
        return result
    return steps


def _after_a_slice(steps: Steps) -> Steps:
    yield in_a_slice  # the caller runs the first step at once
    return (yield from steps)


def _remaining(function: Callable[[], Any] | None, steps: Steps) -> Steps:
    """Returns the steps from `function` on, which is to be called in the worker thread."""
    try:
        while True:
            try:
                result = yield function
            except Exception as error:
                function = steps.throw(error)
            else:
                function = steps.send(result)
    except StopIteration as end:
        response: ApiMessage | ResponseAction = end.value
        return response
    finally:
        steps.close()
