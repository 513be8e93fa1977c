"""Rejection of invalid message bytes, one test per rule."""

from __future__ import annotations

import re

import pytest

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.decoder import (
    TooManyElementsError,
    decode_exactly,
    decode_prefix,
    read_unsigned_varint,
    skip_tagged_fields,
)
from spark_groupsource.wire.encoder import encode_body
from spark_groupsource.wire.messages import (
    DeleteRecordsRequest,
    FetchResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    OffsetCommitRequest,
    ProduceRequest,
    SyncGroupResponse,
)

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
_Deleted = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition


def assert_rejected(message_class, version, body, reason):
    with pytest.raises(RemoteProtocolError, match=re.escape(reason)):
        decode_exactly(message_class, version, memoryview(body))


def test_an_incomplete_last_field_is_rejected():
    whole = encode_body(SyncGroupResponse(error_code=0, assignment=b"0123456789"), 0)
    assert_rejected(SyncGroupResponse, 0, whole[:-4], "Field assignment has length 10, 6 bytes left")


def test_trailing_bytes_are_rejected():
    whole = encode_body(SyncGroupResponse(error_code=0, assignment=b"0123456789"), 0)
    assert_rejected(SyncGroupResponse, 0, whole + b"\0\0", "it ends at byte 16 of 18")


def test_null_in_a_non_nullable_field_is_rejected():
    assert_rejected(HeartbeatRequest, 0, bytes.fromhex("ffff 00000001 0000"), "Field group_id is null")
    assert_rejected(HeartbeatRequest, 4, bytes.fromhex("00 00000001 01 00 00"), "Field group_id is null")


@pytest.mark.parametrize("length", [-2, -5, -(2**31)])
def test_negative_lengths_are_rejected(length):
    body = bytes.fromhex("0000") + length.to_bytes(4, "big", signed=True)
    assert_rejected(SyncGroupResponse, 0, body, f"Field assignment has length {length}")


@pytest.mark.parametrize("count", [3, 2**20, 2**31 - 1])
def test_an_array_length_above_the_remaining_bytes_is_rejected(count):
    assert_rejected(MetadataRequest, 1, count.to_bytes(4, "big") + b"\0", f"Field topics has length {count},")


def test_a_compact_array_length_above_the_remaining_bytes_is_rejected():
    assert_rejected(MetadataRequest, 9, b"\xff\xff\xff\xff\x0f" + b"\0" * 9, "Field topics has length 4294967294,")


def test_a_varint_that_does_not_end_is_rejected():
    assert_rejected(MetadataRequest, 9, b"\xff" * 1_000_000, "varint is longer than 32 bits")


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x01"])
def test_a_varint_above_32_bits_is_rejected(data):
    with pytest.raises(RemoteProtocolError, match="longer than 32 bits"):
        read_unsigned_varint(memoryview(data), 0)


@pytest.mark.parametrize(
    "data, value",
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\x80\x01", 128),
        (b"\xff\xff\x7f", 2**21 - 1),
        (b"\xff\xff\xff\xff\x0f", 2**32 - 1),
    ],
)
def test_varints_are_decoded(data, value):
    assert read_unsigned_varint(memoryview(b"-" + data + b"-"), 1) == (value, 1 + len(data))
    for end in range(len(data)):
        with pytest.raises(IndexError):
            read_unsigned_varint(memoryview(data[:end]), 0)


def test_a_string_that_is_not_utf8_is_rejected():
    assert_rejected(HeartbeatRequest, 0, bytes.fromhex("0001ff 00000001 0000"), "a string is not UTF-8")


def test_a_compact_string_longer_than_32767_bytes_is_rejected():
    longest = HeartbeatRequest(group_id="g" * 0x7FFF, generation_id=1, member_id="m", group_instance_id=None)
    assert decode_exactly(HeartbeatRequest, 4, memoryview(encode_body(longest, 4))).group_id == "g" * 0x7FFF
    body = encode_body(HeartbeatRequest(group_id="g" * 0x8000, generation_id=1, member_id="m"), 4)
    assert_rejected(HeartbeatRequest, 4, body, "Field group_id has length 32768, the limit is 32767")
    names = encode_body(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t" * 40_000)]), 9)
    assert_rejected(MetadataRequest, 9, names, "Field name has length 40000, the limit is 32767")


def test_unknown_tagged_fields_are_skipped():
    body = encode_body(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    assert body[-1] == 0
    tagged = bytes(body[:-1]) + bytes.fromhex("02 6301aa 7f03010203")
    message = decode_exactly(HeartbeatRequest, 4, memoryview(tagged))
    assert (message.group_id, message.member_id) == ("g", "m")
    assert skip_tagged_fields(memoryview(tagged), len(body) - 1) == len(tagged)


def test_a_tagged_field_that_exceeds_the_buffer_is_rejected():
    body = encode_body(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    body = bytes(body[:-1]) + bytes.fromhex("01 63 05 00")
    assert_rejected(HeartbeatRequest, 4, body, "Tagged field 99 exceeds the buffer")
    with pytest.raises(RemoteProtocolError, match="exceeds the buffer"):
        skip_tagged_fields(memoryview(bytes.fromhex("01 63 05 00")), 0)


def test_the_length_of_a_known_tagged_field_is_checked():
    empty = encode_body(FetchResponse(session_id=1), 16)
    node_endpoints = bytes.fromhex("01 00 02 01 00")  # tag 0: an empty array and one more byte
    assert_rejected(FetchResponse, 16, bytes(empty[:-1]) + node_endpoints, "Tagged field 0 does not end after 2 bytes")
    message = decode_exactly(FetchResponse, 16, memoryview(bytes(empty[:-1]) + bytes.fromhex("01 00 01 01")))
    assert message.node_endpoints == []


def _produce(version, records):
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    return encode_body(ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic]), version)


@pytest.mark.parametrize("version", [3, 9])
def test_record_sets_are_views_of_the_frame(version):
    frame = bytearray(_produce(version, b"records"))
    message = decode_exactly(ProduceRequest, version, memoryview(frame))
    records = message.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview) and records.obj is frame and records == b"records"


