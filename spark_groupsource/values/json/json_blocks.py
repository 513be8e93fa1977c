"""Decoding of blocks of JSON values by PyArrow's reader.

The values of a block become the lines of one text, so each must be exactly one object: a value that does not begin
with ``{`` and end with ``}``, is no UTF-8 or has a zero byte is decoded by itself. Where the reader rejects a block,
`json_suspects` finds the values that may be the reason, and they are decoded by themselves. A block that is still
rejected is read in small parts, and the values of a part that is rejected are decoded by themselves.

Flat objects are read by the compiled scanner of `json_scans` instead, once enough of them were decoded.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_groupsource.records.columns.arrow_arrays import booleans, byte_strings, fixed_width, integers, is_valid
from spark_groupsource.values.decoded import Decoded, bounded_reason
from spark_groupsource.values.json.json_conversions import any_row, converted, read_type
from spark_groupsource.values.json.json_decimals import most_digits, unsafe_decimals
from spark_groupsource.values.json.json_records import MAX_DEPTH, MalformedValueError, is_too_deep, record_decoder
from spark_groupsource.values.json.json_scans import JsonScanner
from spark_groupsource.values.json.json_suspects import Check, checks
from spark_groupsource.values.lanes.binary_blocks import Bytes, Ints, Mask, as_text, bounds, invalid_text

# the bit in which { and [ differ
_TO_SQUARE = 0x20
_OPEN, _CLOSE, _NEWLINE, _TAB, _BLANK = b"{}\n\t "
_WHITESPACE = " \t\r\n"
# rows of the parts into which a rejected block is divided
_PART_ROWS = 256
_MAX_READS = 16
# values of a part that are decoded by themselves before all are
_MAX_NAMED = 8
# at most one of so many values is decoded by itself before the block is divided
_SUSPECT_SHARE = 8
_ROW = re.compile(r" in row (\d+)")


class JsonDecoder:
    """Decodes JSON objects as structs, arrays or maps; the fields of the struct are all nullable."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._decode_record = record_decoder(kind)
        read = read_type(kind) if pa.types.is_struct(kind) and kind.num_fields else None
        self._schema = None if read is None else pa.schema(list(read))
        self._digits = most_digits(kind)
        # those that found values in the previous block
        self._checks: dict[str, Check] = {}
        self._scanner = JsonScanner(kind) if JsonScanner.reads(kind) else None
        # most values that the scanner left in the previous block were malformed
        self._expects_malformed = False

    def decode(self, data: pa.Array) -> Decoded:
        """Decodes a binary array; an empty value is null, as in from_json."""
        malformed: dict[int, str] = {}
        if self._schema is None:
            return Decoded(self._decode_each(data, 0, malformed), malformed)
        scanned = None if self._scanner is None else self._scanner.read(data)
        if scanned is None:
            return self._decode_lines(data)
        values, left = scanned
        rows = np.flatnonzero(left)
        if len(rows) > len(data) // _SUSPECT_SHARE:
            # most values would be scanned in vain
            self._scanner = None
        if not len(rows):
            return Decoded(values)
        taken = data.take(integers(rows))
        others = self._decode_left(taken) if self._scanner is not None else self._decode_lines(taken)
        malformed = {int(rows[row]): reason for row, reason in others.malformed.items()}
        if others.values.null_count == len(rows):
            values = pa.StructArray.from_arrays(values.flatten(), fields=list(self._kind), mask=booleans(left))
            return Decoded(values, malformed)
        places = np.arange(len(data))
        places[rows] = len(data) + np.arange(len(rows))
        return Decoded(pa.concat_arrays([values, others.values]).take(integers(places)), malformed)

    def _decode_left(self, data: pa.Array) -> Decoded:
        """Decodes the values that the scanner has left.

        The reader rejects malformed values together and takes several reads to find them, so they are decoded by
        themselves as long as most are malformed.
        """
        if self._expects_malformed:
            malformed: dict[int, str] = {}
            found = Decoded(self._decode_each(data, 0, malformed), malformed)
        else:
            found = self._decode_lines(data)
        self._expects_malformed = 2 * len(found.malformed) > len(data)
        return found

    def _decode_lines(self, data: pa.Array) -> Decoded:
        malformed: dict[int, str] = {}
        lines, single = _lines(data, self._digits)
        block = _Block(lines, single)
        values = self._read_block(block) if len(data) > _PART_ROWS else None
        parts = [values] if values is not None else self._read_parts(block, data, malformed)
        joined = parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [pa.nulls(0, self._kind)])
        return Decoded(self._with_singles(joined, block.single, data, malformed), malformed)

    def _read_block(self, block: _Block) -> pa.Array | None:
        """Reads a block without the values that may be the reason why the reader rejects it; None if they remain."""
        suspects = {name: check(block.lines) for name, check in self._checks.items()}
        self._checks = {name: check for name, check in self._checks.items() if suspects[name].any()}
        if suspects:
            block.exclude(np.logical_or.reduce(list(suspects.values())))
        for _ in range(_MAX_READS):
            try:
                return self._read(block)
            except pa.ArrowInvalid as error:
                for name, check in checks(str(error), self._kind):
                    if block.exclude(check(block.lines)):
                        self._checks[name] = check
                        break
                else:
                    break
        return None

    def _read_parts(self, block: _Block, data: pa.Array, malformed: dict[int, str]) -> list[pa.Array]:
        """Reads small parts; each value of a part that the reader rejects is decoded by itself."""
        found = []
        for first in range(0, len(data), _PART_ROWS):
            part = _Block(block.lines[first : first + _PART_ROWS], block.single[first : first + _PART_ROWS])
            values = self._read_named(part)
            if values is None:
                values = self._decode_each(data[first : first + _PART_ROWS], first, malformed)
                part.single[:] = False
            found.append(values)
        return found

    def _read_named(self, part: _Block) -> pa.Array | None:
        """Reads a part without the values that the reader names; None if there are too many."""
        for _ in range(_MAX_NAMED):
            try:
                return self._read(part)
            except pa.ArrowInvalid as error:
                row = _ROW.search(str(error))
                named = np.arange(len(part.lines)) == int(row[1]) if row else np.zeros(0, np.bool_)
                if not row or not part.exclude(named, len(named)):
                    break
        return None

    def _with_singles(self, block: pa.Array, single: Mask, data: pa.Array, malformed: dict[int, str]) -> pa.Array:
        """Returns a block with the values that are decoded by themselves in their places."""
        rows = np.flatnonzero(single)
        if not len(rows):
            return block
        found: dict[int, str] = {}
        values = self._decode_each(data.take(integers(rows)), 0, found)
        malformed.update({int(rows[at]): reason for at, reason in found.items()})
        if values.null_count == len(values):
            single |= ~is_valid(block)
            return pa.StructArray.from_arrays(block.flatten(), fields=list(self._kind), mask=booleans(single))
        indices = np.arange(len(block))
        indices[rows] = len(block) + np.arange(len(rows))
        return pa.concat_arrays([block, values]).take(integers(indices))

    def _decode_each(self, data: pa.Array, first: int, malformed: dict[int, str]) -> pa.Array:
        """Decodes one value after the other; `first` is the row of the first one."""
        found: list[Any] = []
        for row, value in enumerate(data.to_pylist(), first):
            try:
                found.append(None if value is None else self._decode_record(value))
            except MalformedValueError as error:
                malformed[row] = bounded_reason(str(error))
                found.append(None)
        is_empty = found.count(None) == len(found)
        return pa.nulls(len(found), self._kind) if is_empty else pa.array(found, self._kind)

    def _read(self, block: _Block) -> pa.Array:
        """Reads the lines; values that the reader may read as others are decoded by themselves.

        Raises: ArrowInvalid.
        """
        lines, rows = block.lines, len(block.lines)
        whole = pa.ListArray.from_arrays(fixed_width(pa.int32(), np.array([0, rows], np.int32)), lines)
        joined = pc.binary_join(whole, byte_strings([b"\n"])[0])
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
        columns = [converted(column, field.type) for column, field in zip(found.columns, self._kind)]
        left = any_row([rows for _, rows in columns])
        if left is not None:
            block.single |= left
        return pa.StructArray.from_arrays([values for values, _ in columns], fields=list(self._kind))


