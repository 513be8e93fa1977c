"""Partitions of a column of keys, as computed by Kafka's Java producer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_groupsource.records.partitioner import partition_of_key

_MULTIPLIER = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
# longer keys are hashed one by one
_MAX_LENGTH = 256


def partitions_of_keys(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], partition_count: int
) -> npt.NDArray[np.int64]:
    """Returns `partition_of_key` of each key, which is `data` from a start."""
    if len(lengths) and int(lengths.max()) > _MAX_LENGTH:
        keys = (data[start : start + length].tobytes() for start, length in zip(starts, lengths))
        return np.fromiter((partition_of_key(key, partition_count) for key in keys), np.int64, len(lengths))
    # the words of every key, zeros after its end
    width = -(-int(lengths.max(initial=0)) // 4) * 4
    at = np.arange(width)
    padded = np.concatenate((data, np.zeros(width, np.uint8)))
    words = np.where(at < lengths[:, None], padded[starts[:, None] + at], np.uint8(0)).view("<u4")
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
    return (value & np.uint32(0x7FFFFFFF)).astype(np.int64) % partition_count
