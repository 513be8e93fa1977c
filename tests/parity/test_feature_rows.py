"""Every option and rule of Spark's Kafka source, a row each, on both clusters.

Readers are driven as Spark drives them, without Spark: a row costs milliseconds. That Spark's own source gives the same
frames for the same options is shown in test_same_frames.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from drive import Batch, Stream
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until
from zoo import FIRST_MS, headers, times, trimmed

from spark_groupsource.errors import ConfigurationError, DataLossError
from spark_groupsource.source.options import OPTIONS

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


# (option or rule, options, what is read); T is the name of the topic
BOTH_QUERIES = [
    ("subscribe", {"subscribe": " T ,, T"}, ALL),
    ("subscribePattern", {"subscribePattern": "T|nothing"}, ALL),
    ("subscribePattern", {"subscribePattern": "(?x) T  # Python's dialect"}, ALL),
    ("subscribePattern", {"subscribePattern": "ow.*"}, {}),  # the whole name must match
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
                 "kafka.client.id": "rows", "kafka.receive.buffer.bytes": "65536"}, ALL),
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
    """The options of a row with the topic's name; a row that does not say what to read reads the topic."""
    given = {name: re.sub(r"\bT\b", topic, text) for name, text in options.items()}
    chosen = {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in given}
    return given if chosen else {"subscribe": topic, **given}


def ids(table):
    return [f"{row[0]}-{number}" for number, row in enumerate(table)]


@pytest.mark.parametrize("row", BOTH_QUERIES + BATCH_ONLY, ids=ids(BOTH_QUERIES + BATCH_ONLY))
def test_batch_read(cluster, filled, row):
    assert ranges(Batch(cluster, named(filled, row[1])).rows) == row[2]


@pytest.mark.parametrize("row", BOTH_QUERIES + STREAM_ONLY, ids=ids(BOTH_QUERIES + STREAM_ONLY))
def test_stream(cluster, filled, row):
    options = named(filled, row[1])
    if row in BOTH_QUERIES and not any("start" in name.lower() for name in options):
        options["startingOffsets"] = "earliest"
    with Stream(cluster, options) as query:
        query.run()
        assert ranges(query.rows) == row[2]
        if "maxOffsetsPerTrigger" in options:
            assert query.sizes == [25, 25, 10]


@pytest.mark.parametrize("query", [Batch, Stream])
def test_tasks_are_split(cluster, filled, query):
    def tasks(**options):
        made = query(cluster, {"subscribe": filled, "startingOffsets": "earliest", **options})
        if query is Stream:
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
def test_no_record_at_the_time_is_an_error_unless_asked_otherwise(cluster, filled, options):
    with pytest.raises(ConfigurationError, match="no record at or after the given time"):
        Batch(cluster, named(filled, options))
    with Stream(cluster, named(filled, options)) as query:
        with pytest.raises(ConfigurationError, match="no record at or after the given time"):
            query.turn()


def test_headers_come_as_asked(cluster, topic):
    headers(cluster.bootstrap_servers, topic)
    found = Batch(cluster, {"subscribe": topic, "includeHeaders": "true"}).rows
    by_value = {row["value"]: [(h["key"], h["value"]) for h in row["headers"] or ()] for row in found}
    assert by_value[b"3"] == [("a", None), ("a", b""), ("", b"x")] and by_value[b"0"] == []
    assert [row["headers"] for row in found if row["value"] in (b"0", b"1")] == [None, None]
    assert "headers" not in Batch(cluster, {"subscribe": topic}).rows[0]


def test_offset_is_that_of_sparks_source_beside_the_group(cluster, filled):
    with Stream(cluster, {"subscribe": filled, "startingOffsets": "earliest"}) as query:
        query.run()
        assert {**query.start, "@group": None} == {filled: {"0": 40, "1": 20, "2": 0}, "@group": None}
        assert query.reader.reportLatestOffset() == {filled: {"0": 40, "1": 20, "2": 0}}


def test_partition_found_later_starts_at_earliest(cluster, topic):
    create_topic(cluster.bootstrap_servers, topic)
    options = {"subscribe": topic, "startingOffsets": "latest", "kafka.metadata.max.age.ms": "100"}
    with Stream(cluster, options) as query:
        query.turn()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        wait_until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2, "it is there")
        produce(cluster.bootstrap_servers, topic, [(1, None, b"%d" % n) for n in range(10)])
        wait_until(lambda: query.turn() or query.rows, "the new partition is read")
        assert ranges(query.run().rows) == {1: (0, 10)}


