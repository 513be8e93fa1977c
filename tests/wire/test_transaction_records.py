"""Encoding of the records in `__transaction_state`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.transaction_records import (
    TransactionStatus,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

OPEN = TransactionValue(
    producer_id=1,
    producer_epoch=2,
    timeout_ms=3_000,
    status=TransactionStatus.ONGOING,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 2)}),
    updated_ms=10,
    start_ms=9,
)
_FIXED = "0000000000000001" "0002" "00000bb8" "01"
_TIMES = "000000000000000a" "0000000000000009"
V0 = "0000" + _FIXED + "00000002" "000161" "00000002" "0000000000000001" "000162" "00000001" "00000002" + _TIMES
V1 = "0001" + _FIXED + "03" "0261" "03" "0000000000000001" "00" "0262" "02" "00000002" "00" + _TIMES + "00"


@pytest.mark.parametrize("version, text", ((0, V0), (1, V1)))
def test_examples_of_each_version(version: int, text: str) -> None:
    assert encode_value(OPEN, version).hex() == text
    assert decode_value(bytes.fromhex(text)) == OPEN


def test_keys_of_other_record_types_are_skipped() -> None:
    assert encode_key("ab").hex() == "0000" "0002" "6162"
    assert decode_key(encode_key("ab")) == "ab"
    assert decode_key(b"\x00\x07anything") is None


def test_partitions_are_null_without_a_transaction() -> None:
    empty = TransactionValue(1, 2, 3_000, TransactionStatus.EMPTY)
    assert encode_value(empty, 0).hex()[34:42] == "ffffffff"
    assert decode_value(encode_value(empty, 0)) == decode_value(encode_value(empty)) == empty


values = st.builds(
    TransactionValue,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    status=st.sampled_from(sorted(set(TransactionStatus) - {TransactionStatus.EMPTY})),
    partitions=st.frozensets(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=5),
    updated_ms=st.integers(-1, 2**62),
    start_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
)


@given(values)
def test_values_round_trip(value: TransactionValue) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"\x00", "have no version"),
        (b"\x00\x02" + bytes(40), "version 2, supported are 0 and 1"),
        (bytes.fromhex(V1)[:-3], "is corrupt"),
        (bytes.fromhex(V1) + b"x", "is corrupt"),
        (bytes.fromhex(V1.replace("00000bb801", "00000bb807", 1)), "7 is not a valid TransactionStatus"),
    ],
)
def test_invalid_records_are_corrupt(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode_value(data)
    with pytest.raises(CorruptRecordError):
        decode_key(b"\x00\x00\x00\x09ab")
