"""Generated decoders of requests: equality with the decoder by schema."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.message_strategies import API_SIDES, messages, versions

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.compiled_decoder import Irregular, compiled_decoder
from spark_groupsource.wire.decoder import TooManyElementsError, decode_prefix
from spark_groupsource.wire.frames import decode_request, encode_request, read_request_header
from spark_groupsource.wire.messages import OffsetCommitRequest

REQUESTS = [api for api, side in API_SIDES if side is api.request]
_UNREAD = (Irregular, struct.error, IndexError, UnicodeDecodeError, RemoteProtocolError)
_MANY = 1_000_000
Topic = OffsetCommitRequest.OffsetCommitRequestTopic


def body_of(message, version):
    frame = memoryview(bytes(encode_request(message, version, 9, "client")))[4:]
    return bytes(frame[read_request_header(frame)[1] :])


def assert_same(message_class, version, data, max_elements=_MANY):
    """Checks that the generated decoder reads nothing else than the decoder by schema."""
    buffer = memoryview(data)
    try:
        found = compiled_decoder(message_class, version)(buffer, 0, max_elements)
    except _UNREAD:
        return False
    expected, _ = decode_prefix(message_class, version, buffer, 0, max_elements)
    assert found == expected
    assert repr(found) == repr(expected)
    return True


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
def test_a_generated_decoder_reads_what_the_decoder_by_schema_reads(api):
    @settings(max_examples=scaled(6), deadline=None)
    @given(st.data())
    def check(data):
        version = data.draw(versions(api))
        valid = body_of(data.draw(messages(api.request, version)), version)
        assert_same(api.request, version, valid)
        at = data.draw(st.integers(0, len(valid)))
        assert_same(api.request, version, valid[:at])
        changed = bytearray(valid)
        for place in data.draw(st.lists(st.integers(0, len(valid)), max_size=3)):
            changed[place : place + 1] = data.draw(st.binary(max_size=2))
        assert_same(api.request, version, bytes(changed))
        assert_same(api.request, version, data.draw(st.binary(max_size=60)))

    check()


@pytest.mark.parametrize("version", [2, 7, 9])
def test_usual_requests_are_read_by_the_generated_decoder(version):
    entry = Topic.OffsetCommitRequestPartition(
        partition_index=7, committed_offset=9, committed_leader_epoch=1, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=1,
        member_id="m",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[Topic(name="t", partitions=[entry] * 300)],
    )
    data = body_of(request, version)
    assert assert_same(OffsetCommitRequest, version, data)
    assert assert_same(OffsetCommitRequest, version, data, max_elements=301)
    assert not assert_same(OffsetCommitRequest, version, data, max_elements=300)


def test_an_array_above_the_limit_raises_the_error_of_the_decoder_by_schema():
    topics = [Topic(name=f"t{number}", partitions=[]) for number in range(5)]
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=1, member_id="m", group_instance_id=None, topics=topics
    )
    frame = memoryview(bytes(encode_request(request, 7, 1, "c")))[4:]
    header, position = read_request_header(frame)
    assert len(decode_request(frame, header, position, 5).topics) == 5
    with pytest.raises(TooManyElementsError, match="more than 4 elements"):
        decode_request(frame, header, position, 4)
