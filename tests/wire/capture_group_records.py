"""Generator of `group-record-vectors.json` with an Apache Kafka.

    python tests/wire/capture_group_records.py

Each vector has the bytes of one record of `__consumer_offsets` and the output of Kafka's formatters. The first part was
written by a broker for members of three client libraries. The second part is records of this package, of every version,
which the formatters read from an ordinary topic.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "jobs")]

from kafka_jars import KAFKA_VERSION  # noqa: E402
from real_kafka import RealKafka, popen_tool  # noqa: E402

from spark_groupsource.wire import group_records as records  # noqa: E402

OUTPUT = Path(__file__).with_name("group-record-vectors.json")
FORMATTERS = {
    kind: f"org.apache.kafka.tools.consumer.{kind}MessageFormatter" for kind in ("Offsets", "GroupMetadata")
}
MEMBER = records.MemberValue("id-1", "static-1", "client", "/127.0.0.1", 300_000, 45_000, b"\0\1", b"\0\2")
OTHER = records.MemberValue("id-é", None, "", "/10.0.0.1", 1, 2, b"", b"\0\3abc")
GROUP = records.GroupValue("consumer", 5, "range", "id-1", 1_700_000_000_000, (MEMBER, OTHER))
EMPTY = records.GroupValue("consumer", 6, None, None, 1_700_000_000_000)
OFFSET = records.OffsetValue(2**40, 7, "métadata", 1_700_000_000_000, 1_700_604_800_000, "8GLMGAtbTF-ORM8JS_71bw")


def ours():
    offset_key = records.encode_key(records.OffsetKey("gruppe-é", "orders", 3))
    group_key = records.encode_key(records.GroupKey("gruppe-é"))
    for version in range(5):
        yield offset_key, records.encode_offset_value(OFFSET, version)
        yield group_key, records.encode_group_value(GROUP, version)
        yield group_key, records.encode_group_value(EMPTY, version)
    yield offset_key, None
    yield group_key, None


def run_members(kafka):
    """Creates groups of a Java, a librdkafka and a kafka-python client, resets offsets and deletes a group."""
    create_topic(kafka, "orders", 3)
    java = popen_tool(
        "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", kafka.bootstrap_servers, "--topic", "orders",
        "--group-id", "java-group", "--group-instance-id", "static-1", "--reset-policy", "earliest",
        "--assignment-strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    )  # fmt: skip
    rdkafka = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "rdkafka-group", "client.id": "rdkafka"}
    )
    rdkafka.subscribe(["orders"])
    wait_for(lambda: rdkafka.poll(0.2) is None and rdkafka.assignment())
    partitions = [TopicPartition("orders", number, 5 + number, metadata=f"note {number}") for number in range(3)]
    rdkafka.commit(offsets=partitions, asynchronous=False)
    rdkafka.close()
    python = KafkaConsumer("orders", bootstrap_servers=kafka.bootstrap_servers, group_id="python-group")
    wait_for(lambda: python.poll(200) == {} and python.assignment())
    python.commit()
    python.close()
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    common = "--bootstrap-server", kafka.bootstrap_servers, "--group"
    for arguments in (
        ("python-group", "--topic", "orders", "--reset-offsets", "--to-earliest", "--execute"),
        ("rdkafka-group", "--delete-offsets", "--topic", "orders:1"),
        ("python-group", "--delete"),
    ):
        run = kafka.tool(tool, *common, *arguments)
        assert run.returncode == 0, run.stderr
    java.terminate()
    java.wait(30)


def create_topic(kafka, name, partition_count):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, partition_count)])[name].result()


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Members are not ready after {timeout_s} s.")


def read_topic(kafka, topic):
    """Returns (key, value) of every record of a topic with one partition."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings)
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while not found or found[-1].offset() < end - 1:
        message = consumer.poll(10)
        assert message is not None and message.error() is None, message
        found.append(message)
    consumer.close()
    return [(message.key(), message.value()) for message in found]


def printed(kafka, topic, count):
    """Returns the output of both formatters by record type, in the order of the records."""
    found = {}
    for kind, formatter in FORMATTERS.items():
        text = kafka.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", kafka.bootstrap_servers,
            "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(count),
            "--formatter", formatter, "--timeout-ms", "15000",
        ).stdout  # fmt: skip
        found[kind] = []
        decoder, position = json.JSONDecoder(), 0
        while (position := text.find("{", position)) >= 0:
            value, position = decoder.raw_decode(text, position)
            found[kind].append(value)
    return found


def vectors(kafka, topic, origin):
    pairs = read_topic(kafka, topic)
    texts = printed(kafka, topic, len(pairs))
    for key, value in pairs:
        kind = "GroupMetadata" if key[:2] == b"\0\2" else "Offsets"
        yield {
            "origin": origin,
            "key": key.hex(),
            "value": None if value is None else value.hex(),
            "printed": texts[kind].pop(0),
        }
    assert not any(texts.values()), texts


def main():
    with RealKafka({"offsets.topic.num.partitions": "1"}) as kafka:
        run_members(kafka)
        found = list(vectors(kafka, "__consumer_offsets", f"Apache Kafka {KAFKA_VERSION}, written by the broker"))
        create_topic(kafka, "ours", 1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 100})
        for key, value in ours():
            producer.produce("ours", key=key, value=value, partition=0)
        producer.flush()
        found += vectors(kafka, "ours", f"this package, read by the formatters of Apache Kafka {KAFKA_VERSION}")
    OUTPUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(found)} vectors in {OUTPUT}")


if __name__ == "__main__":
    main()
