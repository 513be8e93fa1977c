"""Generated encoders of responses: equality with the encoder of kafka-python."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.message_strategies import API_SIDES, messages, versions

from spark_groupsource.wire.compiled_encoder import UnusualMessage, compiled_encoder
from spark_groupsource.wire.frames import encode_large_response, encode_response
from spark_groupsource.wire.messages import FetchResponse, MetadataResponse, OffsetCommitResponse

RESPONSES = [api for api, side in API_SIDES if side is api.response]
Fetched = FetchResponse.FetchableTopicResponse
Committed = OffsetCommitResponse.OffsetCommitResponseTopic


def is_compiled(message, version):
    encode = compiled_encoder(type(message), version)
    if encode is None:
        return False
    try:
        encode(message, [].append)
    except (UnusualMessage, struct.error, AttributeError, TypeError):
        return False
    return True


@pytest.mark.parametrize("api", RESPONSES, ids=lambda api: api.name)
def test_a_generated_encoder_writes_what_the_library_writes(api):
    @settings(max_examples=scaled(8), deadline=None)
    @given(st.data())
    def check(data):
        version = data.draw(versions(api))
        message = data.draw(messages(api.response, version))
        assert encode_response(message, version, 7) == encode_large_response(message, version, 7)

    check()


def fetched(count, topic="t", **fields):
    entry = {
        "partition_index": 3, "error_code": 0, "high_watermark": 5, "last_stable_offset": 5, "log_start_offset": 0,
        "aborted_transactions": None, "preferred_read_replica": -1, "records": memoryview(b"r" * 300), **fields,
    }  # fmt: skip
    topics = [Fetched(topic=topic, partitions=[Fetched.PartitionData(**entry)] * count)]
    return FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)


@pytest.mark.parametrize("version", [4, 11, 12])
@pytest.mark.parametrize("count", [1, 200])
def test_usual_responses_are_written_by_the_generated_encoder(version, count):
    message = fetched(count, topic="t" * 200)
    assert is_compiled(message, version)
    assert encode_response(message, version, 7) == encode_large_response(message, version, 7)


@pytest.mark.parametrize(
    "fields",
    [
        {"diverging_epoch": Fetched.PartitionData.EpochEndOffset(epoch=1, end_offset=2)},
        {"aborted_transactions": [Fetched.PartitionData.AbortedTransaction(producer_id=1, first_offset=2)] * 130},
        {"records": "text"},
    ],
    ids=["tagged field", "long inner array", "text as bytes"],
)
def test_unusual_responses_are_written_by_the_library(fields):
    message = fetched(1, **fields)
    assert encode_response(message, 12, 7) == encode_large_response(message, 12, 7)


def test_elements_that_are_tuples_are_written_by_the_library():
    message = OffsetCommitResponse(throttle_time_ms=0, topics=[Committed(name="t", partitions=[(1, 0), (2, 0)])])
    assert not is_compiled(message, 7)
    assert encode_response(message, 7, 7) == encode_large_response(message, 7, 7)


def test_a_message_that_nothing_can_encode_raises_the_error_of_the_library():
    message = MetadataResponse(throttle_time_ms=0, brokers=[], cluster_id=None, controller_id=2**40, topics=[])
    with pytest.raises(struct.error):
        encode_response(message, 9, 7)
    with pytest.raises(AttributeError):
        encode_response(MetadataResponse(brokers=[SimpleNamespace()]), 9, 7)
