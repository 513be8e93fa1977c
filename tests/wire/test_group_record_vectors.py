"""Records of `__consumer_offsets` as written and printed by Apache Kafka."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from support.damaged_bytes import check_damage

from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription
from spark_groupsource.wire.group_records import (
    GroupKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
)

VECTORS = json.loads(Path(__file__).with_name("group-record-vectors.json").read_text(encoding="utf-8"))


def as_kafka_prints(value, version):
    """A decoded value as Kafka's formatters print it, with the fields of its version."""
    if hasattr(value, "offset"):
        return {
            "offset": value.offset,
            **({"leaderEpoch": value.leader_epoch} if version >= 3 else {}),
            "metadata": value.metadata,
            "commitTimestamp": value.commit_timestamp_ms,
            **({"expireTimestamp": value.expire_timestamp_ms} if version == 1 else {}),
            **({"topicId": value.topic_id} if value.topic_id is not None else {}),
        }
    return {
        "protocolType": value.protocol_type,
        "generation": value.generation_id,
        "protocol": value.protocol_name,
        "leader": value.leader,
        **({"currentStateTimestamp": value.state_timestamp_ms} if version >= 2 else {}),
        "members": [
            {
                "memberId": member.member_id,
                **({"groupInstanceId": member.group_instance_id} if version >= 3 else {}),
                "clientId": member.client_id,
                "clientHost": member.client_host,
                **({"rebalanceTimeout": member.rebalance_timeout_ms} if version >= 1 else {}),
                "sessionTimeout": member.session_timeout_ms,
                "subscription": b64encode(member.subscription).decode(),
                "assignment": b64encode(member.assignment).decode(),
            }
            for member in value.members
        ],
    }


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['origin'].split()[0]}-{vector['key'][:4]}")
def test_vector(vector):
    data = bytes.fromhex(vector["key"])
    key, printed = decode_key(data), vector["printed"]
    assert encode_key(key) == data
    check_damage(decode_key, data)
    if isinstance(key, GroupKey):
        assert printed["key"]["data"] == {"group": key.group_id}
        decode, encode = decode_group_value, encode_group_value
    else:
        assert printed["key"]["data"] == {"group": key.group_id, "topic": key.topic, "partition": key.partition}
        decode, encode = decode_offset_value, encode_offset_value
    if vector["value"] is None:
        assert printed["value"] is None
        return
    data = bytes.fromhex(vector["value"])
    version = printed["value"]["version"]
    value = decode(data)
    assert as_kafka_prints(value, version) == printed["value"]["data"]
    assert encode(value, version) == data
    check_damage(decode, data)


def test_the_vectors_cover_all_types_and_versions():
    kinds = {(vector["key"][:4], vector["value"] and vector["value"][:4]) for vector in VECTORS}
    versions = ["0000", "0001", "0002", "0003", "0004", None]
    assert kinds == {(key, version) for key in ("0001", "0002") for version in versions}


@pytest.mark.parametrize("group_id, strategy", [("java-group", "cooperative-sticky"), ("rdkafka-group", "range")])
def test_subscriptions_and_assignments_of_other_clients(group_id, strategy):
    """Subscription and assignment bytes of a Java and a librdkafka member, as the broker stored them."""
    stored = [
        decode_group_value(bytes.fromhex(vector["value"]))
        for vector in VECTORS
        if vector["value"] and decode_key(bytes.fromhex(vector["key"])) == GroupKey(group_id)
    ]
    group = next(value for value in stored if value.members)
    assert (group.protocol_type, group.protocol_name) == ("consumer", strategy)
    (member,) = group.members
    assert decode_subscription(member.subscription).topics == ("orders",)
    everything = [TopicPartition("orders", number) for number in range(3)]
    assert sorted(decode_assignment(member.assignment).partitions) == everything
