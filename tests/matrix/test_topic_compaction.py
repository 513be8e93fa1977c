"""Compaction on both brokers: the same records remain, tombstones until delete.retention.ms."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from real_kafka import RealKafka
from support.clusters import BROKER_CONFIG
from support.read_back import messages_to_end
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker

# brokers of its own, with a short pause between two passes of the cleaner
pytestmark = [pytest.mark.soak, pytest.mark.kafka]

CONFIG = {**BROKER_CONFIG, "log.cleaner.backoff.ms": "100"}
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "8000",
}
Remaining = list[tuple[int, bytes | None, bytes | None]]


def remaining(servers: str, topic: str) -> Remaining:
    """Returns offset, key and value of every record."""
    messages = messages_to_end(servers, topic, 1)
    return [(message.offset(), message.key(), message.value()) for message in messages]


def append(servers: str, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    """Appends records in a segment of their own."""
    time.sleep(0.3)
    produce(servers, topic, [(0, key, value) for key, value in records])


def compacted(servers: str, topic: str) -> tuple[Remaining, Remaining]:
    """Returns what remains with tombstones, and after them, without the records that were only appended to roll."""
    create_topic(servers, topic, 1, TOPIC_CONFIG)
    append(servers, topic, *((b"k%d" % n, b"first") for n in range(6)))
    append(servers, topic, *((b"k%d" % n, b"second") for n in range(4)))
    append(servers, topic, (b"k0", None), (b"k1", None), (b"never", None))
    append(servers, topic, (b"k1", b"third"))
    append(servers, topic, (b"roll", b""))

    def own() -> Remaining:
        return [each for each in remaining(servers, topic) if each[1] != b"roll"]

    def has_each_key_once() -> Remaining:
        found = own()
        return found if len({key for _, key, _ in found}) == len(found) else []

    with_tombstones = wait_until(has_each_key_once, "superseded records are removed", 60, 0.1)

    def has_no_tombstone() -> Remaining:
        append(servers, topic, (b"roll", b""))
        found = own()
        return [] if any(value is None for _, _, value in found) else found

    return with_tombstones, wait_until(has_no_tombstone, "tombstones are removed", 60, 0.1)


def test_the_same_records_remain_and_tombstones_are_removed(topic: str) -> None:
    with ExitStack() as stack:
        brokers = [EmbeddedBroker(config=CONFIG), RealKafka(CONFIG)]
        ours, theirs = (compacted(stack.enter_context(broker).bootstrap_servers, topic) for broker in brokers)
    assert ours == theirs
    assert [key for _, key, value in ours[0] if value is None] == [b"k0", b"never"]
    assert [key for _, key, _ in ours[1]] == [b"k4", b"k5", b"k2", b"k3", b"k1"]
