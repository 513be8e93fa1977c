"""Interoperability of record batches with kafka-python, aiokafka, librdkafka and Kafka's Java tools.

In memory with the builders of kafka-python and aiokafka; through an Apache Kafka, which validates every produced batch,
with librdkafka and the Java tools.
"""

from __future__ import annotations

import socket
import warnings

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.record_strategies import KERNELS, decode, table
from support.topics import create_topic

from spark_groupsource.records.columns.arrow import AbortedTransaction
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.frames import decode_response, encode_request, frame_length
from spark_groupsource.wire.messages import FetchRequest, ProduceRequest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
    from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

NOW = 1_700_000_000_000
READ_COMMITTED = 1
RECORDS = [
    Record(
        None if number % 3 == 0 else b"key-%d" % (number % 7),
        None if number % 11 == 10 else b'{"flight": %d, "delay": "%s"}' % (number, b"x" * (number % 200)),
        NOW + number // 10,
        (("trace", b"\x00\x80"), ("empty", b""), ("null", None)) if number % 5 == 4 else (),
    )
    for number in range(500)
]
PLAIN = [record._replace(headers=()) for record in RECORDS]
codecs = pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
record_sets = pytest.mark.parametrize("records", [RECORDS, PLAIN], ids=["headers", "plain"])


def microseconds(found):
    return found["timestamp"].cast(pa.int64()).to_pylist()


def seen(log, kernel):
    """Every record in a log; both decoders must return the same."""
    found = table(decode(log, kernel=kernel))
    rows = [
        Record(row["key"], row["value"], stamp // 1000, tuple((h["key"], h["value"]) for h in row["headers"] or ()))
        for row, stamp in zip(found.to_pylist(), microseconds(found))
    ]
    objects = [record for header in iter_batches(log) for record in decode_records(log, header)]
    assert [Record(record.key, record.value, record.timestamp_ms, record.headers) for record in objects] == rows
    assert [record.offset for record in objects] == found["offset"].to_pylist()
    return rows


# --- in memory ---


@kernels
@record_sets
@pytest.mark.parametrize("codec", [0, 1, 3])  # other codecs of kafka-python need more libraries
def test_batches_of_kafka_python_are_decoded(records, codec, kernel):
    builder = KafkaPythonBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    assert seen(bytes(builder.build()), kernel) == records


@kernels
@record_sets
@pytest.mark.parametrize("codec", [0, 1])
def test_batches_of_aiokafka_are_decoded(records, codec, kernel):
    builder = AiokafkaBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    assert seen(bytes(builder.build()), kernel) == records


@record_sets
@pytest.mark.parametrize(
    ("reader", "codec"),
    [(KafkaPythonRecords, codec) for codec in (0, 1, 3)] + [(AiokafkaRecords, codec) for codec in (0, 1)],
)
def test_other_readers_decode_our_batches(records, reader, codec):
    log = encode_batch(records, codec=codec, base_offset=70)
    found = reader(log).next_batch()
    assert found.validate_crc()
    rows = list(found)
    assert [Record(row.key, row.value, row.timestamp, tuple(row.headers)) for row in rows] == records
    assert [row.offset for row in rows] == list(range(70, 70 + len(records)))


# --- over a real Kafka ---


def call(bootstrap_servers, request, version):
    """Sends one request on a new connection, without the client package."""
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as responses:
        connection.sendall(encode_request(request, version, 1, "test"))
        frame = responses.read(frame_length(responses.read(4), 1 << 20))
    return decode_response(memoryview(frame), request, version, 1)


def fetch(bootstrap_servers, topic, offset=0, isolation_level=0):
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=50_000_000, current_leader_epoch=-1, log_start_offset=-1
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50_000_000,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    found = call(bootstrap_servers, request, 11).responses[0].partitions[0]
    assert found.error_code == 0
    return found


def produce_batch(bootstrap_servers, topic, batch):
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])],
    )
    found = call(bootstrap_servers, request, 7).responses[0].partition_responses[0]
    assert found.error_code == 0


def librdkafka_rows(bootstrap_servers, topic, count, **settings):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
        | settings
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=30)
    finally:
        consumer.close()
    assert [message.error() for message in messages] == [None] * count
    return messages


