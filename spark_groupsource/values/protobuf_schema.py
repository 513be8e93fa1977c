"""Protobuf descriptors: messages of a FileDescriptorSet, with the types of their fields.

Source: `google/protobuf/descriptor.proto`, Spark `ProtobufUtils.buildDescriptor`.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Iterator, Mapping, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.options import ColumnFormat
from spark_groupsource.values.protobuf_scan import VARINT, read_fields

TYPES = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes",
    "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_REQUIRED, _REPEATED = 2, 3
_MAX_DEPTH = 100


@dataclass(frozen=True)
class ProtoEnum:
    """An enum; `is_closed` if other numbers than those of `names` are invalid (proto2)."""

    name: str
    names: Mapping[int, str]
    is_closed: bool

    def text(self, number: int) -> str:
        """Returns the name of a number; that of Java's UNRECOGNIZED for an unknown one."""
        return self.names.get(number) or f"UNKNOWN_ENUM_VALUE_{self.name.rpartition('.')[2]}_{number}"


@dataclass(frozen=True)
class ProtoField:
    """A field of a message.

    Attributes:
        kind: one of `TYPES`.
        default: as it is written in the schema (proto2), None without.
        oneof: index of its oneof; None outside of one.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool = False
    is_required: bool = False
    message: ProtoMessage | None = None
    enum: ProtoEnum | None = None
    default: str | None = None
    oneof: int | None = None


@dataclass(frozen=True)
class ProtoMessage:
    """A message; `path` has the indexes of its position in the file, and of the messages that contain it."""

    name: str
    fields: tuple[ProtoField, ...]
    is_map_entry: bool = False
    path: tuple[int, ...] = field(default=(), compare=False)

    @property
    def time(self) -> str:
        """``Timestamp`` or ``Duration`` if the message is one of these for Spark, else empty."""
        short = self.name.rpartition(".")[2]
        names = [each.name for each in self.fields]
        return short if short in ("Timestamp", "Duration") and names == ["seconds", "nanos"] else ""


@lru_cache(maxsize=32)
def protobuf_message(given: ColumnFormat) -> ProtoMessage:
    """Returns the message of a column. Raises: ConfigurationError."""
    name = f"{given.column}.message.name"
    return parse_message(f"{given.column}.schema", given.schema or "", name, given.message or "")


def parse_message(option: str, text: str, name_option: str, name: str) -> ProtoMessage:
    """Parses a FileDescriptorSet in base64, and returns its message `name`; its package may be left out.

    Raises: ConfigurationError that names the option.
    """
    try:
        files = [_File(data) for number, data in _parts(b64decode(text, validate=True)) if number == 1]
    except (ValueError, IndexError, KeyError) as error:
        raise ConfigurationError(
            f"Option {option} is no descriptor set: {str(error)[:200]}. Give the path of the file that protoc "
            "--include_imports --descriptor_set_out=FILE writes."
        ) from None
    messages = {each.name: each for file in files for each in file.messages}
    enums = {each.name: each for file in files for each in file.enums}
    found = [full for full in messages if full == name or full.endswith(f".{name}")]
    if name not in found and len(found) != 1:
        known = ", ".join(sorted(each.name for each in messages.values() if not each.is_map_entry)[:5])
        raise ConfigurationError(
            f"Option {name_option} names {name!r}, which {'several messages have' if found else 'no message has'} in "
            f"{option}; its messages are {known or 'none'}. Give the full name of one."
        )
    return _Resolver(option, messages, enums).message(name if name in found else found[0], ())


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns the length-delimited fields of a message."""
    return ((number, bytes(value)) for number, _, value in read_fields(data) if not isinstance(value, int))


