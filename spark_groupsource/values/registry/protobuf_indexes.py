"""Indexes that name the message of a Protobuf value in its file.

Source: Confluent wire format (`MessageIndexes`): the number of indexes, then each, as zigzag varints; the first message
of a file is one zero.
"""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_scan import DamagedValueError, read_unsigned

Path = tuple[int, ...]
_MAX_DEPTH = 100


def encoded_indexes(paths: Sequence[Path]) -> list[bytes]:
    """Returns the encodings of the indexes of a message; those of the first one in a file are also one zero."""
    found = [b"".join(varint(2 * number) for number in (len(path), *path)) for path in paths]
    return found + [b"\0" for path in paths if path == (0,)]


def read_indexes(data: bytes) -> tuple[Path, int]:
    """Returns the indexes at the begin of a value, and the number of their bytes.

    Raises: IndexError, DamagedValueError for other bytes.
    """
    count, at = read_unsigned(data, 0)
    if count > 2 * _MAX_DEPTH or count % 2:
        raise DamagedValueError(reasons.TAG)
    path = []
    for _ in range(count // 2):
        number, at = read_unsigned(data, at)
        path.append(number // 2)
    found = tuple(path) or (0,)
    # negative numbers, and numbers with more bytes than needed
    if data[:at] not in encoded_indexes([found]):
        raise DamagedValueError(reasons.TAG)
    return found, at


def varint(number: int) -> bytes:
    """Returns an unsigned number in Protobuf's encoding."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
