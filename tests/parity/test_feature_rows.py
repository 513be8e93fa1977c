"""Every option and rule of Spark's Kafka source, on both clusters.

Readers are called directly, without Spark, so a row takes milliseconds. test_same_frames.py compares the frames with
those of Spark's Kafka source.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from support.direct_readers import BatchQuery, StreamQuery
from support.sample_topics import FIRST_MS, headers, times, trimmed
from support.spark_features import needs_admission_control
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource.errors import ConfigurationError, DataLossError
from spark_groupsource.source.options.source_options import OPTIONS
from spark_groupsource.source.options.value_options import VALUE_OPTIONS

ALL = {0: (0, 40), 1: (0, 20)}
LATER = str(FIRST_MS + 10_000)
NEVER = "99999999999999"
LATEST_THEN = {"startingOffsetsByTimestampStrategy": "latest"}

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(scope="session")
def filled(cluster):
    """Partition 0: 40 records, 1: 20, 2: none; timestamps one second apart from FIRST_MS."""
    topic = f"rows-{uuid4().hex[:8]}"
    times(cluster.bootstrap_servers, topic)
    return topic


def ranges(found):
    """partition -> (first, last + 1); each offset once, without a gap."""
    offsets = {}
    for row in found:
        offsets.setdefault(row["partition"], []).append(row["offset"])
    assert all(sorted(seen) == list(range(min(seen), max(seen) + 1)) for seen in offsets.values())
    return {p: (min(seen), max(seen) + 1) for p, seen in sorted(offsets.items())}


# (option or rule, options, expected ranges); T is the name of the topic
BOTH_QUERIES = [
    ("subscribe", {"subscribe": " T ,, T"}, ALL),
    ("subscribePattern", {"subscribePattern": "T|nothing"}, ALL),
    ("subscribePattern", {"subscribePattern": "(?x) T  # Python's dialect"}, ALL),
    ("subscribePattern", {"subscribePattern": "^ow.*"}, {}),  # within the name only
    ("assign", {"assign": '{"T":[1,2]}'}, {1: (0, 20)}),
    ("startingOffsets", {"startingOffsets": "EARLIEST"}, ALL),
    ("startingOffsets", {"startingOffsets": '{"T":{"0":38,"1":-2,"2":0}}'}, {0: (38, 40), 1: (0, 20)}),
    ("startingOffsets", {"startingOffsets": '{"T":"earliest"}'}, ALL),
    ("startingTimestamp", {"startingTimestamp": LATER, **LATEST_THEN}, {0: (10, 40), 1: (10, 20)}),
    ("startingTimestamp", {"startingTimestamp": NEVER, **LATEST_THEN}, {}),
    ("startingTimestamp", {"startingTimestamp": LATER, "startingOffsets": '{"T":{"0":1,"1":1,"2":0}}',
                           "startingOffsetsByTimestamp": '{"T":{"0":1,"1":1,"2":1}}', **LATEST_THEN},
     {0: (10, 40), 1: (10, 20)}),
    ("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": f'{{"T":{{"0":{LATER},"1":0,"2":0}}}}',
                                    "startingOffsets": '{"T":{"0":1,"1":1,"2":0}}', **LATEST_THEN},
     {0: (10, 40), 1: (0, 20)}),
    ("startingOffsetsByTimestampStrategy", {"startingTimestamp": LATER, "startingOffsetsByTimestampStrategy": "Latest"},
     {0: (10, 40), 1: (10, 20)}),
    ("groupIdPrefix", {"groupIdPrefix": "mine"}, ALL),
    ("kafkaConsumer.pollTimeoutMs", {"kafkaConsumer.pollTimeoutMs": "5000"}, ALL),
    ("fetchOffset.numRetries", {"fetchOffset.numRetries": "0"}, ALL),
    ("fetchOffset.retryIntervalMs", {"fetchOffset.retryIntervalMs": "0"}, ALL),
    ("failOnDataLoss", {"failOnDataLoss": "FALSE"}, ALL),
    ("case", {"SUBSCRIBE": "T", "StartingoffSETS": "earliest", "INCLUDEHEADERS": "true"}, ALL),
    ("kafka.*", {"kafka.isolation.level": "read_committed", "kafka.max.partition.fetch.bytes": "500",
                 "kafka.client.id": "rows", "kafka.fetch.min.bytes": "1"}, ALL),
]  # fmt: skip

BATCH_ONLY = [
    ("startingOffsets", {}, ALL),
    ("endingOffsets", {"endingOffsets": "latest"}, ALL),
    ("endingOffsets", {"endingOffsets": '{"T":{"0":3,"1":-1,"2":0}}'}, {0: (0, 3), 1: (0, 20)}),
    ("endingTimestamp", {"endingTimestamp": LATER}, {0: (0, 10), 1: (0, 10)}),
    ("endingTimestamp", {"endingTimestamp": NEVER}, ALL),
    ("endingOffsetsByTimestamp", {"endingOffsetsByTimestamp": f'{{"T":{{"0":{LATER},"1":{NEVER},"2":0}}}}'},
     {0: (0, 10), 1: (0, 20)}),
    ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "5"}, ALL),
    ("minOffsetsPerTrigger", {"minOffsetsPerTrigger": "500", "maxTriggerDelay": "1h"}, ALL),
]  # fmt: skip

STREAM_ONLY = [
    ("startingOffsets", {}, {}),
    ("startingOffsets", {"startingOffsets": "latest"}, {}),
    ("startingOffsets", {"startingOffsets": '{"T":{"0":-1,"1":15,"2":-2}}'}, {1: (15, 20)}),
    ("maxOffsetsPerTrigger", {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25"}, ALL),
    ("minOffsetsPerTrigger", {"startingOffsets": "earliest", "minOffsetsPerTrigger": "60"}, ALL),
]


def named(topic, options):
    """Returns the options of a row with the topic's name; subscribes to the topic if the row has no subscription."""
    given = {name: re.sub(r"\bT\b", topic, text) for name, text in options.items()}
    chosen = {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in given}
    return given if chosen else {"subscribe": topic, **given}


