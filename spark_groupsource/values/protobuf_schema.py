"""Protobuf descriptors: messages of a FileDescriptorSet, with the types of their fields.

Source: `google/protobuf/descriptor.proto`, Spark `ProtobufUtils.buildDescriptor`.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Iterator, Mapping, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.options import ColumnFormat
from spark_groupsource.values.proto_files import InvalidProtoError
from spark_groupsource.values.protobuf_indexes import Path
from spark_groupsource.values.protobuf_scan import VARINT, read_fields

TYPES = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes",
    "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_REQUIRED, _REPEATED = 2, 3
_MAX_DEPTH = 100
# a message that is used several times is read, and is a column, at each place
_MAX_MESSAGES = 20_000


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
    """A message; `paths` has the indexes that name it in its file, as of `_File.names`."""

    name: str
    fields: tuple[ProtoField, ...]
    is_map_entry: bool = False
    paths: tuple[Path, ...] = field(default=(), compare=False)

    @property
    def time(self) -> str:
        """``Timestamp`` or ``Duration`` if the message is one of these for Spark, else empty."""
        short = self.name.rpartition(".")[2]
        names = [each.name for each in self.fields]
        return short if short in ("Timestamp", "Duration") and names == ["seconds", "nanos"] else ""


@lru_cache(maxsize=32)
def protobuf_message(given: ColumnFormat) -> ProtoMessage:
    """Returns the message of a column. Raises: ConfigurationError."""
    source = f"Option {given.column}.schema"
    if given.reader is not None:
        source = f"The schema of subject {given.reader.subject}"
    return ProtoFiles(source, given.schema or "").message(f"{given.column}.message.name", given.message)


class ProtoFiles:
    """The messages of a FileDescriptorSet in base64; the last file is that of the schema, the others are its imports.

    Args:
        source: where the schema is, for messages.
    Raises: InvalidProtoError for text that is no descriptor set.
    """

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        try:
            self._files = [_File(data) for number, data in _parts(b64decode(text, validate=True)) if number == 1]
        except (ValueError, IndexError, KeyError) as error:
            raise InvalidProtoError(
                f"{source} is no descriptor set: {str(error)[:200]}. Give the path of the file that protoc "
                "--include_imports --descriptor_set_out=FILE writes."
            ) from None
        self._messages = {each.name: each for file in self._files for each in file.messages}
        self._enums = {each.name: each for file in self._files for each in file.enums}
        self.names: Mapping[Path, str] = self._files[-1].names() if self._files else {}

    def message(self, option: str, name: str | None) -> ProtoMessage:
        """Returns a message; its package may be left out, and None is the first one of the schema.

        Args:
            option: the option that names it, for messages.
        Raises: ConfigurationError.
        """
        if name is None:
            name = self.names.get((0,), "")
        found = [full for full in self._messages if full == name or full.endswith(f".{name}")]
        if name not in found and len(found) != 1:
            known = ", ".join(sorted(each.name for each in self._messages.values() if not each.is_map_entry)[:5])
            raise ConfigurationError(
                f"Option {option} names {name!r}, which {'several messages have' if found else 'no message has'} in "
                f"{self._source.removeprefix('Option ')}; its messages are {known or 'none'}. Give the full name of "
                "one."
            )
        resolver = _Resolver(self._source, self._messages, self._enums)
        message = resolver.message(name if name in found else found[0], ())
        names = next(file.names() for file in self._files if any(each.name == message.name for each in file.messages))
        return replace(message, paths=paths_of(message.name, names))


def paths_of(message: str, names: Mapping[Path, str]) -> tuple[Path, ...]:
    """Returns the indexes of a message in a file."""
    return tuple(path for path, name in names.items() if name == message)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns the length-delimited fields of a message."""
    return ((number, bytes(value)) for number, _, value in read_fields(data) if not isinstance(value, int))


class _Declared:
    """A message as it is declared, with the names of the types of its fields."""

    def __init__(self, data: bytes, scope: str, path: Path, text_path: Path, file: _File) -> None:
        parts = list(_parts(data))
        self.name = f"{scope}{_text(parts, 1)}"
        self.path, self.text_path = path, text_path
        self.fields = [value for number, value in parts if number == 2]
        self.is_map_entry = any(_numbers(value).get(7) for number, value in parts if number == 7)
        declared = 0
        for at, value in enumerate(value for number, value in parts if number == 3):
            entry = file.add_message(value, f"{self.name}.", (*path, at), (*text_path, declared))
            declared += not entry.is_map_entry
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
            self.add_message(value, scope, (at,), (at,))
        for number, value in parts:
            if number == 5:
                self.add_enum(value, scope)

    def names(self) -> dict[Path, str]:
        """Returns the name of the message of each path.

        Serializers count the entries of maps, which protoc declares; those that parse the text do not.
        """
        messages = [each for each in self.messages if not each.is_map_entry]
        return {each.text_path: each.name for each in messages} | {each.path: each.name for each in messages}

    def add_message(self, data: bytes, scope: str, path: Path, text_path: Path) -> _Declared:
        found = _Declared(data, scope, path, text_path, self)
        self.messages.append(found)
        return found

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
    def __init__(self, source: str, messages: Mapping[str, _Declared], enums: Mapping[str, ProtoEnum]) -> None:
        self._source = source
        self._messages = messages
        self._enums = enums
        self._found = 0

    def _invalid(self, fact: str, remedy: str) -> InvalidProtoError:
        return InvalidProtoError(f"{self._source} is no supported descriptor set: {fact}. {remedy}")

    def message(self, name: str, outer: tuple[str, ...]) -> ProtoMessage:
        """Returns a message; `outer` has the names of those that contain it."""
        if name in outer:
            raise self._invalid(
                f"message {name} contains itself, and Spark has no recursive types", "Select a message without it."
            )
        if len(outer) > _MAX_DEPTH:
            raise self._invalid(f"it is nested deeper than {_MAX_DEPTH} messages", "Select an inner message.")
        self._found += 1
        if self._found > _MAX_MESSAGES:
            raise self._invalid(
                f"it has more than {_MAX_MESSAGES} messages, those that are used repeatedly included",
                "Select an inner message.",
            )
        declared = self._messages.get(name)
        if declared is None:
            raise self._invalid(f"type {name} is not defined", "Write it with protoc --include_imports.")
        fields = tuple(self._field(each, (*outer, name)) for each in declared.fields)
        return ProtoMessage(name, fields, declared.is_map_entry)

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
