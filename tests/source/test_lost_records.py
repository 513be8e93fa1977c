"""Truncated logs that were appended to since are detected (KIP-320)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clusters import BROKER_CONFIG, Cluster
from support.direct_readers import StreamQuery
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import DataLossError
from spark_groupsource.records.header import iter_batches

pytestmark = pytest.mark.usefixtures("in_process")

READ, KEPT = 30, 20


class PowerLoss:
    """A broker with one topic of `READ` records in batches of ten, whose disk has only the first `KEPT`."""

    def __init__(self, directory: Path, topic: str) -> None:
        self._directory, self._topic = directory, topic
        self._broker = EmbeddedBroker(directory / "data", config=BROKER_CONFIG)
        self._broker.start()
        self.cluster = Cluster("embedded", self._broker.bootstrap_servers)
        create_topic(self.cluster.bootstrap_servers, topic)
        for first in range(0, READ, 10):
            self._produce(first, 10)

    def happen(self, regrown_to: int) -> None:
        """Starts the broker again on what was on the disk, and produces up to offset `regrown_to`."""
        disk = self._directory / "disk"
        shutil.copytree(self._directory / "data", disk)
        log = disk / f"{self._topic}-0" / f"{0:020d}.log"
        end = next(header.position for header in iter_batches(log.read_bytes()) if header.base_offset == KEPT)
        log.write_bytes(log.read_bytes()[:end])
        self._broker.stop()
        port = parse_addresses(self.cluster.bootstrap_servers)[0].port
        self._broker = EmbeddedBroker(disk, config=BROKER_CONFIG, port=port)
        self._broker.start()
        self._produce(1_000, regrown_to - KEPT)

    def _produce(self, first: int, count: int) -> None:
        rows = [(0, None, b"%d" % n) for n in range(first, first + count)]
        produce(self.cluster.bootstrap_servers, self._topic, rows)

    def close(self) -> None:
        self._broker.stop()


@pytest.fixture
def power_loss(tmp_path: Path, topic: str) -> Iterator[PowerLoss]:
    lost = PowerLoss(tmp_path, topic)
    yield lost
    lost.close()


@pytest.fixture
def query(power_loss: PowerLoss, topic: str, group: str) -> Iterator[Callable[..., StreamQuery]]:
    """Starts queries of one group."""
    queries: list[StreamQuery] = []

    def start(**options: str) -> StreamQuery:
        given = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest", **options}
        queries.append(StreamQuery(power_loss.cluster, given))
        return queries[-1]

    yield start
    for each in queries:
        each.reader.stop()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_stream_reports_records_that_were_lost_below_its_position(power_loss, query, is_restarted):
    stream = query().run()
    assert len(stream.rows) == READ
    power_loss.happen(regrown_to=50)
    if is_restarted:
        stream.reader.stop()
        stream, checkpoint = query(), json.loads(json.dumps(stream.start))
        stream.start = checkpoint
    with pytest.raises(DataLossError, match=f"PARTITION_OFFSET_CHANGED.*other records from offset {KEPT} on"):
        stream.run()


def test_stream_reads_the_records_that_replaced_lost_ones(power_loss, query):
    stream = query(failOnDataLoss="false").run()
    power_loss.happen(regrown_to=50)
    before = len(stream.rows)
    assert [row["offset"] for row in stream.run().rows[before:]] == list(range(KEPT, 50))


def test_task_reports_a_planned_range_whose_records_were_replaced(power_loss, query):
    stream = query()
    reader, end = stream.reader, stream.latest_offset()
    (task,) = reader.partitions({}, end)
    # only the log matters here; the group would fence the task after the restart
    task.membership = None
    power_loss.happen(regrown_to=50)
    with pytest.raises(DataLossError, match=rf"truncated at offset {KEPT} .*offsets \[0, {READ}\)"):
        list(reader.read(task))


def test_stream_continues_after_a_power_loss_without_lost_records(power_loss, query):
    stream = query(maxOffsetsPerTrigger="10")
    stream.trigger()
    stream.trigger()
    power_loss.happen(regrown_to=50)
    offsets = [row["offset"] for row in stream.run().rows]
    assert offsets == list(range(50))
