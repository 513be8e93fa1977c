"""Generated strict decoders: one function per message class and version.

Lengths are checked before memory is allocated: a length beyond the buffer, a negative one, null in a field that does
not allow it, a varint of more than 32 bits and a string of more than 32,767 bytes raise `RemoteProtocolError`, as in
Kafka's own decoders. Record sets are views of the buffer.

A function reads consecutive numbers, and the length of the string or array after them, with one call, and array
elements of fixed size with one iterator. The time and memory of decoding grow with the number of array elements and
tagged fields, not with the number of bytes, so `max_elements` bounds them.

Source: https://kafka.apache.org/protocol#protocol_types, KIP-482 (flexible versions), KIP-893 (nullable
structures).
"""

from __future__ import annotations

import uuid
from functools import cache, lru_cache, partial
from struct import Struct, calcsize, error, unpack_from
from typing import TYPE_CHECKING, Any, Callable, Mapping, NoReturn, TypeVar

from spark_groupsource.errors import CorruptRecordError, RemoteProtocolError
from spark_groupsource.wire.generated_source import GeneratedSource
from spark_groupsource.wire.message_base import NO_TAGS, RecordStruct, empty_value
from spark_groupsource.wire.schemas import EMPTY, FIXED_FORMATS, Field, bits_of, present_fields, tagged_fields

if TYPE_CHECKING:
    from spark_groupsource.wire.message_base import ApiData, ApiMessage, DataContainer

MessageT = TypeVar("MessageT", bound="ApiMessage | ApiData")

Decode = Callable[[memoryview, int, int], tuple[Any, int, int]]
"""(buffer, position, most elements) -> (value, position after it, elements left)"""
_Tags = Mapping[int, tuple[str, Callable[[], Decode]]]
"""Tag -> name of the field, and what returns its decoder"""

MAX_STRING_BYTES = 0x7FFF
"""Longest string of the protocol. A compact string could be longer; as Kafka, the decoder rejects it."""

_UNLIMITED = 1 << 62
_MAX_HEADER_TAGS = 100
_ZERO_ID = bytes(16)
_ID_BYTES, _BITS_BYTES, _VERSION_BYTES = 16, 4, 2


class TooManyElementsError(RemoteProtocolError):
    """A message has more array elements and tagged fields than the caller allows."""


def decode_exactly(message_class: type[MessageT], version: int, buffer: memoryview, position: int = 0) -> MessageT:
    """Decodes a message from `position` to the end of `buffer`, at a version of its schema.

    Fields of type `records` are views of `buffer`; do not reuse the buffer while they are in use.

    Raises: RemoteProtocolError if the bytes are invalid, incomplete, or continue after the message.
    """
    message, end = decode_prefix(message_class, version, buffer, position)
    if end != len(buffer):
        raise RemoteProtocolError(
            f"Cannot decode {message_class.__name__} v{version}: it ends at byte {end} of {len(buffer)}."
        )
    return message


def data_version(data: bytes, part: str, topic: str) -> int:
    """Returns the version of a key or value in the topic of a coordinator. Raises: CorruptRecordError without one."""
    if len(data) < _VERSION_BYTES:
        raise CorruptRecordError(f"Cannot decode a {part} in {topic}: {len(data)} bytes have no version.")
    return int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)


def decode_data(message_class: type[MessageT], version: int, data: bytes, topic: str) -> MessageT:
    """Decodes a key or value after its version, the inverse of `encode_data`. Raises: CorruptRecordError."""
    try:
        return decode_exactly(message_class, version, memoryview(data), _VERSION_BYTES)
    except RemoteProtocolError as error:
        raise CorruptRecordError(f"A record of {topic} is corrupt: {error}") from error


