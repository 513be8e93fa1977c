"""Hashes of a column of keys, as Kafka's Java producer computes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_groupsource.records.partitioner import murmur2

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_MULTIPLIER = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_POSITIVE = 0x7FFFFFFF
# longer keys are hashed one by one
_MAX_LENGTH = 256
# of the matrix of keys and their bytes
_MAX_CELLS = 1 << 19


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
    value = _SEED ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for number in range(width // 4):
        word = words[:, number]
        mixed = word * _MULTIPLIER
        mixed = (mixed ^ mixed >> np.uint32(24)) * _MULTIPLIER
        is_rest = (number == whole) & (lengths % 4 > 0)
        value = np.where(number < whole, (value * _MULTIPLIER) ^ mixed, value)
        value = np.where(is_rest, (value ^ word) * _MULTIPLIER, value)
    value = (value ^ value >> np.uint32(13)) * _MULTIPLIER
    value ^= value >> np.uint32(15)
    return (value & np.uint32(_POSITIVE)).astype(np.int64)