class _Block:
    """Lines of a block, of which some are empty objects, as their values are decoded by themselves.

    Attributes:
        lines: one object each.
        single: which values are decoded by themselves.
    """

    def __init__(self, lines: pa.Array, single: Mask) -> None:
        self.lines = lines
        self.single = single

    def exclude(self, suspects: Mask, limit: int | None = None) -> bool:
        """Excludes values; returns False if there are no further ones, or so many that they are not excluded."""
        further = suspects & ~self.single
        limit = len(further) // _SUSPECT_SHARE if limit is None else limit
        if not 0 < np.count_nonzero(further) <= limit:
            return False
        self.single |= further
        self.lines = _emptied(self.lines, further)
        return True


def _lines(data: pa.Array, digits: int | None) -> tuple[pa.Array, Mask]:
    """Returns values of which each is one line or more than one object, and which rows are decoded by themselves.

    Args:
        digits: of decimals that PyArrow reads; None without decimals.
    """
    text, single = data, _is_single(data)
    if single.any():
        trimmed = pc.ascii_trim(as_text(data), characters=_WHITESPACE)
        text = pa.Array.from_buffers(pa.binary(), len(trimmed), trimmed.buffers(), trimmed.null_count, trimmed.offset)
        single = _is_single(text)
        text = _emptied(text, single)
    # the reader does not validate text, and ends at a zero byte
    rejected = invalid_text(text)
    if digits is not None:
        rejected |= unsafe_decimals(text, digits)
    payload, starts, ends = bounds(text)
    for row in _rows_with_many_levels(payload, starts, ends):
        rejected[row] |= is_too_deep(payload[starts[row] : ends[row]].tobytes())
    # the search for the least byte is faster than two comparisons
    least = payload.min(initial=_BLANK)
    zeros = np.flatnonzero(payload == 0) if least == 0 else ()
    if len(zeros):
        rejected[np.minimum(np.searchsorted(ends, zeros, side="right"), len(single) - 1)] = True
    if rejected.any():
        single |= rejected
        text = _emptied(text, rejected)
        payload, _, ends = bounds(text)
    newlines = payload == _NEWLINE if least <= _NEWLINE else np.zeros(0, np.bool_)
    if newlines.any():
        # between tokens both are whitespace, and within a string both are invalid
        changed = payload.copy()
        changed[newlines] = _TAB
        text = _with_payload(text, changed)
    return text, single


