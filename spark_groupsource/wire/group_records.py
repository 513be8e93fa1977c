"""Encoding of the classic groups' records in `__consumer_offsets`.

Keys have the versions 0 to 2. Each key and value starts with its version as int16, and the version of the key is the
type of the record. Tombstones have no value to decode.

Source: Kafka `GroupCoordinatorRecordSerde`; schemas in `resources/`.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import new_tuple
from spark_groupsource.wire.decoder import MessageT, data_version, decode_data, id_of
from spark_groupsource.wire.encoder import encode_data
from spark_groupsource.wire.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_KEY_VERSIONS = (0, 1)
_OFFSET_KEY_VERSION = 1  # the written version
_GROUP_KEY_VERSION = 2
# brokers write version 3, from Kafka 4.1 on offsets in version 4, which may have a topic id (KAFKA-19141)
OFFSET_VALUE_VERSION = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_OFFSET_VALUE_VERSION_WITH_TOPIC_ID = 4
_GROUP_VALUE_VERSION = 3
_HIGHEST_VALUE_VERSION = 4
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_SHORTS = struct.Struct(">hh")  # version of a key and length of its first string
_OFFSET_VALUE_HEAD = struct.Struct(">hqih")  # version 3: offset, leader epoch, length of the metadata
_OFFSET_VALUE_PLAIN = struct.Struct(">hqihq")  # the same with empty metadata, and the commit timestamp
_MEMBER_TIMEOUTS = struct.Struct(">iii")  # rebalance timeout, session timeout, length of the subscription
_MAX_STRING_BYTES = 2**15 - 1
# bounds of the memory of cached names, which clients of the broker choose
_MAX_CACHED_LENGTH, _CACHED_NAMES = 512, 2_048


class OffsetKey(NamedTuple):
    """Key of the committed offset of a group and partition."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True)
class GroupKey:
    """Key of a group."""

    group_id: str


@dataclass(frozen=True)
class UnknownKey:
    """Key of another record type, for example of a KIP-848 group; such records are skipped."""

    version: int


