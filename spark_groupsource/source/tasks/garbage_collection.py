"""Garbage collection of Spark's Python workers."""

from __future__ import annotations

import gc

_task_count = 0


def exempt_from_collection() -> None:
    """Exempts what is alive from garbage collection, at the tasks 1, 2, 4, 8 and so on of a process.

    Spark's daemon collects garbage after each task. This takes 15 ms for the imported modules, and 10 ms for what the
    first task loads. What is exempt and becomes cyclic garbage later is kept, so tasks do not exempt each time.
    """
    global _task_count
    _task_count += 1
    if _task_count == 1:
        gc.collect()
    if not _task_count & (_task_count - 1):
        gc.freeze()
