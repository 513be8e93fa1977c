"""Records of `__consumer_offsets` as bytes: keys of version 0 to 2 and all versions of their values.

Each key and value begins with its version as int16; the key's version tells the type of the record. Knows
bytes and these values only: what a record means to a group is the coordinator's affair. A null value is a
tombstone and never comes here.

Source: Kafka's GroupCoordinatorRecordSerde; the schemas stand in `resources/`.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

from spark_groupsource.errors import CorruptRecordError, RemoteProtocolError
from spark_groupsource.wire.decoder import decode_exactly
from spark_groupsource.wire.messages import (
    UUID,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

_OFFSET_KEY_VERSIONS = (0, 1)
_OFFSET_KEY_VERSION = 1  # the one that is written
_GROUP_KEY_VERSION = 2
# what brokers write: 3, and Kafka 4.3 an offset in 4, with the topic id
_OFFSET_VALUE_VERSION = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_OFFSET_VALUE_VERSION_WITH_TOPIC_ID = 4
_GROUP_VALUE_VERSION = 3
_HIGHEST_VALUE_VERSION = 4
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_SHORTS = struct.Struct(">hh")  # a key's version and the length of its first text
_OFFSET_VALUE_HEAD = struct.Struct(">hqih")  # version 3: offset, leader epoch, length of the metadata
_OFFSET_VALUE_PLAIN = struct.Struct(">hqihq")  # the same, without metadata, and the commit's time
_LONGEST_TEXT = 2**15 - 1


class OffsetKey(NamedTuple):
    """Key of the offset a group committed for one partition."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True)
class GroupKey:
    """Key of a group's state."""

    group_id: str


@dataclass(frozen=True)
class UnknownKey:
    """Key of a record type that is not the classic protocol's (KIP-848 and share groups, or newer); to be skipped."""

    version: int


class OffsetValue(NamedTuple):
    """A committed offset; `leader_epoch` and `expire_timestamp_ms` are -1 when there is none.

    `topic_id` is the text Kafka's tools print, 22 letters and digits of URL-safe base64.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: str | None = None


@dataclass(frozen=True)
class MemberValue:
    """A member as stored with its group.

    `rebalance_timeout_ms` is -1 in records of version 0, whose readers take the session timeout instead.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True)
