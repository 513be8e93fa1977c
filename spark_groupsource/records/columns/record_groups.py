"""Groups of the records of a fetched block that are decoded together.

Producers write batches of a hundred records as well as of ten thousand: small ones are joined, large ones are divided.
"""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns.arrow_columns import Layout
from spark_groupsource.records.columns.batch_selection import leading
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.columns.plain_columns import BufferPool, Parts
from spark_groupsource.records.compression import SizeLimitError
from spark_groupsource.records.decode import check_record_count
from spark_groupsource.records.fast_codecs import decompress_into
from spark_groupsource.records.header import HEADER_BYTES, corrupt_batch
from spark_groupsource.records.parser import MIN_RECORD_BYTES, NUMPY_PARSER, Bytes, Ints, RecordFields, RecordParser
from spark_groupsource.records.slices import record_slices

# a batch that is larger, decompressed, is divided
_MAX_BATCH_BYTES = 8 * 1024 * 1024
# size of a group of several batches; the last one of decompressed batches may exceed it
_GROUP_BYTES = 8 * 1024 * 1024
_MAX_SLICE_BYTES = 2 * 1024 * 1024

_payloads = BufferPool()

NextParser = Callable[[], RecordParser]
"""Returns the parser for the next records."""


class RecordGroup(NamedTuple):
    """Records to decode together: those of whole Kafka batches, or a slice of one.

    Attributes:
        headers: those of the batches; the header of a slice has the number of its records.
        payload: the decompressed records, or the part of the response that has them.
        starts, ends: start and end of the records of each header in `payload`.
        parser: parses them.
        fields: the positions of the fields, None if they are not parsed yet.
        lowest_offset: the offset after the previous slice of the batch.
    """

    headers: HeaderColumns
    payload: Bytes
    starts: Ints
    ends: Ints
    parser: RecordParser
    fields: RecordFields | None = None
    lowest_offset: int = 0

    @property
    def counts(self) -> Ints:
        """Number of records of each header."""
        return self.headers.record_count

    @property
    def parts(self) -> Parts:
        return Parts(self.starts, self.ends, self.counts)

    def parsed(self) -> RecordFields:
        """Returns the positions of the fields. Raises: CorruptRecordError."""
        if self.fields is not None:
            return self.fields
        if self.parser.parse_batches is not None:
            return self.parser.parse_batches(self.payload, self.starts, self.ends, self.counts)
        return self.parser.parse_all(self.payload, int(self.counts.sum()))

    def single(self, index: int) -> RecordGroup:
        """Returns the group of one of the headers."""
        payload = self.payload[self.starts[index] : self.ends[index]]
        header = self.headers.part(slice(index, index + 1))
        return RecordGroup(header, payload, _ints([0]), _ints([payload.size]), self.parser)


def record_groups(
    view: memoryview, headers: HeaderColumns, layout: Layout, max_record_bytes: int, parser: NextParser
) -> Iterator[RecordGroup]:
    """Decompresses batches; joins as many as fit in one Arrow batch, and divides larger ones.

    Without compressed batches, the records are not copied, if the parser skips the headers between them.

    Raises: CorruptRecordError; SizeLimitError if a record exceeds `max_record_bytes`.
    """
    chosen, max_bytes = parser(), min(_MAX_BATCH_BYTES, max_record_bytes)
    is_small = (headers.record_count <= layout.max_rows) & (headers.size <= max_bytes)
    is_in_place = is_small & (chosen.parse_batches is not None and not headers.codec.any())
    is_whole = is_small & ~is_in_place
    first = 0
    group: RecordGroup | None
    while first < headers.batch_count:
        if is_in_place[first]:
            run = headers.part(slice(first, first + leading(is_in_place[first:])))
            group = _in_place(view, run, layout.max_rows, chosen)
        else:
            run = headers.part(slice(first, first + leading(is_whole[first:])))
            group = _decompressed(view, run, layout.max_rows, max_bytes, chosen) if run.batch_count else None
        if group is not None:
            first += group.headers.batch_count
            yield group
            # its memory is for the next one
            del group
        else:
            yield from _slices(view, headers.part(slice(first, first + 1)), layout.max_rows, max_record_bytes, parser)
            first += 1


