"""Partitions of keys, as Kafka's Java producer computes them.

Source: Kafka `org.apache.kafka.common.utils.Utils.murmur2`, `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_POSITIVE = 0x7FFFFFFF
# longer keys are hashed one by one
_MAX_LENGTH = 256
# of the matrix of keys and their bytes
_MAX_CELLS = 1 << 19
_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Returns the partition number of `key` in a topic of `partition_count` partitions."""
    return (murmur2(key) & _POSITIVE) % partition_count


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


def hashes_of_keys(data: Bytes, starts: Numbers, lengths: Numbers) -> Numbers:
    """Returns the hash of each key, which is `data` from a start: its remainder by a partition count is the partition.

    Source: Kafka `BuiltInPartitioner.partitionForKey`.
    """
    found = np.empty(len(lengths), np.int64)
    is_long = lengths > _MAX_LENGTH
    if is_long.any():
        long_keys = zip(starts[is_long].tolist(), lengths[is_long].tolist())
        found[is_long] = [murmur2(data[start : start + length].tobytes()) & _POSITIVE for start, length in long_keys]
        found[~is_long] = hashes_of_keys(data, starts[~is_long], lengths[~is_long])
        return found
    step = max(1, _MAX_CELLS // max(1, int(lengths.max(initial=0))))
    for first in range(0, len(lengths), step):
        part = slice(first, first + step)
        found[part] = _hashes(data, starts[part], lengths[part])
    return found


def _hashes(data: Bytes, starts: Numbers, lengths: Numbers) -> Numbers:
    # the words of every key, zeros after its end
    width = -(-int(lengths.max(initial=0)) // 4) * 4
    at = np.arange(width)
    places = np.minimum(starts[:, None] + at, max(0, len(data) - 1))
    words = np.where(at < lengths[:, None], data[places] if len(data) else np.uint8(0), np.uint8(0)).view("<u4")
    multiplier = np.uint32(_MULTIPLIER)
    value = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for number in range(width // 4):
        word = words[:, number]
        mixed = word * multiplier
        mixed = (mixed ^ mixed >> np.uint32(24)) * multiplier
        is_rest = (number == whole) & (lengths % 4 > 0)
        value = np.where(number < whole, (value * multiplier) ^ mixed, value)
        value = np.where(is_rest, (value ^ word) * multiplier, value)
    value = (value ^ value >> np.uint32(13)) * multiplier
    value ^= value >> np.uint32(15)
    return (value & np.uint32(_POSITIVE)).astype(np.int64)
