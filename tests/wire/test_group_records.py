"""Encoding of the classic groups' records in `__consumer_offsets`."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damaged_bytes import check_damage

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import coordinator_partition
from spark_groupsource.wire import group_records
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
)

COMMITTED, EXPIRES = 1_700_000_000_000, 1_700_604_800_000
PLAIN = OffsetValue(42, leader_epoch=7, metadata="m", commit_timestamp_ms=COMMITTED)
EXPIRING = OffsetValue(42, metadata="m", commit_timestamp_ms=COMMITTED, expire_timestamp_ms=EXPIRES)
TOPIC_ID = "8GLMGAtbTF-ORM8JS_71bw"
EMPTY_GROUP = GroupValue("consumer", 5, None, None, COMMITTED)
MEMBER = MemberValue("id-1", "static-1", "client", "/127.0.0.1", 300_000, 45_000, b"\0\1", b"\0\2")
GROUP = GroupValue("consumer", 5, "range", "id-1", COMMITTED, (MEMBER,))

text = st.text(st.characters(codec="utf-8"), max_size=5)
number = st.integers(-(2**31), 2**31 - 1)
time = st.integers(-1, 2**41)
members = st.builds(MemberValue, text, st.none() | text, text, text, number, number, st.binary(), st.binary())
groups = st.builds(
    GroupValue, text, number, st.none() | text, st.none() | text, time, st.lists(members, max_size=2).map(tuple)
)
offsets = st.builds(OffsetValue, st.integers(0, 2**63 - 1), number, text, time, time, st.none())


@pytest.mark.parametrize(
    "value, data",
    [
        (OffsetKey("g1", "orders", 3), "0001 0002 6731 0006 6f7264657273 00000003"),
        (GroupKey("g1"), "0002 0002 6731"),
    ],
)
def test_key_examples(value, data):
    data = bytes.fromhex(data)
    assert encode_key(value) == data and decode_key(data) == value
    check_damage(decode_key, data)


def test_key_versions_0_and_1_have_the_same_fields():
    data = encode_key(OffsetKey("g1", "orders", 3))
    assert decode_key(b"\0\0" + data[2:]) == OffsetKey("g1", "orders", 3)


@pytest.mark.parametrize("version", [3, 8, 15, 32767, -1])
def test_keys_of_unknown_types_are_no_error(version):
    assert decode_key(version.to_bytes(2, "big", signed=True) + b"whatever") == UnknownKey(version)


@pytest.mark.parametrize(
    "version, data, value",
    [
        (0, "0000 000000000000002a 0001 6d 0000018bcfe56800", OffsetValue(42, -1, "m", COMMITTED)),
        (1, "0001 000000000000002a 0001 6d 0000018bcfe56800 0000018bf3f1ec00", EXPIRING),
        (2, "0002 000000000000002a 0001 6d 0000018bcfe56800", OffsetValue(42, -1, "m", COMMITTED)),
        (3, "0003 000000000000002a 00000007 0001 6d 0000018bcfe56800", PLAIN),
        (4, "0004 000000000000002a 00000007 02 6d 0000018bcfe56800 00", PLAIN),
    ],
)
def test_offset_value_examples(version, data, value):
    data = bytes.fromhex(data)
    assert decode_offset_value(data) == value
    assert encode_offset_value(value, version) == data
    check_damage(decode_offset_value, data)


def test_default_versions_are_those_of_a_kafka_broker():
    assert encode_offset_value(PLAIN)[:2] == b"\0\3"
    assert encode_offset_value(EXPIRING)[:2] == b"\0\1"
    assert encode_offset_value(PLAIN._replace(topic_id=TOPIC_ID))[:2] == b"\0\4"
    assert encode_group_value(GROUP)[:2] == b"\0\3"


_HEAD = "0008 636f6e73756d6572 00000005 0005 72616e6765 0004 69642d31"
_CLIENT = "0006 636c69656e74 000a 2f3132372e302e302e31"
_TAIL = "0000afc8 00000002 0001 00000002 0002"
GROUP_EXAMPLES = {
    0: f"0000 {_HEAD} 00000001 0004 69642d31 {_CLIENT} {_TAIL}",
    1: f"0001 {_HEAD} 00000001 0004 69642d31 {_CLIENT} 000493e0 {_TAIL}",
    2: f"0002 {_HEAD} 0000018bcfe56800 00000001 0004 69642d31 {_CLIENT} 000493e0 {_TAIL}",
    3: f"0003 {_HEAD} 0000018bcfe56800 00000001 0004 69642d31 0008 7374617469632d31 {_CLIENT} 000493e0 {_TAIL}",
    4: "0004 09 636f6e73756d6572 00000005 06 72616e6765 05 69642d31 0000018bcfe56800"
    "02 05 69642d31 09 7374617469632d31 07 636c69656e74 0b 2f3132372e302e302e31 000493e0 0000afc8"
    "03 0001 03 0002 00 00",
}


@pytest.mark.parametrize("version", GROUP_EXAMPLES)
def test_group_value_examples(version):
    data = bytes.fromhex(GROUP_EXAMPLES[version])
    assert encode_group_value(GROUP, version) == data
    decoded = decode_group_value(data)
    assert decoded.state_timestamp_ms == (COMMITTED if version >= 2 else -1)
    (member,) = decoded.members
    assert member.group_instance_id == ("static-1" if version >= 3 else None)
    assert member.rebalance_timeout_ms == (300_000 if version >= 1 else -1)
    assert (member.subscription, member.assignment) == (b"\0\1", b"\0\2")
    check_damage(decode_group_value, data)


def test_a_topic_id_is_a_tagged_field_of_version_4():
    value = PLAIN._replace(topic_id=TOPIC_ID)
    data = encode_offset_value(value)
    assert data == encode_offset_value(PLAIN, 4)[:-1] + bytes.fromhex("01 00 10 f062cc180b5b4c5f8e44cf094bfef56f")
    assert decode_offset_value(data) == value
    assert decode_offset_value(encode_offset_value(value, 3)) == PLAIN
    check_damage(decode_offset_value, data)


def test_an_empty_group_round_trips():
    data = bytes.fromhex("0003 0008 636f6e73756d6572 00000005 ffff ffff 0000018bcfe56800 00000000")
    assert encode_group_value(EMPTY_GROUP) == data and decode_group_value(data) == EMPTY_GROUP


def test_unknown_tagged_fields_of_version_4_are_skipped():
    data = encode_offset_value(PLAIN, 4)
    assert data[-1] == 0
    assert decode_offset_value(data[:-1] + bytes.fromhex("01 05 02 aabb")) == PLAIN


@pytest.mark.parametrize("decode", [decode_offset_value, decode_group_value])
@pytest.mark.parametrize("version", [5, 32767, -1])
def test_an_unknown_value_version_is_corrupt(decode, version):
    with pytest.raises(CorruptRecordError, match=f"version {version}, supported are 0 to 4. A newer broker"):
        decode(version.to_bytes(2, "big", signed=True) + bytes(60))


@given(groups, st.sampled_from([3, 4]))
def test_groups_round_trip(group, version):
    assert decode_group_value(encode_group_value(group, version)) == group


@given(offsets)
def test_offsets_round_trip(value):
    decoded = decode_offset_value(encode_offset_value(value))
    if value.expire_timestamp_ms >= 0:
        assert decoded == OffsetValue(
            value.offset, -1, value.metadata, value.commit_timestamp_ms, value.expire_timestamp_ms
        )
    else:
        assert decoded == value


@given(st.binary(max_size=40))
def test_random_bytes_raise_corrupt_record_errors_only(data):
    for decode in (decode_key, decode_offset_value, decode_group_value):
        try:
            decode(data)
        except CorruptRecordError:
            pass


def test_groups_are_encoded_as_by_the_schema(monkeypatch):
    groups = [GROUP, GroupValue("", 0, None, None), GroupValue("é" * 9, -1, "", "", 2**62, GROUP.members * 3)]
    encoded = [encode_group_value(group) for group in groups]
    monkeypatch.setattr(group_records, "_fast_group_value", lambda value: None)
    assert [encode_group_value(group) for group in groups] == encoded
    assert [decode_group_value(data) for data in encoded] == groups


def test_long_names_are_not_kept() -> None:
    """A client may name groups with 32,000 characters each, and any number of them."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(10):
            group_id = f"{'g' * 32_000}{number}"
            coordinator_partition(group_id, 50)
            key = OffsetKey(group_id, "t", 0)
            assert decode_key(encode_key(key)) == key
        del group_id, key
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
