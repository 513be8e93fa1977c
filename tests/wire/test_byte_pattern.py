"""Patterns of encoded messages that differ in some numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.wire.byte_pattern import BytePattern, pattern_of, request_pattern
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import OffsetCommitRequest

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Row = Topic.OffsetCommitRequestPartition
OFFSETS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)


def commit(offsets, metadata="", group="g"):
    rows = [
        Row(partition_index=number, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata)
        for number, offset in enumerate(offsets)
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=1, member_id="m", group_instance_id=None,
        topics=[Topic(name="t", partitions=rows)],
    )  # fmt: skip
    return request, rows


def body(request, version):
    whole = bytes(encode_request(request, version, 7, "client"))
    # length, API, version, correlation id, length of the client id, client id, tags
    return memoryview(whole)[4 + 2 + 2 + 4 + 2 + len("client") + (version >= 8) :]


def pattern(offsets, version, **fields):
    request, rows = commit(offsets, **fields)
    return request_pattern(request, version, body(request, version), rows, "committed_offset", 8)


@given(OFFSETS, st.data())
@pytest.mark.parametrize("version", [2, 5, 7, 8, 9])
def test_the_numbers_of_another_request_of_the_same_form(version, offsets, data):
    others = data.draw(st.lists(st.integers(0, 2**62), min_size=len(offsets), max_size=len(offsets)))
    known = pattern(offsets, version)
    assert known.match(body(commit(offsets)[0], version)) == tuple(offsets)
    assert known.match(body(commit(others)[0], version)) == tuple(others)
    assert known.match(bytes(body(commit(others)[0], version))) == tuple(others)


@pytest.mark.parametrize("fields", [{"metadata": "b"}, {"metadata": "aa"}, {"group": "h"}])
def test_any_other_difference_is_no_match(fields):
    known = pattern([1, 2], 8, metadata="a")
    assert known.match(body(commit([3, 4], "a")[0], 8)) == (3, 4)
    assert known.match(body(commit([3, 4], **{"metadata": "a", **fields})[0], 8)) is None
    assert known.match(body(commit([3, 4, 5], "a")[0], 8)) is None
    assert known.match(b"") is None


def test_bytes_that_would_be_encoded_otherwise_have_no_pattern():
    request, rows = commit([1, 2])
    trailing = memoryview(bytes(body(request, 8)) + b"\0\0\0")  # as librdkafka may send
    assert request_pattern(request, 8, trailing, rows, "committed_offset", 8) is None
    assert [row.committed_offset for row in rows] == [1, 2]


@pytest.mark.parametrize("first, second", [(b"\0\0", b"\0"), (b"\0\0\0\0\0", b"\xff\xff\xff\xff\xff"), (b"aa", b"ab")])
def test_encodings_that_differ_otherwise_have_no_pattern(first, second):
    assert pattern_of([first, second], 4) is None


@given(st.binary(max_size=20), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5))
def test_numbers_are_filled_into_a_pattern(gap, numbers):
    constant = gap + b"".join(bytes(4) + gap for _ in numbers)
    known = BytePattern(constant, [len(gap) + index * (4 + len(gap)) for index in range(len(numbers))], 4)
    filled = known.fill(numbers)
    assert known.match(filled) == tuple(numbers)
    assert known.fill([0] * len(numbers)) == constant