class _Declared:
    """A message as it is declared, with the names of the types of its fields."""

    def __init__(self, data: bytes, scope: str, path: tuple[int, ...], file: _File) -> None:
        parts = list(_parts(data))
        self.name = f"{scope}{_text(parts, 1)}"
        self.path = path
        self.fields = [value for number, value in parts if number == 2]
        self.is_map_entry = any(_numbers(value).get(7) for number, value in parts if number == 7)
        nested = [value for number, value in parts if number == 3]
        for at, value in enumerate(nested):
            file.add_message(value, f"{self.name}.", (*path, at))
        for number, value in parts:
            if number == 4:
                file.add_enum(value, f"{self.name}.")


class _File:
    """A FileDescriptorProto."""

    def __init__(self, data: bytes) -> None:
        self.messages: list[_Declared] = []
        self.enums: list[ProtoEnum] = []
        parts = list(_parts(data))
        package = _text(parts, 2)
        scope = f"{package}." if package else ""
        # an edition has open enums unless a feature says otherwise, which is not read
        self.is_closed = _text(parts, 12) in ("", "proto2")
        for at, value in enumerate(value for number, value in parts if number == 4):
            self.add_message(value, scope, (at,))
        for number, value in parts:
            if number == 5:
                self.add_enum(value, scope)

    def add_message(self, data: bytes, scope: str, path: tuple[int, ...]) -> None:
        self.messages.append(_Declared(data, scope, path, self))

    def add_enum(self, data: bytes, scope: str) -> None:
        parts = list(_parts(data))
        values = [value for number, value in parts if number == 2]
        names: dict[int, str] = {}
        for value in values:
            number = _numbers(value).get(2, 0)
            # an alias has the number of an earlier value
            names.setdefault(number - (1 << 64) if number >> 63 else number, _text(list(_parts(value)), 1))
        self.enums.append(ProtoEnum(f"{scope}{_text(parts, 1)}", names, self.is_closed))


def _text(parts: Sequence[tuple[int, bytes]], number: int) -> str:
    return next((value.decode() for each, value in parts if each == number), "")


def _numbers(data: bytes) -> dict[int, int]:
    return {number: value for number, wire, value in read_fields(data) if wire == VARINT and isinstance(value, int)}


class _Resolver:
    def __init__(self, option: str, messages: Mapping[str, _Declared], enums: Mapping[str, ProtoEnum]) -> None:
        self._option = option
        self._messages = messages
        self._enums = enums

    def _invalid(self, fact: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"Option {self._option} is no supported descriptor set: {fact}. {remedy}")

    def message(self, name: str, outer: tuple[str, ...]) -> ProtoMessage:
        """Returns a message; `outer` has the names of those that contain it."""
        if name in outer:
            raise self._invalid(
                f"message {name} contains itself, and Spark has no recursive types", "Select a message without it."
            )
        if len(outer) > _MAX_DEPTH:
            raise self._invalid(f"it is nested deeper than {_MAX_DEPTH} messages", "Select an inner message.")
        declared = self._messages.get(name)
        if declared is None:
            raise self._invalid(f"type {name} is not defined", "Write it with protoc --include_imports.")
        fields = tuple(self._field(each, (*outer, name)) for each in declared.fields)
        return ProtoMessage(name, fields, declared.is_map_entry, declared.path)

    def _field(self, data: bytes, outer: tuple[str, ...]) -> ProtoField:
        parts, numbers = list(_parts(data)), _numbers(data)
        kind, name = TYPES[numbers[5] - 1], _text(parts, 6).removeprefix(".")
        enum = self._enums.get(name) if kind == "enum" else None
        if kind == "enum" and enum is None:
            raise self._invalid(f"type {name} is not defined", "Write it with protoc --include_imports.")
        default = [value for number, value in parts if number == 7]
        return ProtoField(
            _text(parts, 1),
            numbers[3],
            kind,
            numbers.get(4) == _REPEATED,
            numbers.get(4) == _REQUIRED,
            self.message(name, outer) if kind in ("message", "group") else None,
            enum,
            default[0].decode() if default else None,
            None if numbers.get(17) else numbers.get(9),
        )
