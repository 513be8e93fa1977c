"""Reading of Protobuf messages of all lanes into Arrow columns.

Source: Protobuf encoding, Spark `ProtobufDeserializer` with its default options.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Protocol

import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import (
    booleans,
    byte_strings,
    fixed_width,
    integers,
    is_valid,
    strings,
    to_numbers,
)
from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_lanes import PADDING, Lanes, Words, slices
from spark_groupsource.values.lanes.binary_blocks import Ints, Mask, as_text, bounds, invalid_text
from spark_groupsource.values.lanes.protobuf_scan import DELIMITED, FIXED32, FIXED64, GROUP, VARINT
from spark_groupsource.values.protobuf.protobuf_fields import FieldLayout, Fields, Found
from spark_groupsource.values.protobuf.protobuf_schema import ProtoField, ProtoMessage, Scalar

_WIRES = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), DELIMITED),
    "group": GROUP,
}
_MAX_SECONDS = ((1 << 63) - 1) // 1_000_000


class Reader(Protocol):
    """Reads values of one type, in increasing positions, and marks the lanes of malformed ones."""

    def read(self, lanes: Lanes, values: Found) -> pa.Array:
        """Returns one value for each of `values`."""


class Message:
    """Reads messages as structs.

    Args:
        kind: type of the column, with the selected fields.
        has_defaults: whether a field that is not set has the default of its type, as in the entry of a map.
    """

    def __init__(self, message: ProtoMessage, kind: pa.DataType, has_defaults: bool = False) -> None:
        self._kind = kind
        selected = {field.name: field.type for field in kind}
        known = {each.name: each for each in message.fields}
        self._layout = FieldLayout(
            {each.number: _wires(each) for each in message.fields},
            {each.number: each.oneof for each in message.fields if each.oneof is not None},
        )
        self._required = [each for each in message.fields if each.is_required]
        self._columns = [_column(known[name], each, has_defaults) for name, each in selected.items()]

    def read(self, lanes: Lanes) -> pa.Array:
        """Reads all fields of every lane."""
        fields = Fields(lanes, self._layout)
        columns = [each.read(lanes, fields) for each in self._columns]
        for each in self._required:
            is_set = np.zeros(len(lanes), np.bool_)
            for found in fields.values(each.number, _WIRES[each.kind]):
                is_set[found.lanes] = True
            lanes.fail(~is_set & (lanes.reason == 0), reasons.REQUIRED)
        if not columns:
            return pa.Array.from_buffers(self._kind, len(lanes), [None])
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _wires(field: ProtoField) -> frozenset[int]:
    """Returns the wire types of a field; repeated numbers may be packed."""
    wire = _WIRES[field.kind]
    is_packable = field.is_repeated and wire in (VARINT, FIXED64, FIXED32)
    return frozenset((wire, DELIMITED) if is_packable else (wire,))


def _column(field: ProtoField, kind: pa.DataType, has_default: bool) -> _Single | _Repeated:
    reader = _reader(field, kind if not field.is_repeated or pa.types.is_map(kind) else kind.value_type)
    if field.is_repeated:
        return _Repeated(field, reader, kind)
    has_default = has_default or field.default is not None
    return _Single(field, reader, _default(field, reader, kind) if has_default else None)


class _Single:
    """A field that is set at most once; of several values the last is its value, and messages are merged."""

    def __init__(self, field: ProtoField, reader: Reader, default: pa.Array | None) -> None:
        self._field = field
        self._wire = _WIRES[field.kind]
        self._reader = reader
        self._default = default

    def read(self, lanes: Lanes, fields: Fields) -> pa.Array:
        found = fields.values(self._field.number, self._wire)
        rows = len(lanes)
        source, values = self._values(lanes, fields, found)
        column = self._reader.read(source, values)
        if len(values.lanes) == rows:
            return column
        places = np.full(rows, -1, np.int64)
        places[values.lanes] = np.arange(len(values.lanes))
        if self._default is None:
            return column.take(integers(places, places >= 0))
        column = pa.concat_arrays([column, self._default])
        return column.take(integers(np.where(places < 0, len(column) - 1, places)))

    def _values(self, lanes: Lanes, fields: Fields, found: list[Found]) -> tuple[Lanes, Found]:
        """Returns at most one value for each lane, and the lanes with the bytes of these values."""
        values = _joined(found)
        if self._field.oneof is not None:
            # another field of the oneof clears this one: messages before it are not merged
            is_kept = values.start > fields.last_other(self._field.number)[values.lanes]
            values = self._kept(lanes, values, is_kept)
        is_last = np.ones(len(values.lanes), np.bool_)
        is_last[:-1] = values.lanes[1:] != values.lanes[:-1]
        if self._field.message is not None:
            return (lanes, values) if is_last.all() else _merged(lanes, values)
        values = self._kept(lanes, values, is_last)
        if not self._field.has_presence:
            values = _selected(values, ~self._is_default(lanes, values))
        return lanes, values

    def _kept(self, lanes: Lanes, values: Found, is_kept: Mask) -> Found:
        """Returns some of the values; the others, which they replace, are checked."""
        if is_kept.all():
            return values
        before = lanes.reason.copy()
        self._reader.read(lanes, _selected(values, ~is_kept))
        # only messages that remain must have their required fields, and times within the range
        lanes.reason[:] = np.where(np.isin(lanes.reason, (reasons.REQUIRED, reasons.TIME)), before, lanes.reason)
        return _selected(values, is_kept)

    def _is_default(self, lanes: Lanes, values: Found) -> Mask:
        """Returns which values are the default of their type; as in Java, such a value clears a field of proto3."""
        if self._wire == DELIMITED:
            return np.equal(values.length, 0)
        raw = values.number if self._wire == VARINT else lanes.word(values.start)
        is_short = self._wire == FIXED32 or self._field.kind.endswith("32") or self._field.kind == "enum"
        return np.equal(raw & np.uint64(0xFFFFFFFF) if is_short else raw, 0)


class _Repeated:
    """A repeated field, packed or not, or a map."""

    def __init__(self, field: ProtoField, reader: Reader, kind: pa.DataType) -> None:
        self._field = field
        self._wire = _WIRES[field.kind]
        self._reader = reader
        self._kind = kind

    def read(self, lanes: Lanes, fields: Fields) -> pa.Array:
        found = list(fields.values(self._field.number, self._wire))
        if self._wire != DELIMITED and self._wire != GROUP:
            packed = fields.values(self._field.number, DELIMITED)
            if packed:
                found.append(_unpacked(lanes, _joined(packed), self._wire))
        values = _joined(found)
        column = self._reader.read(lanes, values)
        ends = np.zeros(len(lanes) + 1, np.int32)
        np.cumsum(np.bincount(values.lanes, minlength=len(lanes)), out=ends[1:])
        if pa.types.is_map(self._kind):
            buffers = [None, pa.py_buffer(ends)]
            return pa.Array.from_buffers(self._kind, len(lanes), buffers, children=[column])
        return pa.ListArray.from_arrays(fixed_width(pa.int32(), ends), column, type=self._kind)


def _joined(found: list[Found]) -> Found:
    """Returns values in increasing positions, so that those of a lane are in their order."""
    if not found:
        nothing = np.empty(0, np.int64)
        return Found(nothing, nothing, nothing, nothing.view(np.uint64))
    if len(found) == 1:
        return found[0]
    lanes, start, length, number = (np.concatenate(parts) for parts in zip(*found))
    joined = Found(lanes, start, length, number.view(np.uint64))
    return _selected(joined, np.argsort(joined.start, kind="stable"))


def _selected(values: Found, index: Ints | Mask) -> Found:
    lanes, start, length = (part[index] if len(part) else part for part in values[:3])
    return Found(lanes, start, length, values.number[index] if len(values.number) else values.number)


def _unpacked(lanes: Lanes, packed: Found, wire: int) -> Found:
    """Returns the numbers in packed fields."""
    rows = np.flatnonzero(packed.length > 0)
    lane, start, length = packed.lanes[rows], packed.start[rows], packed.length[rows]
    if wire != VARINT:
        size = 8 if wire == FIXED64 else 4
        _fail_lanes(lanes, lane[length % size != 0], reasons.PACKED)
        counts = length // size
        return Found(np.repeat(lane, counts), _runs(start, counts, size), np.empty(0, np.int64), np.empty(0, np.uint64))
    is_open = lanes.payload[start + length - 1] >= 0x80
    _fail_lanes(lanes, lane[is_open], reasons.PACKED)
    lane, start, length = lane[~is_open], start[~is_open], length[~is_open]
    places = _runs(start, length, 1)
    is_end = lanes.payload[places] < 0x80
    end = places[is_end] + 1
    first = places[np.concatenate([[0], np.flatnonzero(is_end)[:-1] + 1])] if len(end) else end
    owners = np.repeat(lane, length)[is_end]
    part = Lanes(lanes.payload, first, end)
    number = part.varint()
    _fail_lanes(lanes, owners[(part.reason != 0) | (part.position != end)], reasons.VARINT)
    return Found(owners, first, np.empty(0, np.int64), number)


def _runs(start: Ints, counts: Ints, step: int) -> Ints:
    """Returns start, start + step, … for each run."""
    before = np.cumsum(counts) - counts
    found: Ints = np.repeat(start - before * step, counts) + np.arange(int(counts.sum())) * step
    return found


def _fail_lanes(lanes: Lanes, rows: Ints, reason: int) -> None:
    if len(rows):
        failed = np.zeros(len(lanes), np.bool_)
        failed[rows] = True
        lanes.fail(failed, reason)


def _merged(lanes: Lanes, values: Found) -> tuple[Lanes, Found]:
    """Returns one value for each lane: messages that are set several times are joined, which merges them.

    The lanes that are returned have the joined bytes in place of their own.
    """
    payload, starts, _ = bounds(slices(lanes.payload, values.start, values.length))
    padded = np.zeros(len(payload) + PADDING, np.uint8)
    padded[: len(payload)] = payload
    first = np.flatnonzero(np.concatenate([[True], values.lanes[1:] != values.lanes[:-1]]))
    lengths = np.add.reduceat(values.length, first)
    source = Lanes(padded, lanes.position, lanes.end, lanes.reason)
    return source, Found(values.lanes[first], starts[first], lengths, np.empty(0, np.uint64))


def _reader(field: ProtoField, kind: pa.DataType) -> Reader:
    if field.message is not None:
        return _TimeReader(field.message, kind) if field.message.time else _MessageReader(field.message, kind)
    if field.kind in ("string", "bytes"):
        return _BytesReader(field.kind == "string")
    return _EnumReader(field) if field.kind == "enum" else _NumberReader(field.kind, kind)


class _NumberReader:
    def __init__(self, name: str, kind: pa.DataType) -> None:
        self._name = name
        self._kind = kind

    def read(self, lanes: Lanes, values: Found) -> pa.Array:
        raw = values.number if _WIRES[self._name] == VARINT else lanes.word(values.start)
        if self._name == "bool":
            return booleans(raw != 0)
        return fixed_width(self._kind, _NUMBERS[self._name](raw))


def _zigzag(raw: Words) -> Ints:
    found: Ints = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
    return found


_NUMBERS: Mapping[str, Callable[[Words], Any]] = {
    **dict.fromkeys(("int32", "uint32", "fixed32", "sfixed32"), lambda raw: raw.astype(np.uint32).view(np.int32)),
    **dict.fromkeys(("int64", "uint64", "fixed64", "sfixed64"), lambda raw: raw.view(np.int64)),
    "sint32": lambda raw: _zigzag(raw & np.uint64(0xFFFFFFFF)).astype(np.int32),
    "sint64": _zigzag,
    "float": lambda raw: raw.astype(np.uint32).view(np.float32),
    "double": lambda raw: raw.view(np.float64),
}


class _EnumReader:
    def __init__(self, field: ProtoField) -> None:
        assert field.enum is not None
        self._enum = field.enum

    def read(self, lanes: Lanes, values: Found) -> pa.Array:
        numbers, places = np.unique(_NUMBERS["int32"](values.number), return_inverse=True)
        if self._enum.is_closed:
            _fail_lanes(lanes, values.lanes[~np.isin(numbers, list(self._enum.names))[places]], reasons.ENUM)
        names = strings([self._enum.text(number) for number in numbers.tolist()])
        return names.take(integers(places.reshape(-1)))


class _BytesReader:
    """Strings and bytes."""

    def __init__(self, is_text: bool) -> None:
        self._is_text = is_text

    def read(self, lanes: Lanes, values: Found) -> pa.Array:
        found = slices(lanes.payload, values.start, values.length)
        if not self._is_text:
            return found
        failed = invalid_text(found)
        if failed.any():
            _fail_lanes(lanes, values.lanes[failed], reasons.TEXT)
            found = slices(lanes.payload, values.start, np.where(failed, 0, values.length))
        return as_text(found)


class _MessageReader:
    """Messages as structs, and entries of maps as structs of key and value."""

    def __init__(self, message: ProtoMessage, kind: pa.DataType) -> None:
        self._map = kind if pa.types.is_map(kind) else None
        struct = pa.struct([kind.key_field, kind.item_field]) if self._map is not None else kind
        self._message = Message(message, struct, message.is_map_entry)
        self._nothing = pa.nulls(0, struct)

    def read(self, lanes: Lanes, values: Found) -> pa.Array:
        start, length = values.start, values.length
        if not len(start):
            # messages within themselves mostly end early
            return self._nothing
        part = Lanes(lanes.payload, start.copy(), start + length)
        found = self._message.read(part)
        for reason in np.unique(part.reason[part.reason != 0]).tolist():
            _fail_lanes(lanes, values.lanes[part.reason == reason], reason)
        return found


class _TimeReader:
    """Timestamps and durations, as microseconds."""

    def __init__(self, message: ProtoMessage, kind: pa.DataType) -> None:
        self._kind = kind
        parts = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
        self._parts = _MessageReader(message, parts)

    def read(self, lanes: Lanes, values: Found) -> pa.Array:
        seconds, nanos = (
            np.where(is_valid(each), to_numbers(each), 0).astype(np.int64)
            for each in self._parts.read(lanes, values).flatten()
        )
        # nanoseconds are cut towards zero, as in Java
        rest = (np.abs(nanos) // 1000) * np.sign(nanos)
        is_far = (seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)
        micros = np.where(is_far, 0, seconds) * 1_000_000
        total = micros + rest
        # a sum of equal signs that exceeds 64 bits has the other sign
        _fail_lanes(lanes, values.lanes[is_far | ((micros ^ total) & (rest ^ total) < 0)], reasons.TIME)
        return fixed_width(self._kind, total)


def _default(field: ProtoField, reader: Reader, kind: pa.DataType) -> pa.Array:
    """Returns the value of a field that is not set."""
    if field.message is None:
        default = _scalar_default(field)
        if isinstance(default, str):
            return strings([default])
        if isinstance(default, bytes):
            return byte_strings([default])
        found = np.array([default])
        return booleans(found != 0) if kind == pa.bool_() else fixed_width(kind, found.astype(kind.to_pandas_dtype()))
    # an empty message
    zero = np.zeros(1, np.int64)
    lanes = Lanes(np.zeros(PADDING, np.uint8), zero, zero.copy())
    return reader.read(lanes, Found(zero, zero, zero, zero.view(np.uint64)))


def _scalar_default(field: ProtoField) -> Scalar:
    if field.default is not None:
        return field.default
    if field.enum is not None:
        return field.enum.text(next(iter(field.enum.names), 0))
    if field.kind == "bytes":
        return b""
    return "" if field.kind == "string" else 0
