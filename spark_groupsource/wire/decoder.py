"""Strict decoder for message classes and schemas of kafka-python.

The decoders of the library accept invalid input: a string or bytes field that exceeds the buffer is truncated, null in
a non-nullable field becomes None, a negative array length an empty list, varints have no maximum length, trailing bytes
are dropped, and each tagged section copies the rest of the buffer. Here each of these raises `RemoteProtocolError`,
lengths are checked before memory is allocated, and record sets are views of the buffer. As in Kafka's own decoders, a
compact string of more than 32,767 bytes raises it too.

A decoder is built once per message class and version. The time and memory of decoding grow with the number of array
elements and tagged fields, not with the number of bytes, so `max_elements` bounds them.

Source: https://kafka.apache.org/protocol#protocol_types, KIP-482 (flexible versions), KIP-893 (nullable
structures).
"""

from __future__ import annotations

import io
from contextvars import ContextVar
from functools import lru_cache
from struct import Struct, error
from typing import Any, Callable, Sequence, TypeVar

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.messages import UUID, ApiData, ApiMessage, BaseField, BitField, DataContainer

MessageT = TypeVar("MessageT", bound="ApiMessage | ApiData")

ReadValue = Callable[[memoryview, int], tuple[Any, int]]
"""(buffer, position) -> (value, position after it)"""
_FillFields = Callable[[memoryview, int, Any], int]
"""(buffer, position, struct to fill) -> position after the fields"""

MAX_STRING_BYTES = 0x7FFF
"""Longest string of the protocol. A compact string could be longer; as Kafka, the decoder rejects it."""

FIXED_FORMATS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}
"""Formats of the module struct."""
_MAX_HEADER_TAGS = 100
_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")


class TooManyElementsError(RemoteProtocolError):
    """A message has more array elements and tagged fields than the caller allows."""


