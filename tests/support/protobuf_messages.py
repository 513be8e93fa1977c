"""Random Protobuf messages, and what Spark's from_protobuf shows of them."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor as Field

_BITS = {
    Field.TYPE_INT32: (32, True), Field.TYPE_SINT32: (32, True), Field.TYPE_SFIXED32: (32, True),
    Field.TYPE_INT64: (64, True), Field.TYPE_SINT64: (64, True), Field.TYPE_SFIXED64: (64, True),
    Field.TYPE_UINT32: (32, False), Field.TYPE_FIXED32: (32, False),
    Field.TYPE_UINT64: (64, False), Field.TYPE_FIXED64: (64, False),
}  # fmt: skip
_OTHERS = [
    Field.TYPE_DOUBLE, Field.TYPE_FLOAT, Field.TYPE_BOOL, Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_ENUM,
    Field.TYPE_MESSAGE,
]  # fmt: skip
_KEYS = [Field.TYPE_INT32, Field.TYPE_SINT64, Field.TYPE_BOOL, Field.TYPE_STRING, Field.TYPE_FIXED32]
_KNOWN_FILES = [module.DESCRIPTOR for module in (timestamp_pb2, duration_pb2, wrappers_pb2, any_pb2, struct_pb2)]
_KNOWN = [
    "Timestamp", "Duration", "Int64Value", "UInt64Value", "UInt32Value", "StringValue", "BytesValue", "BoolValue",
    "DoubleValue", "FloatValue", "Any", "Struct", "ListValue",
]  # fmt: skip
_MICROS = 1_000_000
_FEATURES = descriptor_pb2.FeatureSet
EDITIONS = {"2023": descriptor_pb2.EDITION_2023, "2024": descriptor_pb2.EDITION_2024}
SYNTAXES = ("proto2", "proto3", *EDITIONS)


class Schemas:
    """Random files with one root message, named pkg.M0.

    Args:
        syntax: one of `SYNTAXES`.
        is_wide: whether messages also have groups, required fields, types of google.protobuf and themselves; a file of
            an edition always has random features.
    """

    def __init__(self, seed: int, syntax: str = "proto3", is_wide: bool = False) -> None:
        self.rng = random.Random(seed)
        self._syntax = syntax
        self._is_wide = is_wide
        self.file = descriptor_pb2.FileDescriptorProto(name=f"f{seed}{syntax}{is_wide}.proto", package="pkg")
        self._is_implicit = syntax == "proto3"
        if syntax in EDITIONS:
            self.file.syntax, self.file.edition = "editions", EDITIONS[syntax]
            self._choose_features()
        else:
            self.file.syntax = syntax
        if is_wide:
            self.file.dependency.extend(each.name for each in _KNOWN_FILES)
        for enum in (self.file.enum_type.add(name="Color"), self.file.enum_type.add(name="Closed")):
            for number, name in enumerate(("RED", "GREEN", "BLUE")):
                enum.value.add(name=f"{enum.name}_{name}", number=number * 7)
        if syntax in EDITIONS:
            self.file.enum_type[0].options.features.enum_type = _FEATURES.OPEN
            self.file.enum_type[1].options.features.enum_type = _FEATURES.CLOSED
        self._messages = 0
        self._outer: list[str] = []
        self._message(3)
        pool = descriptor_pool.DescriptorPool()
        for each in _KNOWN_FILES if is_wide else ():
            pool.AddSerializedFile(each.serialized_pb)
        pool.Add(self.file)
        self.type = message_factory.GetMessageClass(pool.FindMessageTypeByName("pkg.M0"))

    @property
    def descriptor_set(self) -> bytes:
        found = descriptor_pb2.FileDescriptorSet()
        for each in _KNOWN_FILES if self._is_wide else ():
            each.CopyToProto(found.file.add())
        found.file.add().CopyFrom(self.file)
        return found.SerializeToString()

    def _choose_features(self) -> None:
        features = self.file.options.features
        if self.rng.random() < 0.5:
            self._is_implicit = self.rng.random() < 0.5
            features.field_presence = _FEATURES.IMPLICIT if self._is_implicit else _FEATURES.EXPLICIT
        if self.rng.random() < 0.5:
            features.message_encoding = self.rng.choice([_FEATURES.DELIMITED, _FEATURES.LENGTH_PREFIXED])
        if self.rng.random() < 0.5:
            features.repeated_field_encoding = self.rng.choice([_FEATURES.EXPANDED, _FEATURES.PACKED])

    def _message(self, depth: int) -> str:
        message = self.file.message_type.add(name=f"M{self._messages}")
        self._messages += 1
        self._outer.append(message.name)
        numbers = self.rng.sample([*range(1, 20), 100, 3000], self.rng.randrange(1, 7))
        for number in numbers:
            self._field(message, number, depth)
        if self.rng.random() < 0.5:
            message.oneof_decl.add(name="choice")
            for number in (200, 201, 202):
                field = self._field(message, number, depth - 1, is_single=True)
                field.oneof_index = 0
        for field in message.field:
            self._change(message, field)
        self._outer.pop()
        return f".pkg.{message.name}"

    def _change(self, message: Any, field: Any) -> None:
        """Adds labels and features to a field."""
        is_plain = field.label == 1 and not field.HasField("oneof_index") and field.type != Field.TYPE_MESSAGE
        if self._syntax == "proto3" and is_plain and self.rng.random() < 0.3:
            # a synthetic oneof follows the others
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
        if not self._is_wide and self._syntax not in EDITIONS:
            return
        if self._syntax == "proto2" and field.label == 1 and not field.HasField("oneof_index"):
            if self.rng.random() < 0.1 and not self._is_within(field):
                field.label = Field.LABEL_REQUIRED
        if self._syntax != "proto3" and is_plain and self.rng.random() < 0.3:
            self._add_default(field)
        if self._syntax == "proto2" and field.type == Field.TYPE_MESSAGE and self.rng.random() < 0.3:
            if field.type_name.startswith(".pkg.M") and "Entry" not in field.type_name:
                field.type = Field.TYPE_GROUP
        if self._syntax in EDITIONS:
            self._add_features(field, is_plain)

    def _add_default(self, field: Any) -> None:
        if field.type in _BITS:
            bits, is_signed = _BITS[field.type]
            field.default_value = str(
                self.rng.choice([7, 1, (1 << bits - is_signed) - 1, -(1 << bits - 1) * is_signed])
            )
        else:
            texts = {
                Field.TYPE_DOUBLE: ["-inf", "nan", "1e300", "-0.5"],
                Field.TYPE_FLOAT: ["inf", "nan", "0.1", "-2"],
                Field.TYPE_BOOL: ["true", "false"],
                Field.TYPE_STRING: ["a", "\u00e9\n\"'\\\\", ""],
                Field.TYPE_BYTES: ["\\000\\377", "\\n\\r\\t\\\"\\'\\\\", "abc", ""],
                Field.TYPE_ENUM: [f"{field.type_name.removeprefix('.pkg.')}_GREEN"],
            }
            field.default_value = self.rng.choice(texts[field.type])

    def _is_within(self, field: Any) -> bool:
        return field.type_name.removeprefix(".pkg.") in self._outer

    def _add_features(self, field: Any, is_plain: bool) -> None:
        is_map = "Entry" in field.type_name
        if field.type == Field.TYPE_MESSAGE and not is_map and self.rng.random() < 0.4:
            field.options.features.message_encoding = self.rng.choice([_FEATURES.DELIMITED, _FEATURES.LENGTH_PREFIXED])
        is_closed = field.type == Field.TYPE_ENUM and field.type_name.endswith("Closed")
        has_presence = is_closed or field.HasField("default_value")
        if is_plain and (has_presence or self.rng.random() < 0.4):
            chosen = [_FEATURES.EXPLICIT, *([_FEATURES.LEGACY_REQUIRED] if self._is_wide else [])]
            chosen += [] if has_presence else [_FEATURES.IMPLICIT]
            field.options.features.field_presence = self.rng.choice(chosen)
        if field.label == 3 and (field.type in _BITS or field.type == Field.TYPE_BOOL) and self.rng.random() < 0.4:
            field.options.features.repeated_field_encoding = self.rng.choice([_FEATURES.EXPANDED, _FEATURES.PACKED])

    def _field(self, message: Any, number: int, depth: int, is_single: bool = False) -> Any:
        kind = self.rng.choice([*_BITS, *_OTHERS] if depth > 0 else [*_BITS, *_OTHERS[:-1]])
        label = self.rng.choice([1, 1, 3]) if not is_single else 1
        field = message.field.add(name=f"f{number}", number=number, type=kind, label=label)
        if kind == Field.TYPE_ENUM:
            field.type_name = self._enum()
        if kind == Field.TYPE_MESSAGE:
            if label == 3 and self.rng.random() < 0.5:
                self._map_entry(message, field, number, depth)
            else:
                field.type_name = self._message_type(depth - 1)
        return field

    def _enum(self) -> str:
        # proto3 has no closed enums, and a field without presence none in an edition
        return ".pkg.Closed" if self._syntax in EDITIONS and self.rng.random() < 0.4 else ".pkg.Color"

    def _message_type(self, depth: int) -> str:
        if self._is_wide and self.rng.random() < 0.3:
            return f".google.protobuf.{self.rng.choice(_KNOWN)}"
        if self._is_wide and self.rng.random() < 0.2:
            return f".pkg.{self.rng.choice(self._outer)}"
        return self._message(depth)

    def _map_entry(self, message: Any, field: Any, number: int, depth: int) -> None:
        entry = message.nested_type.add(name=f"F{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=self.rng.choice(_KEYS), label=1)
        kind = self.rng.choice([*_BITS, *_OTHERS[:-1], Field.TYPE_MESSAGE])
        value = entry.field.add(name="value", number=2, type=kind, label=1)
        if kind == Field.TYPE_ENUM:
            value.type_name = ".pkg.Color"
        if kind == Field.TYPE_MESSAGE:
            value.type_name = self._message_type(depth - 1)
        field.type_name = f".pkg.{message.name}.{entry.name}"

    def value(self) -> Any:
        """Returns a random message."""
        message = self.type()
        self._fill(message, 0)
        return message

    def _fill(self, message: Any, depth: int) -> None:
        if message.DESCRIPTOR.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            message.seconds, message.nanos = self._seconds_and_nanos()
            return
        for field in message.DESCRIPTOR.fields:
            if not field.is_required and self.rng.random() < (0.3 if depth < 5 else 0.9):
                continue
            if is_map(field):
                key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
                for _ in range(self.rng.randrange(3)):
                    entries = getattr(message, field.name)
                    if value.message_type is not None:
                        self._fill(entries[self._scalar(key)], depth + 1)
                    else:
                        entries[self._scalar(key)] = self._scalar(value)
            elif field.is_repeated:
                for _ in range(self.rng.choice([0, 1, 2, 5] if depth < 3 else [0, 1])):
                    values = getattr(message, field.name)
                    if field.message_type is not None:
                        self._fill(values.add(), depth + 1)
                    else:
                        values.append(self._scalar(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self._fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self._scalar(field))

    def _seconds_and_nanos(self) -> tuple[int, int]:
        rng, last = self.rng, ((1 << 63) - 1) // _MICROS
        seconds = rng.choice([0, 1, -1, 253402300799, -62135596800, rng.randrange(-last, last)])
        if rng.random() < 0.1:
            seconds = rng.choice([last - 1, last, last + 1, -last, -last - 1, (1 << 63) - 1, -(1 << 63)])
        nanos = rng.choice([0, 1, 999, 1000, -1, 999_999_999, -999_999_999, 775_807_999, 775_808_000])
        return seconds, rng.choice([nanos, (1 << 31) - 1, -(1 << 31)]) if rng.random() < 0.2 else nanos

    def _scalar(self, field: Any) -> Any:
        rng = self.rng
        if field.type in _BITS:
            bits, is_signed = _BITS[field.type]
            number = rng.choice([0, 1, 127, 128, rng.randrange(1 << bits), (1 << bits) - 1, 1 << (bits - 1)])
            return number - (1 << bits) if is_signed and number >> (bits - 1) else number
        return {
            Field.TYPE_DOUBLE: lambda: rng.choice([0.0, -0.0, rng.random(), float("inf"), 5e-324]),
            Field.TYPE_FLOAT: lambda: rng.choice([0.0, -0.0, 0.5, -3.25]),
            Field.TYPE_BOOL: lambda: rng.random() < 0.5,
            Field.TYPE_STRING: lambda: "".join(rng.choice("ab\0\u00e9\U0001d11e") for _ in range(rng.randrange(4))),
            Field.TYPE_BYTES: lambda: rng.randbytes(rng.randrange(4)),
            Field.TYPE_ENUM: lambda: rng.choice([0, 7, 14, *([] if field.enum_type.is_closed else [8, -1])]),
        }[field.type]()


class UnrepresentableTimeError(ValueError):
    """Microseconds of a time exceed 64 bits."""


def is_map(field: Any) -> bool:
    """Returns whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def shown(message: Any, depth: int = 1, outer: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns a message as from_protobuf shows it, with times in microseconds.

    Args:
        depth: option recursive.fields.max.depth.
        outer: names of the messages that contain it.
    Raises: UnrepresentableTimeError.
    """
    outer = (*outer, message.DESCRIPTOR.full_name)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if not has_column(field, depth, outer):
            continue
        value = getattr(message, field.name)
        if is_map(field):
            key, item = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            entries = [(_shown(key, each, depth, outer), _shown(item, value[each], depth, outer)) for each in value]
            found[field.name] = sorted(entries, key=repr)
        elif field.is_repeated:
            found[field.name] = [_shown(field, each, depth, outer) for each in value]
        else:
            is_default = repr(value) == repr(field.default_value)
            is_set = message.HasField(field.name) if field.has_presence else not is_default
            found[field.name] = _shown(field, value, depth, outer) if is_set or field.has_default_value else None
    return found


def has_column(field: Any, depth: int, outer: tuple[str, ...]) -> bool:
    """Returns whether a field is a column: not too deep in its own message, and not without fields."""
    if field.message_type is None or _is_time(field):
        return True
    if is_map(field):
        return has_column(field.message_type.fields_by_name["value"], depth, outer)
    name = field.message_type.full_name
    inner = (*outer, name)
    return outer.count(name) < depth and any(has_column(each, depth, inner) for each in field.message_type.fields)


def _is_time(field: Any) -> bool:
    return field.message_type.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration")


def _shown(field: Any, value: Any, depth: int, outer: tuple[str, ...]) -> Any:
    if field.message_type is not None and _is_time(field):
        micros = value.seconds * _MICROS + (abs(value.nanos) // 1000) * (1 if value.nanos > 0 else -1)
        if abs(value.seconds * _MICROS) >> 63 or micros >> 63 not in (0, -1):
            raise UnrepresentableTimeError
        return micros
    if field.message_type is not None:
        return shown(value, depth, outer)
    if field.enum_type is not None:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name else f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{value}"
    if field.type in _BITS:
        bits = _BITS[field.type][0]
        return value - (1 << bits) if value >> (bits - 1) > 0 else value
    return value
