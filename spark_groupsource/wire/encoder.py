"""Generated encoders: one function per message class and version.

A function packs consecutive numbers, and the length of the string or array after them, with one call, and appends to a
buffer. A number out of its range raises struct.error. Null in a field that does not allow it is encoded as null, which
the receiver rejects; other values of a wrong type raise AttributeError or TypeError.

Source: https://kafka.apache.org/protocol#protocol_types, KIP-482 (tagged fields), KIP-893 (nullable structures).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, Callable, Mapping

from spark_groupsource.wire.generated_source import GeneratedSource
from spark_groupsource.wire.message_base import RecordStruct
from spark_groupsource.wire.schemas import (
    EMPTY,
    FIXED_FORMATS,
    Field,
    number_of,
    present_fields,
    tagged_fields,
)

if TYPE_CHECKING:
    from spark_groupsource.wire.message_base import ApiData, ApiMessage

Encode = Callable[[Any, bytearray], None]
"""(message, buffer that it is appended to)"""

_ONE_BYTE = tuple(bytes([number]) for number in range(0x80))
_VERSION = Struct(">h")
# message and field -> last version, and the value there, for clients that use the fields of later versions
_OLD_FORMS: Mapping[tuple[str, str], tuple[int, str]] = {
    # all topics
    ("MetadataRequest", "topics"): (0, "{m}.topics or ()"),
    ("DeleteTopicsRequest", "topic_names"): (5, "{m}.topic_names or [topic.name for topic in {m}.topics or ()]"),
}


def unsigned_varint(number: int) -> bytes:
    """Returns an unsigned varint of at most 32 bits."""
    if number < 0x80:
        return _ONE_BYTE[number]
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


_NAMES = {"varint": unsigned_varint, "pack": pack, "join": b"".join, "ZERO_ID": bytes(16), "bits": number_of}


def encode_data(message: ApiData, version: int) -> bytes:
    """Encodes the key or value of a log record, or a message of the consumer protocol, after its version as int16."""
    return _VERSION.pack(version) + encode_body(message, version)


def encode_body(message: ApiMessage | ApiData, version: int) -> bytes:
    """Encodes the fields of a message at `version`, without a header."""
    hashable_class: Any = type(message)  # mypy does not accept a class as Hashable
    out = bytearray()
    compiled_encoder(hashable_class, version)(message, out)
    return bytes(out)


@lru_cache(maxsize=None)
def compiled_encoder(message_class: type[ApiMessage | ApiData], version: int) -> Encode:
    """Returns the encoder of a message at `version`. Raises: ValueError if its schema has no such version."""
    schema = message_class.SCHEMA
    if not 0 <= version < schema.versions.stop:
        raise ValueError(f"{schema.name} has no version {version}. Use 0 to {schema.versions.stop - 1}.")
    source = _Source(version, version in schema.flexible, _NAMES)
    source.old_forms = {
        field: form for (name, field), (last, form) in _OLD_FORMS.items() if name == schema.name and version <= last
    }
    source.has_unknown_tags = issubclass(message_class, RecordStruct)
    source.add(0, "def encode(m, out):", " pass")
    source.add_struct(schema.fields, "m", 1)
    source.flush(1)
    return source.compile("encode")


class _Source(GeneratedSource):
    """The source of an encoder. Numbers are collected until other bytes follow."""

    def __init__(self, version: int, flexible: bool, names: Mapping[str, Any]) -> None:
        super().__init__(version, flexible, names)
        self.old_forms: Mapping[str, str] = {}
        self.has_unknown_tags = False
        self._run = ""
        self._numbers: list[str] = []
        self._out = "out"

    def _number(self, code: str, expression: str) -> None:
        self._run += code
        self._numbers.append(expression)

    def flush(self, depth: int) -> None:
        """Writes the collected numbers."""
        if self._run:
            self.add(depth, f"{self._out} += {self._packed()}")

    def _packed(self) -> str:
        packed = f"{self.name('pack', Struct('>' + self._run).pack)}({', '.join(self._numbers)})"
        self._run, self._numbers = "", []
        return packed

    def add_struct(self, fields: tuple[Field, ...], target: str, depth: int) -> None:
        for field in present_fields(fields, self.version):
            value = f"{target}.{field.name}"
            if target == "m" and field.name in self.old_forms:
                value = self.old_forms[field.name].format(m=target)
            self._add_value(field, value, depth)
        if self.flexible:
            self._add_tags(tagged_fields(fields, self.version), target, depth)

    def _add_value(self, field: Field, value: str, depth: int, null_struct: str = "\\xff") -> None:
        """Writes a field; null for a structure is 0 in a tagged field, else -1 (KIP-893)."""
        if field.is_array:
            self._add_array(field, value, depth)
        elif field.fields is None:
            self._add_simple(field.type, value, depth)
        elif self.version in field.nullable:
            self._add_nullable_struct(field.fields, value, depth, null_struct)
        else:
            struct = self.name("s")
            self.flush(depth)
            self.add(depth, f"{struct} = {value}")
            self.add_struct(field.fields, struct, depth)

    def _add_nullable_struct(self, fields: tuple[Field, ...], value: str, depth: int, null: str) -> None:
        struct = self.name("s")
        self.flush(depth)
        self.add(depth, f"{struct} = {value}", f"if {struct} is None: {self._out} += b'{null}'", "else:")
        self._number("b", "1")
        self.add_struct(fields, struct, depth + 1)
        self.flush(depth + 1)

    def _add_tags(self, fields: list[Field], target: str, depth: int) -> None:
        """Writes the tagged fields that differ from their defaults and the unknown ones, in the order of their tags."""
        unknown = f"{target}.unknown_tags" if self.has_unknown_tags else ""
        if not fields and not unknown:
            self._number("B", "0")
            return
        self.flush(depth)
        # usually there are none
        absent = [self._is_default(field, target) for field in fields] + ([f"not {unknown}"] if unknown else [])
        self.add(depth, f"if {' and '.join(absent)}:")
        self.add(depth + 1, f"{self._out} += b'\\0'")
        self.add(depth, "else:")
        outer, tags = self._out, self.name("tags")
        self.add(depth + 1, f"{tags} = {{**{unknown}}}" if unknown else f"{tags} = {{}}")
        for field in fields:
            inner = self.name("tag")
            self._out = inner
            self.add(depth + 1, f"if not ({self._is_default(field, target)}):")
            self.add(depth + 2, f"{inner} = bytearray()")
            self._add_value(field, f"{target}.{field.name}", depth + 2, null_struct="\\0")
            self.flush(depth + 2)
            self.add(depth + 2, f"{tags}[{field.tag}] = {inner}")
        self._out = outer
        self.add(depth + 1, f"{outer} += varint(len({tags}))", f"for tag, data in sorted({tags}.items()):")
        self.add(depth + 2, f"{outer} += varint(tag) + varint(len(data)) + data")

    def _is_default(self, field: Field, target: str) -> str:
        value = f"{target}.{field.name}"
        if field.default is None:
            return f"{value} is None"
        if field.is_array:
            return f"{value} == []"
        if field.default == EMPTY:
            return "False"  # an empty structure may be written, too
        return f"{value} == {self.name('default', (field.default,))}[0]"

    def _add_simple(self, kind: str, value: str, depth: int) -> None:
        if kind in FIXED_FORMATS:
            self._number(FIXED_FORMATS[kind], value)
        elif kind == "uuid":
            self._number("16s", f"ZERO_ID if {value} is None else {value}.bytes")
        elif kind == "bitfield":
            self._number("I", f"bits({value})")
        else:
            self._add_bytes(kind == "string", value, depth)

    def _add_bytes(self, is_string: bool, value: str, depth: int) -> None:
        data, size = self.name("data"), self.name("n")
        self.add(depth, f"{data} = {value}", f"if {data} is None: {data}, {size} = b'', -1")
        if is_string:
            self.add(depth, "else:", f" {data} = {data}.encode()", f" {size} = len({data})")
        else:
            self.add(depth, f"else: {size} = len({data})")
        self._add_length("h" if is_string else "i", size, depth)
        self.add(depth, f"if {size} > 0: {self._out} += {data}")

    def _add_length(self, code: str, size: str, depth: int) -> None:
        """Writes the collected numbers and a length or count, -1 for null."""
        if not self.flexible:
            self._number(code, size)
            self.flush(depth)
            return
        run, numbers = self._run, list(self._numbers)
        self._number("B", f"{size} + 1")
        self.add(depth, f"if {size} < 127: {self._out} += {self._packed()}", "else:")
        self._run, self._numbers = run, numbers
        self.flush(depth + 1)
        self.add(depth + 1, f"{self._out} += varint({size} + 1)")

    def _add_array(self, field: Field, value: str, depth: int) -> None:
        values, count, each = self.name("list"), self.name("n"), self.name("v")
        self.add(depth, f"{values} = {value}", f"{count} = -1 if {values} is None else len({values})")
        self._add_length("i", count, depth)
        self.add(depth, f"if {count} > 0:")
        if field.fields is None and field.type in FIXED_FORMATS:
            self.add(depth + 1, f"{self._out} += pack(f'>{{{count}}}{FIXED_FORMATS[field.type]}', *{values})")
        elif field.fields is not None and self._has_fixed_size(field.fields):
            self.add_struct(field.fields, each, depth + 1)
            self.add(depth + 1, f"{self._out} += join([{self._packed()} for {each} in {values}])")
        else:
            self.add(depth + 1, f"for {each} in {values}:")
            if field.fields is None:
                self._add_simple(field.type, each, depth + 2)
            else:
                self.add_struct(field.fields, each, depth + 2)
            self.flush(depth + 2)

    def _has_fixed_size(self, fields: tuple[Field, ...]) -> bool:
        """Returns whether a structure has numbers and ids only, and no tagged fields."""
        has_tags = self.flexible and (self.has_unknown_tags or tagged_fields(fields, self.version))
        return not has_tags and all(
            not field.is_array and (field.type in FIXED_FORMATS or field.type == "uuid")
            for field in present_fields(fields, self.version)
        )
