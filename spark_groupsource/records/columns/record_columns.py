"""Record batches encoded from Arrow columns of keys and values.

The lengths and varints of all records are computed as arrays, and one join of binary columns writes the records. All
records of a batch have the same timestamp, no headers and consecutive offsets.
"""

from __future__ import annotations

from functools import cache
from typing import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.columns.arrow_arrays import byte_strings, consecutive
from spark_groupsource.records.compression import compress
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import MAGIC, BatchHeader

_Lengths = npt.NDArray[np.int64]
_Varints = npt.NDArray[np.int16]
# attributes, timestamp delta, the length of a null key, the number of headers
_FIXED_BYTES = 3
_NULL = 1
_MAX_VARINT = 5
_TABLE_SIZE = 1 << 13


class RecordColumns:
    """Records of one partition as columns, without null values.

    Args:
        keys: a binary array without nulls; None for records without keys.
        values: a binary array.
    """

    def __init__(self, keys: pa.Array | None, values: pa.Array, timestamp_ms: int) -> None:
        self._keys, self._values, self._timestamp_ms = keys, values, timestamp_ms

    def __len__(self) -> int:
        return len(self._values)

    def chunks(self, max_bytes: int) -> Iterator[RecordColumns]:
        """Yields parts in order, whose encoded size is at most `max_bytes` unless they have one record."""
        count = len(self)
        size = sum(int(_lengths(each).sum()) for each in (self._keys, self._values) if each is not None)
        if count > 1 and size + count * (_FIXED_BYTES + 4 * _MAX_VARINT) > max_bytes:
            half = count // 2
            for part in (slice(0, half), slice(half, count)):
                keys = None if self._keys is None else self._keys[part]
                yield from RecordColumns(keys, self._values[part], self._timestamp_ms).chunks(max_bytes)
        elif count:
            yield self

    def encode(self, *, codec: int, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
        """Encodes one batch of all records; `codec` is an index of `compression.CODECS`."""
        payload = self._payload()
        body = compress(codec, payload) if codec else payload
        time_ms, count = self._timestamp_ms, len(self)
        header = BatchHeader(
            0, 0, 0, MAGIC, 0, codec, count - 1, time_ms, time_ms, producer_id, producer_epoch, base_sequence, count,
            0, 0,
        )  # fmt: skip
        return with_body(header, body)

    def _payload(self) -> bytes:
        offsets, value_lengths = _varints(np.arange(len(self), dtype=np.int64)), _lengths(self._values)
        value_sizes = _varints(value_lengths)
        key_sizes = None if self._keys is None else _varints(_lengths(self._keys))
        sizes = _FIXED_BYTES + _widths(offsets) + _widths(value_sizes) + value_lengths
        sizes += 1 if key_sizes is None else _widths(key_sizes) + _lengths(self._keys)
        zeros = np.zeros((len(self), 2), np.int16)
        begin = [_varints(sizes), zeros, offsets]
        if key_sizes is None:
            parts = [_joined([*begin, np.full((len(self), 1), _NULL, np.int16), value_sizes])]
        else:
            parts = [_joined([*begin, key_sizes]), self._keys, _joined([value_sizes])]
        records = pc.binary_join_element_wise(*parts, self._values, *byte_strings([b"\0", b""]))
        return memoryview(records.buffers()[2])[: int(_offsets(records)[-1])].tobytes()


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _lengths(values: pa.Array) -> _Lengths:
    return np.diff(_offsets(values)).astype(np.int64)


def _varints(numbers: _Lengths) -> _Varints:
    """Encodes numbers from 0 as zigzag varints; one row per number, padded with -1."""
    largest = int(numbers.max())
    if largest < _TABLE_SIZE:
        return _varint_table()[numbers, : 1 if largest < 64 else 2]
    return _encoded_varints(numbers, -(-(2 * largest).bit_length() // 7))


@cache
def _varint_table() -> _Varints:
    """Returns the varints of all numbers with at most two bytes."""
    return _encoded_varints(np.arange(_TABLE_SIZE), 2)


def _encoded_varints(numbers: _Lengths, width: int) -> _Varints:
    rest = (numbers << 1)[:, None] >> np.arange(width) * 7
    found = (rest & 0x7F).astype(np.int16)
    found[rest >= 128] |= 0x80
    found[:, 1:][rest[:, 1:] == 0] = -1
    return found


def _widths(varints: _Varints) -> _Lengths:
    found: _Lengths = np.count_nonzero(varints >= 0, axis=1)
    return found


def _joined(columns: list[_Varints]) -> pa.Array:
    """Returns the bytes of each row."""
    rows = np.hstack(columns)
    is_used = rows >= 0
    return consecutive(pa.binary(), is_used.sum(axis=1), rows[is_used].astype(np.uint8))
