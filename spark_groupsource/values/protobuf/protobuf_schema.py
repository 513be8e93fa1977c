"""Protobuf descriptors: messages of a FileDescriptorSet, with the types of their fields.

Source: `google/protobuf/descriptor.proto`, Spark `ProtobufUtils.buildDescriptor` and `SchemaConverters`.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.lanes.protobuf_scan import MAX_TAG, VARINT, read_fields
from spark_groupsource.values.protobuf.protobuf_features import (
    ENUM_OPTIONS,
    FIELD_OPTIONS,
    FILE_OPTIONS,
    MESSAGE_OPTIONS,
    ONEOF_OPTIONS,
    Features,
    default_features,
)
from spark_groupsource.values.registry.proto_files import InvalidProtoError
from spark_groupsource.values.registry.protobuf_indexes import Path

TYPES = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes",
    "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_REQUIRED, _REPEATED = 2, 3
_MAP_ENTRY = 7
_LONGS = ("int64", "uint64", "sint64", "fixed64", "sfixed64")
_INTS = ("int32", "uint32", "sint32", "fixed32", "sfixed32")
_MAP_KEYS = (*_LONGS, *_INTS, "bool", "string")
Scalar = int | float | str | bytes


@dataclass(frozen=True)
class ProtoEnum:
    """An enum; `is_closed` if other numbers than those of `names` are invalid."""

    name: str
    names: Mapping[int, str]
    is_closed: bool

    def text(self, number: int) -> str:
        """Returns the name of a number; that of Java's UNRECOGNIZED for an unknown one."""
        return self.names.get(number) or f"UNKNOWN_ENUM_VALUE_{self.name.rpartition('.')[2]}_{number}"


class ProtoField:
    """A field of a message; the type that it names is looked up when it is used.

    Attributes:
        kind: one of `TYPES`; ``group`` for a message without length.
        has_presence: False if a field with the default of its type is not set.
        default: value of a field that is not set, as given in the schema; None without.
        oneof: index of its oneof; None outside of one.
        is_recursive: whether its message is within itself more often than allowed.
        recursion_depth: how often it may be, itself included; at least once.
    """

    def __init__(self, declared: _DeclaredField, types: _Types, outer: tuple[str, ...]) -> None:
        self._declared = declared
        self._types = types
        self._outer = outer
        self.name = declared.name
        self.number = declared.number
        self.is_repeated = declared.is_repeated
        self.is_required = declared.is_required
        self.has_presence = declared.has_presence
        self.default = declared.default
        self.oneof = declared.oneof
        self.recursion_depth = types.recursion_depth
        is_map = types.is_map_entry(declared.type_name)
        self.kind = "group" if declared.is_delimited and not is_map else declared.kind
        self.is_recursive = (
            self.kind in ("message", "group") and not is_map and types.is_too_deep(declared.type_name, outer)
        )

    @cached_property
    def message(self) -> ProtoMessage | None:
        """The message that is its type. Raises: InvalidProtoError if the schema does not define it."""
        if self.kind not in ("message", "group"):
            return None
        return self._types.message(self._declared.type_name, self._outer)

    @cached_property
    def enum(self) -> ProtoEnum | None:
        """The enum that is its type. Raises: InvalidProtoError if the schema does not define it."""
        return self._types.enum(self._declared.type_name) if self.kind == "enum" else None


class ProtoMessage:
    """A message, at one place of the columns.

    Attributes:
        outer: names of the messages that contain it, and its own.
        paths: the indexes that name it in its file, as of `_File.names`.
    """

    def __init__(
        self, declared: _Declared, types: _Types, outer: tuple[str, ...] = (), paths: tuple[Path, ...] = ()
    ) -> None:
        self._declared = declared
        self._types = types
        self.name = declared.name
        self.is_map_entry = declared.is_map_entry
        self.outer = (*outer, declared.name)
        self.paths = paths

    @cached_property
    def fields(self) -> tuple[ProtoField, ...]:
        """Its fields, in the order of their declaration."""
        return tuple(ProtoField(each, self._types, self.outer) for each in self._declared.fields)

    @property
    def time(self) -> str:
        """``Timestamp`` or ``Duration`` if the message is one of these for Spark, else empty.

        Spark compares the names only, and fails for values of other types.
        """
        short = self.name.rpartition(".")[2]
        declared = [(each.name, each.kind) for each in self._declared.fields if not each.is_repeated]
        is_time = (
            [name for name, _ in declared] == ["seconds", "nanos"]
            and len(self._declared.fields) == 2
            and declared[0][1] in _LONGS
            and declared[1][1] in _INTS
        )
        return short if short in ("Timestamp", "Duration") and is_time else ""


@lru_cache(maxsize=32)
def protobuf_message(given: ColumnFormat) -> ProtoMessage:
    """Returns the message of a column. Raises: ConfigurationError."""
    source = f"Option {given.column}.schema"
    if given.reader is not None:
        source = f"The schema of subject {given.reader.subject}"
    files = ProtoFiles(source, given.schema or "")
    return files.message(f"{given.column}.message.name", given.message, given.recursion_depth)


