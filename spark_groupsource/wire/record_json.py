"""Messages as JSON values, as Apache Kafka's own tools write them, and records of `__consumer_offsets` in that form.

Knows messages and their bytes; what a record means to a group is the coordinator's affair.

Source: Kafka's generated `JsonConverter` classes; `DumpLogSegments.OffsetsMessageParser` and
`CoordinatorRecordMessageFormatter` for what stands around them.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from typing import Any, Mapping

from spark_groupsource.errors import CorruptRecordError, RemoteProtocolError
from spark_groupsource.wire.consumer_protocol import HIGHEST_VERSION, PROTOCOL_TYPE
from spark_groupsource.wire.decoder import decode_exactly, decode_prefix
from spark_groupsource.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    Message,
    OffsetCommitKey,
    OffsetCommitValue,
)
from spark_groupsource.wire.modern_group_records import modern_record_classes

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
"""The version in front of a key -> the type of the record, Kafka's name for it."""

_CLASSES: Mapping[int, tuple[Any, Any]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
}
_FIRST_NEWER_TYPE = 3


def record_type(key: bytes) -> int:
    """The number in front of a key.

    Raises: CorruptRecordError where there is none.
    """
    return _version(key, "key")


def key_json(key: bytes) -> dict[str, Any]:
    """A key as ``{"type": "1", "data": {...}}``; of a type without a schema here, `data` is base64 of what follows.

    Raises: CorruptRecordError on bytes that do not decode.
    """
    kind = record_type(key)
    key_class, _ = _classes(kind)
    # the number is the version only of the first two types, which have the same fields in each
    version = kind if kind < _FIRST_NEWER_TYPE else 0
    return {"type": str(kind), "data": _base64(key[2:]) if key_class is None else _decoded(key_class, version, key)}


def value_json(key: bytes, value: bytes) -> dict[str, Any]:
    """A value as ``{"version": "3", "data": {...}}``, the key telling its type; no tombstone comes here.

    What members of a consumer group have subscribed and were assigned is decoded too, where it can be.

    Raises: CorruptRecordError on bytes that do not decode, and on a version newer than is known.
    """
    kind, version = record_type(key), _version(value, "value")
    _, value_class = _classes(kind)
    if value_class is None:
        return {"version": str(version), "data": _base64(value[2:])}
    highest = int(value_class.json["validVersions"].rpartition("-")[2])
    if not 0 <= version <= highest:
        raise CorruptRecordError(
            f"{value_class.json['name']} has version {version}, known are 0 to {highest}; "
            "read this log with a newer release of this package"
        )
    data = _decoded(value_class, version, value)
    if data.get("protocolType") == PROTOCOL_TYPE and value_class is GroupMetadataValue:
        for member, stored in zip(data["members"], _stored_members(version, value)):
            member["subscription"] = _protocol_form(ConsumerProtocolSubscription, stored.subscription)
            member["assignment"] = _protocol_form(ConsumerProtocolAssignment, stored.assignment)
    return {"version": str(version), "data": data}


def _classes(kind: int) -> tuple[Any, Any]:
    return _CLASSES.get(kind) or modern_record_classes().get(kind, (None, None))


def message_json(message: Message, version: int) -> dict[str, Any]:
    """The fields that `version` of a decoded message has, in the order and under the names of Kafka's schema.

    Bytes are base64, ids the text Kafka's tools print; a tagged field is there where it was written.
    """
    return _struct_form(type(message)._struct, message, version)


def _struct_form(struct: Any, value: Any, version: int) -> dict[str, Any]:
    form = {}
    for field in struct.fields.values():
        if not field.for_version_q(version):
            continue
        # a tagged field is written, and so shown, where it has not its default
        if field.tagged_field_q(version) and field.name not in (value.tags or ()):
            continue
        form[field._name[0].lower() + field._name[1:]] = _value_form(field, getattr(value, field.name), version)
    return form


def _value_form(field: Any, content: Any, version: int) -> Any:
    if content is None:
        return None
    if field.is_array():
        return [_value_form(field.array_of, each, version) for each in content]
    if field.is_struct():
        return _struct_form(field, content, version)
    if field.type_str == "uuid":
        return urlsafe_b64encode(content.bytes).decode().rstrip("=")
    return _base64(content) if field.type_str in ("bytes", "records") else content


def _protocol_form(message_class: Any, data: bytes) -> Any:
    """What a member wrote, or base64 of it where it does not decode, as Kafka's tool leaves it."""
    try:
        version = _version(data, "text of a member")
        # a newer version is read as far as ours goes
        known = min(version, HIGHEST_VERSION)
        message, _ = decode_prefix(message_class, known, memoryview(data), 2)
    except (CorruptRecordError, RemoteProtocolError):
        return _base64(data)
    return message_json(message, known)


def _stored_members(version: int, value: bytes) -> list[Any]:
    members: list[Any] = decode_exactly(GroupMetadataValue, version, memoryview(value), 2).members
    return members


def _decoded(message_class: Any, version: int, data: bytes) -> dict[str, Any]:
    try:
        return message_json(decode_exactly(message_class, version, memoryview(data), 2), version)
    except RemoteProtocolError as error:
        raise CorruptRecordError(f"a record of __consumer_offsets does not decode: {error}") from error


def _version(data: bytes, part: str) -> int:
    if len(data) < 2:
        raise CorruptRecordError(f"a {part} of {len(data)} bytes in __consumer_offsets is too short for a version")
    return int.from_bytes(data[:2], "big", signed=True)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
