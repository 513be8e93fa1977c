"""Decoding of topic and configuration records in `__cluster_metadata`.

The topic is the log of the KRaft controllers. Only the leading fields are decoded, so newer versions with additional
fields are supported.

Source: Kafka `MetadataRecordSerde` (frame), and the schemas TopicRecord, PartitionRecord, RemoveTopicRecord,
ConfigRecord, ProducerIdsRecord, BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord.
"""

from __future__ import annotations

import struct
from typing import Callable, Mapping, NamedTuple

from spark_groupsource.errors import CorruptRecordError, RemoteProtocolError
from spark_groupsource.wire.decoder import read_unsigned_varint

TOPIC_RESOURCE = 2
_FRAME_VERSION = 1
_PARTITION = struct.Struct(">i16s")
_PRODUCER_IDS = struct.Struct(">iqq")
_ID_BYTES = 16


class TopicRecord(NamedTuple):
    """A topic was created; `topic_id` is 16 bytes."""

    name: str
    topic_id: bytes


class PartitionRecord(NamedTuple):
    """A partition of a topic was created."""

    topic_id: bytes
    partition: int


class RemoveTopicRecord(NamedTuple):
    """A topic was deleted, with its partitions and configuration."""

    topic_id: bytes


class ConfigRecord(NamedTuple):
    """A setting of a resource changed; the value None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class ProducerIdsRecord(NamedTuple):
    """Producer ids below this one may be in use."""

    next_producer_id: int


class TransactionRecord(NamedTuple):
    """Records after ``begin`` are applied at ``end`` and discarded at ``abort`` (KIP-868)."""

    kind: str


MetadataRecord = (
    TopicRecord | PartitionRecord | RemoveTopicRecord | ConfigRecord | ProducerIdsRecord | TransactionRecord
)


def decode_metadata_record(value: bytes) -> MetadataRecord | None:
    """Decodes a record, None if it is of another type.

    Raises: CorruptRecordError if the bytes are invalid.
    """
    buffer = memoryview(value)
    try:
        frame_version, position = read_unsigned_varint(buffer, 0)
        if frame_version != _FRAME_VERSION:
            raise CorruptRecordError(
                f"Cannot decode a record of __cluster_metadata: frame version {frame_version}, supported is "
                f"{_FRAME_VERSION}. Use a newer release of this package."
            )
        api_key, position = read_unsigned_varint(buffer, position)
        _, position = read_unsigned_varint(buffer, position)
        decode = _DECODERS.get(api_key)
        return None if decode is None else decode(buffer, position)
    except (struct.error, IndexError, UnicodeDecodeError, RemoteProtocolError) as error:
        raise CorruptRecordError(f"A record of __cluster_metadata is corrupt: {error!r}.") from error


def _topic(buffer: memoryview, position: int) -> TopicRecord:
    name, position = _string(buffer, position)
    return TopicRecord(name or "", _id(buffer, position))


def _partition(buffer: memoryview, position: int) -> PartitionRecord:
    partition, topic_id = _PARTITION.unpack_from(buffer, position)
    return PartitionRecord(topic_id, partition)


def _config(buffer: memoryview, position: int) -> ConfigRecord:
    kind = buffer[position]
    resource, position = _string(buffer, position + 1)
    name, position = _string(buffer, position)
    value, _ = _string(buffer, position)
    return ConfigRecord(kind, resource or "", name or "", value)


_DECODERS: Mapping[int, Callable[[memoryview, int], MetadataRecord]] = {
    2: _topic,
    3: _partition,
    4: _config,
    9: lambda buffer, position: RemoveTopicRecord(_id(buffer, position)),
    15: lambda buffer, position: ProducerIdsRecord(_PRODUCER_IDS.unpack_from(buffer, position)[2]),
    23: lambda buffer, position: TransactionRecord("begin"),
    24: lambda buffer, position: TransactionRecord("end"),
    25: lambda buffer, position: TransactionRecord("abort"),
}


def _string(buffer: memoryview, position: int) -> tuple[str | None, int]:
    length, position = read_unsigned_varint(buffer, position)
    if length == 0:
        return None, position
    end = position + length - 1
    if end > len(buffer):
        raise IndexError(f"a string of {length - 1} bytes exceeds the record")
    return str(buffer[position:end], "utf-8"), end


def _id(buffer: memoryview, position: int) -> bytes:
    if position + _ID_BYTES > len(buffer):
        raise IndexError("an id exceeds the record")
    return bytes(buffer[position : position + _ID_BYTES])
