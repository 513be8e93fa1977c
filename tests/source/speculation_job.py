"""Application with a speculative attempt in each micro-batch.

Its second task waits for the attempt, and then runs beside it.

speculation_job.py BOOTSTRAP TOPIC GROUP DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cluster_job import main

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def with_attempt(directory: str) -> Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]:
    """Returns a function that adds the number of the attempt; each attempt leaves a file with its first rows."""

    def wait_for_the_other(stage: int, number: int) -> None:
        import time
        from pathlib import Path

        attempts = Path(directory, "attempts")
        (attempts / f"{stage}-{number}").touch()
        end_s = time.monotonic() + 120
        while not (attempts / f"{stage}-1").exists():
            assert time.monotonic() < end_s, f"stage {stage} has no speculative attempt"
            time.sleep(0.05)
        # several heartbeats of both; the attempts end first in turns
        time.sleep(2 if len(list(attempts.glob("*-1"))) % 2 == number else 6)

    def mapped(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        is_waiting = context.partitionId() == 1
        for batch in batches:
            if is_waiting:
                wait_for_the_other(context.stageId(), context.attemptNumber())
                is_waiting = False
            attempt = pyarrow.array([context.attemptNumber()] * batch.num_rows, "int32")
            yield pyarrow.RecordBatch.from_arrays([*batch.columns, attempt], ["partition", "offset", "attempt"])

    return mapped


if __name__ == "__main__":
    heartbeats = {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "300"}
    main(*sys.argv[1:], with_attempt(sys.argv[4]), "attempt int", **heartbeats)
