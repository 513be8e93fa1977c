"""Transactional producers of common client libraries on both brokers."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from support.java_tools import JavaTools
from support.kafka_python import KafkaProducer
from support.read_back import messages_to_end
from support.topics import create_topic, produce
from support.waiting import wait_until

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
Step = tuple[bool, list[tuple[int, bytes]], int | None]
"""Whether it commits, its (partition, value) pairs, the source offset that it commits for the group."""

SCRIPT: list[Step] = [
    (True, [(0, b"a0"), (1, b"a1")], None),
    (False, [(0, b"b0")], None),
    (True, [(0, b"c0")], 4),
    (False, [(1, b"d1")], 6),
    (True, [(0, b"e0"), (0, b"e1")], None),
]
KEPT = {0: [b"a0", b"c0", b"e0", b"e1"], 1: [b"a1"]}
WRITTEN = {0: [b"a0", b"b0", b"c0", b"e0", b"e1"], 1: [b"a1", b"d1"]}
# a marker after each step in each of its partitions
ENDS = {0: 9, 1: 4}


class Case:
    """Parameters of one run."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.servers, self.topic, self.group = servers, topic, group
        self.source = f"{topic}-source"
        self.transactional_id = f"{topic}-id"


def librdkafka(case: Case) -> None:
    producer = Producer({"bootstrap.servers": case.servers, "transactional.id": case.transactional_id, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": case.servers, "group.id": case.group})
    producer.init_transactions(30)
    for commits, records, offset in SCRIPT:
        producer.begin_transaction()
        for partition, value in records:
            producer.produce(case.topic, value, partition=partition)
        producer.flush(30)
        if offset is not None:
            committed = [TopicPartition(case.source, 0, offset)]
            producer.send_offsets_to_transaction(committed, consumer.consumer_group_metadata(), 30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    consumer.close()


def aiokafka(case: Case) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=case.servers, transactional_id=case.transactional_id)
        await producer.start()
        try:
            for commits, records, offset in SCRIPT:
                await producer.begin_transaction()
                for partition, value in records:
                    await producer.send_and_wait(case.topic, value, partition=partition)
                if offset is not None:
                    await producer.send_offsets_to_transaction({AioTopicPartition(case.source, 0): offset}, case.group)
                await (producer.commit_transaction() if commits else producer.abort_transaction())
        finally:
            await producer.stop()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own inner workings
        asyncio.run(run())


def kafka_python(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imports of deprecated modules
        from kafka import TopicPartition as PyTopicPartition
        from kafka.structs import OffsetAndMetadata

        producer = KafkaProducer(bootstrap_servers=case.servers, transactional_id=case.transactional_id)
        producer.init_transactions()
        for commits, records, offset in SCRIPT:
            producer.begin_transaction()
            for partition, value in records:
                producer.send(case.topic, value, partition=partition).get(30)
            if offset is not None:
                committed = {PyTopicPartition(case.source, 0): OffsetAndMetadata(offset, "", -1)}
                producer.send_offsets_to_transaction(committed, case.group)
            (producer.commit_transaction if commits else producer.abort_transaction)()
        producer.close()


def java_client(java: JavaTools) -> Callable[[Case], None]:
    jvm = java._gateway.jvm
    clients, common = jvm.org.apache.kafka.clients, jvm.org.apache.kafka.common

    def run(case: Case) -> None:
        settings = {
            "bootstrap.servers": case.servers,
            "transactional.id": case.transactional_id,
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        }
        # needs a context class loader, which py4j threads do not have
        thread = jvm.java.lang.Thread.currentThread()
        thread.setContextClassLoader(jvm.java.lang.ClassLoader.getSystemClassLoader())
        producer = clients.producer.KafkaProducer(settings)
        producer.initTransactions()
        for commits, records, offset in SCRIPT:
            producer.beginTransaction()
            for partition, value in records:
                record = clients.producer.ProducerRecord(case.topic, partition, None, value.decode())
                producer.send(record).get()
            if offset is not None:
                committed = jvm.java.util.HashMap()
                where = common.TopicPartition(case.source, 0)
                committed.put(where, clients.consumer.OffsetAndMetadata(jvm.java.lang.Long.valueOf(offset)))
                producer.sendOffsetsToTransaction(committed, clients.consumer.ConsumerGroupMetadata(case.group))
            if commits:
                producer.commitTransaction()
            else:
                producer.abortTransaction()
        producer.close()

    return run


def read(case: Case, level: str) -> dict[int, list[bytes]]:
    """Values that a consumer of an isolation level reads up to the end of each partition."""
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for message in messages_to_end(case.servers, case.topic, len(found), isolation_level=level):
        found[message.partition()].append(message.value())
    return found


def prepare(servers: str, topic: str, group: str) -> Case:
    case = Case(servers, topic, group)
    create_topic(servers, topic, 2)
    create_topic(servers, case.source)
    produce(servers, case.source, [(0, None, b"%d" % number) for number in range(6)])
    return case


@pytest.mark.slow
@pytest.mark.parametrize(
    "library", ("librdkafka", "aiokafka", "kafka_python", pytest.param("java", marks=pytest.mark.java))
)
def test_transactions_of_each_library(cluster: Any, topic: str, group: str, library: str, request: Any) -> None:
    case = prepare(cluster.bootstrap_servers, topic, group)
    run = java_client(request.getfixturevalue("java")) if library == "java" else globals()[library]

    run(case)

    assert read(case, "read_committed") == KEPT
    assert read(case, "read_uncommitted") == WRITTEN
    consumer = Consumer({"bootstrap.servers": case.servers, "group.id": group})
    (committed,) = consumer.committed([TopicPartition(case.source, 0)], 20)
    assert committed.offset == 4
    for partition, end in ENDS.items():
        assert consumer.get_watermark_offsets(TopicPartition(topic, partition), 20) == (0, end)
    consumer.close()


@pytest.mark.slow
def test_read_committed_waits_for_the_end_of_a_transaction(cluster: Any, topic: str, group: str) -> None:
    case = prepare(cluster.bootstrap_servers, topic, group)
    producer = Producer({"bootstrap.servers": case.servers, "transactional.id": case.transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    produce(case.servers, topic, [(0, None, b"plain")])
    assert read(case, "read_committed") == {0: [], 1: []}
    assert read(case, "read_uncommitted") == {0: [b"open", b"plain"], 1: []}
    settings = {"bootstrap.servers": case.servers, "group.id": group, "isolation.level": "read_committed"}
    waiting = Consumer({**settings, "fetch.wait.max.ms": 20_000})
    waiting.assign([TopicPartition(topic, 0, 0)])
    assert waiting.poll(0.5) is None
    producer.commit_transaction(30)
    assert [waiting.poll(15).value() for _ in range(2)] == [b"open", b"plain"], "before the wait time"
    waiting.close()


@pytest.mark.slow
def test_a_replaced_producer_is_fenced_and_its_transaction_aborted(
    cluster: Any, topic: str, group: str
) -> None:
    case = prepare(cluster.bootstrap_servers, topic, group)
    settings = {"bootstrap.servers": case.servers, "transactional.id": case.transactional_id, "log_level": 0}
    zombie, heir = Producer(settings), Producer(settings)
    zombie.init_transactions(30)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(30)
    heir.init_transactions(30)
    heir.begin_transaction()
    heir.produce(topic, b"heir", partition=0)
    heir.commit_transaction(30)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(30)
    assert caught.value.args[0].fatal()
    zombie.purge()
    assert read(case, "read_committed") == {0: [b"heir"], 1: []}


@pytest.mark.slow
def test_an_offset_fetch_with_require_stable_waits_for_the_transaction(
    cluster: Any, topic: str, group: str
) -> None:
    """librdkafka sets require_stable (KIP-447) and gets the offset after the transaction has ended."""
    case = prepare(cluster.bootstrap_servers, topic, group)
    settings = {"bootstrap.servers": case.servers, "group.id": group}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": case.servers, "transactional.id": case.transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    where = TopicPartition(case.source, 0)
    producer.send_offsets_to_transaction(
        [TopicPartition(case.source, 0, 3)], consumer.consumer_group_metadata(), 30
    )
    with pytest.raises(KafkaException):
        consumer.committed([where], 1)
    producer.commit_transaction(30)
    assert consumer.committed([where], 20)[0].offset == 3
    consumer.close()


def test_the_settings_of_the_coordinators_topics_are_those_of_kafka(cluster: Any, topic: str, group: str) -> None:
    case = prepare(cluster.bootstrap_servers, topic, group)
    Producer({"bootstrap.servers": case.servers, "transactional.id": case.transactional_id}).init_transactions(30)
    consumer = Consumer({"bootstrap.servers": case.servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(case.source, 0, 1)], asynchronous=False)
    consumer.close()
    resources = [ConfigResource(ResourceType.TOPIC, f"__{name}") for name in ("transaction_state", "consumer_offsets")]
    admin = AdminClient({"bootstrap.servers": case.servers})
    described = admin.describe_configs(resources)
    explicit = [
        {
            name: entry.value
            for name, entry in described[resource].result(20).items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and name != "segment.bytes"
        }
        for resource in resources
    ]
    assert explicit == [
        {
            "cleanup.policy": "compact", "compression.type": "uncompressed", "min.insync.replicas": "1",
            "unclean.leader.election.enable": "false",
        },
        {"cleanup.policy": "compact", "compression.type": "producer"},
    ]  # fmt: skip


def test_the_kafka_transactions_tool(cluster: Any, topic: str, group: str, java: JavaTools) -> None:
    case = prepare(cluster.bootstrap_servers, topic, group)
    producer = Producer({"bootstrap.servers": case.servers, "transactional.id": case.transactional_id})

    def rows(*arguments: str) -> list[list[str]]:
        return java.rows(TRANSACTIONS, "--bootstrap-server", case.servers, *arguments)

    def state() -> str:
        return {row[0]: row[3] for row in rows("list")}[case.transactional_id]

    producer.init_transactions(30)
    assert state() == "Empty"
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=1)
    producer.flush(30)
    (head, row) = rows("describe", "--transactional-id", case.transactional_id)
    described = dict(zip(head, row))
    assert described["TransactionState"] == "Ongoing" and described["TopicPartitions"] == f"{topic}-1"
    (head, row) = rows("describe-producers", "--topic", topic, "--partition", "1")
    shown = dict(zip(head, row))
    assert shown["ProducerId"] == described["ProducerId"] and shown["LatestCoordinatorEpoch"] == "-1"
    assert (shown["ProducerEpoch"], shown["LastSequence"], shown["CurrentTransactionStartOffset"]) == ("0", "0", "0")
    producer.commit_transaction(30)
    wait_until(lambda: state() == "CompleteCommit", "the transaction is complete")
    (head, row) = rows("describe-producers", "--topic", topic, "--partition", "1")
    shown = dict(zip(head, row))
    assert shown["CurrentTransactionStartOffset"] == "None" and int(shown["LatestCoordinatorEpoch"]) >= 0


def test_the_kafka_transactions_tool_aborts_a_transaction(
    cluster: Any, topic: str, group: str, java: JavaTools
) -> None:
    """WriteTxnMarkers: the partition is readable, in any state of the coordinator."""
    case = prepare(cluster.bootstrap_servers, topic, group)
    producer = Producer({"bootstrap.servers": case.servers, "transactional.id": case.transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=1)
    producer.flush(30)
    produce(case.servers, topic, [(1, None, b"plain")])
    assert read(case, "read_committed")[1] == []
    where = ["--topic", topic, "--partition", "1", "--start-offset", "0"]
    assert java.rows(TRANSACTIONS, "--bootstrap-server", case.servers, "abort", *where) == []
    assert read(case, "read_committed")[1] == [b"plain"]
    producer.abort_transaction(30)
    assert read(case, "read_committed")[1] == [b"plain"]
