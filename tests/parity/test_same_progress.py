"""What a stream tells of itself and how it is paced: the same through Spark's Kafka source and through ours."""

from __future__ import annotations

import json
import re

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from rival import OURS, THEIRS, Run, check_equal, positions_only
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

BOTH = (THEIRS, OURS)


def fill(rivals, topic, count, first=0):
    rows = ((n % 2, None, b"%d" % n) for n in range(first, first + count))
    produce(rivals.bootstrap_servers, topic, rows)


@pytest.fixture
def filled(rivals, topic):
    create_topic(rivals.bootstrap_servers, topic, 2)
    fill(rivals, topic, 60)
    return topic


def test_each_batch_names_the_same_offsets(rivals, filled):
    options = {"subscribe": filled, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    theirs, ours = rivals.check_stream(**options)
    assert len(ours.batches) == len(theirs.batches) == 3
    for mine, other in zip(ours.batches, theirs.batches, strict=True):
        assert positions_only(mine["endOffset"]) == other["endOffset"]
        assert mine["latestOffset"] == other["latestOffset"] == {filled: {"0": 30, "1": 30}}
        assert mine["numInputRows"] == other["numInputRows"] == 20
    assert theirs.batches[0]["startOffset"] is ours.batches[0]["startOffset"] is None
    for mine, other in zip(ours.batches[1:], theirs.batches[1:], strict=True):
        assert positions_only(mine["startOffset"]) == other["startOffset"]
    # Spark asks no Python source for metrics
    assert set(theirs.batches[-1]["metrics"]) >= {"maxOffsetsBehindLatest"} and "metrics" not in ours.batches[-1]


def test_checkpoints_hold_the_same_positions(rivals, filled):
    told = {}
    for source in BOTH:
        home = rivals.directory / source
        rivals.stream(source, {"subscribe": filled, "startingOffsets": "earliest"}, checkpoint=home)
        told[source] = json.loads((home / "checkpoint" / "offsets" / "0").read_text().splitlines()[2])
    assert positions_only(told[OURS]) == told[THEIRS] == {filled: {"0": 30, "1": 30}}


class Open:
    """A stream that goes on until it is left; `sizes` are the rows of its batches so far."""

    def __init__(self, rivals, source, **options):
        reader = rivals.spark.readStream.format(source).option("kafka.bootstrap.servers", rivals.bootstrap_servers)
        if source == OURS:
            reader = reader.option("kafka.group.id", f"g-{rivals.directory.name}")
        self.home = rivals.directory / f"open-{source}"
        frame = reader.options(startingOffsets="earliest", **options).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.home / "rows"))
        writer = writer.option("checkpointLocation", str(self.home / "checkpoint"))
        self.query = writer.trigger(processingTime="200 milliseconds").start()
        self.run = Run(rivals.spark.read.schema(frame.schema), self.query)

    @property
    def sizes(self):
        assert self.query.isActive, self.query.exception()
        return [batch["numInputRows"] for batch in self.run.batches]

    @property
    def frame(self):
        return self.run.frame.parquet(str(self.home / "rows"))


def test_minimum_is_waited_for_and_a_shorter_delay_is_not(rivals, filled):
    options = {"subscribe": filled, "MINOFFSETSPERTRIGGER": "50"}
    patient = [Open(rivals, source, **options) for source in BOTH]
    try:
        for stream in patient:
            wait_until(lambda s=stream: s.sizes == [60], "the first batch", 60)
        fill(rivals, filled, 10, 60)
        fill(rivals, filled, 45, 70)
        for stream in patient:
            wait_until(lambda s=stream: s.sizes == [60, 55], "the second batch", 60)
        check_equal(*(stream.frame for stream in patient))
    finally:
        for stream in patient:
            stream.query.stop()


def test_delay_ends_the_wait_for_the_minimum(rivals, filled):
    hasty = [
        Open(rivals, source, subscribe=filled, minOffsetsPerTrigger="50", maxTriggerDelay="1s") for source in BOTH
    ]
    try:
        for stream in hasty:
            wait_until(lambda s=stream: s.sizes == [60], "the first batch", 60)
        fill(rivals, filled, 10, 60)
        for stream in hasty:
            wait_until(lambda s=stream: sum(s.sizes) == 70, "the second batch", 60)
        check_equal(*(stream.frame for stream in hasty))
    finally:
        for stream in hasty:
            stream.query.stop()


def test_tasks_are_split_without_a_difference(rivals, filled):
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "9"}):
        rivals.check_batch(subscribe=filled, **options)
        rivals.check_stream(subscribe=filled, startingOffsets="earliest", **options)


def losing(rivals, topic, source, lose, after, **options):
    """A stream that is run, then loses records, then is run again."""
    home = rivals.directory / source
    create_topic(rivals.bootstrap_servers, topic, 2)
    fill(rivals, topic, 60)
    given = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": f"g-{topic}", **options}
    rivals.stream(source, given, checkpoint=home)
    fill(rivals, topic, 20, 60)
    lose(rivals, topic)
    fill(rivals, topic, after, 80)
    return lambda: rivals.stream(source, given, checkpoint=home)


def trim(rivals, topic):
    admin = AdminClient({"bootstrap.servers": rivals.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 35)]).values():
        future.result(30)


def make_shorter(rivals, topic):
    delete_topic(rivals.bootstrap_servers, topic)
    create_topic(rivals.bootstrap_servers, topic, 2)


@pytest.mark.parametrize(
    "lose, theirs, ours",
    [
        # the classes of a jar that was added later are not known where Spark reads the error of a task
        (trim, "Job aborted due to stage failure", r"KAFKA_DATA_LOSS\.START_OFFSET_RESET"),
        # Spark's source sees the length alone, ours that the topic is another one
        (
            make_shorter,
            "offset was changed from 30 to 2",
            r"KAFKA_DATA_LOSS\.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT",
        ),
    ],
    ids=["trimmed", "made anew"],
)
def test_lost_records_fail_both(rivals, topic, lose, theirs, ours):
    for source, name in ((THEIRS, theirs), (OURS, ours)):
        again = losing(rivals, f"{topic}-{source}", source, lose, 4)
        with pytest.raises(Exception) as raised:
            again()
        assert re.search(name, str(raised.value)), str(raised.value)[:2000]


def test_lost_records_are_left_out_by_both(rivals, topic):
    found = {}
    for source in BOTH:
        again = losing(rivals, f"{topic}-{source}", source, trim, 4, failOnDataLoss="false")
        found[source] = sorted(int(row.value) for row in again().frame.select("value").collect())
    assert found[OURS] == found[THEIRS] == sorted({*range(84)} - {n for n in range(60, 70, 2)})