def _in_place(view: memoryview, headers: HeaderColumns, max_rows: int, parser: RecordParser) -> RecordGroup:
    """Returns the group of the leading batches, without a copy of them."""
    rows, begin = np.cumsum(headers.record_count), int(headers.position[0])
    ends = headers.position + headers.size - begin
    count = max(1, leading((rows <= max_rows) & (ends <= _GROUP_BYTES)))
    members, ends = headers.part(slice(0, count)), ends[:count]
    received = np.frombuffer(view[begin : begin + int(ends[-1])], dtype=np.uint8)
    return _checked(view, members, received, members.position + HEADER_BYTES - begin, ends, parser)


def _decompressed(
    view: memoryview, headers: HeaderColumns, max_rows: int, max_bytes: int, parser: RecordParser
) -> RecordGroup | None:
    """Returns the group of the leading batches, None if the first one is to be divided."""
    target, filled = _payloads.take(_GROUP_BYTES + _MAX_BATCH_BYTES), [0]
    rows, codecs = np.cumsum(headers.record_count).tolist(), headers.codec.tolist()
    starts, ends = (headers.position + HEADER_BYTES).tolist(), (headers.position + headers.size).tolist()
    for index in range(headers.batch_count):
        size = filled[-1]
        if index and (rows[index] > max_rows or size >= _GROUP_BYTES):
            break
        try:
            data = view[starts[index] : ends[index]]
            filled.append(size + decompress_into(codecs[index], data, target[size : size + max_bytes]))
        except SizeLimitError:
            break
    count = len(filled) - 1
    if not count:
        return None
    members = headers.part(slice(0, count))
    return _checked(view, members, target[: filled[-1]], _ints(filled[:-1]), _ints(filled[1:]), parser)


def _checked(
    view: memoryview, headers: HeaderColumns, payload: Bytes, starts: Ints, ends: Ints, parser: RecordParser
) -> RecordGroup:
    """Returns the group. Raises: CorruptRecordError if the records of a batch are too small for their number."""
    possible = leading(headers.record_count * MIN_RECORD_BYTES <= ends - starts)
    if possible < headers.batch_count:
        check_record_count(headers.header(view, possible), int((ends - starts)[possible]))
    return RecordGroup(headers, payload, starts, ends, parser)


def _slices(
    view: memoryview, headers: HeaderColumns, max_rows: int, max_record_bytes: int, parser: NextParser
) -> Iterator[RecordGroup]:
    """Divides the records of one batch."""
    header = headers.header(view, 0)
    lowest_offset = header.base_offset
    slices = record_slices(
        view,
        header,
        max_slice_bytes=_MAX_SLICE_BYTES,
        max_slice_items=max_rows,
        max_record_bytes=max_record_bytes,
        parser=lambda payload, limit: parser().parse_leading(payload, limit),
    )
    try:
        for found in slices:
            if found is not None:
                payload, fields = found
                part = headers._replace(record_count=_ints([len(fields.end)]))
                bounds = _ints([0]), _ints([payload.size])
                yield RecordGroup(part, payload, *bounds, NUMPY_PARSER, fields, lowest_offset)
                lowest_offset = header.base_offset + int(fields.offset_delta[-1]) + 1
    except CorruptRecordError as error:
        raise undecodable(headers, error) from error


def undecodable(headers: HeaderColumns, error: CorruptRecordError) -> CorruptRecordError:
    """Returns the error of one batch."""
    fact = f"its {headers.record_count[0]} records do not decode: {error}"
    return corrupt_batch(int(headers.base_offset[0]), int(headers.position[0]), fact)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