def ids(table):
    return [f"{row[0]}-{number}" for number, row in enumerate(table)]


@pytest.mark.parametrize("row", BOTH_QUERIES + BATCH_ONLY, ids=ids(BOTH_QUERIES + BATCH_ONLY))
def test_batch_read(cluster, filled, row):
    assert ranges(BatchQuery(cluster, named(filled, row[1])).rows) == row[2]


@pytest.mark.parametrize("row", BOTH_QUERIES + STREAM_ONLY, ids=ids(BOTH_QUERIES + STREAM_ONLY))
def test_stream(cluster, filled, row):
    options = named(filled, row[1])
    if row in BOTH_QUERIES and not any("start" in name.lower() for name in options):
        options["startingOffsets"] = "earliest"
    with StreamQuery(cluster, options) as query:
        query.run()
        assert ranges(query.rows) == row[2]
        if "maxOffsetsPerTrigger" in options:
            assert query.sizes == [25, 25, 10]


@pytest.mark.parametrize("query", [BatchQuery, StreamQuery])
def test_tasks_are_split(cluster, filled, query):
    def tasks(**options):
        made = query(cluster, {"subscribe": filled, "startingOffsets": "earliest", **options})
        if query is StreamQuery:
            with made:
                made.run()
        assert ranges(made.rows) == ALL
        return [sum(r.end - r.start for r in part.ranges) for part in made.tasks]

    assert len(tasks(minPartitions="10")) in (10, 11)
    assert max(tasks(maxRecordsPerPartition="7")) <= 7


@pytest.mark.parametrize(
    "options",
    [{"startingTimestamp": NEVER}, {"startingOffsetsByTimestamp": f'{{"T":{{"0":0,"1":0,"2":{NEVER}}}}}'}],
)
def test_timestamp_without_a_record_is_an_error_by_default(cluster, filled, options):
    with pytest.raises(ConfigurationError, match="no record at or after the given time"):
        BatchQuery(cluster, named(filled, options))
    with StreamQuery(cluster, named(filled, options)) as query:
        with pytest.raises(ConfigurationError, match="no record at or after the given time"):
            query.trigger()


def test_include_headers(cluster, topic):
    headers(cluster.bootstrap_servers, topic)
    found = BatchQuery(cluster, {"subscribe": topic, "includeHeaders": "true"}).rows
    by_value = {row["value"]: [(h["key"], h["value"]) for h in row["headers"] or ()] for row in found}
    assert by_value[b"3"] == [("a", None), ("a", b""), ("", b"x")] and by_value[b"0"] == []
    assert [row["headers"] for row in found if row["value"] in (b"0", b"1")] == [None, None]
    assert "headers" not in BatchQuery(cluster, {"subscribe": topic}).rows[0]


@needs_admission_control
def test_offset_json_has_the_format_of_sparks_source(cluster, filled):
    with StreamQuery(cluster, {"subscribe": filled, "startingOffsets": "earliest"}) as query:
        query.run()
        assert {**query.start, "@group": None} == {filled: {"0": 40, "1": 20, "2": 0}, "@group": None}
        assert query.reader.reportLatestOffset() == {filled: {"0": 40, "1": 20, "2": 0}}


