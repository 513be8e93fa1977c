"""Consumer protocol encoding, compared with examples and with a second implementation (kio)."""

from __future__ import annotations

import io
from dataclasses import fields
from pkgutil import resolve_name

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import (
    decode_assigned_topics,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    partitions_by_topic,
)

ORDERS = (TopicPartition("orders", 0), TopicPartition("orders", 1))
_V1 = "00000001 0006 6f7264657273 ffffffff 00000001 0006 6f7264657273 00000002 00000000 00000001"
SUBSCRIPTIONS = {
    0: ("0000 00000001 0006 6f7264657273 ffffffff", Subscription(("orders",))),
    1: ("0001" + _V1, Subscription(("orders",), owned_partitions=ORDERS)),
    2: ("0002" + _V1 + "00000005", Subscription(("orders",), owned_partitions=ORDERS, generation_id=5)),
    3: ("0003" + _V1 + "00000005 ffff", Subscription(("orders",), owned_partitions=ORDERS, generation_id=5)),
}
ASSIGNMENT = bytes.fromhex("0003 00000001 0006 6f7264657273 00000002 00000000 00000001 ffffffff")

topics = st.text("abcde.-_", min_size=1, max_size=3)
partitions = st.lists(st.builds(TopicPartition, topics, st.integers(0, 9)), unique=True, max_size=6)
user_data = st.none() | st.binary(max_size=6)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(topics, unique=True, max_size=4).map(tuple),
    user_data=user_data,
    owned_partitions=partitions.map(tuple),
    generation_id=st.integers(-1, 2**31 - 1),
    rack_id=st.none() | st.text("ab", min_size=1, max_size=2),
)
assignments = st.builds(Assignment, partitions=partitions.map(tuple), user_data=user_data)


def through_kio(name, data):
    version = int.from_bytes(data[:2], "big")
    entity_class = resolve_name(f"kio.schema.consumer_protocol_{name}.v{version}.data:ConsumerProtocol{name.title()}")
    entity, size = entity_reader(entity_class)(data[2:], 0)
    assert size == len(data) - 2
    out = io.BytesIO(data[:2])
    out.seek(2)
    entity_writer(entity_class)(out, entity)
    return out.getvalue()


@pytest.mark.conformance("CP-004", "CP-007")
@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_subscription_examples(version):
    text, decoded = SUBSCRIPTIONS[version]
    data = bytes.fromhex(text)
    assert encode_subscription(SUBSCRIPTIONS[3][1], version) == data
    assert decode_subscription(data) == decoded
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError, match="ConsumerProtocolSubscription"):
            decode_subscription(data[:end])


@pytest.mark.conformance("CP-013")
def test_assignment_example():
    assert encode_assignment(Assignment(ORDERS)) == ASSIGNMENT
    assert decode_assignment(ASSIGNMENT) == Assignment(ORDERS)
    for end in range(len(ASSIGNMENT)):
        with pytest.raises(RemoteProtocolError, match="ConsumerProtocolAssignment"):
            decode_assignment(ASSIGNMENT[:end])


@pytest.mark.conformance("CP-009", "CP-014")
def test_known_fields_of_a_newer_version_are_decoded():
    for version in (4, 9, 100):
        data = version.to_bytes(2, "big") + bytes.fromhex(SUBSCRIPTIONS[3][0][4:] + "c0ffee")
        assert decode_subscription(data) == SUBSCRIPTIONS[3][1]
        assert decode_assignment(version.to_bytes(2, "big") + ASSIGNMENT[2:] + b"more") == Assignment(ORDERS)


@pytest.mark.conformance("CP-008")
def test_topics_and_user_data_decode_as_version_0():
    data = encode_subscription(Subscription(("orders",), b"mine", ORDERS, 5, "rack"))
    entity_class = resolve_name("kio.schema.consumer_protocol_subscription.v0.data:ConsumerProtocolSubscription")
    oldest, _ = entity_reader(entity_class)(data[2:], 0)
    assert (oldest.topics, oldest.user_data) == (("orders",), b"mine")


