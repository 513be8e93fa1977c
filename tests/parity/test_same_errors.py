"""Invalid input: rejected by Spark's Kafka source and groupsource, or groupsource alone."""

from __future__ import annotations

import pytest
from support.both_sources import GROUP_SOURCE, SPARK_SOURCE
from support.direct_readers import BatchQuery, StreamQuery

from spark_groupsource.errors import GroupSourceError

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("in_process")]

FAR_FUTURE = "99999999999999"
MISMATCH = "Partitions specified for Kafka .*don't match what are assigned"

# (query, options, error of Spark's source, error of groupsource); T is a topic of 3 partitions, the last one empty
REJECTED_BY_BOTH = [
    ("batch", {"subscribe": ""}, "No topics to subscribe", "subscribe must be a comma-separated list"),
    ("batch", {"assign": '{"T":[0]}'}, "Only one of the following options", "got subscribe and assign"),
    ("stream", {"subscribePattern": "T"}, "Only one of the following options", "got subscribe and subscribePattern"),
    ("batch", {"startingOffsets": "latest"}, "starting offset can't be latest", "startingOffsets must not be latest"),
    ("batch", {"startingOffsets": '{"T":{"0":-1,"1":0,"2":0}}'}, "can't be latest for batch", "not contain -1"),
    ("batch", {"startingOffsets": "first"}, "Expected e.g.", "must be earliest, latest"),
    ("batch", {"startingOffsets": '{"T":{"0":0}}'}, MISMATCH, "startingOffsets does not list T-1"),
    ("batch", {"startingOffsets": '{"T":{"0":0,"1":0,"2":0,"7":0}}'}, MISMATCH, "startingOffsets lists .*: T-7"),
    ("batch", {"endingOffsets": "earliest"}, "ending offset can't be earliest", "must be latest or JSON"),
    ("batch", {"endingOffsets": '{"T":{"0":-2,"1":0,"2":0}}'}, "can't be earliest for batch", "must not be earliest"),
    ("batch", {"endingOffsets": '{"T":{"0":0}}'}, MISMATCH, "endingOffsets does not list T-1"),
    ("batch", {"startingOffsets": '{"T":{"0":5,"1":0,"2":0}}', "endingOffsets": '{"T":{"0":3,"1":1,"2":0}}'},
     "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET|start offset 5 is greater",
     "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET. Partition T-0"),
    ("batch", {"startingTimestamp": FAR_FUTURE}, "No offset matched from request", "no record at or after the given"),
    ("batch", {"startingOffsetsByTimestamp": '{"T":{"0":1}}'}, MISMATCH, "does not list T-1"),
    ("batch", {"startingTimestamp": "soon"}, "Expected a single long value", "startingTimestamp must be .* 'soon'"),
    ("batch", {"minPartitions": "0"}, "minPartitions must be positive", "minPartitions must be .*, got 0"),
    ("batch", {"maxRecordsPerPartition": "0"}, "must be positive", "maxRecordsPerPartition must be .*, got 0"),
    ("batch", {"failOnDataLoss": "maybe"}, "For input string", "must be true or false"),
    ("batch", {"kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported", "option startingOffsets"),
    ("batch", {"kafka.key.deserializer": "x"}, "'key.deserializer' is not supported", "kafka.key.deserializer is not"),
    ("batch", {"kafka.value.deserializer": "x"}, "'value.deserializer' is not", "kafka.value.deserializer is not"),
    ("batch", {"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not", "kafka.enable.auto.commit is not"),
    ("batch", {"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not", "kafka.interceptor.classes is not"),
    ("batch", {"subscribe": "no-such-topic"}, "UnknownTopicOrPartition", "topic no-such-topic does not exist"),
    ("stream", {"endingOffsets": "latest"}, "ending offset not valid in streaming", "endingOffsets is not allowed"),
    ("stream", {"endingOffsetsByTimestamp": '{"T":{"0":1,"1":1,"2":1}}'}, "ending timestamp not valid in streaming",
     "endingOffsetsByTimestamp is not allowed"),
    ("stream", {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, r"\(9\) is higher than .*\(8\)",
     r"minOffsetsPerTrigger \(9\) must not exceed maxOffsetsPerTrigger \(8\)"),
]  # fmt: skip

# accepted and ignored by Spark's source: (query, options, error of groupsource)
REJECTED_BY_GROUPSOURCE = [
    ("batch", {"subscrib": "x"}, "Option subscrib is unknown. Did you mean subscribe"),
    ("batch", {"kafka.nonsense": "x"}, "kafka.nonsense is unknown"),
    ("batch", {"subscribe": None, "assign": '{"T":[0,9]}'}, "assign names partitions that do not exist: T-9"),
    ("batch", {"maxOffsetsPerTrigger": "x"}, "maxOffsetsPerTrigger must be .*, got 'x'"),
    ("stream", {"endingTimestamp": "5"}, "endingTimestamp is not allowed in a stream"),
    ("stream", {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be .*, got 0"),
]


def given(topic, options):
    chosen = {"subscribe": topic, **options}
    return {name: text.replace('"T"', f'"{topic}"') for name, text in chosen.items() if text is not None}


def assert_rejected(kafka, query, options, message):
    with pytest.raises(GroupSourceError, match=message):
        if query == "batch":
            BatchQuery(kafka, options)
        with StreamQuery(kafka, {"startingOffsets": "earliest", **options}) as stream:
            stream.trigger()


@pytest.mark.parametrize("row", REJECTED_BY_BOTH, ids=lambda row: f"{row[0]}-{next(reversed(row[1]))}")
def test_input_rejected_by_both_sources(sources, kafka, samples, row):
    query, options, expected, actual = row
    options = given(samples["times"], options)
    with pytest.raises(Exception, match=expected):
        sources.read(SPARK_SOURCE, options).collect() if query == "batch" else sources.stream(SPARK_SOURCE, options)
    assert_rejected(kafka, query, options, actual.replace("T-", f"{samples['times']}-"))


@pytest.mark.parametrize("row", REJECTED_BY_GROUPSOURCE, ids=lambda row: f"{row[0]}-{next(reversed(row[1]))}")
def test_input_rejected_by_groupsource_alone(sources, kafka, samples, row):
    query, options, actual = row
    options = given(samples["times"], options)
    if query == "batch":
        sources.read(SPARK_SOURCE, options).collect()
    else:
        sources.stream(SPARK_SOURCE, options)
    assert_rejected(kafka, query, options, actual.replace("T-", f"{samples['times']}-"))


def test_error_is_shown_by_spark(sources, samples):
    options = {"subscribe": samples["times"]}
    with pytest.raises(Exception, match="(?s)PYTHON_DATA_SOURCE_ERROR.*Error: Option kafka.auto.offset.reset is"):
        sources.read(GROUP_SOURCE, {**options, "kafka.auto.offset.reset": "latest"})
    with pytest.raises(Exception, match="endingOffsets is not allowed in a stream query. Leave it out") as raised:
        sources.stream(GROUP_SOURCE, {**options, "endingOffsets": "latest"})
    assert "parse_options" not in str(raised.value)


def test_stream_accepts_start_offsets_of_partitions_it_does_not_own(sources, kafka, samples):
    starts = f'{{"{samples["times"]}":{{"0":35,"1":15,"2":0,"7":0}}}}'
    options = {"subscribe": samples["times"], "startingOffsets": starts}
    with pytest.raises(Exception, match="you must specify all TopicPartitions"):
        sources.stream(SPARK_SOURCE, options)
    with StreamQuery(kafka, options) as stream:
        assert len(stream.run().rows) == 10


def test_user_schema_selects_columns(sources, samples):
    readers = (sources.spark.read.format(source).schema("value binary") for source in (SPARK_SOURCE, GROUP_SOURCE))
    expected, actual = (
        reader.options(**{"kafka.bootstrap.servers": sources.bootstrap_servers, "subscribe": samples["times"]})
        for reader in readers
    )
    with pytest.raises(Exception, match="please do not specify the schema"):
        expected.load()
    assert actual.load().columns == ["value"]


def test_end_beyond_the_log_end_fails_at_once(sources, kafka, samples):
    options = given(samples["times"], {"endingOffsets": '{"T":{"0":41,"1":0,"2":0}}'})
    with pytest.raises(Exception, match="Job aborted due to stage failure"):
        # Spark's source waits for these records until pollTimeoutMs
        sources.read(SPARK_SOURCE, {**options, "kafkaConsumer.pollTimeoutMs": "500"}).collect()
    assert_rejected(kafka, "batch", options, "COULD_NOT_READ_OFFSET_RANGE.*ends at 40")
