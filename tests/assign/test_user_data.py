"""User data of the sticky assignors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.assign import CooperativeStickyAssignor, RangeAssignor, StickyAssignor
from spark_groupsource.assign.user_data import decode_generation, decode_sticky, encode_generation, encode_sticky
from spark_groupsource.model import Assignment, TopicPartition

# from Kafka's StickyAssignorTest, see the vectors
KNOWN = bytes.fromhex("00000002 0006 746f70696331 00000001 00000000 0006 746f70696332 00000001 00000001 00000001")
OWNED = (TopicPartition("topic1", 0), TopicPartition("topic2", 1))

partitions = st.lists(st.builds(TopicPartition, st.text("abé", max_size=3), st.integers(0, 9)), unique=True)


def test_known_bytes():
    assert encode_sticky(OWNED, 1) == KNOWN
    assert decode_sticky(KNOWN) == (OWNED, 1)
    assert decode_sticky(KNOWN[:-4]) == (OWNED, -1), "version 0 has no generation"


@pytest.mark.parametrize("data", [None, b"", b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", KNOWN[:-9], KNOWN[:12]])
def test_corrupt_bytes_mean_no_owned_partitions(data):
    assert decode_sticky(data) == ((), -1)


@given(partitions, st.integers(-1, 2**31 - 1))
def test_round_trip(items, generation_id):
    decoded, generation = decode_sticky(encode_sticky(items, generation_id))
    assert sorted(decoded) == sorted(items) and generation == generation_id


@given(st.binary(max_size=30))
def test_decoding_of_any_bytes_raises_no_error(data):
    decode_sticky(data)
    decode_generation(data)


@pytest.mark.parametrize("generation_id", [-1, 0, 5])
def test_generation(generation_id):
    assert decode_generation(encode_generation(generation_id)) == generation_id


def test_missing_generation_is_minus_one():
    assert decode_generation(None) == decode_generation(b"") == decode_generation(b"\0\0\0") == -1


def test_user_data_of_each_assignor():
    assert RangeAssignor().user_data(["t"], OWNED, 1) is None
    assert StickyAssignor().user_data(["t"], (), -1) is None
    assert StickyAssignor().user_data(["t"], OWNED, 1) == KNOWN
    assert StickyAssignor().user_data(["t"], (), 1) == bytes.fromhex("00000000 00000001")
    assert CooperativeStickyAssignor().user_data(["t"], OWNED, 7) == bytes.fromhex("00000007")
    for assignor in (RangeAssignor(), StickyAssignor()):
        assert assignor.on_assignment(Assignment(OWNED), 1) is None
