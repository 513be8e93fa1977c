"""Offset JSON of the checkpoint."""

import json

import pytest

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.source.positions.offset_json import (
    DecodedOffsets,
    SourceOffset,
    decode_offset,
    encode_offset,
    logged_ranges,
    parse_progress_offset,
)

A0, A2, A10, B0 = (TopicPartition(*pair) for pair in (("a", 0), ("a", 2), ("a", 10), ("b", 0)))


def test_encoded_text_is_sorted_and_decodes_to_the_same_offset():
    offset = SourceOffset({B0: 1, A10: 2, A2: 3, A0: 4}, {A10: 1}, 7, "r")
    text = json.dumps(encode_offset(offset))
    assert text == (
        '{"@group": {"acquired": {"a": {"10": 1}}, "generation": 7, "reader": "r"}, '
        '"a": {"0": 4, "2": 3, "10": 2}, "b": {"0": 1}}'
    )
    assert decode_offset(json.loads(text)) == offset
    again = SourceOffset({A0: 4, A2: 3, A10: 2, B0: 1}, {A10: 1}, 7, "r")
    assert json.dumps(encode_offset(again)) == text


def test_facts_of_the_query_are_encoded_and_absent_ones_are_empty():
    facts = {
        "group_id": "g",
        "topic_ids": {"a": "id"},
        "partition_counts": {"a": 1},
        "starting": {A0: 2},
        "committed": {A0: 3},
    }
    offset = SourceOffset({A0: 4}, {}, 7, "r", **facts)
    encoded = encode_offset(offset)
    assert decode_offset(encoded) == offset
    assert (encoded["@group"]["starting"], encoded["@group"]["committed"]) == ({"a": {"0": 2}}, {"a": {"0": 3}})
    # written by an earlier version
    earlier = {"a": {"0": 4}, "@group": {"acquired": {}, "generation": 7, "reader": "r"}}
    assert decode_offset(earlier) == SourceOffset({A0: 4}, {}, 7, "r")


def test_last_two_offsets_are_not_decoded_again():
    offsets, first, second = DecodedOffsets(), SourceOffset({A0: 4}, {}, 7, "r"), SourceOffset({A0: 5}, {}, 7, "r")
    texts = [json.dumps(offsets.encode(each)) for each in (first, second)]
    assert [offsets.decode(json.loads(text)) for text in texts] == [first, second]
    assert [offsets.decode(json.loads(text)) is each for text, each in zip(texts, (first, second))] == [True, True]
    third = offsets.decode({"a": {"0": 6}})
    assert third == decode_offset({"a": {"0": 6}}) and offsets.decode({"a": {"0": 6}}) is third
    assert offsets.decode(json.loads(texts[0])) == first


def test_initial_offset_is_empty():
    assert encode_offset(SourceOffset()) == {}
    assert decode_offset({}) == SourceOffset()


def test_offset_of_sparks_kafka_source_is_decoded():
    start, end = decode_offset({"a": {"0": 1}}), decode_offset({"a": {"0": 4, "2": 9}})
    assert end == SourceOffset({A0: 4, A2: 9}, partition_counts={"a": 2})
    assert logged_ranges(start, end) == ([OffsetRange(A0, 1, 4)], [A2])


@pytest.mark.parametrize("text", ['{"logOffset": 3}', '{"a": {"x": 1}}', '{"a": {"0": null}}', '{"a": [1]}'])
def test_offset_of_another_source_is_rejected(text):
    with pytest.raises(ConfigurationError, match="its own checkpoint location"):
        decode_offset(json.loads(text))


def test_ranges_start_at_the_acquired_offsets():
    start = SourceOffset({A0: 5, A2: 5, B0: 7}, {}, 1, "r")
    end = SourceOffset({A0: 9, A2: 8, A10: 3}, {A10: 3, A2: 2}, 2, "r")  # B0 was revoked, A2 reset to 2
    assert logged_ranges(start, end) == ([OffsetRange(A0, 5, 9), OffsetRange(A2, 2, 8), OffsetRange(A10, 3, 3)], [])


def test_batch_that_reads_backward_is_rejected():
    with pytest.raises(ConfigurationError, match="reads a-0 backward, from 5 to 4"):
        logged_ranges(SourceOffset({A0: 5}), SourceOffset({A0: 4}))


def test_offset_of_a_progress_report_is_parsed_in_each_form():
    """PySpark 4.0 and 4.1 write Python's form."""
    offset = {"t": {"0": 1}, "@group": {"reader": "r"}}
    for form in (offset, json.dumps(offset), str(offset)):
        assert parse_progress_offset(form) == offset
    assert parse_progress_offset("null") is parse_progress_offset("None") is parse_progress_offset(None) is None