class _ElementBudget:
    """The elements that a message may still have."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyElementsError("It has too many elements.")


# of the message that this thread decodes; None without a limit
_budget: ContextVar[_ElementBudget | None] = ContextVar("_budget", default=None)


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
    token = _budget.set(None if max_elements is None else _ElementBudget(max_elements))
    try:
        message: tuple[MessageT, int] = message_reader(hashable_class, version)(buffer, position)
        return message
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
    finally:
        _budget.reset(token)
    raise RemoteProtocolError(
        f"Cannot decode {message_class.__name__} v{version} from {len(buffer) - position} bytes: {problem}."
    )


@lru_cache(maxsize=None)
def message_reader(message_class: type[ApiMessage] | type[ApiData], version: int) -> ReadValue:
    """Returns the decoder of a message class and version. It raises struct.error or IndexError on incomplete bytes."""
    read = _struct_reader(message_class._struct, message_class, version, message_class.flexible_version_q(version))
    if not issubclass(message_class, ApiMessage):
        return read

    def read_message(buffer: memoryview, position: int) -> tuple[Any, int]:
        message, position = read(buffer, position)
        # needed to encode the decoded message again
        message._header = message._min_version = message._max_version = None
        return message, position

    return read_message


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


def _struct_reader(
    struct_field: BaseField, data_class: type[DataContainer], version: int, flexible: bool
) -> ReadValue:
    steps = list(_steps(struct_field.untagged_fields(version), version, flexible))
    if flexible:
        steps.append(_tagged_step(struct_field, version))

    def read_struct(buffer: memoryview, position: int) -> tuple[Any, int]:
        value: Any = object.__new__(data_class)
        value._version = version
        value.tags = value.unknown_tags = None
        for step in steps:
            position = step(buffer, position, value)
        return value, position

    return read_struct


def _steps(fields: Sequence[BaseField], version: int, flexible: bool) -> list[_FillFields]:
    """Returns one step per field; consecutive numbers are one step."""
    steps: list[_FillFields] = []
    run: list[BaseField] = []
    for field in fields:
        if field.type_str in FIXED_FORMATS:
            run.append(field)
            continue
        if run:
            steps.append(_numbers_step(run))
            run = []
        steps.append(_field_step(field, version, flexible))
    if run:
        steps.append(_numbers_step(run))
    return steps


def _numbers_step(fields: Sequence[BaseField]) -> _FillFields:
    layout = Struct(">" + "".join(FIXED_FORMATS[field.type_str] for field in fields))
    targets = ", ".join(f"value.{field.name}" for field in fields)
    # most fields of large messages are numbers, and setattr() takes three times as long as an assignment
    namespace: dict[str, Any] = {"unpack": layout.unpack_from}
    exec(
        f"def fill(buffer, position, value):\n {targets}, = unpack(buffer, position)\n return position + {layout.size}",
        namespace,
    )
    fill: _FillFields = namespace["fill"]
    return fill


def _field_step(field: BaseField, version: int, flexible: bool) -> _FillFields:
    read, name = _value_reader(field, version, flexible), field.name
    if field.type_str == "string" and not field.is_array():
        return _compact_string_step(name, read) if flexible else _string_step(name, read)

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        content, position = read(buffer, position)
        setattr(value, name, content)
        return position

    return fill


def _string_step(name: str, read: ReadValue) -> _FillFields:
    """Fast path of `read` for a string; `read` handles null and errors."""

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


def _compact_string_step(name: str, read: ReadValue) -> _FillFields:
    """Fast path of `read` for a compact string shorter than 127 bytes; its length is stored plus 1."""

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


def _tagged_step(struct_field: BaseField, version: int) -> _FillFields:
    known = {
        field.tag: (field.name, _tagged_reader(field, version))
        for field in struct_field.fields.values()
        if field.for_version_q(version) and field.tagged_field_q(version)
    }

    def fill(buffer: memoryview, position: int, value: Any) -> int:
        if buffer[position] == 0:
            return position + 1
        count, position = read_unsigned_varint(buffer, position)
        budget = _budget.get()
        if budget is not None:
            budget.take(count)
        for _ in range(count):
            tag, position = read_unsigned_varint(buffer, position)
            size, position = read_unsigned_varint(buffer, position)
            end = position + size
            if end > len(buffer):
                raise RemoteProtocolError(f"Tagged field {tag} exceeds the buffer.")
            if tag in known:
                name, read = known[tag]
                content, position = read(buffer[:end], position)
                setattr(value, name, content)
                value.tags = (value.tags or set()) | {name}
                if position != end:
                    raise RemoteProtocolError(f"Tagged field {tag} does not end after {size} bytes.")
            position = end  # unknown tags, of a newer peer, are skipped (KIP-482)
        return position

    return fill


def _value_reader(field: BaseField, version: int, flexible: bool) -> ReadValue:
    nullable = field.nullable_for_version_q(version)
    if field.is_array():
        return _array_reader(field, nullable, version, flexible)
    if field.is_struct():
        read = _struct_reader(field, field.data_class, version, flexible)
        return _nullable_struct_reader(read) if nullable else read
    return simple_reader(field.type_str, field.name, nullable, flexible)


def simple_reader(type_name: str, name: str, nullable: bool, flexible: bool) -> ReadValue:
    """Returns the decoder of a field that is neither an array nor a structure."""
    if type_name in FIXED_FORMATS:
        return _number_reader(Struct(">" + FIXED_FORMATS[type_name]))
    if type_name == "uuid":
        return _library_reader(UUID)
    if type_name == "bitfield":
        return _library_reader(BitField)
    is_string = type_name == "string"
    read_length = _length_reader(name, _INT16 if is_string else _INT32, nullable, flexible)
    convert: Callable[[memoryview], Any]
    if is_string:
        convert = _string_converter(name)
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


def _string_converter(name: str) -> Callable[[memoryview], str]:
    def convert(data: memoryview) -> str:
        if len(data) > MAX_STRING_BYTES:
            raise RemoteProtocolError(f"Field {name} has length {len(data)}, the limit is {MAX_STRING_BYTES}.")
        return str(data, "utf-8")

    return convert


def _view(data: memoryview) -> memoryview:
    return data


def _number_reader(layout: Struct) -> ReadValue:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        return layout.unpack_from(buffer, position)[0], position + layout.size

    return read


def _library_reader(codec: type[UUID] | type[BitField]) -> ReadValue:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        end = position + codec.size
        if end > len(buffer):
            raise IndexError(f"{codec.size} bytes expected")
        return codec.decode(io.BytesIO(buffer[position:end])), end

    return read


def _tagged_reader(field: BaseField, version: int) -> ReadValue:
    """Returns the reader of a tagged field. A nullable struct starts with a number that is 0 for null (KIP-893)."""
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


def _array_reader(field: BaseField, nullable: bool, version: int, flexible: bool) -> ReadValue:
    read_length = _length_reader(field.name, _INT32, nullable, flexible)
    element = field.array_of
    letter = FIXED_FORMATS.get(element.type_str)
    read_element: ReadValue
    if element.is_struct():
        read_element = _struct_reader(element, element.data_class, version, flexible)
    else:
        read_element = simple_reader(element.type_str, field.name, False, flexible)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            return None, position
        budget = _budget.get()
        if budget is not None:
            budget.take(count)
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
    """Returns the reader of a length or count, -1 for null. It cannot exceed the remaining bytes."""

    def read(buffer: memoryview, position: int) -> tuple[int, int]:
        if flexible:
            length, position = read_unsigned_varint(buffer, position)
            length -= 1
        else:
            (length,) = layout.unpack_from(buffer, position)
            position += layout.size
        if length > len(buffer) - position:
            left = len(buffer) - position
            raise RemoteProtocolError(f"Field {name} has length {length}, {left} bytes left.")
        if length < -1:
            raise RemoteProtocolError(f"Field {name} has length {length}.")
        if length == -1 and not nullable:
            raise RemoteProtocolError(f"Field {name} is null, which its schema does not allow.")
        return length, position

    return read
