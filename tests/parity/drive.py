"""Readers of ours driven as Spark drives them, without Spark; needs the fixture `in_process`."""

from __future__ import annotations

import json
from uuid import uuid4

from spark_groupsource.source.datasource import GroupDataSource
from spark_groupsource.source.schema import spark_schema


def schema(options):
    return spark_schema(options.get("includeHeaders") == "true")


def rows(reader, tasks):
    return [row for part in tasks for batch in reader.read(part) for row in batch.to_pylist()]


class Batch:
    """One batch read: its tasks and rows."""

    def __init__(self, cluster, options):
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
        reader = GroupDataSource(options).reader(schema(options))
        self.tasks = reader.partitions()
        self.rows = rows(reader, self.tasks)


class Stream:
    """One streaming query, driven as Spark does; `tasks` are those of the last batch."""

    def __init__(self, cluster, options):
        base = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "members": "1"}
        if "assign" not in options:
            base["kafka.group.id"] = f"g-{uuid4().hex}"
        options = base | options
        self.reader = GroupDataSource(options).streamReader(schema(options))
        self.start = self.reader.initialOffset()
        self.rows, self.tasks, self.sizes = [], [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.reader.stop()

    def turn(self):
        """One trigger; the rows it read."""
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(self.start):
            return []
        self.tasks = self.reader.partitions(self.start, end)
        found = rows(self.reader, self.tasks)
        self.start = end
        self.rows += found
        self.sizes.append(len(found))
        return found

    def run(self):
        while self.turn():
            pass
        return self