class GroupValue:
    """A group as stored; `protocol_type` is empty where it has none, `state_timestamp_ms` -1 before version 2."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[MemberValue, ...] = ()


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """Key bytes: version 1 for an offset, 2 for a group."""
    # by hand, like the other keys and values that every commit writes and reads back: the schemas are fixed by now
    if isinstance(key, OffsetKey):
        head = _offset_key_head(key.group_id, key.topic)
        if head is not None:
            return head + _INT.pack(key.partition)
        message = OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
        return bytes(message.encode(version=_OFFSET_KEY_VERSION))
    group = key.group_id.encode()
    if len(group) <= _LONGEST_TEXT:
        return _SHORTS.pack(_GROUP_KEY_VERSION, len(group)) + group
    return bytes(GroupMetadataKey(group=key.group_id).encode(version=_GROUP_KEY_VERSION))


@lru_cache(maxsize=2048)
def _offset_key_head(group_id: str, topic: str) -> bytes | None:
    """What stands before the partition; None for a name that is too long for the schema, which is to say so."""
    group, name = group_id.encode(), topic.encode()
    if max(len(group), len(name)) > _LONGEST_TEXT:
        return None
    return _SHORTS.pack(_OFFSET_KEY_VERSION, len(group)) + group + _SHORT.pack(len(name)) + name


def decode_key(data: bytes) -> OffsetKey | GroupKey | UnknownKey:
    """The key of a record; one of an unknown type is no error, as a newer broker may have written it.

    Raises: CorruptRecordError on bytes that do not decode.
    """
    known = _plain_offset_key(data)
    if known is not None:
        return known
    version = _version(data, "key")
    if version in _OFFSET_KEY_VERSIONS:
        message = _decode(OffsetCommitKey, version, data)
        return OffsetKey(message.group, message.topic, message.partition)
    if version == _GROUP_KEY_VERSION:
        return GroupKey(_decode(GroupMetadataKey, version, data).group)
    return UnknownKey(version)


def encode_offset_value(value: OffsetValue, version: int | None = None) -> bytes:
    """Value bytes of a committed offset; fields that `version` does not have are left out.

    By default the version is the one a broker writes: 1 with an expiry, 4 with a topic id, else 3.
    """
    if version is None:
        version = _offset_value_version(value)
    if version == _OFFSET_VALUE_VERSION:
        metadata = value.metadata.encode()
        if len(metadata) <= _LONGEST_TEXT:
            head = _OFFSET_VALUE_HEAD.pack(version, value.offset, value.leader_epoch, len(metadata))
            return head + metadata + _LONG.pack(value.commit_timestamp_ms)
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
        topic_id=None if value.topic_id is None else UUID.decode(BytesIO(urlsafe_b64decode(value.topic_id + "=="))),
    )
    return bytes(message.encode(version=version))


def _offset_value_version(value: OffsetValue) -> int:
    if value.expire_timestamp_ms >= 0:
        return _OFFSET_VALUE_VERSION_WITH_EXPIRY
    return _OFFSET_VALUE_VERSION if value.topic_id is None else _OFFSET_VALUE_VERSION_WITH_TOPIC_ID


def decode_offset_value(data: bytes) -> OffsetValue:
    """A committed offset, of any version.

    Raises: CorruptRecordError on bytes that do not decode, and on a version newer than 4.
    """
    known = _plain_offset_value(data)
    if known is not None:
        return known
    message = _decode_value(OffsetCommitValue, data)
    return OffsetValue(
        offset=message.offset,
        leader_epoch=message.leader_epoch,
        metadata=message.metadata,
        commit_timestamp_ms=message.commit_timestamp,
        expire_timestamp_ms=message.expire_timestamp,
        topic_id=None if message.topic_id is None else urlsafe_b64encode(message.topic_id.bytes).decode().rstrip("="),
    )


def _plain_offset_key(data: bytes) -> OffsetKey | None:
    """A whole key of version 0 or 1; None leaves it, and the error, to the schema."""
    try:
        version, length = _SHORTS.unpack_from(data)
        if version not in _OFFSET_KEY_VERSIONS or length < 0:
            return None
        (topic_length,) = _SHORT.unpack_from(data, 4 + length)
        end = 6 + length + topic_length
        if topic_length < 0 or len(data) != end + _INT.size:
            return None
        (partition,) = _INT.unpack_from(data, end)
        group_id, topic = _names(data[4:end], length)
        return OffsetKey(group_id, topic, partition)
    except (struct.error, UnicodeDecodeError):
        return None


@lru_cache(maxsize=2048)  # a group commits many partitions at a time, and again: its names are then one pair of texts
def _names(data: bytes, length: int) -> tuple[str, str]:
    return str(data[:length], "utf-8"), str(data[length + 2 :], "utf-8")


def _plain_offset_value(data: bytes) -> OffsetValue | None:
    """A whole value of version 3; None leaves it, and the error, to the schema."""
    try:
        if len(data) == _OFFSET_VALUE_PLAIN.size:  # nearly all have no metadata
            version, offset, leader_epoch, length, timestamp_ms = _OFFSET_VALUE_PLAIN.unpack(data)
            if version == _OFFSET_VALUE_VERSION and length == 0:
                return OffsetValue(offset, leader_epoch, "", timestamp_ms)
        version, offset, leader_epoch, length = _OFFSET_VALUE_HEAD.unpack_from(data)
        end = _OFFSET_VALUE_HEAD.size + length
        if version != _OFFSET_VALUE_VERSION or length < 0 or len(data) != end + _LONG.size:
            return None
        (timestamp_ms,) = _LONG.unpack_from(data, end)
        return OffsetValue(offset, leader_epoch, str(data[_OFFSET_VALUE_HEAD.size : end], "utf-8"), timestamp_ms)
    except (struct.error, UnicodeDecodeError):
        return None


def encode_group_value(value: GroupValue, version: int = _GROUP_VALUE_VERSION) -> bytes:
    """Value bytes of a group; fields newer than `version` are left out."""
    message = GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation_id,
        protocol=value.protocol_name,
        leader=value.leader,
        current_state_timestamp=value.state_timestamp_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in value.members
        ],
    )
    return bytes(message.encode(version=version))


def decode_group_value(data: bytes) -> GroupValue:
    """A group, of any version.

    Raises: CorruptRecordError on bytes that do not decode, and on a version newer than 4.
    """
    message = _decode_value(GroupMetadataValue, data)
    return GroupValue(
        protocol_type=message.protocol_type,
        generation_id=message.generation,
        protocol_name=message.protocol,
        leader=message.leader,
        state_timestamp_ms=message.current_state_timestamp,
        members=tuple(_member(member) for member in message.members),
    )


def _member(message: Any) -> MemberValue:
    return MemberValue(
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        client_id=message.client_id,
        client_host=message.client_host,
        rebalance_timeout_ms=message.rebalance_timeout,
        session_timeout_ms=message.session_timeout,
        subscription=message.subscription,
        assignment=message.assignment,
    )


def _decode_value(message_class: Any, data: bytes) -> Any:
    version = _version(data, "value")
    if not 0 <= version <= _HIGHEST_VALUE_VERSION:
        raise CorruptRecordError(
            f"{message_class.__name__} has version {version}, known are 0 to {_HIGHEST_VALUE_VERSION}; "
            "a newer broker may have written it: read this log with a newer release of this package"
        )
    return _decode(message_class, version, data)


def _version(data: bytes, part: str) -> int:
    if len(data) < 2:
        raise CorruptRecordError(f"a {part} of {len(data)} bytes in __consumer_offsets is too short for a version")
    return int.from_bytes(data[:2], "big", signed=True)


def _decode(message_class: Any, version: int, data: bytes) -> Any:
    try:
        return decode_exactly(message_class, version, memoryview(data), 2)
    except RemoteProtocolError as error:
        raise CorruptRecordError(f"a record of __consumer_offsets does not decode: {error}") from error
