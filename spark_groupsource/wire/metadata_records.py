"""Records of `__cluster_metadata`, the log a KRaft controller keeps: those that tell of topics and their settings.

Knows bytes only. Of a record only the fields in front that are of use are read, so that newer versions, which add
fields behind them, are read too.

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
    """A topic, by its name; `topic_id` is 16 bytes."""

    name: str
    topic_id: bytes


class PartitionRecord(NamedTuple):
    """A partition of the topic with this id."""

    topic_id: bytes
    partition: int


class RemoveTopicRecord(NamedTuple):
    """The topic with this id is no more, nor are its partitions and settings."""

    topic_id: bytes


class ConfigRecord(NamedTuple):
    """A setting of a resource; a value None takes it back."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class ProducerIdsRecord(NamedTuple):
    """Every producer id below this one may be in use."""

    next_producer_id: int


class TransactionRecord(NamedTuple):
    """Records from ``begin`` on count when ``end`` comes, and never when ``abort`` does (KIP-868)."""

    what: str


MetadataRecord = (
    TopicRecord | PartitionRecord | RemoveTopicRecord | ConfigRecord | ProducerIdsRecord | TransactionRecord
)


def decode_metadata_record(value: bytes) -> MetadataRecord | None:
    """One record, None where it tells of something else.

    Raises: CorruptRecordError on bytes that do not decode.
    """
    buffer = memoryview(value)
    try:
        frame_version, position = read_unsigned_varint(buffer, 0)
        if frame_version != _FRAME_VERSION:
            raise CorruptRecordError(
                f"a record of __cluster_metadata has frame version {frame_version}, known is {_FRAME_VERSION}; "
                "read it with a newer release of this package"
            )
        api_key, position = read_unsigned_varint(buffer, position)
        _, position = read_unsigned_varint(buffer, position)
        decode = _DECODERS.get(api_key)
        return None if decode is None else decode(buffer, position)
    except (struct.error, IndexError, UnicodeDecodeError, RemoteProtocolError) as error:
        raise CorruptRecordError(f"a record of __cluster_metadata does not decode: {error!r}") from error


def _topic(buffer: memoryview, position: int) -> TopicRecord:
    name, position = _text(buffer, position)
    return TopicRecord(name or "", _id(buffer, position))


def _partition(buffer: memoryview, position: int) -> PartitionRecord:
    partition, topic_id = _PARTITION.unpack_from(buffer, position)
    return PartitionRecord(topic_id, partition)


def _config(buffer: memoryview, position: int) -> ConfigRecord:
    kind = buffer[position]
    resource, position = _text(buffer, position + 1)
    name, position = _text(buffer, position)
    value, _ = _text(buffer, position)
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


def _text(buffer: memoryview, position: int) -> tuple[str | None, int]:
    length, position = read_unsigned_varint(buffer, position)
    if length == 0:
        return None, position
    end = position + length - 1
    if end > len(buffer):
        raise IndexError(f"a text of {length - 1} bytes reaches past the end")
    return str(buffer[position:end], "utf-8"), end


def _id(buffer: memoryview, position: int) -> bytes:
    if position + _ID_BYTES > len(buffer):
        raise IndexError("an id reaches past the end")
    return bytes(buffer[position : position + _ID_BYTES])
