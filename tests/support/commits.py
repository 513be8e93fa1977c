"""Commits with librdkafka that retry while a new Kafka is creating `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from support.waiting import wait_until

_NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


def commit(consumer: Consumer, offsets: Sequence[TopicPartition]) -> None:
    """Commits offsets, retrying until the coordinator is available."""

    def committed() -> bool:
        try:
            consumer.commit(offsets=list(offsets), asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() in _NOT_YET:
                return False
            raise
        return True

    wait_until(committed, f"the commit of {offsets}")


def commit_as(bootstrap_servers: str, group: str, offsets: Sequence[TopicPartition]) -> None:
    """Commits with a new consumer that does not join the group."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    commit(consumer, offsets)
    consumer.close()
