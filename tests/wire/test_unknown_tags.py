"""Tagged fields that a record's schema lacks are kept and shown."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.message_strategies import messages

from spark_groupsource.wire.decoder import decode_exactly
from spark_groupsource.wire.encoder import encode_body, encode_data
from spark_groupsource.wire.message_base import RecordStruct
from spark_groupsource.wire.messages import (
    GroupMetadataValue,
    HeartbeatRequest,
    OffsetCommitValue,
    TransactionLogValue,
)
from spark_groupsource.wire.record_json import UNKNOWN_TAGS, message_json, modern_record_classes, value_json

# tag numbers that no schema has; a new one of Kafka gets the next number
TAGS = st.dictionaries(st.integers(40, 2**31 - 1), st.binary(max_size=200), max_size=3)
CLASSES = [OffsetCommitValue, GroupMetadataValue, TransactionLogValue]
CLASSES += [value_class for _, value_class in modern_record_classes().values()]
FLEXIBLE = [
    pytest.param(each, version, id=f"{each.SCHEMA.name}-v{version}")
    for each in CLASSES
    for version in each.SCHEMA.versions
    if version in each.SCHEMA.flexible
]


def structs_of(value: Any) -> Iterator[RecordStruct]:
    """Yields a structure and those in it, in the order of their fields."""
    yield value
    for field in value.FIELDS:
        content = getattr(value, field.name)
        for each in content if isinstance(content, list) else [content]:
            if isinstance(each, RecordStruct):
                yield from structs_of(each)


def shown_tags(shown: Any) -> list[dict[int, bytes]]:
    """Returns the unknown tags of each JSON object that has some."""
    if isinstance(shown, list):
        return [tags for each in shown for tags in shown_tags(each)]
    if not isinstance(shown, dict):
        return []
    found = shown.get(UNKNOWN_TAGS)
    own = [{int(tag): b64decode(data) for tag, data in found.items()}] if found else []
    return own + [tags for name, each in shown.items() if name != UNKNOWN_TAGS for tags in shown_tags(each)]


def as_set(tags: list[dict[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    return sorted(sorted(each.items()) for each in tags)


@pytest.mark.parametrize("record_class, version", FLEXIBLE)
@given(data=st.data())
def test_every_record_keeps_and_shows_unknown_tags(record_class: Any, version: int, data: st.DataObject) -> None:
    record = data.draw(messages(record_class, version))
    for struct in structs_of(record):
        struct.unknown_tags = data.draw(TAGS)
    encoded = encode_body(record, version)
    decoded = decode_exactly(record_class, version, memoryview(encoded))
    assert decoded == record
    assert encode_body(decoded, version) == encoded
    added = [dict(each.unknown_tags) for each in structs_of(record) if each.unknown_tags]
    assert as_set(shown_tags(message_json(decoded, version))) == as_set(added)


def test_every_type_of_record_has_a_flexible_version() -> None:
    assert {param.values[0] for param in FLEXIBLE} == set(CLASSES)


def test_records_with_other_unknown_tags_are_not_equal() -> None:
    one, other = OffsetCommitValue(offset=1), OffsetCommitValue(offset=1)
    assert one == other and not dict(one.unknown_tags)
    other.unknown_tags = {40: b"x"}  # type: ignore[misc]
    assert one != other


def test_known_and_unknown_tags_are_written_in_their_order() -> None:
    _, value_class = modern_record_classes()[17]
    record = value_class(epoch=1, metadata_hash=2, stored_description_topology_epoch=7, unknown_tags={9: b"n", 4: b"f"})
    encoded = encode_data(record, 0)
    tags = bytes([3, 2, 4, 0, 0, 0, 7, 4, 1, ord("f"), 9, 1, ord("n")])
    assert encoded.endswith(tags)
    shown = value_json(b"\0\x11\0\1g", encoded)["data"]
    assert shown == {
        "epoch": 1, "metadataHash": 2, "storedDescriptionTopologyEpoch": 7, UNKNOWN_TAGS: {"4": "Zg==", "9": "bg=="},
    }  # fmt: skip


def test_unknown_tags_of_requests_are_skipped() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    encoded = encode_body(request, 4)
    assert encoded.endswith(b"\0")
    with_tag = encoded[:-1] + bytes([1, 40, 1, 5])
    decoded = decode_exactly(HeartbeatRequest, 4, memoryview(with_tag))
    assert decoded == request and not hasattr(decoded, "unknown_tags")
