"""Topics of every kind, written by librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.topics import create_topic, produce
from support.waiting import wait_until

MIB = 1 << 20
FIRST_MS = 1_600_000_000_000
"""Timestamp of the first record of the topic ``times``; each further record of a partition is 1,000 ms later."""


def nulls(servers: str, topic: str) -> None:
    create_topic(servers, topic, 2)
    cells = [None, b"", b"\x00\xff", "häuser".encode()]
    produce(servers, topic, [(n % 2, key, value) for n in range(4) for key in cells for value in cells])


def headers(servers: str, topic: str) -> None:
    create_topic(servers, topic, 2)
    producer = Producer({"bootstrap.servers": servers})
    cases: list[list[tuple[str, str | bytes | None]] | None] = [None, [], [("a", b"1")], [("ключ", b"\x00" * 300)]]
    cases[3:3] = [[("a", None), ("a", b""), ("", b"x")]]
    cases.append([("z", b"9")] * 40)
    for number, chosen in enumerate(cases):
        producer.produce(topic, b"%d" % number, b"k", number % 2, headers=chosen)
    assert not producer.flush(30)


def empty(servers: str, topic: str) -> None:
    create_topic(servers, topic, 2)


def compacted(servers: str, topic: str) -> None:
    """Gaps at the start and in the middle; one partition has only its last record."""
    config = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(servers, topic, 2, config)
    set_config(servers, ConfigResource(ResourceType.BROKER, "1"), "log.cleaner.backoff.ms", "50")
    for round_ in range(4):
        rows = [(0, b"k%d" % (n % (20 + round_)), b"%d.%d" % (round_, n)) for n in range(100)]
        produce(servers, topic, [*rows, (1, b"same", b"%d" % round_)], batch_num_messages=10)
    # a segment is cleaned only when a later one exists
    wait_until(lambda: produce(servers, topic, [(0, b"last", b""), (1, b"same", b"")]) and is_sparse(servers, topic, 2),
               "the log is compacted", 60, 0.3)  # fmt: skip
    # the default: the broker runs on, with the logs of other tests
    set_config(servers, ConfigResource(ResourceType.BROKER, "1"), "log.cleaner.backoff.ms", "15000")
    # no more compaction, so that both sources read the same records
    set_config(servers, ConfigResource(ResourceType.TOPIC, topic), "cleanup.policy", "delete")
    wait_until(lambda: read_offsets(servers, topic, 0) == read_offsets(servers, topic, 0), "the log is stable", 60)


def set_config(servers: str, resource: ConfigResource, name: str, value: str) -> None:
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(30)


def is_sparse(servers: str, topic: str, partitions: int) -> bool:
    """True if every partition has fewer records than offsets."""
    return all(len(offsets) < end for offsets, end in (read_offsets(servers, topic, n) for n in range(partitions)))


def read_offsets(servers: str, topic: str, partition: int) -> tuple[list[int], int]:
    """Returns the offsets of one partition's records and its end offset."""
    # an end is seen by a fetch without records, which waits for 0.5 s otherwise
    settings = {"bootstrap.servers": servers, "group.id": "unused", "fetch.wait.max.ms": 10}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
        offsets: list[int] = []
        while True:
            message = consumer.poll(10)
            assert message is not None, f"{topic}-{partition} cannot be read to its end"
            if message.error():
                return offsets, end
            offsets.append(message.offset() or 0)
    finally:
        consumer.close()


def codecs(servers: str, topic: str) -> None:
    create_topic(servers, topic, 5)
    for partition, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        rows = [(partition, b"%d" % (n % 7), b"%d " % n * (n % 50)) for n in range(3_000)]
        produce(servers, topic, rows, compression_codec=codec)


def log_append_time(servers: str, topic: str) -> None:
    create_topic(servers, topic, 1, {"message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "lz4"):
        produce(servers, topic, [(0, None, b"%d" % n) for n in range(20)], compression_codec=codec)


def large_values(servers: str, topic: str) -> None:
    create_topic(servers, topic, 1, {"max.message.bytes": str(2 * MIB)})
    rows = [(0, None, bytes([65 + n]) * (MIB + n)) for n in range(5)] + [(0, b"small", b"1")]
    produce(servers, topic, rows, message_max_bytes=2 * MIB)


def many_partitions(servers: str, topic: str) -> None:
    create_topic(servers, topic, 80)
    produce(servers, topic, [(n % 80, None, b"%d" % n) for n in range(80 * 3) if n % 80 != 77])


def transactions(servers: str, topic: str) -> None:
    """Committed, aborted and non-transactional records in partition 0; partition 1 ends with an aborted transaction."""
    create_topic(servers, topic, 2)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(30)
    for number, commits in enumerate((True, False, True, False, False)):
        producer.begin_transaction()
        for n in range(50):
            producer.produce(topic, b"%s %d" % (b"kept" if commits else b"aborted", n), b"%d" % number, partition=n % 2)
        assert not producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
        produce(servers, topic, [(0, None, b"plain %d" % number)])


def trimmed(servers: str, topic: str) -> None:
    """The log start offset is 15 in partition 0 and the log end offset in partition 1."""
    create_topic(servers, topic, 3)
    produce(servers, topic, [(n % 3, None, b"%d" % n) for n in range(120)])
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 15), TopicPartition(topic, 1, 40)]).values():
        future.result(30)


def times(servers: str, topic: str) -> None:
    """Partition 0: 40 records, 1: 20, 2: none; timestamps from `FIRST_MS`, one second apart."""
    # with the default retention Kafka would delete these records within five minutes
    create_topic(servers, topic, 3, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": servers})
    for partition, count in ((0, 40), (1, 20)):
        for n in range(count):
            producer.produce(topic, b"%d" % n, None, partition, timestamp=FIRST_MS + 1000 * n)
    assert not producer.flush(30)


TOPICS: Mapping[str, Callable[[str, str], None]] = {
    make.__name__: make
    for make in (
        nulls,
        headers,
        empty,
        compacted,
        codecs,
        log_append_time,
        large_values,
        many_partitions,
        transactions,
        trimmed,
        times,
    )
}
"""Kind of topic -> function that creates one, given the address of a broker and a name."""


class SampleTopics:
    """Topics by kind, created when first used."""

    def __init__(self, bootstrap_servers: str, makers: Mapping[str, Callable[[str, str], None]]) -> None:
        self._bootstrap_servers, self._makers = bootstrap_servers, makers
        self._names: dict[str, str] = {}

    def __getitem__(self, kind: str) -> str:
        if kind not in self._names:
            name = f"{kind.replace('_', '-')}-{uuid4().hex[:8]}"
            self._makers[kind](self._bootstrap_servers, name)
            self._names[kind] = name
        return self._names[kind]
