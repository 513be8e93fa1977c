"""Generated decoders of requests: one function per message and version.

The decoder by schema (`decoder.py`) calls a function per field. A generated one reads consecutive numbers, and the
length of the string or array after them, with one call, and array elements of fixed size with one iterator. It reads
what clients usually send and raises `Irregular`, struct.error or another error for anything else: null in a field that
is not nullable, a length beyond the buffer, tagged fields, too many elements. The decoder by schema then reads the
message from its start, and decides and reports what is wrong.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, calcsize, iter_unpack
from typing import Any, Callable

from spark_groupsource.wire.decoder import FIXED_FORMATS, read_unsigned_varint, simple_reader
from spark_groupsource.wire.generated_source import GeneratedSource
from spark_groupsource.wire.messages import ApiMessage, BaseField, DataContainer

Decode = Callable[[memoryview, int, int], Any]
"""(buffer, position, most elements) -> message"""

_IMMUTABLE = (int, float, str, type(None))


class Irregular(Exception):
    """A message is not one that a generated decoder reads."""


_NAMES = {
    "new": object.__new__, "varint": read_unsigned_varint, "Irregular": Irregular, "Struct": Struct,
    "iter_unpack": iter_unpack,
}  # fmt: skip


@lru_cache(maxsize=None)
def compiled_decoder(message_class: type[ApiMessage], version: int) -> Decode:
    """Returns the generated decoder of a request.

    For what it does not read it raises `Irregular`, struct.error, IndexError, UnicodeDecodeError or
    RemoteProtocolError.
    """
    source = _Source(version, message_class.flexible_version_q(version), _NAMES)
    source.add_struct(message_class._struct, message_class, "m", 1)
    source.flush(1)
    source.add(1, "m._header = m._min_version = m._max_version = None")
    source.add(1, "return m")
    lines = ["def decode(buffer, p, budget):", " end = len(buffer)", *source.lines]
    exec("\n".join(lines), source.names)
    decode: Decode = source.names["decode"]
    return decode


class _Source(GeneratedSource):
    """The source of a decoder; `p` is the position in the generated code."""

    def flush(self, depth: int) -> None:
        """Reads the collected numbers."""
        if self._run:
            layout = Struct(">" + self._run)
            self.add(depth, f"{', '.join(self._numbers)}, = {self._name('unpack', layout.unpack_from)}(buffer, p)")
            self.add(depth, f"p += {layout.size}")
            self._run, self._numbers = "", []

    def add_struct(self, struct: BaseField, data_class: type[DataContainer], target: str, depth: int) -> None:
        self._new_value(struct, data_class, target, depth)
        for field in struct.untagged_fields(self._version):
            self._add_field(field, f"{target}.{field.name}", depth)
        if self._flexible:
            tags = self._name("tags")
            self._number("B", tags)
            self.flush(depth)
            self.add(depth, f"if {tags}: raise Irregular")

    def _new_value(self, struct: BaseField, data_class: type[DataContainer], target: str, depth: int) -> None:
        self.add(depth, f"{target} = new({self._name('class_', data_class)})")
        self.add(depth, f"{target}._version = {self._version}", f"{target}.tags = {target}.unknown_tags = None")
        present = {field.name for field in struct.untagged_fields(self._version)}
        for field in struct.fields.values():
            if field.name in present:
                continue
            # a field that is not set is looked up in the schema, which takes longer than to decode an element
            if isinstance(field, BaseField) and not field.is_array() and not field.is_struct():
                default = field.default
                if isinstance(default, _IMMUTABLE):
                    self.add(depth, f"{target}.{field.name} = {default!r}")

    def _add_field(self, field: BaseField, target: str, depth: int) -> None:
        nullable = field.nullable_for_version_q(self._version)
        if field.is_array():
            self._add_array(field, nullable, target, depth)
        elif field.is_struct():
            self.flush(depth)
            self.add(depth, "raise Irregular")  # no request of a client has one
        else:
            self._add_simple(field.type_str, field.name, nullable, target, depth)

    def _add_simple(self, type_name: str, name: str, nullable: bool, target: str, depth: int) -> None:
        if type_name in FIXED_FORMATS:
            self._number(FIXED_FORMATS[type_name], target)
        elif type_name in ("string", "bytes", "records"):
            self._add_bytes(type_name, nullable, target, depth)
        else:
            self.flush(depth)
            read = self._name("read", simple_reader(type_name, name, nullable, self._flexible))
            self.add(depth, f"{target}, p = {read}(buffer, p)")

    def _add_bytes(self, type_name: str, nullable: bool, target: str, depth: int) -> None:
        is_string = type_name == "string"
        size = self._length("h" if is_string else "i", depth)
        data = f"buffer[p:p + {size}]"
        convert = {"string": f"str({data}, 'utf-8')", "bytes": f"bytes({data})", "records": data}[type_name]
        limit = f" or {size} > 32767" if is_string and self._flexible else ""
        self.add(depth, f"if {size} > 0:")
        self.add(depth + 1, f"if {size} > end - p{limit}: raise Irregular", f"{target} = {convert}", f"p += {size}")
        empty = {"string": "''", "bytes": "b''", "records": "buffer[p:p]"}[type_name]
        self._add_empty(size, empty, nullable, target, depth)

    def _add_empty(self, size: str, empty: str, nullable: bool, target: str, depth: int) -> None:
        self.add(depth, f"elif {size} == 0: {target} = {empty}")
        if nullable:
            self.add(depth, f"elif {size} == -1: {target} = None")
        self.add(depth, "else: raise Irregular")

    def _length(self, code: str, depth: int) -> str:
        """Reads a length or count, -1 for null, and the numbers before it; returns its name."""
        size = self._name("n")
        self._number("B" if self._flexible else code, size)
        self.flush(depth)
        if self._flexible:
            self.add(depth, f"if {size} > 127: {size}, p = varint(buffer, p - 1)", f"{size} -= 1")
        return size

    def _add_array(self, field: BaseField, nullable: bool, target: str, depth: int) -> None:
        count = self._length("i", depth)
        self.add(depth, f"if {count} > 0:")
        self.add(depth + 1, f"if {count} > end - p: raise Irregular")
        self.add(depth + 1, f"budget -= {count}", "if budget < 0: raise Irregular")
        element = field.array_of
        if element.is_struct():
            self._add_structs(element, count, target, depth + 1)
        elif element.type_str in FIXED_FORMATS:
            code = FIXED_FORMATS[element.type_str]
            self.add(depth + 1, f"{target} = list(Struct('>%d{code}' % {count}).unpack_from(buffer, p))")
            self.add(depth + 1, f"p += {count} * {calcsize('>' + code)}")
        else:
            values, value = self._name("list"), self._name("v")
            self.add(depth + 1, f"{target} = {values} = []", f"for _ in range({count}):")
            self._add_simple(element.type_str, field.name, False, value, depth + 2)
            self.add(depth + 2, f"{values}.append({value})")
        self._add_empty(count, "[]", nullable, target, depth)

    def _add_structs(self, element: BaseField, count: str, target: str, depth: int) -> None:
        values, value = self._name("list"), self._name("v")
        self.add(depth, f"{target} = {values} = []")
        fields = element.untagged_fields(self._version)
        codes = [FIXED_FORMATS.get("" if field.is_array() else field.type_str, "") for field in fields]
        if all(codes):
            layout = Struct(">" + "".join(codes) + ("B" if self._flexible else ""))
            columns = [self._name("f") for _ in codes] + (["tags"] if self._flexible else [])
            self.add(depth, f"q = p + {count} * {layout.size}", "if q > end: raise Irregular")
            unpack = self._name("each", layout.iter_unpack)
            self.add(depth, f"for {', '.join(columns)}, in {unpack}(buffer[p:q]):")
            if self._flexible:
                self.add(depth + 1, "if tags: raise Irregular")
            self._new_value(element, element.data_class, value, depth + 1)
            for field, column in zip(fields, columns):
                self.add(depth + 1, f"{value}.{field.name} = {column}")
            self.add(depth + 1, f"{values}.append({value})")
            self.add(depth, "p = q")
            return
        self.add(depth, f"for _ in range({count}):")
        self.add_struct(element, element.data_class, value, depth + 1)
        self.flush(depth + 1)
        self.add(depth + 1, f"{values}.append({value})")
