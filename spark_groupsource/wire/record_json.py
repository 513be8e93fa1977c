"""JSON form of messages and of `__consumer_offsets` records, as in Kafka's tools.

Source: Kafka's generated `JsonConverter` classes; `DumpLogSegments.OffsetsMessageParser` and
`CoordinatorRecordMessageFormatter`.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from functools import lru_cache
from importlib.resources import files
from typing import Any, Mapping, Sequence

from spark_groupsource.errors import CorruptRecordError, RemoteProtocolError
from spark_groupsource.wire.consumer_protocol import HIGHEST_VERSION, PROTOCOL_TYPE
from spark_groupsource.wire.decoder import data_version, decode_data, decode_exactly, decode_prefix
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.message_base import RecordStruct, build_class, empty_value
from spark_groupsource.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    DataContainer,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from spark_groupsource.wire.schemas import EMPTY, Field, is_tagged, parse_schema

RECORD_TYPES: Mapping[int, str] = {
    0: "LegacyOffsetCommit",
    1: "OffsetCommit",
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    9: "ShareGroupPartitionMetadata",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
"""Record type, the version of the key -> its name in Kafka."""

_CLASSES: Mapping[int, tuple[Any, Any]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
}
_FIRST_MODERN_TYPE = 3


UNKNOWN_TAGS = "unknownTaggedFields"
"""Name of the tagged fields of a structure that its schema lacks: a newer broker wrote them."""


def record_type(key: bytes) -> int:
    """Returns the record type, the version of the key.

    Raises: CorruptRecordError if the key has no version.
    """
    return data_version(key, "key", OFFSETS_TOPIC)


def key_json(key: bytes) -> dict[str, Any]:
    """Returns a key as ``{"type": "1", "data": {...}}``. For an unknown type `data` is the base64 of the rest.

    Raises: CorruptRecordError if the bytes are invalid.
    """
    kind = record_type(key)
    key_class, _ = _classes(kind)
    # only for the classic types the record type is also the version of the schema
    version = kind if kind < _FIRST_MODERN_TYPE else 0
    return {"type": str(kind), "data": _base64(key[2:]) if key_class is None else _decoded(key_class, version, key)}


def value_json(key: bytes, value: bytes) -> dict[str, Any]:
    """Returns a value as ``{"version": "3", "data": {...}}``; the key has the record type.

    Subscriptions and assignments of consumer groups are decoded too, if they are valid.

    Raises: CorruptRecordError if the bytes are invalid or the version is unknown.
    """
    kind, version = record_type(key), data_version(value, "value", OFFSETS_TOPIC)
    _, value_class = _classes(kind)
    if value_class is None:
        return {"version": str(version), "data": _base64(value[2:])}
    highest = value_class.SCHEMA.versions.stop - 1
    if not 0 <= version <= highest:
        raise CorruptRecordError(
            f"Cannot decode {value_class.SCHEMA.name}: version {version}, supported are 0 to {highest}. "
            "Use a newer release of this package."
        )
    data = _decoded(value_class, version, value)
    if data.get("protocolType") == PROTOCOL_TYPE and value_class is GroupMetadataValue:
        for member, stored in zip(data["members"], _stored_members(version, value)):
            member["subscription"] = _protocol_json(ConsumerProtocolSubscription, stored.subscription)
            member["assignment"] = _protocol_json(ConsumerProtocolAssignment, stored.assignment)
    return {"version": str(version), "data": data}


def _classes(kind: int) -> tuple[Any, Any]:
    return _CLASSES.get(kind) or modern_record_classes().get(kind, (None, None))


def message_json(message: DataContainer, version: int) -> dict[str, Any]:
    """Returns the fields of a decoded message at `version`, with the order and the names of the schema.

    Bytes are base64, ids URL-safe base64 without padding; a tagged field is present if it differs from its default.
    Unlike in Kafka's tools, tagged fields that the schema lacks follow, as base64 by tag.
    """
    return _struct_json(message.FIELDS, message, version)


def _struct_json(fields: Sequence[Field], value: Any, version: int) -> dict[str, Any]:
    found = {}
    for field in fields:
        content = getattr(value, field.name)
        default = empty_value(type(value), field)() if field.default == EMPTY else field.default
        if version in field.versions and not (is_tagged(field, version) and content == default):
            found[field.json_name] = _value_json(field, content, version)
    if isinstance(value, RecordStruct) and value.unknown_tags:
        found[UNKNOWN_TAGS] = {str(tag): _base64(data) for tag, data in value.unknown_tags.items()}
    return found


def _value_json(field: Field, content: Any, version: int) -> Any:
    if field.is_array and content is not None:
        return [_element_json(field, each, version) for each in content]
    return _element_json(field, content, version)


def _element_json(field: Field, content: Any, version: int) -> Any:
    if content is None:
        return None
    if field.fields is not None:
        return _struct_json(field.fields, content, version)
    if field.type == "uuid":
        return urlsafe_b64encode(content.bytes).decode().rstrip("=")
    return _base64(content) if field.type in ("bytes", "records") else content


def _protocol_json(message_class: Any, data: bytes) -> Any:
    """Returns the decoded bytes of a member, or their base64 if they are invalid, as Kafka's tool does."""
    try:
        version = data_version(data, "protocol message", OFFSETS_TOPIC)
        # of a newer version the known fields are decoded
        known = min(version, HIGHEST_VERSION)
        message, _ = decode_prefix(message_class, known, memoryview(data), 2)
    except (CorruptRecordError, RemoteProtocolError):
        return _base64(data)
    return message_json(message, known)


def _stored_members(version: int, value: bytes) -> Sequence[GroupMetadataValue.MemberMetadata]:
    return decode_exactly(GroupMetadataValue, version, memoryview(value), 2).members


def _decoded(message_class: Any, version: int, data: bytes) -> dict[str, Any]:
    return message_json(decode_data(message_class, version, data, OFFSETS_TOPIC), version)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


@lru_cache(maxsize=1)
def modern_record_classes() -> Mapping[int, tuple[Any, Any]]:
    """Returns the classes of key and value of KIP-848, share and streams groups by record type, the version of the key.

    The package only prints these records. Kafka calls these groups modern, as opposed to classic.

    Source: KIP-848, KIP-932, KIP-1071; the schemas are those of Kafka 4.4.
    """
    text = files("spark_groupsource.wire.resources").joinpath("modern_group_records.json").read_text("utf-8")
    return {int(kind): (_class(pair["key"]), _class(pair["value"])) for kind, pair in json.loads(text).items()}


def _class(schema: Mapping[str, Any]) -> Any:
    return build_class(parse_schema(schema), __name__)
