"""A second reader of Avro, value by value.

It reads what a column of Spark has: times in microseconds, decimals without their scale, unions as structs.

Source: Avro specification 1.12.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from spark_groupsource.values.python_values import python_values

_MAX_EMPTY_ITEMS = 1000
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


class InvalidError(ValueError):
    """The bytes are no value of the schema."""


class Reader:
    """Reads values of one schema.

    Args:
        kind: type of the column; fields that it does not have are read and left out.
    """

    def __init__(self, schema: Any, kind: pa.DataType) -> None:
        self._schema = schema
        self._kind = kind
        self._named: dict[str, Any] = {}
        self._empty_items = _MAX_EMPTY_ITEMS
        self._define(schema)

    def value(self, data: bytes) -> Any:
        """Returns the value of all bytes. Raises: InvalidError."""
        self._empty_items = _MAX_EMPTY_ITEMS
        try:
            found, at = self._read(self._schema, data, 0, self._kind)
        except IndexError:
            raise InvalidError("it ends early") from None
        if at != len(data):
            raise InvalidError("it does not end with its bytes")
        return found

    def _define(self, schema: Any) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._define(each)
        elif isinstance(schema, dict):
            if schema["type"] in ("record", "enum", "fixed"):
                self._named[schema["name"]] = schema
            for each in (schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))):
                self._define(each)

    def _read(self, schema: Any, data: bytes, at: int, kind: pa.DataType | None) -> tuple[Any, int]:
        if isinstance(schema, list):
            return self._union(schema, data, at, kind)
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            return self._read(self._named[schema], data, at, kind)
        name = schema if isinstance(schema, str) else schema["type"]
        if name == "record":
            return self._record(schema, data, at, kind)
        if name in ("array", "map"):
            return self._items(schema, data, at, kind)
        if name == "null":
            return None, at
        if name == "boolean":
            if kind is not None and data[at] > 1:
                raise InvalidError("a boolean")
            return data[at] == 1, at + 1
        if name in ("float", "double"):
            size = 4 if name == "float" else 8
            self._need(data, at, size)
            return struct.unpack("<f" if size == 4 else "<d", data[at : at + size])[0], at + size
        if name in ("int", "long"):
            number, at = self._long(data, at)
            if name == "int" and not -(1 << 31) <= number < 1 << 31:
                raise InvalidError("an int")
            if kind is not None and isinstance(schema, dict) and schema.get("logicalType", "").endswith("-millis"):
                number *= 1000 if pa.types.is_timestamp(kind) else 1
                if not -(1 << 63) <= number < 1 << 63:
                    raise InvalidError("a time")
            return number, at
        if name == "enum":
            number, at = self._long(data, at)
            if not 0 <= number < len(schema["symbols"]):
                raise InvalidError("a symbol")
            return schema["symbols"][number], at
        size = schema["size"] if name == "fixed" else 0
        if name != "fixed":
            size, at = self._long(data, at)
        self._need(data, at, size)
        found = data[at : at + size]
        if name == "string" and kind is not None:
            try:
                return found.decode(), at + size
            except UnicodeDecodeError:
                raise InvalidError("text") from None
        if kind is not None and pa.types.is_decimal(kind):
            number = int.from_bytes(found, "big", signed=True)
            if abs(number) >= 10**kind.precision:
                raise InvalidError("a decimal")
            return number, at + size
        return found, at + size

    def _union(self, schema: Any, data: bytes, at: int, kind: pa.DataType | None) -> tuple[Any, int]:
        branch, at = self._long(data, at)
        if not 0 <= branch < len(schema):
            raise InvalidError("a branch")
        others = [each for each in schema if each != "null"]
        names = sorted(each if isinstance(each, str) else each["type"] for each in others)
        chosen = schema[branch]
        if names in (["int", "long"], ["double", "float"]):
            # the wider type, without logical types
            plain = chosen["type"] if isinstance(chosen, dict) else chosen
            return self._read(plain, data, at, kind)
        if len(others) <= 1:
            return self._read(chosen, data, at, kind)
        if chosen == "null":
            return None, at
        member = f"member{sum(each != 'null' for each in schema[:branch])}"
        index = -1 if kind is None else kind.get_field_index(member)
        found, at = self._read(chosen, data, at, kind.field(index).type if kind and index >= 0 else None)
        if kind is None:
            return None, at
        return {field.name: found if field.name == member else None for field in kind}, at

    def _record(self, schema: Any, data: bytes, at: int, kind: pa.DataType | None) -> tuple[Any, int]:
        selected = {} if kind is None else {field.name: field.type for field in kind}
        found = {}
        for each in schema["fields"]:
            found[each["name"]], at = self._read(each["type"], data, at, selected.get(each["name"]))
        return {name: found[name] for name in selected}, at

    def _items(self, schema: Any, data: bytes, at: int, kind: pa.DataType | None) -> tuple[Any, int]:
        found: list[Any] = []
        is_map = schema["type"] == "map"
        inner = None if kind is None else kind.item_type if is_map else kind.value_type
        while True:
            count, at = self._long(data, at)
            if count < 0:
                _, at = self._long(data, at)
                count = -count
            if not count:
                # of a key that is repeated, the last value
                return (list(dict(found).items()) if is_map else found), at
            items = schema["values" if is_map else "items"]
            is_empty = not is_map and self._is_empty(items)
            if count > (self._empty_items if is_empty else len(data) - at):
                raise InvalidError("a block")
            self._empty_items -= count * is_empty
            for _ in range(count):
                if is_map:
                    key, at = self._read("string", data, at, None if kind is None else kind.key_type)
                item, at = self._read(items, data, at, inner)
                found.append((key, item) if is_map else item)

    def _is_empty(self, schema: Any) -> bool:
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            return False
        if isinstance(schema, dict) and schema["type"] == "record":
            return all(self._is_empty(each["type"]) for each in schema["fields"])
        return schema == "null" or (isinstance(schema, dict) and schema["type"] == "fixed" and not schema["size"])

    def _long(self, data: bytes, at: int) -> tuple[int, int]:
        number, shift = 0, 0
        while True:
            byte = data[at]
            if shift == 63 and byte > 1:
                raise InvalidError("more than 64 bits")
            number |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), at

    def _need(self, data: bytes, at: int, size: int) -> None:
        if not 0 <= size <= len(data) - at:
            raise InvalidError("a length")


def raw_rows(column: pa.Array) -> list[Any]:
    """Returns the rows of a column as `Reader` returns them."""
    kind = column.type
    valid = column.is_valid().to_pylist()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_decimal(kind):
        return [None if each is None else _unscaled(each, kind.scale) for each in column.to_pylist()]
    if pa.types.is_struct(kind):
        columns = [raw_rows(child) for child in column.flatten()]
        rows = zip(*columns) if columns else [()] * len(column)
        return [dict(zip(kind.names, each)) if is_valid else None for each, is_valid in zip(rows, valid)]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        is_map = pa.types.is_map(kind)
        flat = raw_rows(column.items) if is_map else raw_rows(column.values)
        keys = column.keys.to_pylist() if is_map else []
        found = []
        offsets = column.offsets.to_pylist()
        for row, is_valid in enumerate(valid):
            part = range(offsets[row], offsets[row + 1])
            listed = [(keys[at], flat[at]) for at in part] if is_map else [flat[at] for at in part]
            found.append(listed if is_valid else None)
        return found
    return python_values(column)


def _unscaled(number: Any, scale: int) -> int:
    sign, digits, exponent = number.as_tuple()
    found = int("".join(map(str, digits))) * 10 ** (exponent + scale)
    return -found if sign else found
