"""Generated encoders and constructors of messages."""

from __future__ import annotations

import struct

import pytest

from spark_groupsource.wire.decoder import decode_exactly, decode_prefix
from spark_groupsource.wire.encoder import encode_body, encode_data, unsigned_varint
from spark_groupsource.wire.frames import encode_request, encode_response
from spark_groupsource.wire.messages import (
    DeleteTopicsRequest,
    DescribeTopicPartitionsResponse,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitValue,
    ProduceResponse,
)

Fetched = FetchResponse.FetchableTopicResponse
Committed = OffsetCommitRequest.OffsetCommitRequestTopic


def fetched(count, **fields):
    entry = Fetched.PartitionData(partition_index=3, high_watermark=5, records=memoryview(b"r" * 300), **fields)
    return FetchResponse(session_id=0, responses=[Fetched(topic="t" * 200, partitions=[entry] * count)])


def again(message, version):
    return decode_exactly(type(message), version, memoryview(encode_body(message, version)))


@pytest.mark.parametrize("version", [4, 11, 12])
@pytest.mark.parametrize("count", [0, 1, 126, 127, 200])
def test_long_strings_arrays_and_record_sets(version, count):
    message = fetched(count, aborted_transactions=None, preferred_read_replica=-1)
    assert again(message, version) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"diverging_epoch": Fetched.PartitionData.EpochEndOffset(epoch=1, end_offset=2)},
        {"snapshot_id": Fetched.PartitionData.SnapshotId(end_offset=7, epoch=1), "current_leader": None},
        {"aborted_transactions": [Fetched.PartitionData.AbortedTransaction(producer_id=1, first_offset=2)] * 130},
    ],
    ids=["one tagged field", "another tagged field", "long inner array"],
)
def test_tagged_fields_and_inner_arrays(fields):
    message = fetched(2, **fields)
    assert again(message, 12) == message


def test_tagged_fields_are_in_the_order_of_their_tags():
    data = Fetched.PartitionData
    entry = fetched(1, snapshot_id=data.SnapshotId(), diverging_epoch=data.EpochEndOffset())
    body = encode_body(entry, 12)
    sections = "02 00 0d ffffffff ffffffffffffffff 00 02 0d ffffffffffffffff ffffffff 00"
    assert bytes.fromhex(sections) in body


def test_a_nullable_structure():
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name="t", partition_index=1)
    for message in (DescribeTopicPartitionsResponse(), DescribeTopicPartitionsResponse(next_cursor=cursor)):
        assert again(message, 0).next_cursor == message.next_cursor


def test_a_request_for_all_topics_is_an_empty_list_in_version_0():
    assert encode_body(MetadataRequest(topics=None), 0) == bytes(4)
    assert encode_body(MetadataRequest(topics=None), 1) == b"\xff" * 4
    message = MetadataRequest(topics=None)
    encode_body(message, 0)
    assert message.topics is None


def test_topics_to_delete_are_names_before_version_6():
    topic = DeleteTopicsRequest.DeleteTopicState(name="t")
    assert again(DeleteTopicsRequest(topics=[topic]), 5).topic_names == ["t"]
    assert again(DeleteTopicsRequest(topic_names=["u"]), 3).topic_names == ["u"]
    assert again(DeleteTopicsRequest(topics=[topic]), 6).topics == [topic]


def test_fields_of_other_versions_have_their_defaults():
    message = again(ProduceResponse(throttle_time_ms=3), 9)
    assert (message.node_endpoints, message.throttle_time_ms) == ([], 3)
    entry = Committed.OffsetCommitRequestPartition(partition_index=1, committed_offset=2, committed_leader_epoch=9)
    request = OffsetCommitRequest(group_id="g", topics=[Committed(name="t", partitions=[entry])])
    (topic,) = again(request, 2).topics
    assert topic.partitions[0].committed_leader_epoch == -1 and topic.partitions[0].committed_offset == 2


def test_constructors_have_the_defaults_of_the_schema():
    first, second = ProduceResponse(), ProduceResponse()
    assert first == second and first.responses is not second.responses
    partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse(index=3, error_code=0)
    assert (partition.current_leader, partition.log_append_time_ms, partition.record_errors) == (None, -1, [])
    assert repr(HeartbeatResponse(error_code=3)) == "HeartbeatResponse(throttle_time_ms=0, error_code=3)"
    assert first != HeartbeatResponse()
    with pytest.raises(TypeError, match="unexpected keyword argument 'code'"):
        HeartbeatResponse(code=3)
    with pytest.raises(AttributeError):
        first.code = 3


@pytest.mark.parametrize("version", [-1, 5])
def test_unknown_versions_are_rejected(version):
    expected = f"has no version {version}. Use 0 to 4."
    with pytest.raises(ValueError, match=expected):
        encode_response(HeartbeatResponse(), version, 1)
    with pytest.raises(ValueError, match=expected):
        encode_request(HeartbeatRequest(), version, 1, "c")


def test_values_that_do_not_fit_raise_errors():
    with pytest.raises(struct.error):
        encode_response(MetadataResponse(controller_id=2**40), 9, 7)
    with pytest.raises(struct.error):
        encode_body(HeartbeatRequest(group_id="g" * 2**15), 0)
    with pytest.raises(AttributeError):
        encode_response(MetadataResponse(brokers=[object()]), 9, 7)


def test_data_start_with_their_version():
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9)
    data = encode_data(value, 3)
    assert data[:2] == b"\0\3" and decode_prefix(OffsetCommitValue, 3, memoryview(data), 2) == (value, len(data))


@pytest.mark.parametrize(
    "number, data",
    [(0, "00"), (127, "7f"), (128, "8001"), (16_383, "ff7f"), (16_384, "808001"), (2**32 - 1, "ffffffff0f")],
)
def test_varints(number, data):
    assert unsigned_varint(number).hex() == data
