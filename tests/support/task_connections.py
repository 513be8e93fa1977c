"""Connections of read tasks that run in the process of a test."""

from __future__ import annotations

from spark_groupsource.source.tasks import task_reader


def close_connections() -> None:
    """Closes the cached connections, which a worker process keeps until it ends."""
    for cluster in list(task_reader._clusters.values()):  # private: the cache
        task_reader._discard(cluster)
