"""Framing of requests and responses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.message_strategies import API_SIDES, messages, side_id, versions

from spark_groupsource.errors import RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.frames import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_request_parts,
    encode_response,
    frame_length,
    read_request_header,
)
from spark_groupsource.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ProduceRequest,
)

_MAX_BYTES = 104_857_600
heartbeat = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")


def body_of(frame):
    assert frame_length(frame[:4], _MAX_BYTES) == len(frame) - 4
    return memoryview(bytes(frame))[4:]


@pytest.mark.parametrize("version", [3, 12])
def test_the_parts_of_a_request_are_its_frame_without_copies_of_record_sets(version):
    topic = ProduceRequest.TopicProduceData
    sets = [bytearray(b"a" * 20_000), b"b" * 10, b"c" * 16_384, None]
    rows = [topic.PartitionProduceData(index=number, records=data) for number, data in enumerate(sets)]
    data = [topic(name="t", partition_data=rows)]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1, topic_data=data)
    parts = encode_request_parts(request, version, 7, "c")
    assert b"".join(parts) == encode_request(request, version, 7, "c")
    assert [part.obj for part in parts if isinstance(part, memoryview)] == [sets[0], sets[2]]


# from the protocol specification: header, then body
HEARTBEAT_V4 = bytes.fromhex("000c 0004 00000007 0001 63 00" "02 67 00000005 02 6d 00 00")
HEARTBEAT_V0 = bytes.fromhex("000c 0000 00000007 ffff" "0001 67 00000005 0001 6d")


@pytest.mark.parametrize(
    "version, client_id, data", [(4, "c", HEARTBEAT_V4), (0, None, HEARTBEAT_V0)], ids=["flexible", "old"]
)
def test_request_header_and_body_follow_the_specification(version, client_id, data):
    assert bytes(encode_request(heartbeat, version, 7, client_id)) == len(data).to_bytes(4, "big") + data
    header, position = read_request_header(memoryview(data))
    assert header == RequestHeader(ApiKey.HEARTBEAT, version, 7, client_id)
    message = decode_request(memoryview(data), header, position)
    assert (message.group_id, message.generation_id, message.member_id) == ("g", 5, "m")
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            header, position = read_request_header(memoryview(data[:end]))
            decode_request(memoryview(data[:end]), header, position)


def test_bytes_after_a_request_of_librdkafka_are_ignored():
    # captured from librdkafka 2.16 (Metadata v13, no topics named): three zero bytes follow the message
    data = bytes.fromhex("0003 000d 00000003 0007 72646b61666b61 00" "00 00 00 00 010000")
    message = decode_request(memoryview(data), *read_request_header(memoryview(data)))
    assert message.topics is None
    assert not message.allow_auto_topic_creation and not message.include_topic_authorized_operations


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"GET "])
def test_a_frame_with_an_invalid_length_is_rejected(length):
    with pytest.raises(RemoteProtocolError, match="peer does not use Kafka's protocol"):
        frame_length(length, _MAX_BYTES)


def test_the_caller_limits_the_frame_length():
    assert frame_length(b"\0\0\0\x09", 9) == 9
    with pytest.raises(RemoteProtocolError, match="its length is 9 bytes, the limit is 8"):
        frame_length(b"\0\0\0\x09", 8)


@pytest.mark.parametrize(
    "data, reason",
    [
        ("000c 0004 000000", "the request has 7 bytes"),
        ("000c 0004 00000007 0005 63", "client id has length 5, the request 11 bytes"),
        ("000c 0004 00000007 fffe", "client id has length -2"),
        ("000c 0004 00000007 0001 ff 00", "not UTF-8"),
        ("000c 0004 00000007 0001 63", "is incomplete"),
        ("000c 0004 00000007 0001 63 01 05 09 00", "exceeds the buffer"),
    ],
)
def test_invalid_headers_are_rejected(data, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        read_request_header(memoryview(bytes.fromhex(data)))


def test_header_tags_are_skipped():
    data = bytes.fromhex("000c 0004 00000007 0001 63 01 05 02 aabb") + HEARTBEAT_V4[12:]
    header, position = read_request_header(memoryview(data))
    assert decode_request(memoryview(data), header, position).group_id == "g"


@pytest.mark.parametrize(
    "api_key, version", [(ApiKey.HEARTBEAT, 99), (ApiKey.HEARTBEAT, -1), (9999, 0), (ApiKey.API_VERSIONS, 77)]
)
def test_the_header_of_an_unsupported_request_is_read(api_key, version):
    data = api_key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + bytes.fromhex("00000007 0001 63 ffff")
    header, position = read_request_header(memoryview(data))
    assert header == RequestHeader(api_key, version, 7, "c")
    with pytest.raises(UnsupportedVersionError):
        decode_request(memoryview(data), header, position)


def test_a_response_with_another_correlation_id_is_rejected():
    frame = body_of(encode_response(HeartbeatResponse(error_code=0), 4, 8))
    with pytest.raises(RemoteProtocolError, match="Heartbeat failed: the response has correlation id 8, expected 7"):
        decode_response(frame, heartbeat, 4, 7)
    with pytest.raises(RemoteProtocolError, match="the response has 3 bytes"):
        decode_response(frame[:3], heartbeat, 4, 8)


def test_api_versions_responses_have_header_version_0():
    response = ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=9)])
    frame = body_of(encode_response(response, 3, 7))
    assert frame[:7] == bytes.fromhex("00000007 0000 02")
    decoded = decode_response(frame, ApiVersionsRequest(), 3, 7)
    assert [(entry.api_key, entry.max_version) for entry in decoded.api_keys] == [(3, 9)]


def test_the_response_to_an_unsupported_api_versions_request_has_version_0():
    frame = memoryview(bytes.fromhex("00000007 0023 00000001 0012 0000 0003"))
    decoded = decode_response(frame, ApiVersionsRequest(), 4, 7)
    assert decoded.error_code == 35
    assert [(entry.api_key, entry.min_version, entry.max_version) for entry in decoded.api_keys] == [(18, 0, 3)]


@pytest.mark.parametrize("api, side", API_SIDES, ids=side_id)
def test_frames_round_trip(api, side):
    @settings(max_examples=scaled(4), deadline=None)
    @given(st.data())
    def check(data):
        version = data.draw(versions(api))
        message = data.draw(messages(side, version))
        if side is api.request:
            frame = body_of(encode_request(message, version, 9, "client"))
            header, position = read_request_header(frame)
            assert header == RequestHeader(api.key, version, 9, "client")
            assert decode_request(frame, header, position) == message
        elif not (api.key == ApiKey.API_VERSIONS and message.error_code):
            frame = body_of(encode_response(message, version, 9))
            assert decode_response(frame, api.request(), version, 9) == message

    check()


@settings(max_examples=scaled(300), deadline=None)
@given(st.sampled_from(sorted(APIS)), st.integers(0, 13), st.binary(max_size=40))
def test_random_frames_raise_protocol_errors_only(api_key, version, rest):
    frame = memoryview(api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + rest)
    try:
        header, position = read_request_header(frame)
        decode_request(frame, header, position)
    except (RemoteProtocolError, UnsupportedVersionError):
        pass
    try:
        api = APIS[api_key]
        decode_response(memoryview(rest), api.request(), min(version, api.max_version), 0)
    except RemoteProtocolError:
        pass
