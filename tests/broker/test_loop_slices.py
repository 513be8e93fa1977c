"""Time slices of the event loop: no file access, no long step."""

from __future__ import annotations

import os
import threading

import pytest
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, produce
from support.step_calls import calls_of_steps

from spark_groupsource.broker.api import data, placement
from spark_groupsource.broker.api import transaction_requests as transactions
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.wire.messages import (
    AddPartitionsToTxnRequest,
    AlterConfigsRequest,
    AlterUserScramCredentialsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)


@pytest.fixture
def flushing_threads(monkeypatch):
    """The threads that flush files or directories from now on."""
    threads: set[str] = set()

    def record(flush):
        def recorded(descriptor):
            threads.add(threading.current_thread().name)
            return flush(descriptor)

        return recorded

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, record(getattr(os, name)))
    return threads


def _create(connection):
    create_topic(connection, "t", 3)


def _create_automatically(connection):
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
    assert connection.call(request, 4).topics[0].error_code == 0


def _find_coordinators(connection):
    for key_type in (0, 1):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["id"])
        assert connection.call(request, 4).coordinators[0].error_code == 0


def _delete(connection):
    request = DeleteTopicsRequest(topic_names=["old"], timeout_ms=1000)
    assert connection.call(request, 4).responses[0].error_code == 0


def _delete_records(connection):
    assert produce(connection, "old", batch(b"x")).error_code == 0
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = topic(name="old", partitions=[topic.DeleteRecordsPartition(partition_index=0, offset=-1)])
    deleted = connection.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), 2).topics[0].partitions[0]
    assert (deleted.error_code, deleted.low_watermark) == (0, 1)


def _alter_configs(connection):
    resource = AlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name="flush.ms", value="1000")]
    unknown = [resource.AlterableConfig(name="some.setting", value="x")]
    resources = [
        resource(resource_type=2, resource_name="old", configs=configs),
        resource(resource_type=4, resource_name="", configs=unknown),
    ]
    request = AlterConfigsRequest(resources=resources, validate_only=False)
    assert [each.error_code for each in connection.call(request, 2).responses] == [0, 0]


def _alter_users(connection):
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    upsertions = [
        upsertion(name=f"user{number}", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32))
        for number in range(3)
    ]
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
    assert [each.error_code for each in connection.call(request, 0).results] == [0, 0, 0]


_CHANGES = [_create, _create_automatically, _find_coordinators, _delete, _delete_records, _alter_configs, _alter_users]


@pytest.mark.parametrize("change", _CHANGES)
def test_the_event_loop_does_not_wait_for_the_files_of_topics(flushing_threads, change):
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "old")
        flushing_threads.clear()
        change(connection)
        assert flushing_threads == {"groupsource-broker-worker_0"}


def test_requests_wait_for_a_coordinator_topic_that_another_one_creates():
    with EmbeddedBroker() as broker:
        connections = [RawConnection(broker.bootstrap_servers) for _ in range(3)]
        request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        for connection in connections:
            connection.post(request, 2)
        responses = [bytes(connection.read_frame()) for connection in connections]
        for connection in connections:
            connection.__exit__()
    # correlation id, tagged fields of the header, throttle time, error code
    assert [response[9:11] for response in responses] == [b"\0\0"] * 3


_NAMES = [f"t{number}" for number in range(2_000)]


def _list_offsets():
    topic = ListOffsetsRequest.ListOffsetsTopic
    wanted = [topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)]
    topics = [topic(name=name, partitions=wanted) for name in _NAMES]
    return data.list_offsets, ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=0)


def _offsets_for_leader_epochs():
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    wanted = [topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)]
    topics = [topic(topic=name, partitions=wanted) for name in _NAMES]
    return data.offset_for_leader_epoch, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


def _describe_topics():
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in _NAMES]
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=2_000, cursor=None)
    return placement.describe_topic_partitions, request


def _add_to_transaction():
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t", v3_and_below_producer_id=1, v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic(name=name, partitions=[0]) for name in _NAMES],
    )  # fmt: skip
    return transactions.add_partitions, request


def test_requests_for_many_topics_of_one_partition_are_handled_in_steps():
    def steps_of(handler, request):
        def count(broker):
            context = ApiRequestContext(1, 0, 4, "", "", 1)
            return len(calls_of_steps(handler(broker, context, request)).in_steps) - 1

        return count

    with EmbeddedBroker() as broker:
        for make in (_list_offsets, _offsets_for_leader_epochs, _describe_topics, _add_to_transaction):
            assert broker.call(steps_of(*make())) >= 8, make.__name__