class ProtoFiles:
    """The messages of a FileDescriptorSet in base64; the last file is that of the schema, the others are its imports.

    Args:
        source: where the schema is, for messages.
    Raises: InvalidProtoError for text that is no descriptor set.
    """

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        try:
            self._data = [data for number, data in _parts(b64decode(text, validate=True)) if number == 1]
            self._files = [_File(data) for data in self._data]
        except (ValueError, IndexError, KeyError, RecursionError) as error:
            raise InvalidProtoError(
                f"{source} is no descriptor set: {str(error)[:200]}. Give the path of the file that protoc "
                "--include_imports --descriptor_set_out=FILE writes."
            ) from None
        self._messages = {each.name: each for file in self._files for each in file.messages}
        self._enums = {each.name: each for file in self._files for each in file.enums}
        self.names: Mapping[Path, str] = self._files[-1].names() if self._files else {}

    def registered_text(self) -> str:
        """Returns the file of the schema as a registry accepts it in place of a text: its descriptor in base64."""
        return b64encode(self._data[-1]).decode() if self._data else ""

    def message(self, option: str, name: str | None, recursion_depth: int = -1) -> ProtoMessage:
        """Returns a message; its package may be left out, and None is the first one of the schema.

        Args:
            option: the option that names it, for messages.
            recursion_depth: how often a message may be within itself, itself included; deeper ones are left out.
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
        declared = self._messages[name if name in found else found[0]]
        names = next(file.names() for file in self._files if any(each.name == declared.name for each in file.messages))
        types = _Types(self._source, self._messages, self._enums, recursion_depth)
        return ProtoMessage(declared, types, paths=paths_of(declared.name, names))


def paths_of(message: str, names: Mapping[Path, str]) -> tuple[Path, ...]:
    """Returns the indexes of a message in a file."""
    return tuple(path for path, name in names.items() if name == message)


class _Types:
    """The declared types of some files, by their full names."""

    def __init__(
        self, source: str, messages: Mapping[str, _Declared], enums: Mapping[str, ProtoEnum], recursion_depth: int
    ) -> None:
        self._source = source
        self._messages = messages
        self._enums = enums
        self.recursion_depth = recursion_depth

    def is_map_entry(self, name: str) -> bool:
        return name in self._messages and self._messages[name].is_map_entry

    def is_too_deep(self, name: str, outer: tuple[str, ...]) -> bool:
        return outer.count(name) >= max(self.recursion_depth, 1)

    def message(self, name: str, outer: tuple[str, ...]) -> ProtoMessage:
        if name not in self._messages:
            raise self._undefined(name)
        return ProtoMessage(self._messages[name], self, outer)

    def enum(self, name: str) -> ProtoEnum:
        if name not in self._enums:
            raise self._undefined(name)
        return self._enums[name]

    def _undefined(self, name: str) -> InvalidProtoError:
        return InvalidProtoError(
            f"{self._source} is no supported descriptor set: type {name} is not defined. Write it with protoc "
            "--include_imports."
        )


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns the length-delimited fields of a message."""
    return ((number, bytes(value)) for number, _, value in read_fields(data) if not isinstance(value, int))


class _DeclaredField(NamedTuple):
    """A field as it is declared, with the name of its type."""

    name: str
    number: int
    kind: str
    type_name: str
    is_repeated: bool
    is_required: bool
    has_presence: bool
    is_delimited: bool
    default: Scalar | None
    oneof: int | None


class _Declared:
    """A message as it is declared.

    Raises: ValueError, IndexError, KeyError for one that no protoc writes.
    """

    def __init__(self, data: bytes, scope: str, path: Path, text_path: Path, file: _File, inherited: Features) -> None:
        parts = list(_parts(data))
        options = _joined(parts, 7)
        features = inherited.overridden(options, MESSAGE_OPTIONS)
        self.name = f"{scope}{_text(parts, 1)}"
        self.path, self.text_path = path, text_path
        self.is_map_entry = bool(_numbers(options).get(_MAP_ENTRY))
        oneofs = [list(_parts(value)) for number, value in parts if number == 8]
        of_oneofs = [features.overridden(_joined(each, 2), ONEOF_OPTIONS) for each in oneofs]
        self.fields = [
            _declared_field(value, features, of_oneofs, self.is_map_entry) for number, value in parts if number == 2
        ]
        self._check()
        declared = 0
        for at, value in enumerate(value for number, value in parts if number == 3):
            entry = file.add_message(value, f"{self.name}.", (*path, at), (*text_path, declared), features)
            declared += not entry.is_map_entry
        for number, value in parts:
            if number == 4:
                file.add_enum(value, f"{self.name}.", features)

    def _check(self) -> None:
        for each in (len({each.name for each in self.fields}), len({each.number for each in self.fields})):
            if each != len(self.fields):
                raise ValueError(f"message {self.name} declares a field twice")
        if self.is_map_entry:
            found = [(each.name, each.number, each.is_repeated) for each in self.fields]
            is_entry = found == [("key", 1, False), ("value", 2, False)]
            if not is_entry or self.fields[0].kind not in _MAP_KEYS or self.fields[1].kind == "group":
                raise ValueError(f"message {self.name} is no entry of a map")


