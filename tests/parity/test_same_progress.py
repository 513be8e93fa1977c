"""Progress reports, pacing and data loss compared with Spark's Kafka source."""

from __future__ import annotations

import json
import re

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.both_sources import GROUP_SOURCE, SPARK_SOURCE, Run, check_equal, positions_only
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

BOTH = (SPARK_SOURCE, GROUP_SOURCE)


def fill(sources, topic, count, first=0):
    rows = ((n % 2, None, b"%d" % n) for n in range(first, first + count))
    produce(sources.bootstrap_servers, topic, rows)


@pytest.fixture
def filled(sources, topic):
    create_topic(sources.bootstrap_servers, topic, 2)
    fill(sources, topic, 60)
    return topic


def test_progress_reports_and_checkpoints_have_the_same_offsets(sources, filled, tmp_path):
    options = {"subscribe": filled, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    expected, actual = sources.check_stream(options, checkpoint=tmp_path)
    assert len(actual.batches) == len(expected.batches) == 3
    for mine, other in zip(actual.batches, expected.batches, strict=True):
        assert positions_only(mine["endOffset"]) == other["endOffset"]
        assert mine["latestOffset"] == other["latestOffset"] == {filled: {"0": 30, "1": 30}}
        assert mine["numInputRows"] == other["numInputRows"] == 20
    assert expected.batches[0]["startOffset"] is actual.batches[0]["startOffset"] is None
    for mine, other in zip(actual.batches[1:], expected.batches[1:], strict=True):
        assert positions_only(mine["startOffset"]) == other["startOffset"]
    # Spark does not request metrics from a Python source
    assert set(expected.batches[-1]["metrics"]) >= {"maxOffsetsBehindLatest"} and "metrics" not in actual.batches[-1]

    for batch, end in enumerate((10, 20, 30)):
        logs = (tmp_path / source / "checkpoint" / "offsets" / str(batch) for source in BOTH)
        other, mine = (json.loads(path.read_text().splitlines()[2]) for path in logs)
        assert positions_only(mine) == other == {filled: {"0": end, "1": end}}


class RunningStream:
    """A stream that runs until stopped; `sizes` are the numbers of rows of its batches so far."""

    def __init__(self, sources, source, **options):
        reader = sources.spark.readStream.format(source).option("kafka.bootstrap.servers", sources.bootstrap_servers)
        if source == GROUP_SOURCE:
            reader = reader.option("kafka.group.id", f"g-{sources.directory.name}")
        self.directory = sources.directory / f"open-{source}"
        frame = reader.options(startingOffsets="earliest", **options).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.directory / "rows"))
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        self.query = writer.trigger(processingTime="200 milliseconds").start()
        self.run = Run(sources.spark.read.schema(frame.schema), self.query)

    @property
    def sizes(self):
        assert self.query.isActive, self.query.exception()
        return [batch["numInputRows"] for batch in self.run.batches]

    @property
    def frame(self):
        return self.run.frame.parquet(str(self.directory / "rows"))


def test_min_offsets_per_trigger_delays_the_batch(sources, filled):
    options = {"subscribe": filled, "MINOFFSETSPERTRIGGER": "50"}
    streams = [RunningStream(sources, source, **options) for source in BOTH]
    try:
        for stream in streams:
            wait_until(lambda s=stream: s.sizes == [60], "the first batch", 60)
        fill(sources, filled, 10, 60)
        fill(sources, filled, 45, 70)
        for stream in streams:
            wait_until(lambda s=stream: s.sizes == [60, 55], "the second batch", 60)
        check_equal(*(stream.frame for stream in streams))
    finally:
        for stream in streams:
            stream.query.stop()


# test_session.py has the delay without Spark
@pytest.mark.soak
def test_max_trigger_delay_ends_the_wait_for_min_offsets(sources, filled):
    streams = [
        RunningStream(sources, source, subscribe=filled, minOffsetsPerTrigger="50", maxTriggerDelay="1s")
        for source in BOTH
    ]
    try:
        for stream in streams:
            wait_until(lambda s=stream: s.sizes == [60], "the first batch", 60)
        fill(sources, filled, 10, 60)
        for stream in streams:
            wait_until(lambda s=stream: sum(s.sizes) == 70, "the second batch", 60)
        check_equal(*(stream.frame for stream in streams))
    finally:
        for stream in streams:
            stream.query.stop()


@pytest.mark.soak
def test_split_tasks_read_the_same_rows(sources, filled):
    options = {"subscribe": filled, "startingOffsets": "earliest"}
    # test_same_frames.py does the same with batch reads
    sources.check_stream({**options, "minPartitions": "7"}, {**options, "maxRecordsPerPartition": "9"})


def stream_with_data_loss(sources, topic, source, lose):
    """Runs a stream and deletes records by `lose`; returns a function that runs it again with more options."""
    directory = sources.directory / source
    create_topic(sources.bootstrap_servers, topic, 2)
    fill(sources, topic, 60)
    given = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": f"g-{topic}"}
    sources.stream(source, given, checkpoint=directory)
    fill(sources, topic, 20, 60)
    lose(sources, topic)
    fill(sources, topic, 4, 80)
    return lambda **options: sources.stream(source, {**given, **options}, checkpoint=directory)


def trim(sources, topic):
    admin = AdminClient({"bootstrap.servers": sources.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 35)]).values():
        future.result(30)


def recreate_shorter(sources, topic):
    delete_topic(sources.bootstrap_servers, topic)
    create_topic(sources.bootstrap_servers, topic, 2)


def check_failure(run_again, error):
    with pytest.raises(Exception) as raised:
        run_again()
    assert re.search(error, str(raised.value)), str(raised.value)[:2000]


def test_missing_records_fail_both_sources_and_are_skipped_without_fail_on_data_loss(sources, topic):
    # the driver cannot read the task's error: its class is in a jar that was added at run time
    errors = ("Job aborted due to stage failure", r"KAFKA_DATA_LOSS\.START_OFFSET_RESET")
    found = {}
    for source, error in zip(BOTH, errors):
        again = stream_with_data_loss(sources, f"{topic}-{source}", source, trim)
        check_failure(again, error)
        frame = again(failOnDataLoss="false").frame
        found[source] = sorted(int(row.value) for row in frame.select("value").collect())
    assert found[GROUP_SOURCE] == found[SPARK_SOURCE] == sorted({*range(84)} - {n for n in range(60, 70, 2)})


def test_recreated_topic_fails_both_sources(sources, topic):
    # Spark's source compares offsets, groupsource compares topic ids
    errors = ("offset was changed from 30 to 2", r"KAFKA_DATA_LOSS\.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT")
    for source, error in zip(BOTH, errors):
        check_failure(stream_with_data_loss(sources, f"{topic}-{source}", source, recreate_shorter), error)
