"""Produce: validation errors, acks=0, LogAppendTime in the producer state."""

from __future__ import annotations

import pytest
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetch, fetched_values, produce, produce_request
from support.step_calls import calls_of_steps
from support.waiting import wait_until

from spark_groupsource.broker.api import produce_requests
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.log_validator import begin_validation, check_format
from spark_groupsource.common.coroutines import begin, run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import ListOffsetsRequest


@pytest.fixture
def connection(cluster):
    with RawConnection(cluster.bootstrap_servers.split(",")[0]) as opened:
        yield opened


def test_each_invalid_record_is_named(connection, topic):
    assert create_topic(connection, topic, cleanup_policy="compact").error_code == 0
    mixed = [Record(b"k" if number % 2 else None, b"v", 1_000) for number in range(5)]
    response = produce(connection, topic, encode_batch(mixed))
    assert response.error_code == ErrorCode.INVALID_RECORD and "3 record errors" in response.error_message
    assert [error.batch_index for error in response.record_errors] == [0, 2, 4]
    assert f"without key in topic partition {topic}-0" in response.record_errors[1].batch_index_error_message


@pytest.mark.conformance("UL-058")
def test_a_batch_above_the_segment_size_is_rejected(connection, topic):
    settings = {"segment_bytes": str(1 << 20), "max_message_bytes": str(1 << 22)}
    assert create_topic(connection, topic, **settings).error_code == 0
    largest = (1 << 20) - len(encode_batch([Record(None, bytes(1 << 19), 1_000)])) + (1 << 19)

    def stored(size: int):
        return produce(connection, topic, encode_batch([Record(None, bytes(size), 1_000)]))

    wait_until(lambda: stored(largest).error_code == ErrorCode.NONE, "a leader")
    response = stored(largest + 1)
    assert (response.error_code, response.log_start_offset) == (ErrorCode.RECORD_LIST_TOO_LARGE, -1)


def test_requests_received_before_a_disconnect_are_handled(cluster, connection, topic):
    assert create_topic(connection, topic).error_code == 0
    count = 100
    with RawConnection(cluster.bootstrap_servers.split(",")[0]) as producer:
        frames = [
            encode_request(produce_request(topic, batch(b"%d" % n), acks=0), 9, n, "test") for n in range(count)
        ]
        producer.send(b"".join(frames))
    wait_until(lambda: len(fetched_values(fetch(connection, topic, 0))) == count, "all requests are handled", 20)


def test_an_error_with_acks_0_closes_the_connection(cluster, connection, topic):
    assert create_topic(connection, topic).error_code == 0
    with RawConnection(cluster.bootstrap_servers.split(",")[0]) as producer:
        producer.post(produce_request(topic, batch(b"good"), acks=0), 9)
        producer.post(produce_request(topic, batch(b"bad") + b"\0" * 3 + batch(b"bad"), acks=0), 9)
        wait_until(lambda: fetched_values(fetch(connection, topic, 0)), "the first batch")
        producer.post(produce_request(topic, batch(b"bad", control=True), acks=0), 9)
        assert producer.is_closed_by_peer()
    assert fetched_values(fetch(connection, topic, 0))[0] == b"good"


def test_producers_expire_by_append_time_on_such_topics():
    """The timestamps of the records are 50 years old."""
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert create_topic(connection, "t", message_timestamp_type="LogAppendTime").error_code == 0
        data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        first = produce(connection, "t", data)
        assert first.error_code == 0 and first.log_append_time_ms > 1_000_000
        (entry,) = broker.call(lambda b: list(b.partitions.partition("t", 0).producers().values()))
        assert entry.timestamp_ms == entry.batches[-1].timestamp_ms == first.log_append_time_ms
        again = produce(connection, "t", data)
        assert (again.base_offset, again.log_append_time_ms) == (0, first.log_append_time_ms)
        (stored,) = iter_batches(bytes(fetch(connection, "t", 0).records))
        assert stored.is_log_append_time and stored.max_timestamp == first.log_append_time_ms


def test_large_requests_continue_in_time_slices():
    record = Record(b"k", bytes(1_000_000), 1_000)
    data = encode_batch([*[record] * 30, record._replace(timestamp_ms=2_000)], codec=4)
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert create_topic(connection, "t").error_code == 0
        log = broker.call(lambda b: b.partitions.partition("t", 0).log)
        assert len(calls_of_steps(begin_validation(log, data, check_format(data), 5_000)).in_steps) > 30
        assert produce(connection, "t", data).error_code == 0
        assert len(calls_of_steps(log.find_timestamp(2_000)).in_steps) > 30
        row = ListOffsetsRequest.ListOffsetsTopic
        wanted = row.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=2_000)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[row(name="t", partitions=[wanted])])
        (found,) = connection.call(request, 7).topics[0].partitions
        assert (found.error_code, found.offset, found.timestamp) == (0, 30, 2_000)


def test_a_partition_deleted_during_validation_gets_no_records():
    data = encode_batch([Record(b"k", bytes(1_000_000), 1_000)] * 30, codec=4)
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert create_topic(connection, "t").error_code == 0

        def run(b):
            context = ApiRequestContext(1, 0, 9, "client", "host", b.controller_id)
            work = produce_requests.produce(b, context, produce_request("t", data))
            begin(work, 0)
            run_at_once(b.delete_topic("t"))
            run_at_once(b.create_topic("t", 1, {}))
            try:
                while True:
                    begin(work, 0)
            except StopIteration as end:
                return end.value.responses[0].partition_responses[0]

        assert broker.call(run).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert produce(connection, "t", batch(b"x")).base_offset == 0
