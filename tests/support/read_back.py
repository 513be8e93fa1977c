"""Records of a topic, read by librdkafka."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

Found = tuple["bytes | None", "bytes | None", list[tuple[str, "bytes | None"]]]


def read_back(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, list[Found]]:
    """Returns key, value and headers of the records of each partition, up to its high watermark."""
    found: dict[int, list[Found]] = {number: [] for number in range(partitions)}
    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in found}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    missing = {tp.partition: future.result(30).offset for tp, future in admin.list_offsets(latest).items()}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": f"{topic}-reader", "enable.auto.commit": False,
         "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in found if missing[number]])
        while any(missing.values()):
            message: Any = consumer.poll(30)
            assert message is not None, f"records of {topic} are missing: {missing}"
            if message.error():
                missing[message.partition()] = 0
                continue
            found[message.partition()].append((message.key(), message.value(), message.headers() or []))
    finally:
        consumer.close()
    return found
