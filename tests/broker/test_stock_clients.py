"""Common client libraries and Kafka tools with the embedded broker."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from real_kafka import run_tool
from support.java_tools import GROUPS, JavaTools
from support.raw_broker import RawConnection, create_topic
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 500


@pytest.fixture(scope="module")
def broker():
    config = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0", "num.partitions": "3"}
    with EmbeddedBroker(config=config) as running:
        yield running


def expected(count=COUNT):
    return sorted((b"key %d" % (item % 7), b"value %d" % item) for item in range(count))


def librdkafka_produce(bootstrap_servers, topic, codec="none", count=COUNT, **options):
    producer = Producer({"bootstrap.servers": bootstrap_servers, "compression.type": codec, "linger.ms": 5, **options})
    for item in range(count):
        producer.produce(topic, key=b"key %d" % (item % 7), value=b"value %d" % item, headers=[("n", b"%d" % item)])
        producer.poll(0)
    assert producer.flush(20) == 0


def librdkafka_consume(bootstrap_servers, topic, group, count=COUNT, **options):
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, **options})
    consumer.subscribe([topic])
    found = []
    for _ in range(60):
        found += [message for message in consumer.consume(count - len(found), 0.5) if not message.error()]
        if len(found) >= count:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted((message.key(), message.value()) for message in found)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_librdkafka(broker, topic, group, codec, idempotent):
    librdkafka_produce(broker.bootstrap_servers, topic, codec, **{"enable.idempotence": idempotent})
    assert librdkafka_consume(broker.bootstrap_servers, topic, group) == expected()


@pytest.mark.slow
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acknowledgements(broker, topic, group, acks):
    librdkafka_produce(broker.bootstrap_servers, topic, acks=acks)
    assert librdkafka_consume(broker.bootstrap_servers, topic, group) == expected()


def test_librdkafka_admin_client(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "1000"})]).values():
        future.result(10)
    for future in admin.create_partitions([NewPartitions(topic, 5)]).values():
        future.result(10)
    assert len(admin.list_topics(topic, 10).topics[topic].partitions) == 5
    assert admin.describe_cluster().result(10).cluster_id
    for future in admin.delete_topics([topic]).values():
        future.result(10)
    assert topic not in admin.list_topics(timeout=10).topics


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
def test_kafka_python(broker, topic, group, codec):
    from support.kafka_python import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type=codec)
    for item in range(COUNT):
        producer.send(topic, key=b"key %d" % (item % 7), value=b"value %d" % item)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    )
    found = []

    def all_are_read():
        # a poll may return at once, for example during a rebalance
        for records in consumer.poll(timeout_ms=500).values():
            found.extend((record.key, record.value) for record in records)
        return len(found) >= COUNT

    wait_until(all_are_read, "all records are read", 60)
    consumer.commit()
    consumer.close()
    assert sorted(found) == expected()
    assert librdkafka_consume(broker.bootstrap_servers, topic, f"{group}-2") == expected()


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_aiokafka(broker, topic, group, codec):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run():
        options = {"bootstrap_servers": broker.bootstrap_servers}
        producer = AIOKafkaProducer(**options, enable_idempotence=True, compression_type=codec)
        await producer.start()
        for item in range(COUNT):
            await producer.send(topic, key=b"key %d" % (item % 7), value=b"value %d" % item)
        await producer.flush()
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **options, group_id=group, auto_offset_reset="earliest")
        await consumer.start()
        found = []
        while len(found) < COUNT:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [(record.key, record.value) for record in records]
        await consumer.commit()
        await consumer.stop()
        return sorted(found)

    assert asyncio.run(asyncio.wait_for(run(), 60)) == expected()


@pytest.mark.slow
def test_different_client_libraries_share_a_group(broker, topic, group):
    from support.kafka_python import KafkaConsumer

    with RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, topic, 4)
    librdkafka = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "partition.assignment.strategy": "range",
        }
    )
    librdkafka.subscribe([topic])
    python = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, group_id=group)
    for _ in range(120):
        librdkafka.poll(0.1)
        python.poll(timeout_ms=100)
        owned = [{each.partition for each in consumer.assignment()} for consumer in (librdkafka, python)]
        if all(owned) and owned[0] | owned[1] == {0, 1, 2, 3}:
            break
    python.close()
    librdkafka.close()
    assert owned[0] & owned[1] == set() and owned[0] | owned[1] == {0, 1, 2, 3}


# --- Kafka's own tools ---


@pytest.mark.kafka
def test_the_java_producer_and_consumer(broker, topic, group, java: JavaTools):
    address = ["--bootstrap-server", broker.bootstrap_servers]
    sending = [*address, "--topic", topic, "--max-messages", "200"]
    produced = run_tool("org.apache.kafka.tools.VerifiableProducer", *sending)
    assert produced.returncode == 0 and '"acked":200' in produced.stdout
    consumed = run_tool(
        "org.apache.kafka.tools.VerifiableConsumer", *address, "--topic", topic, "--group-id", group,
        "--max-messages", "200", "--reset-policy", "earliest",
    )  # fmt: skip
    assert consumed.returncode == 0 and '"name":"shutdown_complete"' in consumed.stdout
    described = java.call(GROUPS, *address, "--describe", "--group", group)
    ends = [line.split()[3:6] for line in described.stdout.splitlines() if line.startswith(group)]
    assert sum(int(offset) for offset, _, _ in ends) == 200 and {lag for _, _, lag in ends} == {"0"}


@pytest.mark.kafka
def test_the_dump_tool_reads_every_file_without_errors(tmp_path: Path, java: JavaTools):
    config = {
        "log.segment.bytes": "100000",
        "offsets.topic.num.partitions": "2",
        "offsets.topic.segment.bytes": "2000",
        "group.initial.rebalance.delay.ms": "0",
    }
    with EmbeddedBroker(tmp_path, config=config) as broker:
        for number, codec in enumerate(CODECS):
            options = {"enable.idempotence": True, "batch.num.messages": random.Random(number).randrange(5, 50)}
            librdkafka_produce(broker.bootstrap_servers, "t", codec, count=2000, **options)
        for number in range(10):
            librdkafka_consume(broker.bootstrap_servers, "t", f"g{number}", count=100)
    files = sorted(str(path) for path in tmp_path.glob("*-*/*"))
    assert len([name for name in files if "/t-0/" in name and name.endswith(".log")]) > 2
    assert len([name for name in files if "__consumer_offsets" in name and name.endswith(".log")]) > 3
    data = [name for name in files if "__consumer_offsets" not in name]
    groups = [name for name in files if name not in data]
    for names, decoder in ((data, []), (groups, ["--offsets-decoder"])):
        dumped = java.call(
            "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", *decoder,
            "--files", ",".join(names),
        )  # fmt: skip
        assert dumped.returncode == 0, dumped.stderr
        assert complaints(dumped.stderr) == []
        assert "isvalid: false" not in dumped.stdout
    assert '"group":"g3"' in dumped.stdout and '"protocolType":"consumer"' in dumped.stdout


def complaints(text: str) -> list[str]:
    """Errors of the dump tool, except those that it reports for Kafka's own files too (segments not from offset 0)."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("SLF4J", "WARNING"))]
    found = []
    for line, following in zip(lines, [*lines[1:], ""]):
        begins = line.startswith("Non-consecutive offsets in") and following.startswith("  -1 is followed by")
        if not begins and not line.startswith("  -1 is followed by"):
            found.append(line)
    return found


def test_librdkafka_reports_that_the_consumer_protocol_is_not_served(broker, topic, group):
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "log_level": 0})
    consumer.subscribe([topic])
    try:
        # the default session timeout would pass if it looked for another coordinator instead
        error = consumer.poll(30).error()
    finally:
        consumer.close()
    assert error.code() == KafkaError._FATAL and "API version not supported" in error.str()


@pytest.mark.kafka
@pytest.mark.slow
def test_java_reports_that_the_consumer_protocol_is_not_served(broker, topic, group):
    address = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--group-id", group)
    ended = run_tool("org.apache.kafka.tools.VerifiableConsumer", *address, "--group-protocol", "CONSUMER")
    assert "UnsupportedVersionException" in ended.stderr and "group.protocol=classic" in ended.stderr
