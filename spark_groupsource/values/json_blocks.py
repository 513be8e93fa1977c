"""Decoding of blocks of JSON values by PyArrow's reader.

The values of a block become the lines of one text, so each must be exactly one object: a value that does not begin
with ``{`` and end with ``}``, is no UTF-8 or has a zero byte is decoded by itself. Where the reader rejects a block, it
reads small parts of it, and the values of a part that it rejects are decoded by themselves.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_groupsource.values.binary_blocks import Mask, as_text, bounds, is_utf8, is_valid
from spark_groupsource.values.decoded import Decoded, bounded_reason
from spark_groupsource.values.json_records import MalformedValueError, record_decoder

_OPEN, _CLOSE, _NEWLINE, _TAB = b"{}\n\t"
_WHITESPACE = " \t\r\n"
# rows of the parts into which a rejected block is divided
_PART_ROWS = 256


class JsonDecoder:
    """Decodes JSON objects as structs, arrays or maps; the fields of the struct are all nullable."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._decode_record = record_decoder(kind)
        read = _read_type(kind) if pa.types.is_struct(kind) and kind.num_fields else None
        self._schema = None if read is None else pa.schema(list(read))

    def decode(self, data: pa.Array) -> Decoded:
        """Decodes a binary array; an empty value is null, as in from_json."""
        malformed: dict[int, str] = {}
        if self._schema is None:
            return Decoded(self._decode_each(data, 0, malformed), malformed)
        lines, single = _lines(data)
        alone = _Alone(self, data, np.flatnonzero(single), malformed)
        parts: list[pa.Array] = []
        pending = [(0, len(data))]
        while pending:
            first, after = pending.pop()
            try:
                parts.append(alone.inserted(self._read(lines[first:after]), first))
            except pa.ArrowInvalid:
                if after - first > _PART_ROWS:
                    starts = range(first, after, _PART_ROWS)
                    pending = [(at, min(at + _PART_ROWS, after)) for at in reversed(starts)]
                else:
                    parts.append(self._decode_each(data[first:after], first, malformed))
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [pa.array([], self._kind)])
        return Decoded(values, malformed)

    def _decode_each(self, data: pa.Array, first: int, malformed: dict[int, str]) -> pa.Array:
        """Decodes one value after the other; `first` is the row of the first one."""
        found: list[Any] = []
        for row, value in enumerate(data.to_pylist(), first):
            try:
                found.append(None if value is None else self._decode_record(value))
            except MalformedValueError as error:
                malformed[row] = bounded_reason(str(error))
                found.append(None)
        return pa.array(found, self._kind)

    def _read(self, lines: pa.Array) -> pa.Array:
        """Raises: ArrowInvalid."""
        rows = len(lines)
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), lines), b"\n")
        text = joined.buffers()[2]
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._schema, newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != rows:
            raise pa.ArrowInvalid("A line has more than one object.")
        found = table.combine_chunks().to_batches()[0]
        columns = [_converted(column, field.type) for column, field in zip(found.columns, self._kind)]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


class _Alone:
    """The values that are decoded by themselves because they must not be part of a block."""

    def __init__(self, decoder: JsonDecoder, data: pa.Array, rows: Any, malformed: dict[int, str]) -> None:
        self._decoder, self._data, self._rows, self._malformed = decoder, data, rows, malformed

    def inserted(self, block: pa.Array, first: int) -> pa.Array:
        """Returns a block of the rows from `first` on, with these values in their places."""
        low, high = np.searchsorted(self._rows, (first, first + len(block)))
        rows = self._rows[low:high]
        if not len(rows):
            return block
        found: dict[int, str] = {}
        values = self._decoder._decode_each(self._data.take(pa.array(rows)), 0, found)
        self._malformed.update({int(rows[at]): reason for at, reason in found.items()})
        indices = np.arange(len(block))
        indices[rows - first] = len(block) + np.arange(len(rows))
        return pa.concat_arrays([block, values]).take(pa.array(indices))


def _lines(data: pa.Array) -> tuple[pa.Array, Mask]:
    """Returns values of which each is one line or more than one object, and which rows are decoded by themselves."""
    text, single = data, _is_single(data)
    if single.any():
        trimmed = pc.ascii_trim(as_text(data), characters=_WHITESPACE)
        text = pa.Array.from_buffers(pa.binary(), len(trimmed), trimmed.buffers(), trimmed.null_count, trimmed.offset)
        single = _is_single(text)
    payload, _, ends = bounds(text)
    if not is_utf8(as_text(text)):
        # the reader does not validate; these values are few
        for row in np.flatnonzero(~single):
            single[row] = not is_utf8(as_text(text[int(row) : int(row) + 1]))
    zeros = np.flatnonzero(payload == 0)
    if len(zeros):
        single[np.minimum(np.searchsorted(ends, zeros, side="right"), len(single) - 1)] = True
    if single.any():
        text = pc.if_else(pa.array(~single), text, pa.scalar(b"{}"))
        payload, _, ends = bounds(text)
    newlines = payload == _NEWLINE
    if newlines.any():
        # between tokens both are whitespace, and within a string both are invalid
        changed = payload.copy()
        changed[newlines] = _TAB
        _, offsets, _ = text.buffers()
        text = pa.Array.from_buffers(pa.binary(), len(text), [None, offsets, pa.py_buffer(changed)], 0, text.offset)
    return text, single


def _is_single(data: pa.Array) -> Mask:
    payload, starts, ends = bounds(data)
    fits = is_valid(data) & (ends - starts >= 2)
    fits[fits] = (payload[starts[fits]] == _OPEN) & (payload[ends[fits] - 1] == _CLOSE)
    single: Mask = ~fits
    return single


def _read_type(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type that the reader reads for `kind`; None if it reads no such values."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _read_type(field.type)) for field in kind]
        has_all = kind.num_fields and all(each is not None for _, each in fields)
        return pa.struct(fields) if has_all else None
    if pa.types.is_map(kind):
        return None
    if pa.types.is_list(kind):
        element = _read_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    return pa.string() if pa.types.is_date(kind) or pa.types.is_binary(kind) else kind


def _converted(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts an array of the type that was read. Raises: ArrowInvalid."""
    if found.type == kind:
        return found
    if pa.types.is_struct(kind):
        children = [_converted(child, field.type) for child, field in zip(found.flatten(), kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=found.is_null())
    if pa.types.is_list(kind):
        offsets = found.offsets
        begin, end = offsets[0].as_py(), offsets[-1].as_py()
        elements = _converted(found.values[begin:end], kind.value_type)
        starts = pc.subtract(offsets, offsets[0])
        return pa.ListArray.from_arrays(starts, elements, type=kind, mask=found.is_null())
    if pa.types.is_binary(kind):
        return _from_base64(found)
    return found.cast(kind)


def _from_base64(found: pa.Array) -> pa.Array:
    try:
        values = [None if text is None else b64decode(text, validate=True) for text in found.to_pylist()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    return pa.array(values, pa.binary())
