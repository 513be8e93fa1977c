"""Spark's Kafka source and groupsource return equal data frames."""

from __future__ import annotations

import json

import pytest
from support.both_sources import GROUP_SOURCE, SPARK_SOURCE, BothSources, add_connector, check_equal, positions_only
from support.sample_topics import FIRST_MS, TOPICS, transactions

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("include_headers", ["false", "true"])
def test_schemas_are_equal_in_names_types_and_nullability(sources, samples, include_headers):
    options = {"subscribe": samples["empty"], "includeHeaders": include_headers}
    assert sources.read(GROUP_SOURCE, options).schema == sources.read(SPARK_SOURCE, options).schema
    streams = [
        sources.spark.readStream.format(source)
        .options(**options, **{"kafka.bootstrap.servers": sources.bootstrap_servers, "kafka.group.id": "never-joined"})
        .load()
        .schema
        for source in (GROUP_SOURCE, SPARK_SOURCE)
    ]
    assert streams[0] == streams[1]


def test_batch_read_of_every_kind_of_topic(sources, samples):
    found = sources.check_batch(*({"subscribe": samples[kind], "includeHeaders": "true"} for kind in TOPICS))
    assert [kind for kind, rows in zip(TOPICS, found) if not rows] == ["empty"]


def test_aborted_transactions(spark, cluster, topic, tmp_path):
    add_connector(spark)
    sources = BothSources(spark, cluster.bootstrap_servers, tmp_path)
    transactions(cluster.bootstrap_servers, topic)
    levels = ("read_committed", "read_uncommitted")
    found = sources.check_batch(*({"subscribe": topic, "kafka.isolation.level": level} for level in levels))
    committed, all_ = ({bytes(row.value).split()[0] for row in rows} for rows in found)
    assert committed == {b"kept", b"plain"} and all_ == {b"kept", b"plain", b"aborted"}


# of the topic `times`: 40 and 20 records, one second apart from FIRST_MS, and an empty partition
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
    """Returns the options of a row of POSITIONS as texts: offsets by topic, times as epoch ms."""
    texts = {}
    for name, value in options.items():
        if "Timestamp" in name and isinstance(value, int):
            value = FIRST_MS + value
        if isinstance(value, dict):
            shift = FIRST_MS if "Timestamp" in name else 0
            value = json.dumps({topic: {partition: shift + number for partition, number in value.items()}})
        texts[name] = str(value)
    return texts


def test_batch_positions(sources, samples):
    topic = samples["times"]
    sources.check_batch(*({"subscribe": topic, **positions(topic, options)} for options in POSITIONS.values()))


def test_batch_read_of_several_topics_by_every_kind_of_subscription(sources, samples):
    names = [samples[kind] for kind in ("nulls", "times", "empty")]
    found = sources.check_batch(
        {"subscribe": f" {names[0]} ,{names[1]},, {names[2]}"},
        {"subscribePattern": f"{names[0]}|t.mes-.*"},
        {"assign": json.dumps({names[0]: [1], names[1]: [2, 0]})},
    )
    assert [len(rows) for rows in found] == [64 + 60, 64 + 60, 32 + 40]


def test_topics_whose_names_contain_a_match_of_the_pattern_are_read(sources, samples):
    part = samples["times"][1:-1]
    assert sources.read(SPARK_SOURCE, {"subscribePattern": part}).count() == 60
    for pattern in (part, f"^.{part}", f"{part}.$"):
        sources.check_batch({"subscribePattern": pattern})


def test_available_now_stream_of_every_kind_of_topic(sources, samples):
    kinds = ("nulls", "headers", "empty", "compacted", "codecs", "log_append_time", "times", "trimmed", "transactions")
    names = [samples[kind] for kind in kinds]
    options = {"includeHeaders": "true", "kafka.isolation.level": "read_committed"}
    expected, actual = sources.check_stream({"subscribe": ",".join(names), "startingOffsets": "earliest", **options})
    for name in ("endOffset", "latestOffset", "numInputRows"):
        found = actual.batches[-1][name]
        assert (positions_only(found) if name == "endOffset" else found) == expected.batches[-1][name]


@pytest.mark.soak
def test_stream_of_large_values_and_many_partitions(sources, samples):
    names = [samples["large_values"], samples["many_partitions"]]
    sources.check_stream({"subscribe": ",".join(names), "startingOffsets": "earliest"})


STREAM_POSITIONS = {
    "latest": {"startingOffsets": "latest"},
    "offsets": {"startingOffsets": {"0": 3, "1": -1, "2": -2}},
    "startingTimestamp": {"startingTimestamp": 4500, "startingOffsetsByTimestampStrategy": "latest"},
    "startingOffsetsByTimestamp": {
        "startingOffsetsByTimestamp": {"0": 10_000, "1": 99_000, "2": 0},
        "startingOffsetsByTimestampStrategy": "latest",
    },
}


# test_batch_positions has the same positions
@pytest.mark.soak
def test_stream_positions_and_assigned_partitions(sources, samples):
    topic = samples["times"]
    cases = [{"subscribe": topic, **positions(topic, options)} for options in STREAM_POSITIONS.values()]
    cases.append({"assign": json.dumps({topic: [0, 2]}), "startingOffsets": "earliest"})
    sources.check_stream(*cases)


def test_max_offsets_per_trigger_plans_equal_batches(sources, samples):
    options = {"subscribe": samples["codecs"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5000"}
    expected, actual = sources.check_stream(options)
    assert [b["numInputRows"] for b in actual.batches] == [b["numInputRows"] for b in expected.batches] == [5000] * 3
    assert [positions_only(b["endOffset"]) for b in actual.batches] == [b["endOffset"] for b in expected.batches]


@pytest.mark.soak
def test_trigger_once_ignores_max_offsets_per_trigger(sources, samples):
    options = {"subscribe": samples["times"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"}
    once = {"once": True}
    expected, actual = (sources.stream(source, options, trigger=once) for source in (SPARK_SOURCE, GROUP_SOURCE))
    check_equal(expected.frame, actual.frame)
    assert [b["numInputRows"] for b in actual.batches] == [b["numInputRows"] for b in expected.batches] == [60]


# test_migration.py moves a job
@pytest.mark.soak
def test_checkpoint_of_sparks_kafka_source_is_continued(sources, samples):
    options = {"subscribe": samples["times"], "startingOffsets": "earliest"}
    directory = sources.directory / "moved"
    starts = json.dumps({samples["times"]: {"0": 0, "1": 0, "2": 0}})
    sources.stream(SPARK_SOURCE, {**options, "startingOffsets": starts}, checkpoint=directory)
    moved = sources.stream(GROUP_SOURCE, options, checkpoint=directory)
    assert moved.batches == []
    check_equal(sources.read_all(SPARK_SOURCE, {"subscribe": samples["times"]}), moved.frame)