def decode_prefix(
    message_class: type[MessageT],
    version: int,
    buffer: memoryview,
    position: int = 0,
    max_elements: int | None = None,
) -> tuple[MessageT, int]:
    """Decodes the message at `position` and returns it with the position after it; more bytes may follow.

    Raises: TooManyElementsError if it has more than `max_elements` elements; RemoteProtocolError if the bytes are
    invalid or incomplete.
    """
    hashable_class: Any = message_class  # mypy does not accept a class as Hashable
    limit = _UNLIMITED if max_elements is None else max_elements
    try:
        message, end, _ = compiled_decoder(hashable_class, version)(buffer, position, limit)
        return message, end
    except (error, IndexError) as cause:
        problem = f"it is incomplete ({cause})"
    except UnicodeDecodeError as cause:
        problem = f"a string is not UTF-8 ({cause})"
    except TooManyElementsError as cause:
        raise TooManyElementsError(
            f"Cannot decode {message_class.__name__} v{version}: it has more than {max_elements:,} elements."
        ) from cause
    except RemoteProtocolError as cause:
        problem = str(cause).rstrip(".")
    raise RemoteProtocolError(
        f"Cannot decode {message_class.__name__} v{version} from {len(buffer) - position} bytes: {problem}."
    )


def read_unsigned_varint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Returns an unsigned varint of at most 32 bits, and the position after it.

    Raises: IndexError if the buffer ends first, RemoteProtocolError if the varint has more than 32 bits.
    """
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            return value, position + 1
    raise RemoteProtocolError("A varint is longer than 32 bits.")


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """Returns the position after the tagged fields of a header."""
    count, position = read_unsigned_varint(buffer, position)
    if count > _MAX_HEADER_TAGS:
        raise RemoteProtocolError(f"A header has {count} tagged fields, at most {_MAX_HEADER_TAGS} are read.")
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise RemoteProtocolError("A tagged field exceeds the buffer.")
    return position


@lru_cache(maxsize=None)
def compiled_decoder(message_class: type[ApiMessage | ApiData], version: int) -> Decode:
    """Returns the decoder of a message class and version.

    It raises struct.error or IndexError for incomplete bytes, UnicodeDecodeError, TooManyElementsError, and
    RemoteProtocolError for other invalid bytes.
    """
    source = _Source(version, version in message_class.SCHEMA.flexible, _NAMES)
    source.begin()
    source.add_struct(message_class.FIELDS, message_class, "value", 1)
    return source.end()


def _read_tags(buffer: memoryview, position: int, value: Any, known: _Tags, budget: int) -> tuple[int, int]:
    """Sets the tagged fields of a structure. Returns the position after them, and the elements left."""
    count, position = read_unsigned_varint(buffer, position)
    budget -= count
    if budget < 0:
        raise _too_many()
    for _ in range(count):
        tag, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise RemoteProtocolError(f"Tagged field {tag} exceeds the buffer.")
        if tag in known:
            name, decoder = known[tag]
            content, position, budget = decoder()(buffer[:end], position, budget)
            setattr(value, name, content)
            if position != end:
                raise RemoteProtocolError(f"Tagged field {tag} does not end after {size} bytes.")
        elif isinstance(value, RecordStruct):
            value.unknown_tags = {**value.unknown_tags, tag: bytes(buffer[position:end])}
        position = end  # unknown tags of a newer peer are skipped (KIP-482)
    return position, budget


def _tagged_decoder(field: Field, data_class: type[DataContainer], version: int) -> Decode:
    """Returns the decoder of a tagged field. A nullable struct starts with a number that is 0 for null (KIP-893)."""
    source = _Source(version, True, _NAMES)
    source.begin()
    if field.fields is not None and not field.is_array and version in field.nullable:
        source.add(1, "present, p = varint(buffer, p)", "if not present: return None, p, budget")
        source.add_struct(field.fields, getattr(data_class, field.type), "value", 1)
    else:
        source.add_value(field, data_class, "value", 1)
    return source.end()


def _bad_length(name: str, length: int, left: int, is_nullable: bool) -> RemoteProtocolError:
    """Returns the error of a length or count that is not valid."""
    if length > left:
        return RemoteProtocolError(f"Field {name} has length {length}, {left} bytes left.")
    if length < -1:
        return RemoteProtocolError(f"Field {name} has length {length}.")
    if length == -1 and not is_nullable:
        return RemoteProtocolError(f"Field {name} is null, which its schema does not allow.")
    return RemoteProtocolError(f"Field {name} has length {length}, the limit is {MAX_STRING_BYTES}.")


def _too_many() -> TooManyElementsError:
    return TooManyElementsError("It has too many elements.")


def _raise_incomplete(parts: tuple[Struct | int, ...], buffer: memoryview, position: int) -> NoReturn:
    """Raises the error of the first of the consecutive parts, numbers or numbers of bytes, that is incomplete."""
    for part in parts:
        if isinstance(part, Struct):
            part.unpack_from(buffer, position)
            position += part.size
        elif position + part > len(buffer):
            raise IndexError("index out of bounds on dimension 1" if part == 1 else f"{part} bytes expected")
        else:
            position += part
    raise AssertionError


def id_of(data: bytes) -> uuid.UUID | None:
    """Returns the id with these 16 bytes; the zero id is None."""
    return None if data == _ZERO_ID else uuid.UUID(bytes=data)


_NAMES = {
    "new": object.__new__, "error": error, "unpack_from": unpack_from, "varint": read_unsigned_varint,
    "read_tags": _read_tags, "bad_length": _bad_length, "too_many": _too_many, "id_of": id_of, "bits_of": bits_of,
    "no_tags": NO_TAGS,
}  # fmt: skip


class _Source(GeneratedSource):
    """The source of a decoder; `p` is the position in the generated code.

    Numbers are collected until other bytes follow: the format of all, the targets, the parts as an error reports them,
    and the lines that convert them.
    """

    def __init__(self, version: int, flexible: bool, names: Mapping[str, Any]) -> None:
        super().__init__(version, flexible, names)
        self._formats = ""
        self._targets: list[str] = []
        self._parts: list[str | int] = []
        self._conversions: list[str] = []

    def begin(self) -> None:
        self.add(0, "def decode(buffer, p, budget):", " end = len(buffer)")

    def end(self) -> Decode:
        self._flush(1)
        self.add(1, "return value, p, budget")
        return self.compile("decode")

    def _flush(self, depth: int) -> None:
        """Reads the collected numbers."""
        if not self._formats:
            return
        targets = ", ".join(self._targets)
        if self._parts == [1]:
            self.add(depth, f"{targets} = buffer[p]", "p += 1")
        else:
            layout = Struct(">" + self._formats)
            unpack = self.name("unpack", layout.unpack_from)
            parts = tuple(Struct(">" + part) if isinstance(part, str) else part for part in self._parts)
            raise_incomplete = self.name("incomplete", partial(_raise_incomplete, parts))
            self.add(depth, f"try: {targets}, = {unpack}(buffer, p)")
            self.add(depth, f"except error: {raise_incomplete}(buffer, p)", f"p += {layout.size}")
        self.add(depth, *self._conversions)
        self._formats, self._targets, self._parts, self._conversions = "", [], [], []

    def _number(self, code: str, target: str) -> None:
        if self._parts and isinstance(self._parts[-1], str):
            self._parts[-1] += code
        else:
            self._parts.append(code)
        self._formats += code
        self._targets.append(target)

    def _part(self, code: str, part: str | int, target: str) -> None:
        """Adds a number that an error reports by itself."""
        self._parts.append(part)
        self._formats += code
        self._targets.append(target)

    def add_struct(self, fields: tuple[Field, ...], data_class: type[DataContainer], target: str, depth: int) -> None:
        """Adds the code that reads a structure."""
        self._flush(depth)
        self._add_new(fields, data_class, target, depth)
        for field in present_fields(fields, self.version):
            self.add_value(field, data_class, f"{target}.{field.name}", depth)
        if self.flexible:
            tags = self.name("tags")
            self._part("B", 1, tags)
            self._flush(depth)
            known = self.name("known", self._known_tags(fields, data_class))
            self.add(depth, f"if {tags}: p, budget = read_tags(buffer, p - 1, {target}, {known}, budget)")

    def _known_tags(self, fields: tuple[Field, ...], data_class: type[DataContainer]) -> _Tags:
        return {
            field.tag: (field.name, cache(partial(_tagged_decoder, field, data_class, self.version)))
            for field in tagged_fields(fields, self.version)
            if field.tag is not None
        }

    def _add_new(self, fields: tuple[Field, ...], data_class: type[DataContainer], target: str, depth: int) -> None:
        """Adds the creation of a structure with the defaults of the fields that are not read."""
        self.add(depth, f"{target} = new({self.name('class_', data_class)})")
        if issubclass(data_class, RecordStruct):
            self.add(depth, f"{target}.unknown_tags = no_tags")
        read = {field.name for field in present_fields(fields, self.version)}
        for field in fields:
            if field.name not in read:
                default = repr(field.default)
                if field.default == EMPTY:
                    default = f"{self.name('empty', empty_value(data_class, field))}()"
                self.add(depth, f"{target}.{field.name} = {default}")

    def add_value(self, field: Field, data_class: type[DataContainer], target: str, depth: int) -> None:
        """Adds the code that reads a field."""
        is_nullable = self.version in field.nullable
        if field.is_array:
            self._add_array(field, data_class, is_nullable, target, depth)
        elif field.fields is None:
            self._add_simple(field, is_nullable, target, depth)
        else:
            struct = self.name("s")
            inner = getattr(data_class, field.type)
            self._flush(depth)
            if is_nullable:
                self._number("b", f"present{struct}")
                self._flush(depth)
                self.add(depth, f"{struct} = None", f"if present{struct} >= 0:")
                self.add_struct(field.fields, inner, struct, depth + 1)
                self._flush(depth + 1)
            else:
                self.add_struct(field.fields, inner, struct, depth)
                self._flush(depth)
            self.add(depth, f"{target} = {struct}")

    def _add_simple(self, field: Field, is_nullable: bool, target: str, depth: int) -> None:
        if field.type in FIXED_FORMATS:
            self._number(FIXED_FORMATS[field.type], target)
        elif field.type in ("uuid", "bitfield"):
            code, size, convert = ("16s", _ID_BYTES, "id_of") if field.type == "uuid" else ("I", _BITS_BYTES, "bits_of")
            raw = self.name("raw")
            self._part(code, size, raw)
            self._conversions.append(f"{target} = {convert}({raw})")
        else:
            self._add_bytes(field, is_nullable, target, depth)

    def _add_bytes(self, field: Field, is_nullable: bool, target: str, depth: int) -> None:
        size = self._add_length("h" if field.type == "string" else "i", depth)
        convert, empty = {
            "string": ("str(buffer[p:q], 'utf-8')", "''"),
            "bytes": ("bytes(buffer[p:q])", "b''"),
            "records": ("buffer[p:q]", "buffer[p:p]"),
        }[field.type]
        limit = f" or {size} > {MAX_STRING_BYTES}" if field.type == "string" and self.flexible else ""
        bad = f"raise bad_length({field.name!r}, {size}, end - p, {is_nullable})"
        self.add(depth, f"if {size} > 0:", f" q = p + {size}", f" if q > end{limit}: {bad}")
        self.add(depth + 1, f"{target} = {convert}", "p = q")
        self._add_empty(size, empty, bad, is_nullable, target, depth)

    def _add_empty(self, size: str, empty: str, bad: str, is_nullable: bool, target: str, depth: int) -> None:
        self.add(depth, f"elif {size} == 0: {target} = {empty}")
        if is_nullable:
            self.add(depth, f"elif {size} == -1: {target} = None")
        self.add(depth, f"else: {bad}")

    def _add_length(self, code: str, depth: int) -> str:
        """Reads a length or count, -1 for null, and the numbers before it; returns its name."""
        size = self.name("n")
        if self.flexible:
            self._part("B", 1, size)
        else:
            self._part(code, code, size)
        self._flush(depth)
        if self.flexible:
            self.add(depth, f"if {size} > 127: {size}, p = varint(buffer, p - 1)", f"{size} -= 1")
        return size

    def _add_array(
        self, field: Field, data_class: type[DataContainer], is_nullable: bool, target: str, depth: int
    ) -> None:
        count = self._add_length("i", depth)
        bad = f"raise bad_length({field.name!r}, {count}, end - p, {is_nullable})"
        self.add(depth, f"if {count} > 0:", f" if {count} > end - p: {bad}")
        self.add(depth + 1, f"budget -= {count}", "if budget < 0: raise too_many()")
        if field.fields is None and field.type in FIXED_FORMATS:
            code = FIXED_FORMATS[field.type]
            self.add(depth + 1, f"{target} = list(unpack_from(f'>{{{count}}}{code}', buffer, p))")
            self.add(depth + 1, f"p += {count} * {calcsize('>' + code)}")
        elif field.fields is None:
            values, value = self._add_loop(target, count, depth + 1)
            self._add_simple(field, False, value, depth + 2)
            self._flush(depth + 2)
            self.add(depth + 2, f"{values}.append({value})")
        else:
            self._add_structs(field.fields, getattr(data_class, field.type), count, target, depth + 1)
        self._add_empty(count, "[]", bad, is_nullable, target, depth)

    def _add_loop(self, target: str, count: str, depth: int) -> tuple[str, str]:
        values, value = self.name("list"), self.name("v")
        self.add(depth, f"{target} = {values} = []", f"for _ in range({count}):")
        return values, value

    def _add_structs(
        self, fields: tuple[Field, ...], element: type[DataContainer], count: str, target: str, depth: int
    ) -> None:
        read = present_fields(fields, self.version)
        if read and all(not field.is_array and field.type in FIXED_FORMATS for field in read):
            self._add_fixed_structs(fields, element, count, target, depth)
            self.add(depth, "else:")
            depth += 1
        values, value = self._add_loop(target, count, depth)
        self.add_struct(fields, element, value, depth + 1)
        self._flush(depth + 1)
        self.add(depth + 1, f"{values}.append({value})")

    def _add_fixed_structs(
        self, fields: tuple[Field, ...], element: type[DataContainer], count: str, target: str, depth: int
    ) -> None:
        """Reads complete elements of numbers, without tagged fields, with one iterator."""
        read = present_fields(fields, self.version)
        layout = Struct(">" + "".join(FIXED_FORMATS[field.type] for field in read) + ("x" if self.flexible else ""))
        values, value, has_no_tags = self.name("list"), self.name("v"), ""
        if self.flexible:
            has_no_tags = f" and bytes(buffer[p + {layout.size - 1}:q:{layout.size}]).count(0) == {count}"
        columns = ", ".join(f"c{at}" for at in range(len(read)))
        self.add(depth, f"q = p + {count} * {layout.size}", f"if q <= end{has_no_tags}:")
        self.add(depth + 1, f"{target} = {values} = []")
        self.add(depth + 1, f"for {columns}, in {self.name('each', layout.iter_unpack)}(buffer[p:q]):")
        self._add_new(fields, element, value, depth + 2)
        self.add(depth + 2, *[f"{value}.{field.name} = c{at}" for at, field in enumerate(read)])
        self.add(depth + 2, f"{values}.append({value})")
        self.add(depth + 1, "p = q")
