"""An application that copies a topic, killed between its steps.

It is driven as Spark drives a query. The reader is a process of its own, killed with SIGKILL; the offset log and the
commit log of the checkpoint are lists, which survive. The driver of the application is this process. The members of a
killed reader are removed from the group, which is what the end of their sessions does 6 s later.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.clients import open_cluster
from support.clusters import Cluster
from support.read_back import messages_to_end
from support.removed_members import remove_members
from support.source_process import SourceProcess
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.errors import RequestTimeoutError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.control_client import TransactionRequest
from spark_groupsource.source.positions.published_progress import WriterProgress
from spark_groupsource.source.sink import publisher
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication
from spark_groupsource.source.sink.reader_sources import ReaderSources

STEPS = ("planned", "read", "initialized", "sent", "joined", "ended", "lost response", "published", "finished")
"""Where an application can be killed, in the order of a batch; at "lost response" it is not killed."""

PARTITIONS = 2
RECORDS = 160


class KilledError(Exception):
    """The application was killed."""


class _Sources(ReaderSources):
    """The sources of an application, with its steps."""

    def __init__(self, reached: Callable[[str], None], *args: Any) -> None:
        super().__init__(*args)
        self._reached = reached

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        self._reached("sent")
        joined = super().join(producer, known)
        self._reached("joined")
        return joined


class SinkApplication:
    """One application; `output` is the partition of a record by its value.

    Args:
        options: options of the source.
    """

    def __init__(
        self, directory: Path, bootstrap_servers: str, topic: str, group: str, output: str, **options: str
    ) -> None:
        self._directory, self._bootstrap_servers = directory, bootstrap_servers
        self._topic, self._group, self._output = topic, group, output
        self.transactional_id, self.query_id = f"T-{uuid4().hex[:8]}", uuid4().hex
        self._options = {
            "kafka.transactional.id": self.transactional_id,
            "splitBetweenQueries": "true",
            "maxOffsetsPerTrigger": "40",
            **options,
        }
        self.offsets: list[Mapping[str, Any]] = []
        self.commits = 0
        self.tasks = 1
        """Number of record batches of a partition, as of tasks that write to it."""
        self.kill_at: str | None = None
        self.state: dict[str, int] = {}
        """Sum of the records of each input partition, as a stateful query keeps it; rebuilt from the last batch."""
        self._states: list[dict[str, int]] = [{}]
        self.reader: SourceProcess | None = None
        self._client_id = ""
        self.cluster = open_cluster(bootstrap_servers, default_api_timeout_ms="20000")

    def reached(self, step: str) -> None:
        if step == self.kill_at:
            self.kill_at = None
            raise KilledError(step)

    def start(self) -> None:
        directory = self._directory / uuid4().hex[:8]
        directory.mkdir()
        # of this reader alone: another driver of the query has the same transactional id
        self._client_id = f"{self.transactional_id}-{directory.name}"
        options = {**self._options, "kafka.client.id": self._client_id}
        self.reader = SourceProcess(directory, self._bootstrap_servers, self._topic, self._group, **options)

    def kill(self) -> None:
        if self.reader is not None:
            self.reader.kill()
            self.reader = None
            self._remove_members()
        # as after a restart of the driver
        self.cluster.close()
        self.cluster = open_cluster(self._bootstrap_servers, default_api_timeout_ms="20000")

    def _remove_members(self) -> None:
        if not self._group:
            return
        members = describe_groups(self.cluster, [self._group])[self._group].members
        own = [member.member_id for member in members if member.client_id.startswith(self._client_id)]
        if own:
            remove_members(self.cluster, self._group, own)

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()
        self.cluster.close()

    def trigger(self) -> int:
        """Runs one batch, or the rest of a logged one; returns its number of records.

        Raises: KilledError at `kill_at`.
        """
        if self.reader is None:
            self.start()
        try:
            return self._trigger()
        except KilledError:
            self.kill()
            raise

    def _trigger(self) -> int:
        assert self.reader is not None
        start = self.offsets[self.commits - 1] if self.commits else None
        if len(self.offsets) == self.commits:
            end = self.reader.latest_offset(start)
            assert end is not None, self.reader.log
            if json.dumps(end) == json.dumps(start or {}):
                return 0
            self.offsets.append(end)
        end = self.offsets[self.commits]
        self.reached("planned")
        rows = self.reader.read(start, end)
        self.reached("read")
        self._publish(rows)
        self.reached("published")
        state = dict(self._states[self.commits])
        for partition, _, _ in rows:
            state[str(partition)] = state.get(str(partition), 0) + 1
        self._states[self.commits + 1 :] = [state]
        self.commits += 1
        self.state = state
        self.reached("finished")
        return len(rows)

    def _publish(self, rows: list[tuple[int, int, str]]) -> None:
        by_partition: dict[int, list[Record]] = defaultdict(list)
        for partition, _, value in rows:
            by_partition[partition].append(Record(value.encode(), value.encode(), 0))
        batches = [
            EncodedBatch(TopicPartition(self._output, partition), encode_batch(part), len(part))
            for partition, records in sorted(by_partition.items())
            for task in range(self.tasks)
            if (part := records[task :: self.tasks])
        ]
        cluster_id = self.cluster.metadata(()).cluster_id or ""
        request = TransactionRequest(self.transactional_id, -1, -1, self.query_id, cluster_id, self.commits)
        batch = Publication(self.transactional_id, batches, self.query_id, self.commits, self._output)
        application = self

        class _Transactions(Transactions):
            def init(self, timeout_ms: int) -> ProducerIdAndEpoch:
                found = super().init(timeout_ms)
                application.reached("initialized")
                return found

            def end(self, *, is_committed: bool) -> None:
                super().end(is_committed=is_committed)
                application.reached("ended")
                if application.kill_at == "lost response":
                    application.kill_at = None
                    raise RequestTimeoutError("No response to EndTxn.")

        setattr(publisher, "Transactions", _Transactions)
        try:
            publisher.publish(self.cluster, batch, _Sources(self.reached, os.getpid(), request, 20_000))
        finally:
            setattr(publisher, "Transactions", Transactions)


def run_out(application: SinkApplication) -> None:
    """Runs triggers until one has no batch, not even one without records, as a logged batch is finished."""
    for _ in range(200):
        known = application.commits
        application.trigger()
        if application.commits == known:
            return
    raise AssertionError("the application does not come to an end")


def stable_end(client: ClusterClient, topic_partition: TopicPartition) -> int:
    """Returns the end offset of a partition without an open transaction: Kafka writes markers after EndTxn."""

    def end() -> tuple[int] | None:
        stable, high = (
            client.list_offsets({topic_partition: LATEST}, read_committed=committed)[topic_partition].offset
            for committed in (True, False)
        )
        return (stable,) if stable == high else None

    found = wait_until(end, f"no transaction of {topic_partition} is open", 60)
    assert found is not None
    return found[0]


def read_output(cluster: Cluster, topic: str) -> list[str]:
    """Returns the values that a read_committed consumer sees, once no transaction is open."""
    with open_cluster(cluster.bootstrap_servers) as client:
        for number in range(PARTITIONS):
            stable_end(client, TopicPartition(topic, number))
    messages = messages_to_end(cluster.bootstrap_servers, topic, PARTITIONS)
    return [(message.value() or b"").decode() for message in messages]


def fill(cluster: Cluster, topic: str, output: str) -> Cluster:
    """Writes the records of `topic`, and creates an empty topic for the output; returns the cluster."""
    for name in (topic, output):
        create_topic(cluster.bootstrap_servers, name, PARTITIONS)
    values = [(number % PARTITIONS, None, f"{number % PARTITIONS}-{number}".encode()) for number in range(RECORDS)]
    produce(cluster.bootstrap_servers, topic, values)
    return cluster


def check(cluster: Cluster, topic: str, group: str, output: str) -> None:
    """Checks that each record is in the output once, and that the group's offsets are at the end of the input."""
    counts = Counter(read_output(cluster, output))
    expected = {f"{number % PARTITIONS}-{number}" for number in range(RECORDS)}
    repeated = {value: count for value, count in counts.items() if count > 1}
    assert (sorted(expected - counts.keys()), repeated) == ([], {})
    with open_cluster(cluster.bootstrap_servers) as client:
        committed = client.fetch_committed(group)
    assert {p.partition: c.offset for p, c in committed.items() if c is not None and p.topic == topic} == {
        number: RECORDS // PARTITIONS for number in range(PARTITIONS)
    }