def _declared_field(data: bytes, inherited: Features, oneofs: Sequence[Features], is_in_map: bool) -> _DeclaredField:
    parts, numbers = list(_parts(data)), _numbers(data)
    name, number, kind = _text(parts, 1), numbers[3], TYPES[numbers[5] - 1]
    label, declared_oneof = numbers.get(4), numbers.get(9)
    if not name or not 1 <= number <= MAX_TAG >> 3 or not numbers[5]:
        raise ValueError(f"field {name!r} has number {number} and type {numbers[5]}")
    features = inherited if declared_oneof is None else oneofs[declared_oneof]
    features = features.overridden(_joined(parts, 8), FIELD_OPTIONS)
    # the oneof of a field with the label optional in proto3 has no other field
    is_optional = bool(numbers.get(17))
    is_repeated = label == _REPEATED
    is_single = not is_repeated and not is_in_map and declared_oneof is None
    default = [value for each, value in parts if each == 7]
    return _DeclaredField(
        name,
        number,
        kind,
        _text(parts, 6).removeprefix("."),
        is_repeated,
        label == _REQUIRED or is_single and features.is_required,
        not is_single or not features.is_implicit or kind in ("message", "group"),
        kind == "message" and features.is_delimited and not is_in_map,
        _scalar(kind, default[-1].decode()) if default and kind not in ("message", "group") else None,
        None if is_optional else declared_oneof,
    )


def _scalar(kind: str, text: str) -> Scalar:
    """Parses the default of a field. Raises: ValueError."""
    if kind in ("string", "enum"):
        return text
    if kind == "bytes":
        # in C escapes
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")
    if kind == "bool":
        return int(text == "true")
    if kind in ("float", "double"):
        number = float(text)
        if kind == "double":
            return number
        try:
            return float(struct.unpack("<f", struct.pack("<f", number))[0])
        except OverflowError:
            return float("inf") if number > 0 else float("-inf")
    whole, bits = int(text), 64 if kind in _LONGS else 32
    if not -(1 << (bits - 1)) <= whole < 1 << bits:
        raise ValueError(f"default {whole} exceeds {kind}")
    return whole - (1 << bits) if whole >> (bits - 1) > 0 else whole


class _File:
    """A FileDescriptorProto."""

    def __init__(self, data: bytes) -> None:
        self.messages: list[_Declared] = []
        self.enums: list[ProtoEnum] = []
        parts = list(_parts(data))
        package = _text(parts, 2)
        scope = f"{package}." if package else ""
        features = default_features(_text(parts, 12), _numbers(data).get(14, 0))
        features = features.overridden(_joined(parts, 8), FILE_OPTIONS)
        for at, value in enumerate(value for number, value in parts if number == 4):
            self.add_message(value, scope, (at,), (at,), features)
        for number, value in parts:
            if number == 5:
                self.add_enum(value, scope, features)

    def names(self) -> dict[Path, str]:
        """Returns the name of the message of each path.

        Serializers count the entries of maps, which protoc declares; those that parse the text do not.
        """
        messages = [each for each in self.messages if not each.is_map_entry]
        return {each.text_path: each.name for each in messages} | {each.path: each.name for each in messages}

    def add_message(self, data: bytes, scope: str, path: Path, text_path: Path, inherited: Features) -> _Declared:
        found = _Declared(data, scope, path, text_path, self, inherited)
        self.messages.append(found)
        return found

    def add_enum(self, data: bytes, scope: str, inherited: Features) -> None:
        parts = list(_parts(data))
        names: dict[int, str] = {}
        for value in (value for number, value in parts if number == 2):
            number = _int32(_numbers(value).get(2, 0))
            # an alias has the number of an earlier value
            names.setdefault(number, _text(list(_parts(value)), 1))
        features = inherited.overridden(_joined(parts, 3), ENUM_OPTIONS)
        self.enums.append(ProtoEnum(f"{scope}{_text(parts, 1)}", names, features.is_closed))


def _int32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def _text(parts: Sequence[tuple[int, bytes]], number: int) -> str:
    return next((value.decode() for each, value in reversed(parts) if each == number), "")


def _joined(parts: Sequence[tuple[int, bytes]], number: int) -> bytes:
    """Returns a message that may be set several times, which merges it."""
    return b"".join(value for each, value in parts if each == number)


def _numbers(data: bytes) -> dict[int, int]:
    return {number: value for number, wire, value in read_fields(data) if wire == VARINT and isinstance(value, int)}
