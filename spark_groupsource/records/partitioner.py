"""Partition of a key, as computed by Kafka's Java producer. Pure.

Source: Kafka `org.apache.kafka.common.utils.Utils.murmur2`, `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Returns the partition number of `key` in a topic of `partition_count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(data: bytes) -> int:
    """Computes the 32-bit MurmurHash2 with Kafka's seed, unsigned."""
    value = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15
