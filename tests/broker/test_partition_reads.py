"""Entries of a fetch of many partitions: those of each alone."""

from __future__ import annotations

import pytest
from support.raw_broker import RawConnection, create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import FetchRequest, MetadataRequest, ProduceRequest

Topic = FetchRequest.FetchTopic
COUNT = 4


@pytest.fixture(scope="module")
def connection():
    with EmbeddedBroker(config={"offsets.topic.num.partitions": "1"}) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            assert create_topic(connection, "t", COUNT).error_code == 0
            data = ProduceRequest.TopicProduceData.PartitionProduceData(
                index=1, records=encode_batch([Record(None, b"value", 5)] * 3)
            )
            topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
            connection.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
            yield connection


def topic_id(connection):
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    return connection.call(MetadataRequest(topics=[topic], allow_auto_topic_creation=False), 12).topics[0].topic_id


def fetch(connection, version, isolation_level, partitions):
    named = {"topic": "t"} if version < 13 else {"topic_id": topic_id(connection)}
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=100_000, isolation_level=isolation_level, session_id=0,
        session_epoch=-1, topics=[Topic(partitions=partitions, **named)], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    response = connection.call(request, version)
    assert not response.error_code
    entries = [entry for topic in response.responses for entry in topic.partitions]
    for entry in entries:
        entry.records = None if entry.records is None else bytes(entry.records)
    return {entry.partition_index: repr(entry) for entry in entries}


@pytest.mark.parametrize("version", [4, 11, 12, 16])
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize(
    "offset, leader_epoch, last_epoch",
    [(0, -1, -1), (3, -1, -1), (3, 0, -1), (4, -1, -1), (-1, -1, -1), (3, 9, -1), (3, -1, 0), (0, 0, 0)],
)
def test_each_entry_is_that_of_the_partition_alone(
    connection, version, isolation_level, offset, leader_epoch, last_epoch
):
    def requested(number):
        return Topic.FetchPartition(
            partition=number,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset if number == 1 else 0,
            last_fetched_epoch=last_epoch,
            log_start_offset=-1,
            partition_max_bytes=1_000,
        )

    numbers = [*range(COUNT), 99]  # the last one does not exist
    together = fetch(connection, version, isolation_level, [requested(number) for number in numbers])
    alone = {}
    for number in numbers:
        alone.update(fetch(connection, version, isolation_level, [requested(number)]))
    assert together == alone and list(together) == numbers
