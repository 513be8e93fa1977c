"""Cases of Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from support.compared_brokers import Case, ComparedBroker

from spark_groupsource.records.compression import compress
from spark_groupsource.records.encode import Record, encode_batch, with_body
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire import messages


def batch(*values: bytes, **options: Any) -> bytes:
    records = [Record(b"k", value, 1_000 + number) for number, value in enumerate(values)]
    return encode_batch(records, **options)


Records = Union[bytes, None, Callable[[ComparedBroker], bytes]]


def produce(*parts: tuple[str, int, Records], acks: int = -1, transactional_id: str | None = None) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.ProduceRequest.TopicProduceData
        found: dict[str, list[Any]] = {}
        for short, number, records in parts:
            data = records(broker) if callable(records) else records
            found.setdefault(short, []).append(topic.PartitionProduceData(index=number, records=data))
        topics = [
            topic(name=broker.name(short), topic_id=broker.id(short), partition_data=entries)
            for short, entries in found.items()
        ]
        return messages.ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=1_000, topic_data=topics
        )

    return build


def _broken(data: bytes, at: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= value
    return bytes(changed)


def _keyless(value: bytes) -> bytes:
    return encode_batch([Record(None, value, 1_000)])


def _with(data: bytes, **fields: Any) -> bytes:
    """The batch with other header fields and a valid checksum."""
    (header,) = iter_batches(data)
    return with_body(header._replace(**fields), data[61:])


def _with_records(codec: int, records: bytes, count: int = 1) -> bytes:
    """A batch of these bytes as its decompressed records."""
    (header,) = iter_batches(batch(b"v", codec=codec))
    return with_body(header._replace(record_count=count, last_offset_delta=count - 1), compress(codec, records))


def _idempotent(sequence: int, producer: int = 0, epoch: int = 3) -> Callable[[ComparedBroker], bytes]:
    """One record of an idempotent producer, a different one per version."""
    return lambda broker: batch(
        b"i", producer_id=77_000 + 10 * broker.version + producer, producer_epoch=epoch, base_sequence=sequence
    )


PRODUCE = [
    Case("one batch", produce(("made", 0, batch(b"a", b"b")))),
    Case("two partitions", produce(("made", 0, batch(b"a")), ("made", 1, batch(b"b")))),
    Case("one of two is there", produce(("made", 0, batch(b"a")), ("gone", 0, batch(b"b")))),
    Case("no such partition", produce(("made", 7, batch(b"a")))),
    Case("a negative partition", produce(("made", -1, batch(b"a")))),
    Case("acks 2", produce(("made", 0, batch(b"a")), acks=2)),
    Case("acks 2, no such partition", produce(("made", 7, batch(b"a")), acks=2)),
    Case("two batches, zstd", produce(("made", 0, batch(b"a", codec=4) + batch(b"b", codec=4)))),
    Case("acks 1", produce(("made", 0, batch(b"a")), acks=1)),
    Case("no topics", produce()),
    Case("no bytes", produce(("made", 0, b""))),
    Case("two batches", produce(("made", 0, batch(b"a") + batch(b"b", base_offset=1)))),
    Case("a wrong checksum", produce(("made", 0, _broken(batch(b"a"), 66, 1)))),
    Case("an unknown format", produce(("made", 0, _broken(batch(b"a"), 16, 7)))),
    Case("the previous format", produce(("made", 0, _broken(batch(b"a"), 16, 3)))),
    Case("half a batch", produce(("made", 0, batch(b"abcdefgh")[:-4]))),
    Case("garbage after the batch", produce(("made", 0, batch(b"a") + b"garbage"))),
    Case("offsets that do not begin at 0", produce(("made", 0, batch(b"a", base_offset=5)))),
    Case("gzip", produce(("made", 0, batch(b"a" * 50, codec=1)))),
    Case("snappy", produce(("made", 0, batch(b"a" * 50, codec=2)))),
    Case("lz4", produce(("made", 0, batch(b"a" * 50, codec=3)))),
    Case("zstd", produce(("made", 0, batch(b"a" * 50, codec=4)))),
    Case("too large", produce(("small", 0, batch(b"a" * 3_000)))),
    Case("large, compressed", produce(("small", 0, batch(b"a" * 3_000, codec=1)))),
    Case("a timestamp far in the future", produce(("made", 0, encode_batch([Record(b"k", b"v", 10**14)])))),
    Case("no timestamp", produce(("made", 0, encode_batch([Record(b"k", b"v", -1)])))),
    Case("without a key", produce(("made", 0, _keyless(b"v")))),
    Case("without a key, to a compacted topic", produce(("compacted", 0, _keyless(b"v")))),
    Case("one of two without a key", produce(
        ("compacted", 0, encode_batch([Record(b"k", b"v", 1_000), Record(None, b"w", 1_000)])))),
    Case("all without a key, gzip", produce(
        ("compacted", 0, encode_batch([Record(None, b"w", 1_000)] * 70, codec=1)))),
    Case("no records", produce(("made", 0, _with(batch(b"a"), record_count=0)))),
    Case("more records than offsets", produce(("made", 0, _with(batch(b"a", b"b"), last_offset_delta=0)))),
    Case("fewer records than offsets", produce(("made", 0, _with(batch(b"a", b"b"), last_offset_delta=5)))),
    Case("a negative record count", produce(("made", 0, _with(batch(b"a"), record_count=-1)))),
    Case("more records announced", produce(("made", 0, _with(batch(b"a"), record_count=2, last_offset_delta=1)))),
    Case("fewer records announced", produce(
        ("made", 0, _with(batch(b"a", b"b"), record_count=1, last_offset_delta=0)))),
    Case("two billion records announced", produce(
        ("made", 0, _with(batch(b"a"), record_count=2_000_000_001, last_offset_delta=2_000_000_000)))),
    Case("garbage for records", produce(("made", 0, _with_records(0, b"\x14\0\0\0\x02k\x7e" + b"\xa5" * 50)))),
    Case("garbage for records, lz4", produce(("made", 0, _with_records(3, b"\xa5" * 50)))),
    Case("a header without key, gzip", produce(("made", 0, _with_records(1, b"\x12\0\0\0\x02k\1\2\1\0")))),
    Case("a record cut short, zstd", produce(("made", 0, _with_records(4, b"\x14\0\0\0\x02k\x08ab")))),
    Case("a largest timestamp of the future", produce(("made", 0, _with(batch(b"a"), max_timestamp=10**14)))),
    Case("LogAppendTime set by the client, and the topic", produce(("stamped", 0, batch(b"a", timestamp_type=1)))),
    Case("LogAppendTime", produce(("stamped", 0, batch(b"a")))),
    Case("LogAppendTime set by the client", produce(("made", 0, batch(b"a", timestamp_type=1)))),
    Case("a control batch", produce(
        ("made", 0, batch(b"a", control=True, producer_id=5, producer_epoch=0, base_sequence=0)))),
    Case("a transactional batch of no transaction", produce(
        ("made", 0, batch(b"a", transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)))),
    Case("idempotent, the first", produce(("made", 1, _idempotent(0)))),
    Case("idempotent, again", produce(("made", 1, _idempotent(0)))),
    Case("idempotent, the next", produce(("made", 1, _idempotent(1)))),
    Case("idempotent, a gap", produce(("made", 1, _idempotent(9)))),
    Case("idempotent, a former epoch", produce(("made", 1, _idempotent(2, epoch=2)))),
    Case("idempotent, the next epoch, not from sequence 0", produce(("made", 1, _idempotent(2, epoch=4)))),
    Case("idempotent, the next epoch", produce(("made", 1, _idempotent(0, epoch=4)))),
    Case("idempotent, an unknown producer, not from sequence 0", produce(("made", 1, _idempotent(5, producer=1)))),
    Case("idempotent, two batches", produce(
        ("made", 1, lambda broker: _idempotent(6, 1)(broker) + _idempotent(7, 1)(broker)))),
    Case("a producer without a sequence", produce(("made", 1, _idempotent(-1, producer=3)))),
    Case("a sequence without a producer", produce(("made", 1, batch(b"i", base_sequence=4)))),
    Case("__consumer_offsets", lambda broker: _offsets_topic(broker)),
]  # fmt: skip


def _offsets_topic(broker: ComparedBroker) -> Any:
    topic = messages.ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData(index=0, records=batch(b"a"))
    data = [topic(name="__consumer_offsets", topic_id=broker.full_id("__consumer_offsets"), partition_data=[part])]
    return messages.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=data)


def fetch(
    *parts: tuple[str, int, int], epoch: int = -1, last_epoch: int = -1, part_bytes: int = 1 << 20, wait_ms: int = 0,
    session: tuple[int, int] = (0, -1), forget: tuple[tuple[str, int], ...] = (), **options: Any,
) -> Any:  # fmt: skip
    """`parts` are (topic, partition, offset)."""

    def build(broker: ComparedBroker) -> Any:
        topic = messages.FetchRequest.FetchTopic
        found: dict[str, list[Any]] = {}
        for short, number, offset in parts:
            entry = topic.FetchPartition(
                partition=number, current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=last_epoch,
                log_start_offset=-1, partition_max_bytes=part_bytes,
            )  # fmt: skip
            found.setdefault(short, []).append(entry)
        wanted = [
            topic(topic=broker.name(short), topic_id=broker.id(short), partitions=entries)
            for short, entries in found.items()
        ]
        gone = [
            messages.FetchRequest.ForgottenTopic(
                topic=broker.name(short), topic_id=broker.id(short), partitions=[number]
            )
            for short, number in forget
        ]
        session_id = broker.session_id if session[0] == -1 else session[0]
        values: dict[str, Any] = {"replica_id": -1, "min_bytes": 1, "max_bytes": 1 << 20}
        values.update(isolation_level=0, rack_id="")
        values.update(options)
        return messages.FetchRequest(
            max_wait_ms=wait_ms, session_id=session_id, session_epoch=session[1], topics=wanted,
            forgotten_topics_data=gone, **values,
        )  # fmt: skip

    return build


TWO = (("read", 0, 0), ("read", 1, 0))
FETCH = [
    Case("from the start", fetch(("read", 0, 0))),
    Case("from the middle", fetch(("read", 0, 2))),
    Case("the end", fetch(("read", 0, 4))),
    Case("beyond the end", fetch(("read", 0, 5))),
    Case("a negative offset", fetch(("read", 0, -1))),
    Case("before the log start offset", fetch(("cut", 0, 0))),
    Case("from the log start offset", fetch(("cut", 0, 2))),
    Case("an empty one", fetch(("read", 1, 0))),
    Case("two", fetch(*TWO)),
    Case("no such topic", fetch(("gone", 0, 0))),
    Case("no such partition", fetch(("read", 9, 0))),
    Case("one of two is there", fetch(("read", 0, 0), ("gone", 0, 0))),
    Case("nothing", fetch()),
    Case("a future epoch", fetch(("read", 0, 0), epoch=5)),
    Case("the right epoch", fetch(("read", 0, 0), epoch=0)),
    Case("an epoch below 0", fetch(("read", 0, 0), epoch=-2)),
    Case("what follows epoch 0", fetch(("read", 0, 1), last_epoch=0)),
    Case("what follows a future epoch", fetch(("read", 0, 1), last_epoch=5)),
    Case("beyond the end of epoch 0", fetch(("read", 0, 9), last_epoch=0)),
    Case("one byte", fetch(("read", 0, 0), part_bytes=1)),
    Case("no bytes", fetch(("read", 0, 0), part_bytes=0)),
    Case("one byte in all", fetch(("read", 0, 0), ("cut", 0, 2), max_bytes=1)),
    Case("no bytes in all", fetch(("read", 0, 0), max_bytes=0)),
    Case("one byte in all, committed only", fetch(("read", 0, 0), ("cut", 0, 2), max_bytes=1, isolation_level=1)),
    Case("a part of the second, committed only", fetch(("cut", 0, 2), ("read", 0, 0), max_bytes=90, isolation_level=1)),
    Case("100 bytes", fetch(("read", 0, 0), part_bytes=150)),
    Case("committed only", fetch(("read", 0, 0), isolation_level=1)),
    Case("min bytes 0", fetch(("read", 0, 4), min_bytes=0, wait_ms=500)),
    Case("no records within the wait time", fetch(("read", 0, 4), wait_ms=20)),
    Case("waits with an unknown topic", fetch(("read", 0, 4), ("gone", 0, 0), wait_ms=20)),
    Case("zstd", fetch(("squeezed", 0, 0))),
    Case("a rack", fetch(("read", 0, 0), rack_id="r")),
    Case("an unknown session", fetch(("read", 0, 0), session=(4711, 1)), 7),
    Case("a session without partitions", fetch(session=(0, 0)), 7),
]


def list_offsets(*parts: tuple[str, int, int], epoch: int = -1, isolation: int = 0, replica: int = -1) -> Any:
    """`parts` are (topic, partition, timestamp)."""

    def build(broker: ComparedBroker) -> Any:
        topic = messages.ListOffsetsRequest.ListOffsetsTopic
        names: dict[str, list[Any]] = {}
        for short, number, time in parts:
            entry = topic.ListOffsetsPartition(partition_index=number, current_leader_epoch=epoch, timestamp=time)
            names.setdefault(short, []).append(entry)
        topics = [topic(name=broker.name(short), partitions=entries) for short, entries in names.items()]
        return messages.ListOffsetsRequest(
            replica_id=replica, isolation_level=isolation, topics=topics, timeout_ms=1_000
        )

    return build


LIST_OFFSETS = [
    *(Case(f"time {time}", list_offsets(("read", 0, time))) for time in (-1, -2, -3, -4, -5, -6, -7, -99)),
    *(Case(f"time {time}", list_offsets(("read", 0, time))) for time in (0, 999, 1_000, 1_001, 1_002, 5_000, 10**15)),
    *(Case(f"empty, time {time}", list_offsets(("read", 1, time))) for time in (-1, -2, -3, -4, -5, -6, 0)),
    *(Case(f"cut, time {time}", list_offsets(("cut", 0, time))) for time in (-1, -2, -3, -4, 0, 1_000)),
    Case("no such topic", list_offsets(("gone", 0, -1))),
    Case("no such partition", list_offsets(("read", 9, -1))),
    Case("a negative partition", list_offsets(("read", -3, -1))),
    Case("a partition twice", list_offsets(("read", 0, -1), ("read", 0, -2))),
    Case("two", list_offsets(("read", 0, -1), ("read", 1, -1))),
    Case("an unknown time of no such partition", list_offsets(("read", 9, -3), ("gone", 0, -99), epoch=5)),
    Case("nothing", list_offsets()),
    Case("a future epoch", list_offsets(("read", 0, -1), epoch=5)),
    Case("the right epoch", list_offsets(("read", 0, -1), epoch=0)),
    Case("committed only", list_offsets(("read", 0, -1), isolation=1)),
    Case("a debugging consumer", list_offsets(("read", 0, -1), replica=-2)),
]


def epoch_ends(*parts: tuple[str, int, int], current: int = -1) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        topics = [
            topic(
                topic=broker.name(short),
                partitions=[
                    topic.OffsetForLeaderPartition(partition=number, current_leader_epoch=current, leader_epoch=epoch)
                ],
            )
            for short, number, epoch in parts
        ]
        return messages.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

    return build


EPOCH_ENDS = [
    *(Case(f"epoch {epoch}", epoch_ends(("read", 0, epoch))) for epoch in (0, 1, 9, -1)),
    *(Case(f"empty, epoch {epoch}", epoch_ends(("read", 1, epoch))) for epoch in (0, 1, -1)),
    Case("cut", epoch_ends(("cut", 0, 0))),
    Case("no such topic", epoch_ends(("gone", 0, 0))),
    Case("no such partition", epoch_ends(("read", 9, 0))),
    Case("a future epoch of its own", epoch_ends(("read", 0, 0), current=5)),
    Case("its own epoch", epoch_ends(("read", 0, 0), current=0)),
    Case("nothing", epoch_ends()),
    Case("two", epoch_ends(("read", 0, 0), ("read", 1, 0))),
]


def delete_records(*parts: tuple[str, int, int]) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.DeleteRecordsRequest.DeleteRecordsTopic
        topics = [
            topic(
                name=broker.name(short),
                partitions=[topic.DeleteRecordsPartition(partition_index=number, offset=offset)],
            )
            for short, number, offset in parts
        ]
        return messages.DeleteRecordsRequest(topics=topics, timeout_ms=1_000)

    return build


DELETE_RECORDS = [
    Case("to 0", delete_records(("cut", 0, 0))),
    Case("to the log start offset", delete_records(("cut", 0, 2))),
    Case("beyond the end", delete_records(("cut", 0, 99))),
    Case("a negative offset", delete_records(("cut", 0, -2))),
    Case("an empty one to its end", delete_records(("read", 1, -1))),
    Case("a compacted one", delete_records(("compacted", 0, -1))),
    Case("no such topic", delete_records(("gone", 0, 0))),
    Case("no such partition", delete_records(("read", 9, 0))),
    Case("two", delete_records(("cut", 0, 2), ("gone", 0, 0))),
    Case("two of a topic, one twice", delete_records(("cut", 0, 99), ("cut", 9, 0), ("cut", 0, 1))),
    Case("nothing", delete_records()),
]


def describe_producers(*parts: tuple[str, int]) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.DescribeProducersRequest.TopicRequest
        topics = [topic(name=broker.name(short), partition_indexes=[number]) for short, number in parts]
        return messages.DescribeProducersRequest(topics=topics)

    return build


DESCRIBE_PRODUCERS = [
    Case("without producers", describe_producers(("read", 1))),
    Case("no such topic", describe_producers(("gone", 0))),
    Case("no such partition", describe_producers(("read", 9))),
    Case("a negative partition", describe_producers(("read", -1))),
    Case("an illegal name", describe_producers(("a/b", 0))),
    Case("nothing", describe_producers()),
    Case("two", describe_producers(("read", 1), ("gone", 0))),
]
