"""Strict decoding of messages whose classes and schemas are kafka-python's.

The library's own decoders take what comes: a text or bytes field that reaches past the end comes back short,
a null where none is allowed becomes None, a negative array length an empty list, a varint may go on for ever,
left-over bytes are dropped, and every tagged section copies the rest of the buffer. Here each of these is a
`RemoteProtocolError`, no length is trusted before the bytes are seen, and record sets are handed out as views
of the buffer, not as copies.

Knows schemas and bytes; sends and receives nothing. A decoder is built once for each message class and
version.

Source: https://kafka.apache.org/protocol#protocol_types, KIP-482 (flexible versions), KIP-893 (nullable
structures).
"""

from __future__ import annotations

import io
from functools import lru_cache
from struct import Struct, error
from typing import Any, Callable, Sequence

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.messages import UUID, BitField

ReadValue = Callable[[memoryview, int], tuple[Any, int]]
"""(buffer, position) -> (value, position after it)"""
_FillFields = Callable[[memoryview, int, Any], int]
"""(buffer, position, structure to fill) -> position after the fields"""

_FIXED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}
_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")


def decode_exactly(message_class: Any, version: int, buffer: memoryview, position: int = 0) -> Any:
    """The message that fills `buffer` from `position` to its end; `version` must be one of the schema.

    Fields of type `records` are views of `buffer`: whoever reuses the buffer must be done with them.

    Raises: RemoteProtocolError on bytes that do not decode, are missing, or are left over.
    """
    message, end = decode_prefix(message_class, version, buffer, position)
    if end != len(buffer):
        raise RemoteProtocolError(
            f"{message_class.__name__} v{version} ends at byte {end} of {len(buffer)}: bytes are left over"
        )
    return message


def decode_prefix(message_class: Any, version: int, buffer: memoryview, position: int = 0) -> tuple[Any, int]:
    """The message that begins at `position`, and the position after it; what follows is the caller's.

    Raises: RemoteProtocolError on bytes that do not decode or are missing.
    """
    try:
        return message_reader(message_class, version)(buffer, position)
    except (error, IndexError) as cause:
        problem = f"bytes are missing at the end ({cause})"
    except UnicodeDecodeError as cause:
        problem = f"a text is not UTF-8 ({cause})"
    except RemoteProtocolError as cause:
        problem = str(cause)
    raise RemoteProtocolError(f"{message_class.__name__} v{version} of {len(buffer) - position} bytes: {problem}")


@lru_cache(maxsize=None)
def message_reader(message_class: Any, version: int) -> ReadValue:
    """A decoder of one message class at one version; raises `struct.error`, `IndexError` too on missing bytes."""
    read = _struct_reader(message_class._struct, message_class, version, message_class.flexible_version_q(version))
    if not hasattr(message_class, "API_KEY"):
        return read

    def read_message(buffer: memoryview, position: int) -> tuple[Any, int]:
        message, position = read(buffer, position)
        # without these a decoded message could not be encoded again
        message._header = message._min_version = message._max_version = None
        return message, position

    return read_message


