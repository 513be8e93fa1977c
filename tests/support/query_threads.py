"""Queries of one group in threads of the test, without Spark."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from support.clusters import Cluster
from support.topics import create_topic, produce

from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.spark.stream_reader import GroupStreamReader
from spark_groupsource.source.tasks.task_partition import GroupInputPartition

PARTITIONS = 6
COLUMNS = SelectedColumns(("partition", "offset"))


class QueryThread:
    """A query that a thread runs as Spark does: batches, each followed by a pause, and at the end a drain.

    `end` is the end offset of its last batch, which a restart passes as `start`.

    `seen` counts every (partition, offset) of finished batches; `during_rebalances` is the number of records of batches
    that were planned during a rebalance.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        pause: Callable[[], float] = lambda: 0.0,
        start: dict[str, Any] | None = None,
    ) -> None:
        self._reader = GroupStreamReader(parse_options(options, "stream"), COLUMNS, os.getpid())
        self._pause = pause
        self.end = self._reader.initialOffset() if start is None else start
        self._ending = threading.Event()
        self.seen: Counter[tuple[int, int]] = Counter()
        self.during_rebalances = 0
        self.batches = 0
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> QueryThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Drains: the batch in flight ends, its offsets are committed, the members leave."""
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and self.failure is None, self.failure

    def _run(self) -> None:
        try:
            if self.end:
                # Spark passes the last batch of the checkpoint at a restart
                self._reader.partitions(self.end, self.end)
            while not self._ending.is_set():
                end = json.loads(json.dumps(self._reader.latestOffset(self.end, self._reader.getDefaultReadLimit())))
                if end != self.end:
                    self._read(self.end, end)
                    self._reader.commit(end)
                    self.end = end
                self._ending.wait(self._pause())
            # private: the control socket requests the drain in the reader process
            process = self._reader._process
            assert process is not None and process.session().request_drain(self.end)
        except Exception as error:
            self.failure = error
        finally:
            self._reader.stop()

    def _read(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        parts = cast("Sequence[GroupInputPartition]", self._reader.partitions(start, end))
        # a task sends a heartbeat after its last record, so a rebalance may proceed during the pause
        read: list[tuple[int, int]] = []
        for part in parts:
            for batch in self._reader.read(part):
                read += zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist())
                self._ending.wait(self._pause())
        # replaced, because other threads read it
        self.seen = self.seen + Counter(read)
        self.batches += 1
        if any(part.membership is not None and part.membership.retains_partitions for part in parts):
            self.during_rebalances += len(read)


class ThreadedGroup:
    """A topic, a group and its queries; `produced` is the number of records in the topic."""

    def __init__(self, cluster: Cluster, topic: str, group: str) -> None:
        self.servers, self.topic, self.group = cluster.bootstrap_servers, topic, group
        self.client = ClusterClient(self.servers, ClientSettings.parse({"bootstrap.servers": self.servers}))
        self.produced = 0
        create_topic(self.servers, topic, PARTITIONS)

    def produce(self, count: int) -> None:
        rows = ((n % PARTITIONS, None, b"%d" % n) for n in range(self.produced, self.produced + count))
        self.produced += produce(self.servers, self.topic, rows)

    def start(
        self,
        name: str,
        pause: Callable[[], float] = lambda: 0.0,
        start: dict[str, Any] | None = None,
        **options: str | None,
    ) -> QueryThread:
        """Starts a query; an option that is None is left out."""
        given: dict[str, str | None] = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "kafka.group.id": self.group,
            "splitBetweenQueries": "true",
            "kafka.client.id": name,
            "startingOffsets": "earliest",
            "members": "1",
            "kafka.session.timeout.ms": "60000",
            "kafka.heartbeat.interval.ms": "200",
            "kafka.partition.assignment.strategy": "cooperative-sticky",
            **options,
        }
        return QueryThread({name: text for name, text in given.items() if text is not None}, pause, start)

    def described(self) -> GroupDescription:
        return describe_groups(self.client, [self.group])[self.group]

    def assigned(self) -> dict[str, int]:
        """Client id -> number of partitions, of a stable group."""
        group = self.described()
        return {m.client_id: len(m.assignment) for m in group.members} if group.state == "Stable" else {}

    def committed(self) -> int:
        return sum(c.offset for c in self.client.fetch_committed(self.group).values() if c is not None)
