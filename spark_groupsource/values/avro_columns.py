"""Reading of Avro fields of all lanes into Arrow columns.

A node reads one type of the schema. A field that is not selected has a node without column, which only advances.

Source: Avro specification 1.12 (binary encoding), Spark `AvroDeserializer`.
"""

from __future__ import annotations

from typing import Callable, Protocol

import numpy as np
import pyarrow as pa

from spark_groupsource.values import avro_lanes as reasons
from spark_groupsource.values.avro_lanes import Lanes, slices
from spark_groupsource.values.avro_schema import AvroType, nullable_branch
from spark_groupsource.values.binary_blocks import Ints, as_text, fixed_width, is_utf8

_FLOATS = {"float": (4, "<f4"), "double": (8, "<f8")}
_MICROS = {"timestamp-millis": 1000, "local-timestamp-millis": 1000}
_INT_LIMIT = 1 << 31
_LONG_MAX = (1 << 63) - 1


class Node(Protocol):
    """Reads one type. Returns the column of the lanes, None if it is not selected."""

    def read(self, lanes: Lanes) -> pa.Array | None:
        """Advances every lane."""


def node(avro: AvroType, kind: pa.DataType | None) -> Node:
    """Returns the node of a type; `kind` is the type of its column, None if it is not selected."""
    return _NODES[avro.kind](avro, kind)


class _Null:
    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind

    def read(self, lanes: Lanes) -> pa.Array | None:
        return None if self._kind is None else pa.nulls(len(lanes), self._kind)


class _Boolean:
    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind

    def read(self, lanes: Lanes) -> pa.Array | None:
        start = lanes.skip(1)
        return None if self._kind is None else pa.array((lanes.word(start) & np.uint64(0xFF)) == np.uint64(1))


class _Float:
    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._size, self._layout = _FLOATS[avro.kind]

    def read(self, lanes: Lanes) -> pa.Array | None:
        start = lanes.skip(self._size)
        if self._kind is None:
            return None
        word = lanes.word(start)
        values = word.astype(np.uint32).view("<f4") if self._size == 4 else word.view("<f8")
        return fixed_width(self._kind, values.astype(_numpy(self._kind), copy=False))


class _Integer:
    """An int or a long, also of a date or timestamp."""

    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._is_int = avro.kind == "int"
        self._factor = _MICROS.get(avro.logical, 1)

    def read(self, lanes: Lanes) -> pa.Array | None:
        value = lanes.long()
        if self._is_int:
            failed = (value >= _INT_LIMIT) | (value < -_INT_LIMIT)
            lanes.fail(failed, reasons.VARINT)
            value = np.where(failed, 0, value) if failed.any() else value
        if self._kind is None:
            return None
        if self._factor != 1:
            failed = np.abs(value) > _LONG_MAX // self._factor
            lanes.fail(failed, reasons.VARINT)
            value = np.where(failed, 0, value) * self._factor
        return fixed_width(self._kind, value.astype(_numpy(self._kind), copy=False))


