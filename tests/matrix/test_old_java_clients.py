"""Old Java clients on both clusters: codecs, joins, commits.

They use protocol versions that newer clients do not: 1.0 has no static members and no zstd, 2.0 has no batched
FindCoordinator, 2.8 is the last without topic ids in all requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka_jars import Artifact, fetch
from support.java_tools import java_gateway
from support.topics import create_topic
from support.waiting import wait_until

pytestmark = pytest.mark.kafka

REVISIONS = ("1.0.2", "2.0.1", "2.8.2")
SERIALIZATION = "org.apache.kafka.common.serialization"
STRINGS = {
    "key.serializer": f"{SERIALIZATION}.StringSerializer",
    "value.serializer": f"{SERIALIZATION}.StringSerializer",
    "key.deserializer": f"{SERIALIZATION}.StringDeserializer",
    "value.deserializer": f"{SERIALIZATION}.StringDeserializer",
}


class OldClients:
    """The classes of one release of kafka-clients, in a JVM."""

    def __init__(self, gateway: Any, revision: str) -> None:
        self.revision = revision
        self._jvm = gateway.jvm
        self.kafka = gateway.jvm.org.apache.kafka

    def properties(self, cluster: Any, settings: dict[str, str]) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in {"bootstrap.servers": cluster.bootstrap_servers, **STRINGS, **settings}.items():
            properties.setProperty(name, value)
        return properties

    def produce(self, cluster: Any, topic: str, values: list[str], **settings: str) -> list[int]:
        """The offsets, acknowledged."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        producer = self.kafka.clients.producer.KafkaProducer(self.properties(cluster, named))
        try:
            record = self.kafka.clients.producer.ProducerRecord
            return [future.get().offset() for future in [producer.send(record(topic, each)) for each in values]]
        finally:
            producer.close()

    def consumer(self, cluster: Any, group: str) -> Any:
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        return self.kafka.clients.consumer.KafkaConsumer(self.properties(cluster, settings))


def polled(consumer: Any) -> Iterator[str]:
    """Polls once; yields the values."""
    records = consumer.poll(200).iterator()
    while records.hasNext():
        yield records.next().value()


@pytest.fixture(scope="module", params=REVISIONS)
def clients(request: Any) -> Iterator[OldClients]:
    """Each release, downloaded if necessary."""
    revision = request.param
    jars = fetch(f"kafka-clients-{revision}", (Artifact("org.apache.kafka", "kafka-clients", revision),))
    with java_gateway(jars) as gateway:
        yield OldClients(gateway, revision)


def test_codecs_and_groups_of_old_clients(
    clients: OldClients, cluster: Any, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    codecs = ["none", "gzip", "snappy", "lz4", *(["zstd"] if clients.revision >= "2.1" else [])]
    sent = []
    for codec in codecs:
        for idempotent in ("false", "true"):
            values = [f"{codec} {idempotent} {number}" for number in range(5)]
            offsets = clients.produce(
                cluster, topic, values, compression_type=codec, enable_idempotence=idempotent, acks="all"
            )
            assert offsets == list(range(len(sent), len(sent) + 5))
            sent += values
    consumer = clients.consumer(cluster, group)
    try:
        consumer.subscribe([topic])
        seen: list[str] = []

        def all_read() -> bool:
            seen.extend(polled(consumer))
            return len(seen) >= len(sent)

        wait_until(all_read, "the old member has read everything", 60)
        assert seen == sent
        consumer.commitSync()
    finally:
        consumer.close()
    again = clients.consumer(cluster, group)
    try:
        partition = clients.kafka.common.TopicPartition(topic, 0)
        assert again.committed(partition).offset() == len(sent)
        again.assign([partition])
        assert again.endOffsets([partition])[partition] == len(sent)
        again.seek(partition, len(sent) - 1)
        last: list[str] = []
        wait_until(lambda: last.extend(polled(again)) or last, "the last is read", 60)
        assert last == sent[-1:]
    finally:
        again.close()