def _rows_with_many_levels(payload: Bytes, starts: Ints, ends: Ints) -> Ints:
    """Returns the rows that have more brackets than `MAX_DEPTH`, so that they may have as many levels."""
    # each level has two of them
    if (ends - starts).max(initial=0) <= 2 * MAX_DEPTH:
        return np.zeros(0, np.int64)
    opened = np.flatnonzero((payload & np.uint8(_OPEN & ~_TO_SQUARE)) == (_OPEN & ~_TO_SQUARE))
    return np.flatnonzero(np.searchsorted(opened, ends) - np.searchsorted(opened, starts) > MAX_DEPTH)


def _emptied(lines: pa.Array, rows: Mask) -> pa.Array:
    """Returns lines with an empty object in some rows."""
    payload, starts, ends = bounds(lines)
    if lines.null_count or (ends - starts)[rows].min(initial=2) < 2:
        return pc.if_else(booleans(~rows), lines, byte_strings([b"{}"])[0])
    changed = payload.copy()
    for start, end in zip(starts[rows].tolist(), ends[rows].tolist()):
        changed[start:end] = _BLANK
        changed[start : start + 2] = (_OPEN, _CLOSE)
    return _with_payload(lines, changed)


def _with_payload(lines: pa.Array, payload: Bytes) -> pa.Array:
    _, offsets, _ = lines.buffers()
    return pa.Array.from_buffers(pa.binary(), len(lines), [None, offsets, pa.py_buffer(payload)], 0, lines.offset)


def _is_single(data: pa.Array) -> Mask:
    payload, starts, ends = bounds(data)
    fits = is_valid(data) & (ends - starts >= 2)
    fits[fits] = (payload[starts[fits]] == _OPEN) & (payload[ends[fits] - 1] == _CLOSE)
    single: Mask = ~fits
    return single
