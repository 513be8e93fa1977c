"""Groups of record batches of a block that are read together.

Producers write batches of a hundred records as well as of ten thousand: small ones are joined, large ones are divided.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns.batch_selection import leading
from spark_groupsource.records.columns.buffer_pool import BufferPool
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.columns.numpy_kernel import read_numpy
from spark_groupsource.records.columns.record_kernel import (
    MAX_HEADERS,
    Layout,
    RecordArrays,
    RecordGroup,
    RecordKernel,
    TooManyHeadersError,
)
from spark_groupsource.records.compression import SizeLimitError
from spark_groupsource.records.decode import check_record_count
from spark_groupsource.records.fast_codecs import decompress_into
from spark_groupsource.records.header import HEADER_BYTES, corrupt_batch
from spark_groupsource.records.parser import MIN_RECORD_BYTES, Bytes, Ints
from spark_groupsource.records.slices import read_slices

# a batch that is larger, decompressed, is divided
_MAX_BATCH_BYTES = 8 * 1024 * 1024
# size of a group of several batches; the last one of decompressed batches may exceed it
_GROUP_BYTES = 8 * 1024 * 1024
_MAX_SLICE_BYTES = 2 * 1024 * 1024
# a header has two bytes or more
_MAX_HEADERS_SLICE_BYTES = 2 * MAX_HEADERS

_payloads = BufferPool()


class BatchGroupReader:
    """Reads the record batches of a block with a kernel.

    Args:
        max_record_bytes: maximum bytes of one record.
    """

    def __init__(self, view: memoryview, layout: Layout, kernel: RecordKernel, max_record_bytes: int) -> None:
        self._view, self._layout, self._kernel, self._max_record_bytes = view, layout, kernel, max_record_bytes

    def read(self, headers: HeaderColumns) -> Iterator[tuple[HeaderColumns, RecordArrays]]:
        """Yields the records of batches in order, with the headers of their batches; as many as fit in one Arrow batch.

        Raises: CorruptRecordError with the offset of the batch; SizeLimitError if a record is too large.
        """
        max_bytes = min(_MAX_BATCH_BYTES, self._max_record_bytes)
        is_whole = (headers.record_count <= self._layout.max_rows) & (headers.size <= max_bytes)
        find = self._decompressed if headers.codec.any() else self._in_place
        first = 0
        while first < headers.batch_count:
            run = headers.part(slice(first, first + leading(is_whole[first:])))
            group = find(run) if run.batch_count else None
            if group is None:
                run = headers.part(slice(first, first + 1))
                yield from self._read_slices(run)
                first += 1
            else:
                first += group.headers.batch_count
                yield from self._read_group(group)
                # its memory is for the next one
                del group

    def _in_place(self, headers: HeaderColumns) -> RecordGroup:
        """Returns the group of the leading batches, without a copy of them."""
        rows, begin = np.cumsum(headers.record_count), int(headers.position[0])
        ends = headers.position + headers.size - begin
        count = max(1, leading((rows <= self._layout.max_rows) & (ends <= _GROUP_BYTES)))
        members, ends = headers.part(slice(0, count)), ends[:count]
        received = np.frombuffer(self._view[begin : begin + int(ends[-1])], dtype=np.uint8)
        return self._checked(members, received, members.position + HEADER_BYTES - begin, ends)

    def _decompressed(self, headers: HeaderColumns) -> RecordGroup | None:
        """Returns the group of the leading batches, None if the first one is to be divided."""
        max_bytes = min(_MAX_BATCH_BYTES, self._max_record_bytes)
        target, filled = _payloads.take(_GROUP_BYTES + _MAX_BATCH_BYTES), [0]
        rows, codecs = np.cumsum(headers.record_count).tolist(), headers.codec.tolist()
        starts, ends = (headers.position + HEADER_BYTES).tolist(), (headers.position + headers.size).tolist()
        for index in range(headers.batch_count):
            size = filled[-1]
            if index and (rows[index] > self._layout.max_rows or size >= _GROUP_BYTES):
                break
            try:
                data = self._view[starts[index] : ends[index]]
                filled.append(size + decompress_into(codecs[index], data, target[size : size + max_bytes]))
            except SizeLimitError:
                break
        count = len(filled) - 1
        if not count:
            return None
        return self._checked(headers.part(slice(0, count)), target[: filled[-1]], _ints(filled[:-1]), _ints(filled[1:]))

    def _checked(self, headers: HeaderColumns, payload: Bytes, starts: Ints, ends: Ints) -> RecordGroup:
        """Returns the group. Raises: CorruptRecordError if the records of a batch are too small for their number."""
        possible = leading(headers.record_count * MIN_RECORD_BYTES <= ends - starts)
        if possible < headers.batch_count:
            check_record_count(headers.header(self._view, possible), int((ends - starts)[possible]))
        return RecordGroup(headers, payload, starts, ends)

    def _read_group(self, group: RecordGroup) -> Iterator[tuple[HeaderColumns, RecordArrays]]:
        try:
            yield group.headers, self._kernel(group, self._layout)
            return
        except CorruptRecordError as error:
            if group.headers.batch_count == 1:
                raise _undecodable(group.headers, error) from error
        except TooManyHeadersError:
            if group.headers.batch_count == 1:
                yield from self._read_slices(group.headers)
                return
        # one batch at a time, to find the corrupt one or to limit the headers
        for index in range(group.headers.batch_count):
            yield from self._read_group(group.single(index))

    def _read_slices(self, headers: HeaderColumns) -> Iterator[tuple[HeaderColumns, RecordArrays]]:
        """Divides the records of one batch."""
        header = headers.header(self._view, 0)
        lowest_offset = header.base_offset

        def read(payload: Bytes, limit: int) -> RecordArrays:
            members = headers._replace(record_count=_ints([limit]))
            group = RecordGroup(members, payload, _ints([0]), _ints([payload.size]), lowest_offset, is_open=True)
            # the compiled kernel would copy a large record
            return (read_numpy if limit == 1 else self._kernel)(group, self._layout)

        slices = read_slices(
            self._view,
            header,
            read,
            _MAX_HEADERS_SLICE_BYTES if "headers" in self._layout.columns else _MAX_SLICE_BYTES,
            self._layout.max_rows,
            self._max_record_bytes,
        )
        try:
            for found in slices:
                if found is not None:
                    lowest_offset = found.next_offset
                    yield headers, found
        except CorruptRecordError as error:
            raise _undecodable(headers, error) from error


def _undecodable(headers: HeaderColumns, error: CorruptRecordError) -> CorruptRecordError:
    """Returns the error of one batch."""
    fact = f"its {headers.record_count[0]} records do not decode: {error}"
    return corrupt_batch(int(headers.base_offset[0]), int(headers.position[0]), fact)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
