"""Messages of every API and version, compared with a second implementation (kio)."""

from __future__ import annotations

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from support.examples import scaled
from support.message_strategies import API_SIDES, messages, side_id, versions

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.apis import APIS, api_of
from spark_groupsource.wire.decoder import decode_exactly, decode_prefix
from spark_groupsource.wire.encoder import encode_body

EXPECTED = """
    ApiVersions Metadata CreateTopics DeleteTopics CreatePartitions DeleteRecords DescribeConfigs DescribeCluster
    Produce Fetch ListOffsets FindCoordinator JoinGroup SyncGroup Heartbeat LeaveGroup OffsetCommit OffsetFetch
    OffsetDelete DescribeGroups ListGroups DeleteGroups InitProducerId SaslHandshake SaslAuthenticate
    OffsetForLeaderEpoch AlterConfigs IncrementalAlterConfigs DescribeLogDirs
    AddPartitionsToTxn AddOffsetsToTxn EndTxn TxnOffsetCommit DescribeProducers DescribeTransactions ListTransactions
    DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials AlterUserScramCredentials
    DescribeAcls CreateAcls DeleteAcls ElectLeaders ListPartitionReassignments ListConfigResources
    DescribeTopicPartitions WriteTxnMarkers ConsumerGroupDescribe
    ConsumerGroupHeartbeat
"""

few = settings(max_examples=scaled(12, 1), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_all_expected_apis_are_in_the_table():
    assert {api.name for api in APIS.values()} == set(EXPECTED.split())


def test_api_of_a_request_and_of_a_response():
    for key, api in APIS.items():
        assert api_of(api.request).key == api_of(api.response).key == api.key == key


def _through_kio(api, side, version, data):
    load = load_request_schema if side is api.request else load_response_schema
    kio_class = load(api.key, version)
    entity, size = entity_reader(kio_class)(data, 0)
    assert size == len(data)
    out = io.BytesIO()
    entity_writer(kio_class)(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("api, side", API_SIDES, ids=side_id)
def test_messages_round_trip_through_kio(api, side):
    @few
    @given(st.data())
    def check(data):
        version = data.draw(versions(api))
        message = data.draw(messages(side, version))
        ours = encode_body(message, version)
        theirs = _through_kio(api, side, version, ours)
        assert theirs == ours
        decoded = decode_exactly(side, version, memoryview(theirs))
        assert decoded == message
        assert encode_body(decoded, version) == ours

    check()


@pytest.mark.parametrize("api, side", API_SIDES, ids=side_id)
def test_incomplete_messages_and_trailing_bytes_are_rejected(api, side):
    @settings(few, max_examples=scaled(5, 1))
    @given(st.data())
    def check(data):
        version = data.draw(versions(api))
        whole = encode_body(data.draw(messages(side, version)), version)
        for end in range(len(whole)):
            with pytest.raises(RemoteProtocolError, match=side.__name__):
                decode_exactly(side, version, memoryview(whole[:end]))
        with pytest.raises(RemoteProtocolError, match="it ends at byte"):
            decode_exactly(side, version, memoryview(whole + b"\0"))
        _, end = decode_prefix(side, version, memoryview(b"ab" + whole + b"tail"), 2)
        assert end == 2 + len(whole)

    check()


@pytest.mark.parametrize("api, side", API_SIDES, ids=side_id)
def test_damaged_messages_raise_protocol_errors_only(api, side):
    @settings(few, max_examples=scaled(20, 1))
    @given(st.data())
    def check(data):
        version = data.draw(versions(api))
        frame = bytearray(encode_body(data.draw(messages(side, version)), version))
        for _ in range(data.draw(st.integers(0, 3))):
            if frame:
                place = data.draw(st.integers(0, len(frame) - 1))
                frame[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
        frame += data.draw(st.binary(max_size=4))
        try:
            message = decode_exactly(side, version, memoryview(frame))
        except RemoteProtocolError:
            return
        encode_body(message, version)

    check()