def test_topic_that_comes_to_match_the_pattern_is_picked_up(cluster, topic):
    create_topic(cluster.bootstrap_servers, f"{topic}.a")
    options = {"subscribePattern": f"{topic}\\.[ab]", "startingOffsets": "latest", "kafka.metadata.max.age.ms": "100"}
    with Stream(cluster, options) as query:
        query.turn()
        for name in "bc":
            create_topic(cluster.bootstrap_servers, f"{topic}.{name}")
            produce(cluster.bootstrap_servers, f"{topic}.{name}", [(0, None, b"%d" % n) for n in range(10)])
        wait_until(lambda: query.turn() or query.rows, "the new topic is read")
        query.run()
        assert {row["topic"] for row in query.rows} == {f"{topic}.b"} and len(query.rows) == 10


@pytest.mark.parametrize("fails", [True, False])
def test_loss_is_told_under_sparks_names(cluster, topic, fails):
    servers = cluster.bootstrap_servers
    trimmed(servers, topic)
    options = {"subscribe": topic, "failOnDataLoss": str(fails).lower()}
    starts = {"startingOffsets": json.dumps({topic: {"0": 3, "1": 40, "2": 0}})}
    ends = {"endingOffsets": json.dumps({topic: {"0": 20, "1": 40, "2": 50}})}
    late = Stream(cluster, {**options, "startingOffsets": "earliest"})

    def shrunk():
        with late:
            late.run()
            delete_topic(servers, topic)
            create_topic(servers, topic, 3)
            produce(servers, topic, [(2, None, b"new")])
            late.turn()
        return late

    for name, read in (
        ("START_OFFSET_RESET", lambda: Batch(cluster, {**options, **starts})),
        ("COULD_NOT_READ_OFFSET_RANGE", lambda: Batch(cluster, {**options, **ends})),
        ("PARTITION_OFFSET_CHANGED|PARTITIONS_DELETED", shrunk),
    ):
        if fails:
            with pytest.raises(DataLossError, match=f"KAFKA_DATA_LOSS.({name})"):
                read()
        else:
            assert read().rows


SHOWN_ELSEWHERE = {
    "maxTriggerDelay": "source/test_session.py::test_minimum_is_waited_for_until_the_longest_delay",
    "members": "source/test_stream.py::test_idle_stream_commits_and_its_members_are_seen",
    "kafka.* refused": "source/test_source_options.py::test_invalid_options_are_rejected_by_name",
    "PARTITIONS_DELETED": "source/test_session.py::test_deleted_partition_is_data_loss",
    "triggers": "parity/test_same_frames.py::test_trigger_once_reads_everything_in_spite_of_the_limit",
    "processingTime": "source/test_stream.py::test_drain_does_not_wait_for_a_long_trigger",
    "aborted transactions": "parity/test_same_frames.py::test_aborted_transactions",
    "schema": "parity/test_same_frames.py::test_schemas_are_equal_in_names_types_and_nullability",
    "minPartitions": "parity/test_feature_rows.py::test_tasks_are_split",
    "maxRecordsPerPartition": "parity/test_feature_rows.py::test_tasks_are_split",
    "includeHeaders": "parity/test_feature_rows.py::test_headers_come_as_asked",
}
"""Option or rule without a row of its own above -> the test that shows it."""

BEYOND_SPARK = {
    "group.id", "members", "onGroupReset", "rebalanceLog", "rebalanceListener", "maxBytesPerTrigger",
}  # fmt: skip


def test_every_option_of_sparks_source_has_a_row():
    rows_of = {row[0] for row in BOTH_QUERIES + BATCH_ONLY + STREAM_ONLY} | set(SHOWN_ELSEWHERE)
    assert {option.name for option in OPTIONS.values()} - BEYOND_SPARK - rows_of == set()
    tests = Path(__file__).parent.parent
    for shown in SHOWN_ELSEWHERE.values():
        path, name = shown.split("::")
        assert f"def {name}(" in (tests / path).read_text(), shown