def _numpy(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return f"<f{kind.bit_width // 8}"
    return f"<i{kind.bit_width // 8}"


class _Bytes:
    """Bytes, a string, or a decimal in bytes."""

    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind

    def read(self, lanes: Lanes) -> pa.Array | None:
        start, length = lanes.bytes()
        return None if self._kind is None else _column(lanes, start, length, self._kind)


class _Fixed:
    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._size = avro.size

    def read(self, lanes: Lanes) -> pa.Array | None:
        start = lanes.skip(self._size)
        if self._kind is None:
            return None
        # a malformed lane is at its end, so that the positions still increase
        is_read = lanes.reason == 0
        return _column(lanes, np.where(is_read, start, lanes.position), np.where(is_read, self._size, 0), self._kind)


def _column(lanes: Lanes, start: Ints, length: Ints, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return _decimals(lanes, start, length, kind)
    found = slices(lanes.payload, start, length)
    if pa.types.is_binary(kind):
        return found
    if not is_utf8(as_text(found)):
        failed = np.array([not is_utf8(as_text(found[at : at + 1])) for at in range(len(found))], np.bool_)
        lanes.fail(failed, reasons.TEXT)
        found = slices(lanes.payload, start, np.where(failed, 0, length))
    return as_text(found)


def _decimals(lanes: Lanes, start: Ints, length: Ints, kind: pa.DataType) -> pa.Array:
    """Returns big-endian numbers in two's complement; bytes beyond the first 16 must repeat the sign."""
    end = start + length
    sign = np.where((length > 0) & ((lanes.word(start) & np.uint64(0x80)) != 0), 0xFF, 0).astype(np.uint8)
    digits = np.empty((len(start), 16), np.uint8)
    for place in range(16):
        at = end - 1 - place
        byte = (lanes.word(np.maximum(at, 0)) & np.uint64(0xFF)).astype(np.uint8)
        digits[:, place] = np.where(at >= start, byte, sign)
    found = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(start), [None, pa.py_buffer(digits)])
    limit = 10**kind.precision
    high = digits[:, 8:].copy().view("<i8")[:, 0]
    # only numbers near or beyond the limit need the exact comparison
    near = np.flatnonzero((np.abs(high) >= limit >> 64) | (length > 16))
    failed = np.zeros(len(start), np.bool_)
    for lane in near.tolist():
        raw = bytes(lanes.payload[start[lane] : end[lane]])
        failed[lane] = not -limit < int.from_bytes(raw, "big", signed=True) < limit
    lanes.fail(failed, reasons.DECIMAL)
    if failed.any():
        digits[failed] = 0
    return pa.Array.from_buffers(kind, len(found), found.buffers())


class _Enum:
    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._count = len(avro.symbols)
        self._symbols = pa.array(avro.symbols, pa.string())

    def read(self, lanes: Lanes) -> pa.Array | None:
        index = lanes.long()
        failed = (index < 0) | (index >= self._count)
        lanes.fail(failed, reasons.SYMBOL)
        return None if self._kind is None else self._symbols.take(pa.array(np.where(failed, 0, index)))


class _Record:
    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind
        selected = {} if kind is None else {field.name: field.type for field in kind}
        self._fields = [(field.name, node(field.type, selected.get(field.name))) for field in avro.fields]

    def read(self, lanes: Lanes) -> pa.Array | None:
        found = {name: each.read(lanes) for name, each in self._fields}
        if self._kind is None:
            return None
        columns = [found[each.name] if each.name in found else pa.nulls(len(lanes), each.type) for each in self._kind]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


class _Union:
    """A union; in Spark it is its only type other than null, the wider of two numbers, or a struct of its members."""

    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._is_struct = nullable_branch(avro) is None and any(each.kind != "null" for each in avro.branches)
        self._branches: list[Node] = []
        self._members: list[str] = []
        for branch in avro.branches:
            member = "" if branch.kind == "null" else f"member{sum(map(bool, self._members))}"
            self._members.append(member)
            self._branches.append(node(branch, self._member_kind(member)))

    def _member_kind(self, member: str) -> pa.DataType | None:
        if self._kind is None or not self._is_struct:
            return self._kind
        index = self._kind.get_field_index(member) if member else -1
        return self._kind.field(index).type if index >= 0 else None

    def read(self, lanes: Lanes) -> pa.Array | None:
        branch = lanes.long()
        failed = (branch < 0) | (branch >= len(self._branches))
        lanes.fail(failed, reasons.BRANCH)
        if len(self._branches) and not self._is_struct:
            first = int(branch[0]) if len(branch) else 0
            if 0 <= first < len(self._branches) and (branch == first).all():
                return self._branches[first].read(lanes)
        read: dict[str, tuple[Ints, pa.Array]] = {}
        parts: list[tuple[Ints, pa.Array]] = []
        for at, (member, each) in enumerate(zip(self._members, self._branches)):
            index = np.flatnonzero(branch == at)
            part = lanes.subset(index)
            column = each.read(part)
            lanes.merge(index, part)
            if member and column is not None:
                read[member] = index, column
                parts.append((index, column))
        if self._kind is None:
            return None
        if not self._is_struct:
            return _scattered(len(lanes), parts, self._kind)
        columns = [_scattered(len(lanes), [read[field.name]], field.type) for field in self._kind]
        present = np.isin(branch, [at for at, member in enumerate(self._members) if member])
        return pa.StructArray.from_arrays(columns, fields=list(self._kind), mask=pa.array(~present))


def _scattered(rows: int, parts: list[tuple[Ints, pa.Array]], kind: pa.DataType) -> pa.Array:
    """Returns a column with each array's values at its rows, and null elsewhere."""
    if not parts:
        return pa.nulls(rows, kind)
    joined = pa.concat_arrays([column for _, column in parts])
    places = np.full(rows, -1, np.int64)
    places[np.concatenate([index for index, _ in parts])] = np.arange(len(joined))
    return joined.take(pa.array(places, mask=places < 0))


class _Array:
    """An array, or a map, whose items are a key and a value.

    Every step reads the next item of all arrays that have one.
    """

    def __init__(self, avro: AvroType, kind: pa.DataType | None) -> None:
        assert avro.items is not None
        self._kind = kind
        self._is_map = avro.kind == "map"
        value = None if kind is None else kind.item_type if self._is_map else kind.value_type
        self._item = node(avro.items, value)
        self._key = _Bytes(AvroType("string"), None if kind is None else pa.string())

    def read(self, lanes: Lanes) -> pa.Array | None:
        rows: list[Ints] = []
        keys: list[pa.Array] = []
        items: list[pa.Array] = []
        active = np.arange(len(lanes))
        rest = np.zeros(len(lanes), np.int64)
        while len(active):
            ended = active[rest[active] == 0]
            if len(ended):
                rest[ended] = self._block_counts(lanes, ended)
                active = active[rest[active] > 0]
            if not len(active):
                break
            part = lanes.subset(active)
            key = self._key.read(part) if self._is_map else None
            item = self._item.read(part)
            lanes.merge(active, part)
            rest[active] -= 1
            if item is not None:
                rows.append(active)
                items.append(item)
                keys += [key] if key is not None else []
            # an array with invalid bytes has no further items
            active = active[(lanes.reason[active] == 0)]
        return None if self._kind is None else self._assembled(len(lanes), rows, keys, items)

    @staticmethod
    def _block_counts(lanes: Lanes, ended: Ints) -> Ints:
        part = lanes.subset(ended)
        count = part.long()
        negative = np.flatnonzero(count < 0)
        if len(negative):
            sized = part.subset(negative)
            sized.long()
            part.merge(negative, sized)
            count[negative] = -count[negative]
        failed = (count < 0) | (count > part.end - part.position)
        part.fail(failed & (part.reason == 0), reasons.BLOCK)
        lanes.merge(ended, part)
        found: Ints = np.where(part.reason == 0, count, 0)
        return found

    def _assembled(self, count: int, rows: list[Ints], keys: list[pa.Array], items: list[pa.Array]) -> pa.Array:
        kind = self._kind
        assert kind is not None
        owners = np.concatenate(rows) if rows else np.empty(0, np.int64)
        order = pa.array(np.argsort(owners, kind="stable"))
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=count), out=ends[1:])
        offsets = pa.array(ends)

        def ordered(arrays: list[pa.Array], element: pa.DataType) -> pa.Array:
            return pa.concat_arrays(arrays).take(order) if arrays else pa.array([], element)

        if not self._is_map:
            return pa.ListArray.from_arrays(offsets, ordered(items, kind.value_type), type=kind)
        found = pa.StructArray.from_arrays(
            [ordered(keys, kind.key_type), ordered(items, kind.item_type)], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(kind, count, [None, offsets.buffers()[1]], children=[found])


_NODES: dict[str, Callable[[AvroType, pa.DataType | None], Node]] = {
    "null": _Null,
    "boolean": _Boolean,
    "float": _Float,
    "double": _Float,
    "int": _Integer,
    "long": _Integer,
    "bytes": _Bytes,
    "string": _Bytes,
    "fixed": _Fixed,
    "enum": _Enum,
    "record": _Record,
    "union": _Union,
    "array": _Array,
    "map": _Array,
}
