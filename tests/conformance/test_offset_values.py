"""Kafka's OffsetAndMetadataTest and OffsetExpirationConditionImplTest: values of committed offsets."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.committed_offsets import expired_offsets
from spark_groupsource.broker.group.group_states import STABLE
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetValue, decode_offset_value, encode_offset_value

VALUE = OffsetValue(100, leader_epoch=10, metadata="mine", commit_timestamp_ms=1_234, expire_timestamp_ms=5_678)
TP = TopicPartition("t", 0)


@pytest.mark.conformance("MI-006")
def test_every_field_is_kept() -> None:
    assert (VALUE.offset, VALUE.leader_epoch, VALUE.metadata) == (100, 10, "mine")
    assert (VALUE.commit_timestamp_ms, VALUE.expire_timestamp_ms) == (1_234, 5_678)
    # no version of the record has both a leader epoch and an expiration time
    assert decode_offset_value(encode_offset_value(VALUE)) == VALUE._replace(leader_epoch=-1)
    without_expiration = VALUE._replace(expire_timestamp_ms=-1)
    assert decode_offset_value(encode_offset_value(without_expiration)) == without_expiration


@pytest.mark.conformance("MI-007")
@pytest.mark.parametrize("version", range(5))
def test_minus_one_in_a_record_is_absent(version: int) -> None:
    written = VALUE._replace(leader_epoch=-1, expire_timestamp_ms=-1)
    assert decode_offset_value(encode_offset_value(written, version)) == written
    # without an expiration time, the retention of the group applies
    assert is_expired({TP: written}, retention_ms=10, timestamp_ms=1_243) is False
    assert is_expired({TP: written}, retention_ms=10, timestamp_ms=1_244) is True


@pytest.mark.conformance("MI-005")
def test_offset_with_an_expiration_time_expires_then_with_any_retention() -> None:
    assert is_expired({TP: VALUE}, retention_ms=10, timestamp_ms=5_677) is False
    assert is_expired({TP: VALUE}, retention_ms=10**9, timestamp_ms=5_678) is True


def is_expired(stored: Mapping[TopicPartition, OffsetValue], *, retention_ms: int, timestamp_ms: int) -> bool:
    """Whether the offset of a group without protocol type has expired."""
    return list(expired_offsets(ClassicGroup("g"), stored, retention_ms, timestamp_ms)) == [TP]


@pytest.mark.conformance("MI-005")
@pytest.mark.parametrize("kind", ["simple", "empty", "stable, unsubscribed"])
def test_retention_starts_at_the_commit_or_when_the_group_became_empty(kind: str) -> None:
    group, since = ClassicGroup("g"), 1_234
    if kind != "simple":
        group.protocol_type = "consumer"
        # the retention starts when the group became Empty; in a Stable group, at the commit
        group.state_timestamp_ms = 2_000
        since = 2_000
    if kind == "stable, unsubscribed":
        group.state, since = STABLE, 1_234
        group.subscribed_topics = frozenset({"other"})
    stored = {TP: VALUE._replace(expire_timestamp_ms=-1)}
    assert list(expired_offsets(group, stored, 10, since + 9)) == []
    assert list(expired_offsets(group, stored, 10, since + 10)) == [TP]