def test_bytes_fields_are_copies():
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"abc")
    frame = encode_body(JoinGroupRequest(group_id="g", protocols=[protocol]), 7)
    metadata = decode_exactly(JoinGroupRequest, 7, memoryview(frame)).protocols[0].metadata
    assert type(metadata) is bytes


def _commit(count, version, **fields):
    entry = Topic.OffsetCommitRequestPartition(partition_index=7, committed_offset=9, **fields)
    topics = [Topic(name="t", partitions=[entry] * count)]
    return encode_body(OffsetCommitRequest(group_id="g", member_id="m", topics=topics), version)


# the numbers of one structure are read at once, and the length after them too, but an error names what is incomplete
@pytest.mark.parametrize(
    "size, problem",
    [
        (2, "it is incomplete (unpack_from requires a buffer of at least 7 bytes for unpacking 4 bytes at offset 3"),
        (4, "it is incomplete (unpack_from requires a buffer of at least 9 bytes for unpacking 2 bytes at offset 7"),
        (5, "it is incomplete (unpack_from requires a buffer of at least 9 bytes for unpacking 2 bytes at offset 7"),
        (6, "Field member_id has length 1, 0 bytes left"),
    ],
)
def test_an_incomplete_number_is_named_by_its_position(size, problem):
    body = encode_body(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0)
    expected = f"Cannot decode HeartbeatRequest v0 from {3 + size} bytes: {problem}"
    assert_rejected(HeartbeatRequest, 0, body[: 3 + size], expected)


def test_an_incomplete_compact_length_or_id_is_reported():
    body = encode_body(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    assert_rejected(HeartbeatRequest, 4, body[:6], "it is incomplete (index out of bounds on dimension 1)")
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    body = encode_body(MetadataRequest(topics=[topic]), 12)
    assert_rejected(MetadataRequest, 12, body[:9], "it is incomplete (16 bytes expected)")


@pytest.mark.parametrize("version", [0, 2])
def test_an_incomplete_element_of_numbers_is_named_by_its_position(version):
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[_Deleted(partition_index=1, offset=2)] * 9)]
    body = encode_body(DeleteRecordsRequest(topics=topics, timeout_ms=1), version)
    whole = decode_exactly(DeleteRecordsRequest, version, memoryview(body)).topics[0].partitions
    assert whole == [_Deleted(partition_index=1, offset=2)] * 9
    start, size = (11, 12) if version == 0 else (4, 13)
    at = start + 7 * size
    expected = f"at least {at + 12} bytes for unpacking 12 bytes at offset {at} (actual buffer size is {at + 5})"
    assert_rejected(DeleteRecordsRequest, version, body[: at + 5], expected)


def test_tagged_fields_in_elements_of_numbers_are_skipped():
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[_Deleted(partition_index=1, offset=2)] * 2)]
    body = encode_body(DeleteRecordsRequest(topics=topics, timeout_ms=1), 2)
    end = 4 + 13
    assert body[end - 1] == 0
    tagged = body[: end - 1] + bytes.fromhex("01 63 01 aa") + body[end:]
    found, size = decode_prefix(DeleteRecordsRequest, 2, memoryview(tagged), max_elements=4)
    assert size == len(tagged) and found.topics == topics
    with pytest.raises(TooManyElementsError, match="DeleteRecordsRequest v2: it has more than 3 elements"):
        decode_prefix(DeleteRecordsRequest, 2, memoryview(tagged), max_elements=3)


@pytest.mark.parametrize("version", [2, 7, 9])
def test_the_elements_of_all_levels_are_bounded(version):
    body = memoryview(_commit(300, version))
    assert len(decode_prefix(OffsetCommitRequest, version, body, 0, 301)[0].topics[0].partitions) == 300
    with pytest.raises(TooManyElementsError, match=f"OffsetCommitRequest v{version}: it has more than 300 elements"):
        decode_prefix(OffsetCommitRequest, version, body, 0, 300)


def test_the_elements_of_tagged_fields_are_bounded():
    endpoint = FetchResponse.NodeEndpoint(node_id=1, host="h", port=2)
    body = memoryview(encode_body(FetchResponse(node_endpoints=[endpoint] * 5), 16))
    assert decode_prefix(FetchResponse, 16, body, 0, 6)[0].node_endpoints == [endpoint] * 5
    with pytest.raises(TooManyElementsError):
        decode_prefix(FetchResponse, 16, body, 0, 5)