@pytest.mark.kafka
@codecs
def test_librdkafka_writes_and_reads(kafka, topic, codec):
    create_topic(kafka.bootstrap_servers, topic)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50, "acks": "all"}
    producer = Producer(settings | {"compression.type": CODECS[codec]})
    for record in RECORDS:
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms, headers=list(record.headers))
    assert producer.flush(30) == 0
    log = bytes(fetch(kafka.bootstrap_servers, topic).records)
    for kernel in KERNELS.values():
        assert seen(log, kernel) == RECORDS

    # Kafka accepts our batches, and librdkafka reads them
    produce_batch(kafka.bootstrap_servers, topic, encode_batch(RECORDS, codec=codec))
    messages = librdkafka_rows(kafka.bootstrap_servers, topic, 2 * len(RECORDS))[len(RECORDS) :]
    rows = [
        Record(message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ()))
        for message in messages
    ]
    assert rows == RECORDS


@pytest.mark.kafka
@codecs
def test_java_reads_and_recompresses_our_batches(kafka, topic, codec):
    topic_codec = CODECS[codec] if codec else "uncompressed"
    create_topic(kafka.bootstrap_servers, topic, config={"compression.type": topic_codec})
    # the broker recompresses batches of another codec: Java encodes them
    other = 4 if codec == 0 else 0
    produce_batch(kafka.bootstrap_servers, topic, encode_batch(RECORDS, codec=other))
    log = bytes(fetch(kafka.bootstrap_servers, topic).records)
    assert {header.codec for header in iter_batches(log)} == {codec}
    for kernel in KERNELS.values():
        assert seen(log, kernel) == RECORDS

    # with the codec of the topic they are stored unchanged: Java reads our bytes
    produce_batch(kafka.bootstrap_servers, topic, encode_batch(PLAIN, codec=codec))
    segment = kafka.data_directory / f"{topic}-0" / "00000000000000000000.log"
    dump = kafka.tool(
        "org.apache.kafka.tools.DumpLogSegments", "--files", str(segment), "--print-data-log", "--deep-iteration"
    )
    assert dump.returncode == 0 and "invalid" not in dump.stdout.lower()
    assert dump.stdout.count("| offset: ") == 2 * len(RECORDS)
    assert '{"flight": 499,' in dump.stdout


@pytest.mark.kafka
def test_log_append_time_of_a_topic_is_decoded(kafka, topic):
    create_topic(kafka.bootstrap_servers, topic, config={"message.timestamp.type": "LogAppendTime"})
    produce_batch(kafka.bootstrap_servers, topic, encode_batch(RECORDS))
    found = table(decode(bytes(fetch(kafka.bootstrap_servers, topic).records)))
    stamps = {message.timestamp()[1] for message in librdkafka_rows(kafka.bootstrap_servers, topic, len(RECORDS))}
    assert {value // 1000 for value in microseconds(found)} == stamps
    assert set(found["timestampType"].to_pylist()) == {1}


@pytest.mark.kafka
def test_aborted_transactions_of_a_real_broker_are_omitted(kafka, topic):
    create_topic(kafka.bootstrap_servers, topic)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0}
    first, second = (Producer(settings | {"transactional.id": f"{topic}-{name}"}) for name in "ab")
    plain = Producer(settings)
    for producer in (first, second):
        producer.init_transactions(30)

    def write(producer, *values):
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(30) == 0

    first.begin_transaction()
    write(first, b"a committed")
    second.begin_transaction()
    write(second, b"b aborted 1")
    write(plain, b"plain")
    first.commit_transaction(30)
    first.begin_transaction()
    write(first, b"a aborted")
    write(second, b"b aborted 2")
    second.abort_transaction(30)
    first.abort_transaction(30)
    second.begin_transaction()
    write(second, b"b committed")
    second.commit_transaction(30)

    # a commit returns before its marker is in the log: when a reader has all three records, the log is complete
    expected = librdkafka_rows(kafka.bootstrap_servers, topic, 3, **{"isolation.level": "read_committed"})
    found = fetch(kafka.bootstrap_servers, topic, isolation_level=READ_COMMITTED)
    aborted = [AbortedTransaction(item.producer_id, item.first_offset) for item in found.aborted_transactions]
    assert len(aborted) == 2
    log = bytes(found.records)
    for kernel in KERNELS.values():
        block = decode(log, read_committed=True, aborted=aborted, kernel=kernel)
        rows = table(block)
        assert rows["value"].to_pylist() == [b"a committed", b"plain", b"b committed"]
        assert rows["offset"].to_pylist() == [message.offset() for message in expected]
        assert block.next_offset == found.high_watermark == found.last_stable_offset
        assert table(decode(log, kernel=kernel)).num_rows == 6
