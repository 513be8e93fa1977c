"""Streams on a Spark without admission control (4.0 and 4.1).

Its calls are made on a session with an in-memory group.
"""

import json
import sys
from types import SimpleNamespace

import pytest
from support.session_fakes import P0, P1, P2, FakeCluster, FakeGroup, Query

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.spark.stream_reader import InferringStreamReader

ALL = {P0: (0, 10), P1: (0, 10), P2: (0, 10)}


class Spark:
    """Calls a reader as Spark 4.0 does; `checkpoint` has the ends of the logged batches, `commits` their number."""

    def __init__(self, checkpoint=None, **options):
        self.checkpoint, self.commits = checkpoint if checkpoint is not None else [], len(checkpoint or [])
        self.cluster, self.group, self.options = FakeCluster(), FakeGroup(), options
        self.restart()

    def restart(self):
        """A new reader process of the same query; one that was killed in a batch repeats it."""
        self.group.joined, self.group.rejoin_needed = False, True
        self.query = Query(cluster=self.cluster, group=self.group, **self.options)
        base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g", **self.options}
        self.reader = InferringStreamReader(parse_options(base, "stream"), SelectedColumns(("value",)), 1)
        process = SimpleNamespace(session=lambda: self.query.session, query_file=None)
        process.latest_offset = self.query.session.latest_offset
        self.reader._process = process  # private: a reader process would connect to a cluster

    def run(self, kill_in_batch=False):
        """Hands the checkpoint over, repeats an uncommitted batch and runs one trigger."""
        batches = []
        if self.checkpoint:
            assert not self.reader.partitions(self.checkpoint[-1], self.checkpoint[-1])
            if self.commits < len(self.checkpoint):
                batches.append(self.batch(kill_in_batch))
        return batches + self.trigger(kill_in_batch)

    def trigger(self, kill_in_batch=False):
        end = self.latest()
        if self.checkpoint and json.dumps(end) == json.dumps(self.checkpoint[-1]):
            return []
        self.checkpoint.append(end)
        return [self.batch(kill_in_batch)]

    def latest(self):
        return json.loads(json.dumps(self.reader.latestOffset()))

    def batch(self, kill_in_batch):
        start = self.checkpoint[-2] if len(self.checkpoint) > 1 else self.reader.initialOffset()
        tasks = self.reader.partitions(start, self.checkpoint[-1])
        if not kill_in_batch:
            self.commits = len(self.checkpoint)
        return {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges if r.start < r.end}

    def committed(self):
        return self.query.committed()

    def produce(self, end):
        self.cluster.logs = {p: (0, end) for p in (P0, P1, P2)}
        self.query.clock.advance_ms(500)


def test_a_batch_is_committed_at_the_next_call_after_it():
    spark = Spark(startingOffsets="earliest")
    assert spark.run() == [ALL]
    assert spark.committed() == {}
    assert spark.trigger() == []
    assert spark.committed() == {P0: 10, P1: 10, P2: 10}


def test_restart_continues_from_the_checkpoint_without_a_commit():
    spark = Spark(startingOffsets="latest")
    spark.run()
    spark.produce(15)
    spark.restart()
    spark.group.commits.clear()  # expired, or never made
    assert spark.run() == [{P0: (10, 15), P1: (10, 15), P2: (10, 15)}]
    assert spark.trigger() == []
    assert spark.committed() == {P0: 15, P1: 15, P2: 15}


def test_batch_of_a_killed_reader_is_repeated_and_not_committed_before():
    spark = Spark(startingOffsets="earliest")
    assert spark.run(kill_in_batch=True) == [ALL]
    spark.restart()
    spark.produce(12)
    assert spark.run() == [ALL, {P0: (10, 12), P1: (10, 12), P2: (10, 12)}]
    assert spark.committed() == {P0: 10, P1: 10, P2: 10}
    spark.trigger()
    assert spark.committed() == {P0: 12, P1: 12, P2: 12}


def test_end_that_was_returned_is_not_taken_for_checkpointed():
    """Spark with the wrapper of availableNow calls twice before the batch."""
    spark = Spark(startingOffsets="earliest")
    first = spark.latest()
    spark.produce(20)
    assert spark.latest() == first
    assert spark.committed() == {}
    assert spark.run() == [ALL]


def test_first_position_of_a_new_query_is_committed_before_its_batch_is_read():
    spark = Spark(startingOffsets="latest")
    spark.latest()
    assert spark.committed() == {}
    spark.run()
    assert spark.committed() == {P0: 10, P1: 10, P2: 10}


def test_batch_that_was_planned_before_the_checkpoint_is_rejected_and_commits_nothing():
    spark = Spark(startingOffsets="latest")
    spark.run()
    spark.restart()
    spark.group.commits.clear()
    spark.produce(15)
    spark.latest()
    with pytest.raises(ConfigurationError, match="Set spark.sql.streaming.triggerAvailableNowWrapper.enabled to false"):
        spark.run()
    assert spark.committed() == {}


def test_records_that_the_first_batch_leaves_are_reported_once(caplog):
    spark = Spark(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    spark.run()
    spark.trigger()
    (line,) = [message for message in caplog.messages if "availableNow" in message]
    assert "leave 24 of the available records" in line and "run_available_now(writer)" in line
    # with a state, the next batch would emit the windows that this one completes
    assert "without a commit, and without the windows that this batch completes" in line


def test_first_batch_that_leaves_nothing_is_no_warning(caplog):
    with caplog.at_level("INFO"):
        Spark(startingOffsets="earliest", maxOffsetsPerTrigger="30").run()
    (line,) = [record for record in caplog.records if "availableNow" in record.message]
    assert line.levelname == "INFO"
    assert "without a commit, which the next run makes, and without the windows" in line.message


def test_limits_apply_to_each_batch():
    spark = Spark(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    assert [spark.run(), spark.trigger()] == [
        [{P0: (0, 2), P1: (0, 2), P2: (0, 2)}],
        [{P0: (2, 4), P1: (2, 4), P2: (2, 4)}],
    ]


def test_reset_is_followed_once_by_a_query_that_ends_before_it_commits():
    spark = Spark(startingOffsets="earliest")
    spark.run()
    spark.trigger()
    spark.group.commits = {p: OffsetAndMetadata(4) for p in (P0, P1, P2)}
    spark.restart()
    assert spark.run() == [{P0: (4, 10), P1: (4, 10), P2: (4, 10)}]
    spark.restart()
    assert spark.run() == []
    assert spark.committed() == {P0: 10, P1: 10, P2: 10}


def test_query_without_an_assignment_waits_for_one():
    spark = Spark(startingOffsets="earliest")
    latest_offset = spark.reader._process.latest_offset  # private, as above
    spark.reader._process.latest_offset = lambda start, limits: {}
    assert spark.latest() == spark.latest() == {}
    spark.reader._process.latest_offset = latest_offset
    assert spark.run() == [ALL]


@pytest.mark.parametrize("is_reader_process", [False, True])
def test_reader_process_opens_before_the_first_call(monkeypatch, is_reader_process):
    """Co-readers find each other; the other copies of the reader open nothing."""
    opened = []
    monkeypatch.setattr(InferringStreamReader, "_open", lambda reader: opened.append(reader))
    if is_reader_process:
        name = "pyspark.sql.streaming.python_streaming_source_runner"
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=name))
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"}
    InferringStreamReader(parse_options(options, "stream"), SelectedColumns(("value",)), 1)
    assert len(opened) == is_reader_process
