"""Fetcher and batch producer, on both brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from support.clients import open_cluster
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.records.fetcher import FetchedBlock, PartitionFetcher
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.errors import BrokerError, DataLossError, ErrorCode
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.columns.arrow import decode_fetched
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record
from spark_groupsource.records.header import iter_batches

Read = dict[int, list[tuple[int, bytes | None]]]


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    with open_cluster(cluster.bootstrap_servers) as opened:
        yield opened


def read(client: ClusterClient, *ranges: OffsetRange) -> Read:
    """partition -> (offset, value) within the ranges, taken from each block while it is valid."""
    wanted = {r.topic_partition: r for r in ranges}
    found: Read = defaultdict(list)
    for block in PartitionFetcher(client).fetch_blocks(ranges):
        assert not block.error, block
        found[block.topic_partition.partition] += values(block, wanted[block.topic_partition])
    return found


def values(block: FetchedBlock, wanted: OffsetRange) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for header in iter_batches(block.data)
        if not header.is_control
        for record in decode_records(block.data, header)
        if wanted.start <= record.offset < wanted.end
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.conformance("FT-001", "KC-005")
def test_every_record_is_fetched_once(client: ClusterClient, cluster: Any, topic: str, codec: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 3)
    records = [(n % 3, b"k", b"%d" % n) for n in range(3_000)]
    produce(cluster.bootstrap_servers, topic, records, compression_codec=codec, batch_num_messages=100)

    found = read(client, *(OffsetRange(TopicPartition(topic, n), 0, 1_000) for n in range(3)))

    for partition in range(3):
        assert [offset for offset, _ in found[partition]] == list(range(1_000))
        assert {int(value or b"") for _, value in found[partition]} == set(range(partition, 3_000, 3))


def test_arrow_batches_outlive_their_response(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    expected = [b"%d" % n * (100 + n) for n in range(50)]
    produce(cluster.bootstrap_servers, topic, [(0, None, value) for value in expected], batch_num_messages=1)
    kept: list[Any] = []
    with open_cluster(cluster.bootstrap_servers, max_partition_fetch_bytes="400") as small:
        for block in PartitionFetcher(small).fetch_blocks([OffsetRange(TopicPartition(topic, 0), 0, 50)]):
            p, columns = block.topic_partition, ["value"]
            decoded = decode_fetched(block.data, topic_partition=p, columns=columns, start_offset=0, end_offset=50)
            kept += decoded.batches
    assert len(kept) > 10
    assert [value for batch in kept for value in batch["value"].to_pylist()] == expected


def test_small_responses_rotate_partitions(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 3)
    produce(
        cluster.bootstrap_servers, topic, [(n % 3, None, b"x" * 500) for n in range(300)], batch_num_messages=10
    )
    with open_cluster(
        cluster.bootstrap_servers, fetch_max_bytes="4000", max_partition_fetch_bytes="2000"
    ) as client:
        order = []
        for block in PartitionFetcher(client).fetch_blocks(
            [OffsetRange(TopicPartition(topic, n), 0, 100) for n in range(3)]
        ):
            order.append(block.topic_partition.partition)
        assert len(order) >= 12
        assert {*order[:6]} == {0, 1, 2}, "no partition waits for the end of another"


def test_a_range_begins_and_ends_inside_batches(client: ClusterClient, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    tp = TopicPartition(topic, 0)
    producer = BatchProducer(client)
    producer.send(encoded(tp, [Record(None, b"%d" % n, n) for n in range(100)]))
    assert [offset for offset, _ in read(client, OffsetRange(tp, 37, 61))[0]] == list(range(37, 61))
    (block,) = PartitionFetcher(client).fetch_blocks([OffsetRange(tp, 37, 61)])
    assert block.next_offset == 100 and (block.log_start_offset, block.high_watermark) == (0, 100)
    assert list(PartitionFetcher(client).fetch_blocks([OffsetRange(tp, 5, 5)])) == []


def test_records_above_the_fetch_limits_are_returned(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    with open_cluster(cluster.bootstrap_servers, max_partition_fetch_bytes="100", fetch_max_bytes="100") as client:
        tp = TopicPartition(topic, 0)
        BatchProducer(client).send(encoded(tp, [Record(None, b"x" * 50_000, 1), Record(None, b"y", 1)]))
        assert len(read(client, OffsetRange(tp, 0, 2))[0]) == 2


@pytest.mark.conformance("FT-044", "FT-045")
def test_deleted_records_are_out_of_range_with_the_bounds_of_the_log(
    client: ClusterClient, cluster: Any, topic: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(n % 2, None, b"x") for n in range(20)])
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.delete_records(client, {first: 4})

    blocks = {
        block.topic_partition: block
        for block in PartitionFetcher(client).fetch_blocks([OffsetRange(first, 0, 10), OffsetRange(second, 0, 10)])
    }

    assert blocks[first].error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (blocks[first].log_start_offset, blocks[first].high_watermark) == (4, 10)
    assert blocks[second].error == 0, "the other partition is read all the same"


@pytest.mark.conformance("FT-040")
def test_offsets_past_the_end_are_out_of_range(client: ClusterClient, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    (block,) = PartitionFetcher(client).fetch_blocks([OffsetRange(TopicPartition(topic, 0), 5, 7)])
    assert (block.error, block.log_start_offset, block.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0, 0)


@pytest.mark.usefixtures("short_retries")
def test_deleted_topic_is_reported(client: ClusterClient, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")])
    client.metadata([topic])
    delete_topic(cluster.bootstrap_servers, topic)
    (block,) = PartitionFetcher(client).fetch_blocks([OffsetRange(TopicPartition(topic, 0), 0, 1)])
    assert block.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.slow
def test_range_beyond_the_log_end_raises_after_the_timeout(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")])
    with open_cluster(cluster.bootstrap_servers, default_api_timeout_ms="1000", fetch_max_wait_ms="100") as client:
        message = f"COULD_NOT_READ_OFFSET_RANGE.*{topic}-0 at offset 1 of 5.*default.api.timeout.ms"
        with pytest.raises(DataLossError, match=message):
            list(PartitionFetcher(client).fetch_blocks([OffsetRange(TopicPartition(topic, 0), 0, 5)]))


def test_cancelled_fetch_leaves_no_response_on_a_pooled_connection(
    client: ClusterClient, cluster: Any, topic: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    tp = TopicPartition(topic, 0)
    producer = BatchProducer(client)
    for _ in range(3):
        producer.send(encoded(tp, [Record(None, b"x" * 1_000, n) for n in range(2_000)]))
    blocks = PartitionFetcher(client).fetch_blocks([OffsetRange(tp, 0, 6_000)])
    next(blocks)
    blocks.close()
    assert client.list_offsets({tp: LATEST})[tp].offset == 6_000
    assert len(read(client, OffsetRange(tp, 0, 6_000))[0]) == 6_000


@pytest.mark.slow
def test_aborted_transactions_are_returned(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
    tp = TopicPartition(topic, 0)
    with open_cluster(cluster.bootstrap_servers, isolation_level="read_committed") as client:
        # Kafka responds to EndTxn before it writes the marker
        wait_until(lambda: client.list_offsets({tp: LATEST})[tp].offset == 6, "three records and three markers")
        blocks = list(PartitionFetcher(client).fetch_blocks([OffsetRange(tp, 0, 6)]))
    assert [aborted.first_offset for block in blocks for aborted in block.aborted] == [2]


# -- producing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_produced_records_are_fetched(client: ClusterClient, cluster: Any, topic: str, codec: int) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    tps = [TopicPartition(topic, n) for n in range(2)]
    producer = BatchProducer(client)
    records = [Record(b"k%d" % n, b"v%d" % n, 1_700_000_000_000 + n, (("h", None),)) for n in range(500)]

    assert producer.send(batch for tp in tps for batch in encoded(tp, records, codec)) == dict.fromkeys(tps, 0)
    assert producer.send(encoded(tps[0], records, codec)) == {tps[0]: 500}
    assert producer.send(encoded(tps[1], [])) == {}

    found = read(client, OffsetRange(tps[0], 0, 1_000), OffsetRange(tps[1], 0, 500))
    assert [value for _, value in found[0]] == [b"v%d" % n for n in range(500)] * 2
    assert [value for _, value in found[1]] == [b"v%d" % n for n in range(500)]


def test_producer_splits_records_into_batches(client: ClusterClient, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    records = [Record(None, b"x" * 10_000, n) for n in range(250)]
    tp = TopicPartition(topic, 0)
    batches = list(encoded(tp, records))
    assert len(batches) == 3
    assert BatchProducer(client).send(batches) == {tp: 0}
    assert len(read(client, OffsetRange(tp, 0, 250))[0]) == 250


def test_record_that_is_too_large_raises(client: ClusterClient, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    producer = BatchProducer(client)
    with pytest.raises(BrokerError, match=f"Produce to {topic}-0.*MESSAGE_TOO_LARGE.*Increase max.message.bytes"):
        producer.send(encoded(TopicPartition(topic, 0), [Record(None, b"x" * 2_000_000, 1)]))
    tp = TopicPartition(topic, 0)
    assert producer.send(encoded(tp, [Record(None, b"x", 1)])) == {tp: 0}, "the next one is not held back"
