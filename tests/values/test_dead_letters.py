"""Malformed records in a dead letter topic, as read tasks write them."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql.types import LongType, StructField, StructType
from support.task_connections import close_connections
from support.topics import create_topic

from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.source.tasks import dead_letters

SCHEMA = StructType([StructField("offset", LongType()), StructField("id", LongType())])
JSON = {"value.format": "json", "value.flatten": "true", "value.schema": "id bigint", "mode": "DROPMALFORMED"}


@pytest.fixture
def address(cluster):
    yield cluster.bootstrap_servers
    close_connections()


def fill(address: str, topic: str, *records: tuple) -> None:
    """Writes pairs of key and value, or key, value and headers."""
    create_topic(address, topic)
    create_topic(address, f"{topic}-dead", 3)
    producer = Producer({"bootstrap.servers": address})
    for number, (key, value, *headers) in enumerate(records):
        producer.produce(
            topic, value, key, partition=0, timestamp=1_000 + number, headers=headers[0] if headers else None
        )
    assert not producer.flush(10)


def read(address: str, topic: str, **given: str | None) -> list[dict]:
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": topic,
        "deadLetterTopic": f"{topic}-dead",
        **JSON,
    }
    given = {name: text for name, text in {**options, **given}.items() if text is not None}
    reader = GroupDataSource(given).reader(SCHEMA)
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def dead(address: str, topic: str, count: int) -> list:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    partitions = consumer.list_topics(f"{topic}-dead", 10).topics[f"{topic}-dead"].partitions
    consumer.assign([TopicPartition(f"{topic}-dead", number, 0) for number in partitions])
    found = consumer.consume(1, 0.1) if not count else []
    while len(found) < count:
        found += consumer.consume(count - len(found), 10)
    consumer.close()
    return sorted(found, key=lambda each: int(dict(each.headers() or [])["__connect.errors.offset"]))


def test_records_are_as_received_with_the_headers_of_connect(address, topic) -> None:
    fill(
        address, topic, (b"k", b'{"id": 1}'), (b"k", b"no", [("trace", b"7"), ("trace", None)]), (None, b'{"id": 2}'),
        (None, b""), (b"\xff", b"[1]"),
    )  # fmt: skip
    assert read(address, topic) == [{"offset": 0, "id": 1}, {"offset": 2, "id": 2}, {"offset": 3, "id": None}]
    first, second = dead(address, topic, 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"no", 1_001)
    errors = {
        "topic": topic.encode(), "partition": b"0", "offset": b"1", "connector.name": b"groupsource",
        "stage": b"VALUE_CONVERTER",
        "exception.class.name": b"spark_groupsource.errors.MalformedRecordError",
    }  # fmt: skip
    headers = [(f"__connect.errors.{name}", text) for name, text in errors.items()]
    assert first.headers()[:-1] == [("trace", b"7"), ("trace", None), *headers]
    assert first.headers()[-1] == ("__connect.errors.exception.message", b"Expecting value at character 0")
    assert (second.key(), second.value()) == (b"\xff", b"[1]")
    # by the hash of the key, as Kafka's producers
    java = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})
    places = []
    for key in (b"k", b"\xff"):
        java.produce(
            f"{topic}-dead",
            b"",
            key,
            on_delivery=lambda error, record: places.append((record.key(), record.partition())),
        )
    java.flush(10)
    assert dict(places) == {each.key(): each.partition() for each in (first, second)}


def test_permissive_queries_and_keys(address, topic, monkeypatch) -> None:
    monkeypatch.setattr(dead_letters, "_MAX_PENDING_BYTES", 2_000)
    fill(address, topic, *((b"odd", b"{%d" % number) for number in range(100)))
    rows = read(address, topic, **{"mode": "PERMISSIVE", "key.format": "int"})
    assert [row["id"] for row in rows] == [None] * 100
    # the key is not selected, so it is not decoded
    found = dead(address, topic, 100)
    assert [each.value() for each in found] == [b"{%d" % number for number in range(100)]
    assert {dict(each.headers())["__connect.errors.stage"] for each in found} == {b"VALUE_CONVERTER"}


def test_a_failed_write_fails_the_task(address, topic) -> None:
    create_topic(address, f"{topic}-dead", 1, {"max.message.bytes": "200"})
    create_topic(address, topic)
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, b"x" * 300)
    producer.flush(10)
    with pytest.raises(
        BrokerError, match=f"MESSAGE_TOO_LARGE|Check option deadLetterTopic={topic}-dead, and that max.message"
    ):
        read(address, topic)
    assert dead(address, topic, 0) == []


@pytest.mark.parametrize(
    "given, message",
    [
        pytest.param(
            {"deadLetterTopic": "none"}, "Option deadLetterTopic: topic none does not exist", marks=pytest.mark.slow
        ),
        ({"mode": "failfast"}, "Option deadLetterTopic has no effect: mode is FAILFAST. Set it to PERMISSIVE or"),
        ({"deadLetterTopic": "T"}, "Option deadLetterTopic=T must not be a topic that the query reads"),
        ({"subscribe": None, "assign": '{"T-dead": [0]}'}, "Option deadLetterTopic=T-dead must not be"),
        ({"subscribe": None, "subscribePattern": "T.*"}, "Option deadLetterTopic=T-dead must not be"),
    ],
)
def test_invalid_options_are_named(address, topic, given: dict[str, str | None], message: str) -> None:
    create_topic(address, topic)
    with pytest.raises(ConfigurationError) as caught:
        read(address, topic, **{name: text and text.replace("T", topic) for name, text in given.items()})
    assert message.replace("T ", f"{topic} ").replace("T-", f"{topic}-") in str(caught.value)
