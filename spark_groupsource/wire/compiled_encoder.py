"""Generated encoders of responses: one function per message and version.

The encoder of kafka-python writes each number by itself. A generated one packs consecutive numbers, and the length of
the string or array after them, with one call, and the parts are joined once; record sets are not copied before that.
It encodes what handlers usually return and raises an error for anything else: tagged fields that are set, elements that
are tuples, a long array within the elements of an inner array. The encoder of kafka-python then encodes the message.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, pack
from typing import Any, Callable

from spark_groupsource.wire.decoder import FIXED_FORMATS
from spark_groupsource.wire.generated_source import GeneratedSource
from spark_groupsource.wire.messages import ApiMessage, BaseField

Encode = Callable[[Any, Callable[[Any], None]], None]
"""(message, function that takes the next bytes)"""

_ONE_BYTE = tuple(bytes([number]) for number in range(0x80))
_NARROW_DEPTH = 2
_NO_BITS = 1 << 31


class UnusualMessage(Exception):
    """A message is not one that a generated encoder writes."""


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _bits(numbers: set[int] | None) -> int:
    return _NO_BITS if numbers is None else sum(1 << number for number in set(numbers))


_NAMES = {
    "UnusualMessage": UnusualMessage, "varint": _varint, "pack": pack, "join": b"".join, "ZERO_ID": bytes(16),
    "bits": _bits,
}  # fmt: skip


@lru_cache(maxsize=None)
def compiled_encoder(message_class: type[ApiMessage], version: int) -> Encode | None:
    """Returns the generated encoder of a body, None if the message has a structure that it does not write.

    For other messages it raises `UnusualMessage`, struct.error, AttributeError, TypeError or OverflowError.
    """
    source = _Source(version, message_class.flexible_version_q(version), _NAMES)
    try:
        source.add_struct(message_class._struct, "m", 1, 0)
    except UnusualMessage:
        return None
    source.flush(1)
    exec("\n".join(["def encode(m, add):", " pass", *source.lines]), source.names)
    encode: Encode = source.names["encode"]
    return encode


class _Source(GeneratedSource):
    """The source of an encoder."""

    def flush(self, depth: int) -> None:
        """Writes the collected numbers."""
        if self._run:
            self.add(depth, f"add({self._packed()})")

    def _packed(self) -> str:
        packed = f"{self._name('pack', Struct('>' + self._run).pack)}({', '.join(self._numbers)})"
        self._run, self._numbers = "", []
        return packed

    def add_struct(self, struct: BaseField, target: str, depth: int, level: int) -> None:
        for field in struct.untagged_fields(self._version):
            value = f"{target}.{field.name}"
            if field.is_array():
                self._add_array(field, value, depth, level)
            elif field.is_struct():
                raise UnusualMessage
            else:
                self._add_simple(field.type_str, value, depth)
        self._add_tags(struct, target, depth)

    def _add_tags(self, struct: BaseField, target: str, depth: int) -> None:
        if not self._flexible:
            return
        for field in struct.fields.values():
            if field.for_version_q(self._version) and field.tagged_field_q(self._version):
                value = f"{target}.{field.name}"
                is_set = f"{value} is not None"
                if field.default is not None:
                    is_set = f"{value} != {self._name('default', (field.default,))}[0]"
                self.add(depth, f"if {is_set}: raise UnusualMessage")
        self._number("B", "0")

    def _add_simple(self, type_name: str, value: str, depth: int) -> None:
        if type_name in FIXED_FORMATS:
            self._number(FIXED_FORMATS[type_name], value)
        elif type_name == "uuid":
            self._number("16s", f"ZERO_ID if {value} is None else {value}.bytes")
        elif type_name == "bitfield":
            self._number("I", f"bits({value})")
        elif type_name in ("string", "bytes", "records"):
            self._add_bytes(type_name == "string", value, depth)
        else:
            raise UnusualMessage

    def _add_bytes(self, is_string: bool, value: str, depth: int) -> None:
        data, size = self._name("data"), self._name("n")
        self.add(depth, f"{data} = {value}", f"if {data} is None: {data}, {size} = b'', -1")
        if is_string:
            self.add(depth, "else:", f" {data} = {data}.encode()", f" {size} = len({data})")
        else:
            self.add(depth, f"else: {size} = len({data})")
        self._length("h" if is_string else "i", size, depth)
        self.add(depth, f"if {size} > 0: add({data})")

    def _length(self, code: str, size: str, depth: int, is_narrow: bool = False) -> None:
        """Writes the collected numbers and a length or count, -1 for null."""
        if not self._flexible:
            self._number(code, size)
        elif is_narrow:
            self._number("b", f"{size} + 1")
        self.flush(depth)
        if self._flexible and not is_narrow:
            self.add(depth, f"add(varint({size} + 1))")

    def _add_array(self, field: BaseField, value: str, depth: int, level: int) -> None:
        values, count = self._name("list"), self._name("n")
        self.add(depth, f"{values} = {value}", f"{count} = -1 if {values} is None else len({values})")
        self._length("i", count, depth, level >= _NARROW_DEPTH)
        self.add(depth, f"if {count} > 0:")
        element = field.array_of
        each = self._name("v")
        if not element.is_struct() and element.type_str in FIXED_FORMATS:
            code = FIXED_FORMATS[element.type_str]
            self.add(depth + 1, f"add(pack('>%d{code}' % {count}, *{values}))")
        elif element.is_struct() and self._has_fixed_size(element):
            self.add_struct(element, each, depth + 1, level + 1)
            self.add(depth + 1, f"add(join([{self._packed()} for {each} in {values}]))")
        else:
            self.add(depth + 1, f"for {each} in {values}:")
            if element.is_struct():
                self.add_struct(element, each, depth + 2, level + 1)
            else:
                self._add_simple(element.type_str, each, depth + 2)
            self.flush(depth + 2)

    def _has_fixed_size(self, element: BaseField) -> bool:
        """Returns whether the elements have numbers only, and no tagged fields that would have to be checked."""
        has_tags = any(
            field.for_version_q(self._version) and field.tagged_field_q(self._version)
            for field in element.fields.values()
        )
        fields = element.untagged_fields(self._version)
        return not has_tags and all(
            not field.is_array() and (field.type_str in FIXED_FORMATS or field.type_str == "uuid") for field in fields
        )
