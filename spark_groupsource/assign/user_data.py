"""User data of the sticky assignors: bytes without a version.

As in Kafka, bytes that cannot be decoded mean that nothing was owned: another client wrote them.

Source: Kafka's StickyAssignor (schemas v0 and v1), CooperativeStickyAssignor (schema v0).
"""

from __future__ import annotations

import struct
from typing import Iterable

from spark_groupsource.model import TopicPartition

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_NOTHING: tuple[tuple[TopicPartition, ...], int] = ((), -1)


def encode_sticky(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Encodes schema v1: array of {topic, array of partition}, then the generation."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    parts.append(_INT32.pack(generation_id))
    return b"".join(parts)


def decode_sticky(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Returns partitions and generation, -1 in schema v0; nothing and -1 for bytes that cannot be decoded."""
    if not data:
        return _NOTHING
    try:
        partitions, position = _read_partitions(data)
    except (struct.error, ValueError):
        return _NOTHING
    generation_id = _INT32.unpack_from(data, position)[0] if len(data) >= position + _INT32.size else -1
    return tuple(partitions), generation_id


def _read_partitions(data: bytes) -> tuple[list[TopicPartition], int]:
    partitions: list[TopicPartition] = []
    (topic_count,) = _INT32.unpack_from(data)
    position = _INT32.size
    for _ in range(_checked(topic_count, data)):
        (length,) = _INT16.unpack_from(data, position)
        position += _INT16.size
        topic = data[position : position + _checked(length, data)].decode()
        position += length
        (count,) = _INT32.unpack_from(data, position)
        numbers = struct.unpack_from(f">{_checked(count, data)}i", data, position + _INT32.size)
        position += _INT32.size * (1 + count)
        partitions += [TopicPartition(topic, number) for number in numbers]
    return partitions, position


def _checked(count: int, data: bytes) -> int:
    if not 0 <= count <= len(data):
        raise ValueError(f"Invalid count {count} in {len(data)} bytes of user data.")
    return count


def encode_generation(generation_id: int) -> bytes:
    """Encodes the generation alone."""
    return _INT32.pack(generation_id)


def decode_generation(data: bytes | None) -> int:
    """Returns the generation, -1 if there is none."""
    return int(_INT32.unpack_from(data)[0]) if data and len(data) >= _INT32.size else -1
