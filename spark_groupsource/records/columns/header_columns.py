"""Headers of the record batches of a fetched block, as columns.

A block has hundreds of batches; an object for each header took half as long as reading the records of the batch.

Source: https://kafka.apache.org/documentation/#recordbatch (Kafka `DefaultRecordBatch`).
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from spark_groupsource.records.columns.arrow_arrays import Mask
from spark_groupsource.records.header import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP_TYPE,
    NO_TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    iter_batches,
)
from spark_groupsource.records.parser import Ints

# the fields that are read: type, and place in the header
_FIELDS = {
    "base_offset": (">i8", 0),
    "batch_length": (">i4", 8),
    "crc": (">u4", 17),
    "attributes": (">i2", 21),
    "last_offset_delta": (">i4", 23),
    "base_timestamp": (">i8", 27),
    "max_timestamp": (">i8", 35),
    "producer_id": (">i8", 43),
    "record_count": (">i4", 57),
}
_formats, _offsets = zip(*_FIELDS.values())
_LAYOUT = np.dtype({"names": list(_FIELDS), "formats": _formats, "offsets": _offsets, "itemsize": HEADER_BYTES})
_BYTES = np.dtype((np.void, HEADER_BYTES))


class HeaderColumns(NamedTuple):
    """One number for each batch in each column, as in `BatchHeader`; `position` in the buffer and `size` in bytes."""

    base_offset: Ints
    batch_length: Ints
    crc: Ints
    attributes: Ints
    last_offset_delta: Ints
    base_timestamp: Ints
    max_timestamp: Ints
    producer_id: Ints
    record_count: Ints
    position: Ints

    @property
    def batch_count(self) -> int:
        return len(self.position)

    @property
    def size(self) -> Ints:
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> Ints:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Ints:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> Mask:
        """True where the broker set the timestamps: every record has `max_timestamp`."""
        return self._has(LOG_APPEND_TIME_FLAG)

    @property
    def timestamp_type(self) -> Ints:
        return np.where(self._has(NO_TIMESTAMP_TYPE_FLAG), NO_TIMESTAMP_TYPE, self.is_log_append_time)

    @property
    def is_transactional(self) -> Mask:
        return self._has(TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> Mask:
        return self._has(CONTROL_FLAG)

    def _has(self, flag: int) -> Mask:
        found: Mask = (self.attributes & flag) != 0
        return found

    def part(self, chosen: slice | Mask) -> HeaderColumns:
        """Returns the chosen batches."""
        return HeaderColumns(*(column[chosen] for column in self))

    def header(self, buffer: Buffer, index: int) -> BatchHeader:
        """Returns the header of one batch of the buffer. Raises: CorruptRecordError if it is invalid."""
        return next(iter_batches(buffer, start=int(self.position[index])))


def header_columns(buffer: Buffer, positions: Sequence[int]) -> HeaderColumns:
    """Returns the headers at these positions, which are not validated."""
    at = np.array(positions, np.int64)
    # one header from each byte on
    possible = np.ndarray((max(0, len(buffer) - HEADER_BYTES + 1),), _BYTES, buffer, strides=(1,))
    found = possible[at].view(_LAYOUT)
    return HeaderColumns(**{name: found[name].astype(np.int64) for name in _FIELDS}, position=at)
