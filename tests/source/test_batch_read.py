"""Batch queries through Spark, on both clusters."""

import json

import pytest
from confluent_kafka import Producer
from support.topics import create_topic, produce

pytestmark = pytest.mark.spark


def reader(spark, cluster, topic, **options):
    base = spark.read.format("groupsource").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    return base.options(**{"subscribe": topic, **options})


@pytest.fixture
def filled(cluster, topic):
    """A topic of 3 partitions: 40 records in partition 0, 20 in 1, none in 2; values are partition:offset."""
    create_topic(cluster.bootstrap_servers, topic, 3)
    offsets = [(p, n) for p, count in ((0, 40), (1, 20)) for n in range(count)]
    records = [(p, None if n % 2 else b"k%d" % n, b"%d:%d" % (p, n)) for p, n in offsets]
    produce(cluster.bootstrap_servers, topic, records, compression_codec="lz4")
    return topic


def test_schema_and_rows_are_those_of_sparks_kafka_source(spark, cluster, filled):
    frame = reader(spark, cluster, filled).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = frame.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, bytes(row.value)) for row in rows] == [
        (p, n, b"%d:%d" % (p, n)) for p, count in ((0, 40), (1, 20)) for n in range(count)
    ]
    assert [row.key for row in rows[:3]] == [b"k0", None, b"k2"]
    assert {(row.topic, row.timestampType, row.timestamp.year > 2000) for row in rows} == {(filled, 0, True)}


def test_headers_and_selected_columns(spark, cluster, topic):
    create_topic(cluster.bootstrap_servers, topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, b"v", headers=[("a", b"1"), ("b", None)])
    producer.produce(topic, b"w")
    producer.flush()
    rows = reader(spark, cluster, topic, includeHeaders="true").load().orderBy("offset").collect()
    assert [None if r.headers is None else [(h.key, h.value) for h in r.headers] for r in rows] == [
        [("a", b"1"), ("b", None)],
        None,
    ]
    chosen = reader(spark, cluster, topic).schema("offset long not null, value binary").load()
    assert [tuple(row) for row in chosen.orderBy("offset").collect()] == [(0, b"v"), (1, b"w")]


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, {0: (0, 40), 1: (0, 20)}),
        ({"startingOffsets": "-5"}, {0: (35, 40), 1: (15, 20)}),
        ({"startingOffsets": '{"T":{"0":30,"1":-2,"2":0}}', "endingOffsets": '{"T":{"0":35,"1":-1,"2":0}}'},
         {0: (30, 35), 1: (0, 20)}),
        ({"startingOffsets": '{"T":"earliest"}', "endingOffsets": '{"T":{"0":7,"1":0,"2":-1}}'}, {0: (0, 7)}),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"}, {0: (0, 40), 1: (0, 20)}),
        ({"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"}, {}),
        ({"endingTimestamp": "1"}, {}),
        ({"maxRecordsPerPartition": "7"}, {0: (0, 40), 1: (0, 20)}),
        ({"minPartitions": "9"}, {0: (0, 40), 1: (0, 20)}),
    ],
)  # fmt: skip
def test_positions_and_splitting(spark, cluster, filled, options, expected):
    options = {name: text.replace('"T"', json.dumps(filled)) for name, text in options.items()}
    rows = reader(spark, cluster, filled, **options).load().select("partition", "offset").collect()
    assert sorted((r.partition, r.offset) for r in rows) == [
        (p, n) for p, (start, end) in sorted(expected.items()) for n in range(start, end)
    ]


def test_assign_and_pattern(spark, cluster, filled):
    assigned = spark.read.format("groupsource").options(assign=json.dumps({filled: [1]}))
    assert assigned.option("kafka.bootstrap.servers", cluster.bootstrap_servers).load().count() == 20
    matching = spark.read.format("groupsource").options(subscribePattern=f"{filled[:-1]}.")
    assert matching.option("kafka.bootstrap.servers", cluster.bootstrap_servers).load().count() == 60


@pytest.mark.parametrize(
    "options, message",
    [
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist at .*. Create it"),
        ({"subscribr": "t"}, "Option subscribr is unknown. Did you mean subscribe?"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "No Kafka broker is reachable: .*127.0.0.1:1"),
        ({"startingOffsets": '{"T":{"0":3}}'}, "startingOffsets does not list T-1"),
        ({"startingOffsets": '{"T":{"0":3,"1":0,"2":0,"7":0}}'}, "startingOffsets lists partitions .*: T-7"),
        ({"endingOffsets": '{"T":{"0":50,"1":-1,"2":-1}}'}, "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE.*ends at 40"),
        ({"startingOffsets": '{"T":{"0":30,"1":0,"2":0}}', "endingOffsets": '{"T":{"0":3,"1":0,"2":0}}'},
         r"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] Partition T-0"),
        ({"startingTimestamp": "99999999999999"}, "no record at or after the given time"),
    ],
)  # fmt: skip
def test_invalid_input_is_named(spark, cluster, filled, options, message):
    options = {name: text.replace('"T"', json.dumps(filled)) for name, text in options.items()}
    with pytest.raises(Exception, match=message.replace("T-", f"{filled}-")):
        reader(spark, cluster, filled, **options).load().count()


def test_invalid_schema_is_named(spark, cluster, filled):
    with pytest.raises(Exception, match="Column value of the schema must be binary, got string. Cast it after load"):
        reader(spark, cluster, filled).schema("value string").load().count()
    with pytest.raises(Exception, match="Column 'headers' of the schema does not exist.*includeHeaders"):
        reader(spark, cluster, filled).schema("headers array<struct<key:string,value:binary>>").load().count()


def test_deleted_records_fail_or_are_skipped(spark, cluster, filled):
    from spark_groupsource.client.admin import delete_records
    from spark_groupsource.client.cluster.cluster_client import ClusterClient
    from spark_groupsource.client.settings import ClientSettings
    from spark_groupsource.model import TopicPartition

    starts = json.dumps({filled: {"0": 0, "1": 0, "2": 0}})
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as client:
        delete_records(client, {TopicPartition(filled, 0): 10})
    with pytest.raises(Exception, match="KAFKA_DATA_LOSS.START_OFFSET_RESET.*begins at offset 10 now"):
        reader(spark, cluster, filled, startingOffsets=starts).load().count()
    assert reader(spark, cluster, filled, startingOffsets=starts, failOnDataLoss="false").load().count() == 50
