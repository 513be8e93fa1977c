"""Records of a topic, read by librdkafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

Found = tuple["bytes | None", "bytes | None", list[tuple[str, "bytes | None"]]]


def messages_to_end(bootstrap_servers: str, topic: str, partitions: int, **settings: str) -> Iterator[Message]:
    """Yields the messages of a topic up to the end of each partition, by default to the last stable offset.

    Args:
        settings: of the consumer, ``_`` for ``.`` in the names.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # an end is seen by a fetch without records, which waits for 0.5 s otherwise
            "fetch.wait.max.ms": 10,
            **{name.replace("_", "."): text for name, text in settings.items()},
        }
    )
    left = set(range(partitions))
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        while left:
            message = consumer.poll(30)
            assert message is not None, f"no record and no end of {topic}-{sorted(left)} within 30 s"
            error = message.error()
            if error is None:
                yield message
            else:
                # private: it has no other name
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())  # type: ignore[arg-type]
    finally:
        consumer.close()


def read_back(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, list[Found]]:
    """Returns key, value and headers of the records of each partition."""
    found: dict[int, list[Found]] = {number: [] for number in range(partitions)}
    message: Any
    for message in messages_to_end(bootstrap_servers, topic, partitions):
        found[message.partition()].append((message.key(), message.value(), message.headers() or []))
    return found
