"""The same job through Spark's own Kafka source and through ours gives equal data frames."""

from __future__ import annotations

import json

import pytest
from rival import OURS, THEIRS, Rivals, add_connector, check_equal, positions_only
from zoo import FIRST_MS, TOPICS, transactions

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("include_headers", ["false", "true"])
def test_schemas_are_equal_in_names_types_and_nullability(rivals, zoo, include_headers):
    options = {"subscribe": zoo["empty"], "includeHeaders": include_headers}
    assert rivals.read(OURS, options).schema == rivals.read(THEIRS, options).schema
    streams = [
        rivals.spark.readStream.format(source)
        .options(**options, **{"kafka.bootstrap.servers": rivals.bootstrap_servers, "kafka.group.id": "never-joined"})
        .load()
        .schema
        for source in (OURS, THEIRS)
    ]
    assert streams[0] == streams[1]


@pytest.mark.parametrize("kind", TOPICS)
def test_batch_read_of_every_kind_of_topic(rivals, zoo, kind):
    ours = rivals.check_batch(subscribe=zoo[kind], includeHeaders="true")
    assert ours.isEmpty() == (kind == "empty")


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_aborted_transactions(spark, cluster, topic, tmp_path, level):
    add_connector(spark)
    rivals = Rivals(spark, cluster.bootstrap_servers, tmp_path)
    transactions(cluster.bootstrap_servers, topic)
    ours = rivals.check_batch(subscribe=topic, **{"kafka.isolation.level": level})
    words = {bytes(row.value).split()[0] for row in ours.select("value").collect()}
    assert words == {b"kept", b"plain"} | ({b"aborted"} if level == "read_uncommitted" else set())


