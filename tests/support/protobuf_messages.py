"""Random Protobuf messages, and what Spark's from_protobuf shows of them."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
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


class Schemas:
    """Random files with one root message, named pkg.M0."""

    def __init__(self, seed: int, syntax: str = "proto3") -> None:
        self.rng = random.Random(seed)
        self.file = descriptor_pb2.FileDescriptorProto(name=f"f{seed}{syntax}.proto", package="pkg", syntax=syntax)
        enum = self.file.enum_type.add(name="Color")
        for number, name in enumerate(("RED", "GREEN", "BLUE")):
            enum.value.add(name=name, number=number * 7)
        self._messages = 0
        self._message(3)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(self.file)
        self.type = message_factory.GetMessageClass(pool.FindMessageTypeByName("pkg.M0"))

    @property
    def descriptor_set(self) -> bytes:
        return descriptor_pb2.FileDescriptorSet(file=[self.file]).SerializeToString()

    def _message(self, depth: int) -> str:
        message = self.file.message_type.add(name=f"M{self._messages}")
        self._messages += 1
        numbers = self.rng.sample([*range(1, 20), 100, 3000], self.rng.randrange(1, 7))
        for number in numbers:
            self._field(message, number, depth)
        if self.rng.random() < 0.5:
            message.oneof_decl.add(name="choice")
            for number in (200, 201, 202):
                field = self._field(message, number, depth - 1, is_single=True)
                field.oneof_index = 0
        for field in message.field:
            # a synthetic oneof follows the others
            is_plain = field.label == 1 and not field.HasField("oneof_index") and field.type != Field.TYPE_MESSAGE
            if is_plain and self.file.syntax == "proto3" and self.rng.random() < 0.3:
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
        return f".pkg.{message.name}"

    def _field(self, message: Any, number: int, depth: int, is_single: bool = False) -> Any:
        kind = self.rng.choice([*_BITS, *_OTHERS] if depth > 0 else [*_BITS, *_OTHERS[:-1]])
        label = self.rng.choice([1, 1, 3]) if not is_single else 1
        field = message.field.add(name=f"f{number}", number=number, type=kind, label=label)
        if kind == Field.TYPE_ENUM:
            field.type_name = ".pkg.Color"
        if kind == Field.TYPE_MESSAGE:
            if label == 3 and self.rng.random() < 0.5:
                self._map_entry(message, field, number, depth)
            else:
                field.type_name = self._message(depth - 1)
        return field

    def _map_entry(self, message: Any, field: Any, number: int, depth: int) -> None:
        entry = message.nested_type.add(name=f"F{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=self.rng.choice(_KEYS), label=1)
        kind = self.rng.choice([*_BITS, *_OTHERS[:-1], Field.TYPE_MESSAGE])
        value = entry.field.add(name="value", number=2, type=kind, label=1)
        if kind == Field.TYPE_ENUM:
            value.type_name = ".pkg.Color"
        if kind == Field.TYPE_MESSAGE:
            value.type_name = self._message(depth - 1)
        field.type_name = f".pkg.{message.name}.{entry.name}"

    def value(self) -> Any:
        """Returns a random message."""
        message = self.type()
        self._fill(message)
        return message

    def _fill(self, message: Any) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() < 0.3:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
                for _ in range(self.rng.randrange(3)):
                    entries = getattr(message, field.name)
                    if value.message_type is not None:
                        self._fill(entries[self._scalar(key)])
                    else:
                        entries[self._scalar(key)] = self._scalar(value)
            elif field.is_repeated:
                for _ in range(self.rng.choice([0, 1, 2, 5])):
                    values = getattr(message, field.name)
                    if field.message_type is not None:
                        self._fill(values.add())
                    else:
                        values.append(self._scalar(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self._fill(getattr(message, field.name))
            else:
                setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: Any) -> Any:
        rng = self.rng
        if field.type in _BITS:
            bits, is_signed = _BITS[field.type]
            number = rng.choice([0, 1, 127, 128, rng.randrange(1 << bits), (1 << bits) - 1])
            return number - (1 << bits) if is_signed and number >> (bits - 1) else number
        return {
            Field.TYPE_DOUBLE: lambda: rng.choice([0.0, rng.random(), float("inf")]),
            Field.TYPE_FLOAT: lambda: rng.choice([0.0, 0.5, -3.25]),
            Field.TYPE_BOOL: lambda: rng.random() < 0.5,
            Field.TYPE_STRING: lambda: "".join(rng.choice("ab\u00e9\U0001d11e") for _ in range(rng.randrange(4))),
            Field.TYPE_BYTES: lambda: rng.randbytes(rng.randrange(4)),
            Field.TYPE_ENUM: lambda: rng.choice([0, 7, 14]),
        }[field.type]()


def shown(message: Any) -> dict[str, Any]:
    """Returns a message as from_protobuf shows it, without its empty messages."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            key, item = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            found[field.name] = sorted((_shown(key, each), _shown(item, value[each])) for each in value)
        elif field.is_repeated:
            found[field.name] = [_shown(field, each) for each in value]
        elif field.has_presence or value == field.default_value:
            is_set = message.HasField(field.name) if field.has_presence else False
            found[field.name] = _shown(field, value) if is_set or field.has_default_value else None
        else:
            found[field.name] = _shown(field, value)
    return found


def _shown(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return shown(value)
    if field.enum_type is not None:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name else f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{value}"
    if field.type in _BITS:
        bits = _BITS[field.type][0]
        return value - (1 << bits) if value >> (bits - 1) > 0 else value
    return value