def read_unsigned_varint(buffer: memoryview, position: int) -> tuple[int, int]:
    """An unsigned 32-bit number of 1 to 5 bytes, and the position after it.

    Raises: IndexError when the buffer ends first, RemoteProtocolError when the number does not end in time.
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
    raise RemoteProtocolError("a varint is longer than 32 bits")


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """The position after a section of tagged fields none of which is of interest."""
    count, position = read_unsigned_varint(buffer, position)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise RemoteProtocolError("a tagged field reaches past the end")
    return position


def _struct_reader(struct_field: Any, data_class: Any, version: int, flexible: bool) -> ReadValue:
    steps = list(_steps(struct_field.untagged_fields(version), version, flexible))
    if flexible:
        steps.append(_tagged_step(struct_field, version))

    def read_struct(buffer: memoryview, position: int) -> tuple[Any, int]:
        value = object.__new__(data_class)
        value._version = version
        value.tags = value.unknown_tags = None
        for step in steps:
            position = step(buffer, position, value)
        return value, position

    return read_struct


def _steps(fields: Sequence[Any], version: int, flexible: bool) -> list[_FillFields]:
    """One step for each field, but a single one for a run of numbers."""
    steps: list[_FillFields] = []
    run: list[Any] = []
    for field in fields:
        if field.type_str in _FIXED:
            run.append(field)
            continue
        if run:
            steps.append(_numbers_step(run))
            run = []
        steps.append(_field_step(field, version, flexible))
    if run:
        steps.append(_numbers_step(run))
    return steps


def _numbers_step(fields: Sequence[Any]) -> _FillFields:
    layout = Struct(">" + "".join(_FIXED[field.type_str] for field in fields))
    names = [field.name for field in fields]

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        for name, number in zip(names, layout.unpack_from(buffer, position)):
            setattr(value, name, number)
        return position + layout.size

    return fill


def _field_step(field: Any, version: int, flexible: bool) -> _FillFields:
    read, name = _value_reader(field, version, flexible), field.name
    if field.type_str == "string" and not field.is_array():
        return _short_text_step(name, read) if flexible else _text_step(name, read)

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        content, position = read(buffer, position)
        setattr(value, name, content)
        return position

    return fill


def _text_step(name: str, read: ReadValue) -> _FillFields:
    """What `read` does in one call less for each part of a text; it is left what is out of the ordinary."""

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        start = position + _INT16.size
        end: int = start + _INT16.unpack_from(buffer, position)[0]
        if start <= end <= len(buffer):
            setattr(value, name, str(buffer[start:end], "utf-8"))
            return end
        content, position = read(buffer, position)
        setattr(value, name, content)
        return position

    return fill


def _short_text_step(name: str, read: ReadValue) -> _FillFields:
    """The same with a compact length, of one byte as a rule: one more than the text has."""

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        length = buffer[position]
        end = position + length
        if 0 < length < 0x80 and end <= len(buffer):
            setattr(value, name, str(buffer[position + 1 : end], "utf-8"))
            return end
        content, position = read(buffer, position)
        setattr(value, name, content)
        return position

    return fill


def _tagged_step(struct_field: Any, version: int) -> _FillFields:
    known = {
        field.tag: (field.name, _tagged_reader(field, version))
        for field in struct_field.fields.values()
        if field.for_version_q(version) and field.tagged_field_q(version)
    }

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        if buffer[position] == 0:
            return position + 1
        count, position = read_unsigned_varint(buffer, position)
        for _ in range(count):
            tag, position = read_unsigned_varint(buffer, position)
            size, position = read_unsigned_varint(buffer, position)
            end = position + size
            if end > len(buffer):
                raise RemoteProtocolError(f"tagged field {tag} reaches past the end")
            if tag in known:
                name, read = known[tag]
                content, position = read(buffer[:end], position)
                setattr(value, name, content)
                value.tags = (value.tags or set()) | {name}
                if position != end:
                    raise RemoteProtocolError(f"tagged field {tag} does not fill its {size} bytes")
            position = end  # a tag unknown here is a newer peer's: KIP-482 says skip
        return position

    return fill


def _value_reader(field: Any, version: int, flexible: bool) -> ReadValue:
    nullable = field.nullable_for_version_q(version)
    if field.is_array():
        return _array_reader(field, nullable, version, flexible)
    if field.is_struct():
        read = _struct_reader(field, field.data_class, version, flexible)
        return _nullable_struct_reader(read) if nullable else read
    return _simple_reader(field.type_str, field.name, nullable, flexible)


def _simple_reader(type_name: str, name: str, nullable: bool, flexible: bool) -> ReadValue:
    if type_name in _FIXED:
        return _number_reader(Struct(">" + _FIXED[type_name]))
    if type_name == "uuid":
        return _library_reader(UUID)
    if type_name == "bitfield":
        return _library_reader(BitField)
    read_length = _length_reader(name, _INT16 if type_name == "string" else _INT32, nullable, flexible)
    convert: Callable[[memoryview], Any]
    if type_name == "string":
        convert = _text
    elif type_name == "records":
        convert = _view
    else:
        convert = bytes

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            return None, position
        end = position + length
        return convert(buffer[position:end]), end

    return read


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _view(data: memoryview) -> memoryview:
    return data


def _number_reader(layout: Struct) -> ReadValue:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        return layout.unpack_from(buffer, position)[0], position + layout.size

    return read


def _library_reader(codec: Any) -> ReadValue:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        end = position + codec.size
        if end > len(buffer):
            raise IndexError(f"{codec.size} bytes are due")
        return codec.decode(io.BytesIO(buffer[position:end])), end

    return read


def _tagged_reader(field: Any, version: int) -> ReadValue:
    """What a tagged field holds; of a structure that may be null, a number in front says whether it is there."""
    if not (field.is_struct() and not field.is_array() and field.nullable_for_version_q(version)):
        return _value_reader(field, version, True)
    read_struct = _struct_reader(field, field.data_class, version, True)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        present, position = read_unsigned_varint(buffer, position)
        return read_struct(buffer, position) if present else (None, position)

    return read


def _nullable_struct_reader(read_struct: ReadValue) -> ReadValue:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        (present,) = _INT8.unpack_from(buffer, position)
        return read_struct(buffer, position + 1) if present >= 0 else (None, position + 1)

    return read


def _array_reader(field: Any, nullable: bool, version: int, flexible: bool) -> ReadValue:
    read_length = _length_reader(field.name, _INT32, nullable, flexible)
    element = field.array_of
    letter = _FIXED.get(element.type_str)
    read_element: ReadValue
    if element.is_struct():
        read_element = _struct_reader(element, element.data_class, version, flexible)
    else:
        read_element = _simple_reader(element.type_str, field.name, False, flexible)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            return None, position
        if letter:
            layout = Struct(f">{count}{letter}")
            return list(layout.unpack_from(buffer, position)), position + layout.size
        values = []
        for _ in range(count):
            value, position = read_element(buffer, position)
            values.append(value)
        return values, position

    return read


def _length_reader(name: str, layout: Struct, nullable: bool, flexible: bool) -> ReadValue:
    """Reads a length or count, -1 for null. Every element is at least one byte, so none may exceed what is left."""

    def read(buffer: memoryview, position: int) -> tuple[int, int]:
        if flexible:
            length, position = read_unsigned_varint(buffer, position)
            length -= 1
        else:
            (length,) = layout.unpack_from(buffer, position)
            position += layout.size
        if length > len(buffer) - position:
            left = len(buffer) - position
            raise RemoteProtocolError(f"{name} claims {length} bytes or elements where {left} bytes are left")
        if length < -1:
            raise RemoteProtocolError(f"{name} has the negative length {length}")
        if length == -1 and not nullable:
            raise RemoteProtocolError(f"{name} is null, which it may not be")
        return length, position

    return read
