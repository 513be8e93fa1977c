"""A stream read without Spark that waits within its second batch.

    zombie_reader.py BOOTSTRAP TOPIC GROUP FILE

It reads one batch, plans the next one and writes its offsets to FILE, as Spark writes them to the checkpoint. It prints
``reading`` after the first rows of a task and waits for a line on standard input. Then it prints how the task ended and
stops, as Spark stops the source of a failed query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.clusters import Cluster
from support.direct_readers import StreamQuery

from spark_groupsource.errors import GroupSourceError

SESSION_TIMEOUT_MS = 6_000  # the default of group.min.session.timeout.ms
MAX_OFFSETS = 100


def options(topic: str, group: str) -> dict[str, str]:
    """Returns the options of the stream; fetches are so small that a task needs several."""
    return {
        "subscribe": topic,
        "kafka.group.id": group,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(MAX_OFFSETS),
        "kafka.max.partition.fetch.bytes": "1000",
        "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "kafka.heartbeat.interval.ms": "500",
    }


def main(bootstrap_servers: str, topic: str, group: str, path: str) -> None:
    query = StreamQuery(Cluster("unused", bootstrap_servers), options(topic, group))
    query.trigger()
    # commits the first batch
    end = query.latest_offset()
    (task,) = query.reader.partitions(query.start, end)
    Path(path).write_text(json.dumps([query.start, end]))
    rows = query.reader.read(task)
    next(rows)
    print("reading", flush=True)
    sys.stdin.readline()
    try:
        print(f"read {len(list(rows))} more", flush=True)
    except GroupSourceError as error:
        print(type(error).__name__, flush=True)
    query.reader.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