def test_added_partition_starts_at_earliest(cluster, topic):
    create_topic(cluster.bootstrap_servers, topic)
    options = {"subscribe": topic, "startingOffsets": "latest", "kafka.metadata.max.age.ms": "100"}
    with StreamQuery(cluster, options) as query:
        query.trigger()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        wait_until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2, "it exists")
        produce(cluster.bootstrap_servers, topic, [(1, None, b"%d" % n) for n in range(10)])
        wait_until(lambda: query.trigger() or query.rows, "the new partition is read")
        assert ranges(query.run().rows) == {1: (0, 10)}


def test_new_topic_that_matches_the_pattern_is_read(cluster, topic):
    create_topic(cluster.bootstrap_servers, f"{topic}.a")
    options = {"subscribePattern": f"{topic}\\.[ab]", "startingOffsets": "latest", "kafka.metadata.max.age.ms": "100"}
    with StreamQuery(cluster, options) as query:
        query.trigger()
        for name in "bc":
            create_topic(cluster.bootstrap_servers, f"{topic}.{name}")
            produce(cluster.bootstrap_servers, f"{topic}.{name}", [(0, None, b"%d" % n) for n in range(10)])
        wait_until(lambda: query.trigger() or query.rows, "the new topic is read")
        query.run()
        assert {row["topic"] for row in query.rows} == {f"{topic}.b"} and len(query.rows) == 10


@pytest.mark.slow
@pytest.mark.parametrize("fails", [True, False])
def test_data_loss_has_the_error_class_of_sparks_source(cluster, topic, fails):
    servers = cluster.bootstrap_servers
    trimmed(servers, topic)
    options = {"subscribe": topic, "failOnDataLoss": str(fails).lower()}
    starts = {"startingOffsets": json.dumps({topic: {"0": 3, "1": 40, "2": 0}})}
    ends = {"endingOffsets": json.dumps({topic: {"0": 20, "1": 40, "2": 50}})}
    late = StreamQuery(cluster, {**options, "startingOffsets": "earliest"})

    def recreated():
        with late:
            late.run()
            delete_topic(servers, topic)
            create_topic(servers, topic, 3)
            produce(servers, topic, [(2, None, b"new")])
            late.trigger()
        return late

    for name, read in (
        ("START_OFFSET_RESET", lambda: BatchQuery(cluster, {**options, **starts})),
        ("COULD_NOT_READ_OFFSET_RANGE", lambda: BatchQuery(cluster, {**options, **ends})),
        ("PARTITION_OFFSET_CHANGED|PARTITIONS_DELETED", recreated),
    ):
        if fails:
            with pytest.raises(DataLossError, match=f"KAFKA_DATA_LOSS.({name})"):
                read()
        else:
            assert read().rows


OTHER_TESTS = {
    "maxTriggerDelay": "source/test_session.py::test_min_offsets_is_waited_for_until_max_trigger_delay",
    "members": "source/test_stream.py::test_idle_stream_commits_and_shows_its_members",
    "kafka.* refused": "source/test_source_options.py::test_invalid_options_are_rejected_by_name",
    "PARTITIONS_DELETED": "source/test_session.py::test_deleted_partition_is_data_loss",
    "triggers": "parity/test_same_frames.py::test_trigger_once_ignores_max_offsets_per_trigger",
    "processingTime": "source/test_stream.py::test_drain_does_not_wait_for_a_long_trigger",
    "aborted transactions": "parity/test_same_frames.py::test_aborted_transactions",
    "schema": "parity/test_same_frames.py::test_schemas_are_equal_in_names_types_and_nullability",
    "minPartitions": "parity/test_feature_rows.py::test_tasks_are_split",
    "maxRecordsPerPartition": "parity/test_feature_rows.py::test_tasks_are_split",
    "includeHeaders": "parity/test_feature_rows.py::test_include_headers",
}
"""Option or rule without a row above -> its test."""

BEYOND_SPARK = {
    "group.id", "members", "maxOutage", "onGroupAhead", "onGroupReset", "rebalanceLog", "rebalanceListener",
    "maxBytesPerTrigger", "splitBetweenQueries", *(option.name for option in VALUE_OPTIONS.values()),
}  # fmt: skip


def test_every_option_of_sparks_source_has_a_row():
    rows_of = {row[0] for row in BOTH_QUERIES + BATCH_ONLY + STREAM_ONLY} | set(OTHER_TESTS)
    assert {option.name for option in OPTIONS.values()} - BEYOND_SPARK - rows_of == set()
    tests = Path(__file__).parent.parent
    for test in OTHER_TESTS.values():
        path, name = test.split("::")
        assert f"def {name}(" in (tests / path).read_text(), test
