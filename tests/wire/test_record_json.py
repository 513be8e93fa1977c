"""JSON form of `__consumer_offsets` records, compared with Kafka's tools."""

from __future__ import annotations

from typing import Any

import pytest

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.wire.record_json import RECORD_TYPES, key_json, modern_record_classes, record_type, value_json

TOPIC_ID = "5IXZIvRQRSi7JdwoQ5-nKg"
MEMBER = "zWO61tLYQ/Gpq8H9uvrISA"
VECTORS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "000100036e657700017400000002",
        "000400000000000000030000000001000001a1fe44c270010010e485d922f4504528bb25dc28439fa72a",
        {"group": "new", "topic": "t", "partition": 2},
        {"offset": 3, "leaderEpoch": 0, "metadata": "", "commitTimestamp": 1795267281520, "topicId": TOPIC_ID},
    ),
    (
        "000300036e6577",
        "00000000000201000856f9ff2b73173825",
        {"groupId": "new"},
        {"epoch": 2, "metadataHash": 6267320918542333989},
    ),
    (
        # the last field is tagged and encoded although it is null
        "000500036e657700167a574f3631744c59512f477071384839757672495341",
        "00000269000872646b61666b610b2f3132372e302e302e310107285e742e2a29000493e00001000100",
        {"groupId": "new", "memberId": MEMBER},
        {
            "instanceId": "i",
            "rackId": None,
            "clientId": "rdkafka",
            "clientHost": "/127.0.0.1",
            "subscribedTopicNames": [],
            "subscribedTopicRegex": "(^t.*)",
            "rebalanceTimeoutMs": 300000,
            "serverAssignor": None,
            "classicMemberMetadata": None,
        },
    ),
    (
        "000700036e657700167158764d48567272514361436434596f723248334541",
        "000002e485d922f4504528bb25dc28439fa72a040000000000000001000000020000",
        {"groupId": "new", "memberId": "qXvMHVrrQCaCd4Yor2H3EA"},
        {"topicPartitions": [{"topicId": TOPIC_ID, "partitions": [0, 1, 2]}]},
    ),
    (
        "000800036e657700167a574f3631744c59512f477071384839757672495341",
        "0000000000010000000000010100",
        {"groupId": "new", "memberId": MEMBER},
        {
            "memberEpoch": 1,
            "previousMemberEpoch": 0,
            "state": 0,
            "assignedPartitions": [],
            "partitionsPendingRevocation": [],
        },
    ),
    (
        "000f0006736861726564",
        "000002e485d922f4504528bb25dc28439fa72a02740400000000000000010000000200010100",
        {"groupId": "shared"},
        {
            "initializingTopics": [{"topicId": TOPIC_ID, "topicName": "t", "partitions": [0, 1, 2]}],
            "initializedTopics": [],
            "deletingTopics": [],
        },
    ),
    (
        "001000036e65770006285e742e2a29",
        "0000020274000000000000002f000001a1fe44b71500",
        {"groupId": "new", "regularExpression": "(^t.*)"},
        {"topics": ["t"], "version": 47, "timestamp": 1795267278613},
    ),
]


@pytest.mark.parametrize(("key", "value", "key_data", "value_data"), VECTORS)
def test_records_of_a_broker(key: str, value: str, key_data: dict[str, Any], value_data: dict[str, Any]) -> None:
    key_bytes, value_bytes = bytes.fromhex(key), bytes.fromhex(value)
    assert key_json(key_bytes) == {"type": str(record_type(key_bytes)), "data": key_data}
    printed = value_json(key_bytes, value_bytes)
    assert printed == {"version": str(value_bytes[1]), "data": value_data}
    assert list(printed["data"]) == list(value_data)  # the order of the schema
    for cut in range(len(value_bytes)):
        with pytest.raises(CorruptRecordError):
            value_json(key_bytes, value_bytes[:cut])
    for cut in range(len(key_bytes)):
        with pytest.raises(CorruptRecordError):
            key_json(key_bytes[:cut])


def test_unknown_versions_are_corrupt_and_unknown_types_are_base64() -> None:
    for key in (bytes.fromhex("000100036e657700017400000002"), bytes.fromhex("000300036e6577")):
        with pytest.raises(CorruptRecordError, match="Value: version 9, supported are 0 to"):
            value_json(key, b"\0\x09")
    assert key_json(b"\0\x63ab") == {"type": "99", "data": "YWI="}
    assert value_json(b"\0\x63ab", b"\0\1cd") == {"version": "1", "data": "Y2Q="}


def test_schemas_and_record_types_have_the_same_names() -> None:
    for kind, (key_class, value_class) in modern_record_classes().items():
        assert key_class.SCHEMA.name == f"{RECORD_TYPES[kind]}Key"
        assert value_class.SCHEMA.name == f"{RECORD_TYPES[kind]}Value"
