"""Readers called directly as Spark calls them; needs fixture `in_process`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from pyspark.sql.types import StructType
from support.clusters import Cluster

from spark_groupsource.source.options.schema import spark_schema
from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL
from spark_groupsource.source.spark.datasource import GroupDataSource


def _schema(options: Mapping[str, str]) -> StructType:
    return spark_schema(options.get("includeHeaders") == "true")


def _read(reader: Any, tasks: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


class BatchQuery:
    """One batch read: its tasks and rows."""

    def __init__(self, cluster: Cluster, options: Mapping[str, str]) -> None:
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
        reader: Any = GroupDataSource(options).reader(_schema(options))
        self.tasks = reader.partitions()
        self.rows = _read(reader, self.tasks)


class StreamQuery:
    """One streaming query: all rows, the sizes of its batches, and the tasks of the last batch."""

    def __init__(self, cluster: Cluster, options: Mapping[str, str]) -> None:
        # the tests run several queries of a group in one process
        base = {"splitBetweenQueries": "true", "kafka.bootstrap.servers": cluster.bootstrap_servers, "members": "1"}
        if "assign" not in options:
            base["kafka.group.id"] = f"g-{uuid4().hex}"
        options = {**base, **options}
        self.reader: Any = GroupDataSource(options).streamReader(_schema(options))
        self.start = self.reader.initialOffset()
        self._passed: Any = None
        self.rows: list[dict[str, Any]] = []
        self.tasks: list[Any] = []
        self.sizes: list[int] = []

    def __enter__(self) -> StreamQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def latest_offset(self) -> Any:
        """Calls the reader as Spark does at a trigger; see `InferredStart`."""
        if HAS_ADMISSION_CONTROL:
            return self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        if self.start and self.start != self._passed:
            # a restart
            self.reader.partitions(self.start, self.start)
        return self.reader.latestOffset()

    def trigger(self, before_read: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
        """Runs one trigger; returns the rows of its batch. `before_read` is called between its plan and its tasks."""
        end = self.latest_offset()
        if json.dumps(end) == json.dumps(self.start):
            return []
        self.tasks = self.reader.partitions(self.start, end)
        self._passed = end
        before_read()
        rows = _read(self.reader, self.tasks)
        self.start = end
        self.rows += rows
        self.sizes.append(len(rows))
        return rows

    def run(self) -> StreamQuery:
        """Runs triggers until one has no rows."""
        while self.trigger():
            pass
        return self
