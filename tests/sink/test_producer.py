"""Producer of encoded batches: pipelining, retries, lost state, limits."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec
from support.clients import ConnectionLostError, fake_broker, open_cluster, open_cluster_at
from support.faulty_broker import LOSE_REQUEST, LOSE_RESPONSE, NO_RESPONSE, Fault, fail_metadata, faulty_broker
from support.read_back import read_back
from support.topics import create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster import error_rules
from spark_groupsource.client.cluster.error_rules import UNKNOWN_TOPIC_TIMEOUT_MS
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.records.header import HEADER_BYTES, iter_batches

FAST = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "5"}


def batches(topic: str, partitions: int, count: int, size: int = 100) -> Iterator[EncodedBatch]:
    """Yields `count` batches of three records each, with numbers by partition, to the partitions in turn."""
    numbers = [0] * partitions
    for turn in range(count):
        partition = turn % partitions
        values = [b"%d" % (numbers[partition] + n) for n in range(3)]
        numbers[partition] += 3
        records = [Record(None, value, 1, (("fill", b"x" * size),)) for value in values]
        yield EncodedBatch(TopicPartition(topic, partition), encode_batch(records), 3)


def lost(request: object, version: int) -> object:
    """Closes the connection."""
    raise ConnectionLostError


def check_each_once(bootstrap_servers: str, topic: str, partitions: int, count: int) -> None:
    found = read_back(bootstrap_servers, topic, partitions)
    for partition, records in found.items():
        expected = len(range(partition, count, partitions)) * 3
        assert [value for _, value, _ in records] == [b"%d" % n for n in range(expected)], partition


@pytest.mark.parametrize("seed", range(6))
def test_retries_write_each_record_once_and_in_order(embedded: EmbeddedBroker, topic: str, seed: int) -> None:
    create_topic(embedded.bootstrap_servers, topic, 3)
    rng = random.Random(seed)
    faults = (
        LOSE_REQUEST, LOSE_RESPONSE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CORRUPT_MESSAGE,
    )  # fmt: skip
    counts = dict.fromkeys(faults, 0)

    def fault() -> Fault:
        if rng.random() > 0.3:
            return None
        chosen = rng.choice(faults)
        counts[chosen] += 1
        return chosen

    with faulty_broker(embedded.bootstrap_servers, fault) as proxy, open_cluster(str(proxy.address), **FAST) as client:
        # a request has about two batches
        producer = BatchProducer(client, ProducerSettings(max_request_bytes=1_000))
        for _ in range(2):
            offsets = producer.send(batches(topic, 3, 90))
    assert sum(counts.values()) > 10
    assert set(offsets) == {TopicPartition(topic, n) for n in range(3)}
    found = read_back(embedded.bootstrap_servers, topic, 3)
    for records in found.values():
        assert [value for _, value, _ in records] == [b"%d" % n for n in range(90)] * 2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_a_partition_without_producer_state_continues_in_the_next_epoch(
    embedded: EmbeddedBroker, topic: str, code: ErrorCode
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 2)
    requests = iter(range(1_000))

    def fault() -> Fault:
        return code if next(requests) in (3, 9) else None

    with faulty_broker(embedded.bootstrap_servers, fault) as proxy, open_cluster(str(proxy.address), **FAST) as client:
        BatchProducer(client, ProducerSettings(max_request_bytes=1_000)).send(batches(topic, 2, 60))
        epochs = {
            next(iter_batches(p.records)).producer_epoch
            for name, _, request in proxy.requests if name == "Produce"
            for each in request.topic_data for p in each.partition_data
        }  # fmt: skip
        assert sum(name == "InitProducerId" for name, _, _ in proxy.requests) == 1
    assert 0 in epochs and len(epochs) >= 2
    check_each_once(embedded.bootstrap_servers, topic, 2, 60)


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("faults", "is_restarted"),
    [
        # the broker has all three, and has forgotten the sequences of the first two at a restart
        ([None, NO_RESPONSE, NO_RESPONSE, LOSE_RESPONSE, OUT_OF_ORDER, OUT_OF_ORDER], False),
        ([None, NO_RESPONSE, LOSE_RESPONSE, OUT_OF_ORDER], False),
        # the broker has none of five, and has lost what it acknowledged before
        ([None, LOSE_REQUEST, *[OUT_OF_ORDER] * 5], True),
    ],
)
def test_a_batch_whose_repetition_is_rejected_is_written_once(
    embedded: EmbeddedBroker, topic: str, faults: list[Fault], is_restarted: bool
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    coming = iter(faults)
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: next(coming, None)) as proxy,
        open_cluster(str(proxy.address), **FAST) as client,
    ):
        offsets = BatchProducer(client).send(batches(topic, 1, 12))
        sent = [request.topic_data[0].partition_data[0] for name, _, request in proxy.requests if name == "Produce"]
        assert any(next(iter_batches(p.records)).producer_epoch for p in sent) is is_restarted
    assert next(coming, None) is None
    assert offsets == {TopicPartition(topic, 0): 0}
    check_each_once(embedded.bootstrap_servers, topic, 1, 12)


def test_a_transaction_keeps_its_identity_and_raises(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: ErrorCode.UNKNOWN_PRODUCER_ID) as proxy,
        open_cluster(str(proxy.address), **FAST) as client,
    ):
        from spark_groupsource.model import ProducerIdAndEpoch

        producer = BatchProducer(client, transactional_id="t", identity=ProducerIdAndEpoch(7, 3))
        with pytest.raises(BrokerError, match="UNKNOWN_PRODUCER_ID"):
            producer.send(batches(topic, 1, 3))
        sent = [request for name, _, request in proxy.requests if name == "Produce"]
        assert {request.transactional_id for request in sent} == {"t"}
        header = next(iter_batches(sent[0].topic_data[0].partition_data[0].records))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 0)
        assert header.is_transactional
        assert not any(name == "InitProducerId" for name, _, _ in proxy.requests)


@pytest.mark.parametrize(("limit", "expected"), [(5, 5), (1, 1)])
def test_requests_are_pipelined(
    embedded: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch, limit: int, expected: int
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    sent, received, most = 0, 0, 0
    send, receive = BrokerConnection.send, BrokerConnection.receive

    def counting_send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal sent, most
        found = send(self, request, *args, **kwargs)
        sent += hasattr(request, "topic_data")
        most = max(most, sent - received)
        return found

    def counting_receive(self: Any, in_flight: Any) -> Any:
        nonlocal received
        received += hasattr(in_flight.request, "topic_data")
        return receive(self, in_flight)

    monkeypatch.setattr(BrokerConnection, "send", counting_send)
    monkeypatch.setattr(BrokerConnection, "receive", counting_receive)
    with open_cluster(embedded.bootstrap_servers) as client:
        BatchProducer(client, ProducerSettings(max_in_flight=limit)).send(batches(topic, 1, 20))
    assert (sent, received, most) == (20, 20, expected)
    check_each_once(embedded.bootstrap_servers, topic, 1, 20)


def test_unacknowledged_batches_are_bounded_by_buffer_memory(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 4)
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap_servers})
    latest = {confluent_kafka.TopicPartition(topic, number): OffsetSpec.latest() for number in range(4)}
    taken = 0
    waiting = []

    def counted() -> Iterator[EncodedBatch]:
        nonlocal taken
        for batch in batches(topic, 4, 40, size=1_000):
            taken += 1
            written = sum(found.result(30).offset for found in admin.list_offsets(latest).values())
            waiting.append(taken * 3 - written)
            yield batch

    with open_cluster(embedded.bootstrap_servers) as client:
        # about four batches
        BatchProducer(client, ProducerSettings(buffer_bytes=28_000)).send(counted())
    assert max(waiting) <= 3 * 6
    check_each_once(embedded.bootstrap_servers, topic, 4, 40)


def test_a_batch_above_the_limit_of_the_topic_is_split(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2, {"max.message.bytes": "20000"})
    records = [Record(b"k%d" % n, b"%d" % n + b"x" * 200, 1_000 + n, (("h", b"%d" % n),)) for n in range(1_000)]
    tps = [TopicPartition(topic, n) for n in range(2)]
    with open_cluster(cluster.bootstrap_servers, **FAST) as client:
        producer = BatchProducer(client)
        producer.send(batch for tp in tps for batch in encoded(tp, records))
        # sequences continue after the parts
        producer.send(encoded(tps[0], records[:1]))
    found = read_back(cluster.bootstrap_servers, topic, 2)
    expected = [(each.key, each.value, list(each.headers)) for each in records]
    assert found == {0: [*expected, expected[0]], 1: expected}


def test_a_split_batch_is_no_retry(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1, {"max.message.bytes": "1000"})
    with open_cluster(embedded.bootstrap_servers, **FAST) as client:
        BatchProducer(client, ProducerSettings(retries=0, idempotence=False)).send(batches(topic, 1, 1, size=900))
    check_each_once(embedded.bootstrap_servers, topic, 1, 1)


def test_the_parts_of_a_batch_are_compressed_with_the_level_of_the_producer(
    embedded: EmbeddedBroker, topic: str
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    rng, tp = random.Random(1), TopicPartition(topic, 0)
    records = [Record(None, b"%d" % n + rng.choice([b"carrier", b"delay"]) * n, 1) for n in range(100)]
    zstd = CODECS.index("zstd")
    faults: Iterator[Fault] = iter([ErrorCode.MESSAGE_TOO_LARGE])
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: next(faults, None)) as proxy,
        open_cluster(str(proxy.address), **FAST) as client,
    ):
        BatchProducer(client, ProducerSettings(codec=zstd, zstd_level=19)).send(encoded(tp, records, zstd))
        sent = [request.topic_data[0].partition_data[0] for name, _, request in proxy.requests if name == "Produce"]
    halves = [encode_batch(half, codec=zstd, level=19) for half in (records[:50], records[50:])]
    assert halves != [encode_batch(half, codec=zstd) for half in (records[:50], records[50:])]
    assert [bytes(p.records)[HEADER_BYTES:] for p in sent[1:]] == [half[HEADER_BYTES:] for half in halves]


def test_a_batch_above_the_segment_size_of_the_topic_is_split(cluster: Any, topic: str) -> None:
    settings = {"segment.bytes": str(1 << 20), "max.message.bytes": str(1 << 22)}
    create_topic(cluster.bootstrap_servers, topic, 1, settings)
    with open_cluster(cluster.bootstrap_servers, **FAST) as client:
        BatchProducer(client).send(batches(topic, 1, 1, size=500_000))
    check_each_once(cluster.bootstrap_servers, topic, 1, 1)


def test_a_record_above_the_segment_size_of_the_topic_is_an_error(embedded: EmbeddedBroker, topic: str) -> None:
    settings = {"segment.bytes": str(1 << 20), "max.message.bytes": str(1 << 22)}
    create_topic(embedded.bootstrap_servers, topic, 1, settings)
    with open_cluster(embedded.bootstrap_servers) as client:
        with pytest.raises(BrokerError, match="RECORD_LIST_TOO_LARGE.* Increase segment.bytes of the topic"):
            BatchProducer(client).send(encoded(TopicPartition(topic, 0), [Record(None, bytes(1 << 20), 1)]))


def test_a_record_above_the_limit_of_the_topic_is_an_error(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1, {"max.message.bytes": "1000"})
    tp = TopicPartition(topic, 0)
    with open_cluster(embedded.bootstrap_servers) as client:
        producer = BatchProducer(client)
        with pytest.raises(BrokerError, match="A record of 20[0-9]+ bytes.* larger than max.message.bytes=1000 of"):
            producer.send(encoded(tp, [Record(None, b"a", 1), Record(None, b"x" * 2_000, 1), Record(None, b"b", 1)]))
        assert producer.send(encoded(tp, [Record(None, b"c", 1)]))
    values = [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]]
    assert values[-1] == b"c" and set(values) <= {b"a", b"b", b"c"}


@pytest.mark.parametrize(
    ("settings", "fault", "message"),
    [
        ({"delivery_timeout_ms": 50}, ErrorCode.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS.*Start the missing brokers"),
        ({"delivery_timeout_ms": 50}, LOSE_REQUEST, "Produce request to"),
        ({"retries": 2}, ErrorCode.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS"),
        ({}, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED"),
        ({}, ErrorCode.INVALID_RECORD, "INVALID_RECORD"),
        ({}, ErrorCode.INVALID_TIMESTAMP, "INVALID_TIMESTAMP.* Compare the clocks of the producer and the broker"),
    ],
)
def test_errors_that_end_the_retries(
    embedded: EmbeddedBroker, topic: str, settings: dict[str, int], fault: Fault, message: str
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    failing = True
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: fault if failing else None) as proxy,
        open_cluster(str(proxy.address), **FAST) as client,
    ):
        producer = BatchProducer(client, ProducerSettings(**settings))  # type: ignore[arg-type]
        with pytest.raises((BrokerError, NetworkError), match=message):
            producer.send(batches(topic, 1, 3))
        if "retries" in settings:
            sent = [request.topic_data[0].partition_data[0] for name, _, request in proxy.requests if name == "Produce"]
            assert sum(next(iter_batches(p.records)).base_sequence == 0 for p in sent) == 3
        failing = False
        # with another producer id: the broker may have the batches
        producer.send(batches(topic, 1, 3))
        assert sum(name == "InitProducerId" for name, _, _ in proxy.requests) == 2
    check_each_once(embedded.bootstrap_servers, topic, 1, 3)


def test_a_leader_that_cannot_be_reached_uses_up_no_retries(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    left = 6
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy,
        open_cluster(str(proxy.address), **FAST) as client,
    ):
        forward = proxy.responses["Metadata"]

        def former_address(request: Any, version: int) -> Any:
            nonlocal left
            response = forward(request, version)
            left -= 1
            if left >= 0:
                response.brokers[0].port = closed
            return response

        proxy.responses["Metadata"] = former_address
        BatchProducer(client, ProducerSettings(retries=1)).send(batches(topic, 1, 1))
    assert left < 0
    check_each_once(embedded.bootstrap_servers, topic, 1, 1)


def test_acks_of_the_leader_alone_have_no_sequences(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy, open_cluster(str(proxy.address)) as client:
        BatchProducer(client, ProducerSettings(acks=1, idempotence=False)).send(batches(topic, 1, 4))
        sent = [request for name, _, request in proxy.requests if name == "Produce"]
        assert {request.acks for request in sent} == {1}
        assert {next(iter_batches(r.topic_data[0].partition_data[0].records)).producer_id for r in sent} == {-1}
    check_each_once(embedded.bootstrap_servers, topic, 1, 4)


def test_an_error_of_the_input_leaves_a_usable_producer(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)

    def failing() -> Iterator[EncodedBatch]:
        yield from batches(topic, 1, 3)
        raise ValueError("the input ended")

    with open_cluster(embedded.bootstrap_servers) as client:
        producer = BatchProducer(client)
        with pytest.raises(ValueError, match="the input ended"):
            producer.send(failing())
        producer.send(batches(topic, 1, 1))
    values = [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]]
    assert values[-3:] == [b"0", b"1", b"2"]


def test_an_unreachable_cluster_is_an_error(topic: str) -> None:
    with fake_broker() as broker, open_cluster(str(broker.address), default_api_timeout_ms="100") as client:
        with pytest.raises(NetworkError, match="No Kafka broker"):
            BatchProducer(client, ProducerSettings(delivery_timeout_ms=100)).send(batches(topic, 1, 1))


def test_a_topic_that_is_unknown_after_an_outage_is_looked_up_again(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    clock = ManualClock(1)
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy,
        open_cluster_at(clock, str(proxy.address)) as client,
    ):
        # each is requested twice, for all topics and for that of the batch
        fail_metadata(proxy, [*[ErrorCode.LEADER_NOT_AVAILABLE] * 19, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2])
        BatchProducer(client).send(batches(topic, 1, 1))
    assert clock.now_ms() > UNKNOWN_TOPIC_TIMEOUT_MS
    check_each_once(embedded.bootstrap_servers, topic, 1, 1)


def test_lookups_of_a_leader_end_with_the_delivery_timeout(embedded: EmbeddedBroker, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    clock = ManualClock(1)
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy,
        open_cluster_at(clock, str(proxy.address), default_api_timeout_ms="600000") as client,
    ):
        producer = BatchProducer(client, ProducerSettings(delivery_timeout_ms=10_000))
        producer.send(batches(topic, 1, 1))
        proxy.responses["Produce"] = proxy.responses["Metadata"] = lost
        with pytest.raises(NetworkError):
            producer.send(batches(topic, 1, 1))
        assert clock.now_ms() < 20_000


def test_a_topic_that_does_not_exist_is_an_error(
    embedded: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_rules, "UNKNOWN_TOPIC_TIMEOUT_MS", 50)
    with open_cluster(embedded.bootstrap_servers, **FAST) as client:
        with pytest.raises(BrokerError, match=f"Leader lookup of {topic}-0 failed: UNKNOWN_TOPIC_OR_PARTITION"):
            BatchProducer(client).send(batches(topic, 1, 1))
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            BatchProducer(client).send(batches("no topic", 1, 1))


@pytest.mark.slow
def test_batches_follow_leaders_that_move(topic: str) -> None:
    with EmbeddedBroker(brokers=3) as broker, open_cluster(broker.bootstrap_servers, **FAST) as client:
        create_topic(broker.bootstrap_servers, topic, 3)

        def moving() -> Iterator[EncodedBatch]:
            for number, batch in enumerate(batches(topic, 3, 240)):
                if number % 10 == 5:
                    partition = number // 10 % 3
                    broker.move_leader(topic, partition, broker.leader(topic, partition).node_id % 3 + 1)
                yield batch

        BatchProducer(client, ProducerSettings(max_request_bytes=1_000)).send(moving())
        check_each_once(broker.bootstrap_servers, topic, 3, 240)
