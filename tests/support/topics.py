"""Topics and records created with librdkafka, independently of the client under test."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from support.waiting import wait_until

HOUR_MS = 3_600_000


def create_topic(
    bootstrap_servers: str,
    topic: str,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    replication_factor: int = -1,
) -> None:
    """Creates a topic and returns once every partition is served by its leader.

    Kafka names a leader in its metadata before that broker has applied the change, and answers
    NOT_LEADER_OR_FOLLOWER between the two. Kafka before 2.4 has no default replication factor, which -1 is.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    created = NewTopic(topic, partitions, replication_factor, config=config or {})
    admin.create_topics([created])[topic].result(30)

    def led() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == partitions and all(p.leader >= 0 for p in found.values())

    def served() -> bool:
        latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        try:
            return all(found.result(10).offset >= 0 for found in admin.list_offsets(latest).values())
        except KafkaException:
            return False

    wait_until(led, f"every partition of {topic} has a leader")
    wait_until(served, f"every partition of {topic} is served by its leader")


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Deletes a topic and returns once the cluster no longer names it."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, f"{topic} is gone")


def produce(
    bootstrap_servers: str, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None]], **settings: object
) -> int:
    """Produces (partition, key, value) records with acks=all; returns the number of acknowledged records.

    `settings` are librdkafka's with ``_`` for ``.``, for example ``compression_codec="lz4"``.
    """
    config = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5}
    config.update({name.replace("_", "."): value for name, value in settings.items()})
    producer = Producer(config)
    failures: list[str] = []
    count = 0
    for partition, key, value in records:
        producer.produce(
            topic, value, key, partition, on_delivery=lambda error, _: failures.append(str(error)) if error else None
        )
        count += 1
        if count % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    assert not failures and not left, f"{len(failures)} records of {count} failed, {left} not sent: {failures[:3]}"
    return count


def create_hourly_topic(bootstrap_servers: str, topic: str) -> None:
    """Creates a topic of two partitions with ten records each, one per hour from 1970."""
    create_topic(bootstrap_servers, topic, 2, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(20):
        producer.produce(topic, b"v%d" % number, partition=number % 2, timestamp=(number // 2 + 1) * HOUR_MS)
    assert producer.flush(20) == 0