# T is the topic `times`: 40 and 20 records, one second apart from FIRST_MS, and an empty partition
POSITIONS = {
    "defaults": {},
    "earliest to latest": {"startingOffsets": "earliest", "endingOffsets": "latest"},
    "offsets": {"startingOffsets": {"0": 3, "1": 19, "2": 0}, "endingOffsets": {"0": 30, "1": 20, "2": 0}},
    "-2 and -1": {"startingOffsets": {"0": -2, "1": 5, "2": -2}, "endingOffsets": {"0": -1, "1": 6, "2": -1}},
    "nothing": {"startingOffsets": {"0": 7, "1": 0, "2": 0}, "endingOffsets": {"0": 7, "1": 0, "2": 0}},
    "startingTimestamp": {"startingTimestamp": 4500, "startingOffsetsByTimestampStrategy": "latest"},
    "endingTimestamp": {"endingTimestamp": 25_000},
    "endingTimestamp before all": {"endingTimestamp": -1},
    "startingOffsetsByTimestamp": {
        "startingOffsetsByTimestamp": {"0": 10_000, "1": 99_000, "2": 0},
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "endingOffsetsByTimestamp": {"endingOffsetsByTimestamp": {"0": 10_000, "1": 99_000, "2": 0}},
    "timestamps before offsets": {
        "startingOffsets": {"0": 39, "1": 19, "2": 0},
        "startingOffsetsByTimestamp": {"0": 0, "1": 1000, "2": 0},
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsets": {"0": 1, "1": 1, "2": 0},
        "endingOffsetsByTimestamp": {"0": 5000, "1": 5000, "2": 0},
    },
    "one timestamp before all": {
        "startingTimestamp": 6000,
        "startingOffsetsByTimestamp": {"0": 0, "1": 0, "2": 0},
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": 9000,
        "endingOffsetsByTimestamp": {"0": 99_000, "1": 99_000, "2": 0},
    },
    "minPartitions": {"minPartitions": 7},
    "maxRecordsPerPartition": {"maxRecordsPerPartition": 6},
}


def positions(topic, options):
    """The options of a row of POSITIONS as texts: offsets by topic, times as epoch ms."""
    texts = {}
    for name, value in options.items():
        if "Timestamp" in name and isinstance(value, int):
            value = FIRST_MS + value
        if isinstance(value, dict):
            shift = FIRST_MS if "Timestamp" in name else 0
            value = json.dumps({topic: {partition: shift + number for partition, number in value.items()}})
        texts[name] = str(value)
    return texts


@pytest.mark.parametrize("case", POSITIONS)
def test_batch_positions_in_every_form(rivals, zoo, case):
    rivals.check_batch(subscribe=zoo["times"], **positions(zoo["times"], POSITIONS[case]))


def test_batch_read_of_several_topics_by_every_kind_of_subscription(rivals, zoo):
    names = [zoo[kind] for kind in ("nulls", "times", "empty")]
    assert rivals.check_batch(subscribe=f" {names[0]} ,{names[1]},, {names[2]}").count() == 64 + 60
    assert rivals.check_batch(subscribePattern=f"{names[0]}|t.mes-.*").count() == 64 + 60
    assigned = rivals.check_batch(assign=json.dumps({names[0]: [1], names[1]: [2, 0]}))
    assert assigned.count() == 32 + 40


def test_stream_reads_what_is_there(rivals, zoo):
    kinds = ("nulls", "headers", "empty", "compacted", "codecs", "log_append_time", "times", "trimmed", "transactions")
    names = [zoo[kind] for kind in kinds]
    options = {"includeHeaders": "true", "kafka.isolation.level": "read_committed"}
    theirs, ours = rivals.check_stream(subscribe=",".join(names), startingOffsets="earliest", **options)
    for name in ("endOffset", "latestOffset", "numInputRows"):
        found = ours.batches[-1][name]
        assert (positions_only(found) if name == "endOffset" else found) == theirs.batches[-1][name]


def test_stream_of_large_values_and_many_partitions(rivals, zoo):
    names = [zoo["large_values"], zoo["many_partitions"]]
    rivals.check_stream(subscribe=",".join(names), startingOffsets="earliest")


STREAM_POSITIONS = {
    "latest": {"startingOffsets": "latest"},
    "offsets": {"startingOffsets": {"0": 3, "1": -1, "2": -2}},
    "startingTimestamp": {"startingTimestamp": 4500, "startingOffsetsByTimestampStrategy": "latest"},
    "startingOffsetsByTimestamp": {
        "startingOffsetsByTimestamp": {"0": 10_000, "1": 99_000, "2": 0},
        "startingOffsetsByTimestampStrategy": "latest",
    },
}


@pytest.mark.parametrize("case", STREAM_POSITIONS)
def test_stream_positions_in_every_form(rivals, zoo, case):
    rivals.check_stream(subscribe=zoo["times"], **positions(zoo["times"], STREAM_POSITIONS[case]))


def test_assigned_partitions_are_streamed_alike(rivals, zoo):
    rivals.check_stream(assign=json.dumps({zoo["times"]: [0, 2]}), startingOffsets="earliest")


def test_limit_gives_batches_of_the_same_size(rivals, zoo):
    options = {"subscribe": zoo["codecs"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5000"}
    theirs, ours = rivals.check_stream(**options)
    assert [b["numInputRows"] for b in ours.batches] == [b["numInputRows"] for b in theirs.batches] == [5000] * 3
    assert [positions_only(b["endOffset"]) for b in ours.batches] == [b["endOffset"] for b in theirs.batches]


def test_trigger_once_reads_everything_in_spite_of_the_limit(rivals, zoo):
    options = {"subscribe": zoo["times"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"}
    theirs, ours = (rivals.stream(source, options, trigger={"once": True}) for source in (THEIRS, OURS))
    check_equal(theirs.frame, ours.frame)
    assert [b["numInputRows"] for b in ours.batches] == [b["numInputRows"] for b in theirs.batches] == [60]


def test_checkpoint_of_sparks_own_source_is_continued(rivals, zoo):
    whole = {"subscribe": zoo["times"], "startingOffsets": "earliest"}
    home = rivals.directory / "moved"
    rivals.stream(THEIRS, {**whole, "startingOffsets": json.dumps({zoo["times"]: {"0": 0, "1": 0, "2": 0}})},
                  checkpoint=home, trigger={"availableNow": True})  # fmt: skip
    moved = rivals.stream(OURS, whole, checkpoint=home)
    assert moved.batches == []
    check_equal(rivals.read(THEIRS, {"subscribe": zoo["times"]}), moved.frame)