class OffsetValue(NamedTuple):
    """A committed offset; `leader_epoch` and `expire_timestamp_ms` are -1 if absent.

    `topic_id` is URL-safe base64 without padding, like in Kafka's tools.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: str | None = None


class MemberValue(NamedTuple):
    """A member in the record of its group.

    `rebalance_timeout_ms` is -1 in version 0; the session timeout replaces it.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """The record of a group; `protocol_type` is empty if unset, `state_timestamp_ms` is -1 before version 2."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[MemberValue, ...] = ()


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """Encodes a key: version 1 for an offset, 2 for a group."""
    # without the schema, for speed, like all keys and values that a commit writes
    if isinstance(key, OffsetKey):
        head = offset_key_head(key.group_id, key.topic)
        if head is not None:
            return head + _INT.pack(key.partition)
        message = OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
        return encode_data(message, _OFFSET_KEY_VERSION)
    return encode_group_key(key.group_id)


def encode_group_key(group_id: str) -> bytes:
    """Encodes the key of a group."""
    group = group_id.encode()
    if len(group) <= _MAX_STRING_BYTES:
        return _SHORTS.pack(_GROUP_KEY_VERSION, len(group)) + group
    return encode_data(GroupMetadataKey(group=group_id), _GROUP_KEY_VERSION)


def offset_key_head(group_id: str, topic: str) -> bytes | None:
    """Returns a key up to the partition; None if a name is too long, which the encoding by schema reports."""
    return (_cached_key_head if len(group_id) <= _MAX_CACHED_LENGTH else _key_head)(group_id, topic)


def _key_head(group_id: str, topic: str) -> bytes | None:
    group, name = group_id.encode(), topic.encode()
    if max(len(group), len(name)) > _MAX_STRING_BYTES:
        return None
    return _SHORTS.pack(_OFFSET_KEY_VERSION, len(group)) + group + _SHORT.pack(len(name)) + name


_cached_key_head = lru_cache(maxsize=_CACHED_NAMES)(_key_head)


def decode_key(data: bytes) -> OffsetKey | GroupKey | UnknownKey:
    """Decodes a key. A newer broker may have written records of unknown types; they are no error.

    Raises: CorruptRecordError if the bytes are invalid.
    """
    known = _fast_offset_key(data)
    if known is not None:
        return known
    version = data_version(data, "key", OFFSETS_TOPIC)
    if version in _OFFSET_KEY_VERSIONS:
        message = decode_data(OffsetCommitKey, version, data, OFFSETS_TOPIC)
        return OffsetKey(message.group, message.topic, message.partition)
    if version == _GROUP_KEY_VERSION:
        return GroupKey(decode_data(GroupMetadataKey, version, data, OFFSETS_TOPIC).group)
    return UnknownKey(version)


def encode_offset_value(value: OffsetValue, version: int | None = None) -> bytes:
    """Encodes a committed offset; fields that `version` does not have are omitted.

    The default version is that of a Kafka broker: 1 with an expiry, 4 with a topic id, else 3.
    """
    if version is None:
        version = _offset_value_version(value)
    if version == OFFSET_VALUE_VERSION:
        metadata = value.metadata.encode()
        if len(metadata) <= _MAX_STRING_BYTES:
            head = _OFFSET_VALUE_HEAD.pack(version, value.offset, value.leader_epoch, len(metadata))
            return head + metadata + _LONG.pack(value.commit_timestamp_ms)
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
        topic_id=None if value.topic_id is None else id_of(urlsafe_b64decode(value.topic_id + "==")),
    )
    return encode_data(message, version)


def _offset_value_version(value: OffsetValue) -> int:
    if value.expire_timestamp_ms >= 0:
        return _OFFSET_VALUE_VERSION_WITH_EXPIRY
    return OFFSET_VALUE_VERSION if value.topic_id is None else _OFFSET_VALUE_VERSION_WITH_TOPIC_ID


def decode_offset_value(data: bytes) -> OffsetValue:
    """Decodes a committed offset.

    Raises: CorruptRecordError if the bytes are invalid or the version is unknown.
    """
    known = _fast_offset_value(data)
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


def _fast_offset_key(data: bytes) -> OffsetKey | None:
    """Decodes a key of version 0 or 1; None if the decoder by schema has to report an error."""
    try:
        version, length = _SHORTS.unpack_from(data)
        if version not in _OFFSET_KEY_VERSIONS or length < 0:
            return None
        (topic_length,) = _SHORT.unpack_from(data, 4 + length)
        end = 6 + length + topic_length
        if topic_length < 0 or len(data) != end + _INT.size:
            return None
        (partition,) = _INT.unpack_from(data, end)
        group_id, topic = (_cached_names if end <= _MAX_CACHED_LENGTH else _names)(data[4:end], length)
        return new_tuple(OffsetKey, (group_id, topic, partition))
    except (struct.error, UnicodeDecodeError):
        return None


def _names(data: bytes, length: int) -> tuple[str, str]:
    return str(data[:length], "utf-8"), str(data[length + 2 :], "utf-8")


_cached_names = lru_cache(maxsize=_CACHED_NAMES)(_names)  # repeated commits of a group share their strings


def _fast_offset_value(data: bytes) -> OffsetValue | None:
    """Decodes a value of version 3; None for other versions and for invalid bytes."""
    try:
        if len(data) == _OFFSET_VALUE_PLAIN.size:  # most have no metadata
            version, offset, leader_epoch, length, timestamp_ms = _OFFSET_VALUE_PLAIN.unpack(data)
            if version == OFFSET_VALUE_VERSION and length == 0:
                return new_tuple(OffsetValue, (offset, leader_epoch, "", timestamp_ms, -1, None))
        version, offset, leader_epoch, length = _OFFSET_VALUE_HEAD.unpack_from(data)
        end = _OFFSET_VALUE_HEAD.size + length
        if version != OFFSET_VALUE_VERSION or length < 0 or len(data) != end + _LONG.size:
            return None
        (timestamp_ms,) = _LONG.unpack_from(data, end)
        return OffsetValue(offset, leader_epoch, str(data[_OFFSET_VALUE_HEAD.size : end], "utf-8"), timestamp_ms)
    except (struct.error, UnicodeDecodeError):
        return None


def encode_group_value(value: GroupValue, version: int = _GROUP_VALUE_VERSION) -> bytes:
    """Encodes a group; fields newer than `version` are omitted."""
    if version == _GROUP_VALUE_VERSION:
        encoded = _fast_group_value(value)
        if encoded is not None:
            return encoded
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
    return encode_data(message, version)


def decode_group_value(data: bytes) -> GroupValue:
    """Decodes a group.

    Raises: CorruptRecordError if the bytes are invalid or the version is unknown.
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


def _fast_group_value(value: GroupValue) -> bytes | None:
    """Encodes version 3; None if the encoder by schema has to report an error."""
    pack_length, pack_int, pack_timeouts = _SHORT.pack, _INT.pack, _MEMBER_TIMEOUTS.pack
    try:
        parts = [
            pack_length(_GROUP_VALUE_VERSION),
            _nullable(value.protocol_type),
            pack_int(value.generation_id),
            _nullable(value.protocol_name),
            _nullable(value.leader),
            _LONG.pack(value.state_timestamp_ms),
            pack_int(len(value.members)),
        ]
        for member_id, instance_id, client_id, client_host, rebalance_ms, session_ms, subscription, assignment in (
            value.members
        ):
            name, client, host = member_id.encode(), client_id.encode(), client_host.encode()
            parts += (
                pack_length(len(name)), name, _nullable(instance_id), pack_length(len(client)), client,
                pack_length(len(host)), host, pack_timeouts(rebalance_ms, session_ms, len(subscription)), subscription,
                pack_int(len(assignment)), assignment,
            )  # fmt: skip
        return b"".join(parts)
    except (struct.error, UnicodeEncodeError):
        return None


def _nullable(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _member(message: GroupMetadataValue.MemberMetadata) -> MemberValue:
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


def _decode_value(message_class: type[MessageT], data: bytes) -> MessageT:
    version = data_version(data, "value", OFFSETS_TOPIC)
    if not 0 <= version <= _HIGHEST_VALUE_VERSION:
        raise CorruptRecordError(
            f"Cannot decode {message_class.__name__}: version {version}, supported are 0 to {_HIGHEST_VALUE_VERSION}. "
            "A newer broker may have written it; use a newer release of this package."
        )
    return decode_data(message_class, version, data, OFFSETS_TOPIC)