@pytest.mark.conformance("CP-003")
def test_optional_fields_are_absent_by_default():
    decoded = decode_subscription(encode_subscription(Subscription(("orders",))))
    assert (decoded.generation_id, decoded.rack_id, decoded.owned_partitions) == (-1, None, ())
    # the group instance id is a field of JoinGroup
    assert "group_instance_id" not in {field.name for field in fields(Subscription)}
    assert decoded == SUBSCRIPTIONS[0][1]


def test_a_negative_version_is_rejected():
    with pytest.raises(RemoteProtocolError, match="version -1 does not exist"):
        decode_subscription(b"\xff\xff" + bytes.fromhex(_V1))


@pytest.mark.conformance("CP-005", "CP-006")
def test_topics_and_owned_partitions_are_encoded_sorted():
    owned = (TopicPartition("b", 1), TopicPartition("a", 3), TopicPartition("b", 0))
    mixed = Subscription(("b", "a"), owned_partitions=owned)
    decoded = decode_subscription(encode_subscription(mixed))
    assert decoded.topics == ("a", "b")
    assert decoded.owned_partitions == (TopicPartition("a", 3), TopicPartition("b", 0), TopicPartition("b", 1))


@given(assignments, st.integers(0, 4), st.data())
def test_topics_of_an_assignment_are_those_of_its_partitions(assignment, version, data):
    encoded = version.to_bytes(2, "big") + encode_assignment(assignment, 0)[2:] + data.draw(st.binary(max_size=3))
    assert decode_assigned_topics(encoded) == partitions_by_topic(decode_assignment(encoded).partitions)
    position = data.draw(st.integers(0, len(encoded) - 1))
    damaged = data.draw(
        st.sampled_from([encoded[:position], encoded[:position] + b"\xff" + encoded[position + 1 :]])
    )
    try:
        expected = partitions_by_topic(decode_assignment(damaged).partitions)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            decode_assigned_topics(damaged)
    else:
        found = decode_assigned_topics(damaged)
        assert {topic: numbers for topic, numbers in found.items() if numbers} == expected


def test_an_assignment_keeps_the_order_of_its_topics():
    mixed = Assignment((TopicPartition("b", 1), TopicPartition("a", 3), TopicPartition("b", 0)))
    decoded = decode_assignment(encode_assignment(mixed))
    assert decoded.partitions == (TopicPartition("b", 1), TopicPartition("b", 0), TopicPartition("a", 3))


@pytest.mark.conformance("CP-001", "CP-002", "CP-004", "CP-015")
@given(subscriptions, st.integers(0, 3))
@example(Subscription(("orders",), b"mine", ORDERS, 5, "rack"), 3)
def test_subscriptions_round_trip_through_kio(subscription, version):
    data = encode_subscription(subscription, version)
    assert through_kio("subscription", data) == data
    decoded = decode_subscription(data)
    assert decoded == Subscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=tuple(sorted(subscription.owned_partitions)) if version >= 1 else (),
        generation_id=subscription.generation_id if version >= 2 else -1,
        rack_id=subscription.rack_id if version >= 3 else None,
    )


@pytest.mark.conformance("CP-010", "CP-011", "CP-012", "CP-013")
@given(assignments, st.integers(0, 3))
@example(Assignment(ORDERS, b""), 3)
def test_assignments_round_trip_through_kio(assignment, version):
    data = encode_assignment(assignment, version)
    assert through_kio("assignment", data) == data
    decoded = decode_assignment(data)
    assert sorted(decoded.partitions) == sorted(assignment.partitions) and decoded.user_data == assignment.user_data


@given(st.binary(max_size=40))
def test_random_bytes_raise_protocol_errors_only(data):
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except RemoteProtocolError:
            pass
