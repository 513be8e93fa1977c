"""Every way to decode Protobuf values, beside google.protobuf."""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import contextmanager
from typing import Any, Iterator, Sequence

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from support.protobuf_messages import SYNTAXES, Schemas, UnrepresentableTimeError, has_column, is_map, shown

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import byte_strings
from spark_groupsource.values.decoded import Decoded, Malformed
from spark_groupsource.values.lanes.avro_lanes import DEPTH, ENUM, REASONS, TAG, TEXT, TIME, VARINT, WIRE_TYPE
from spark_groupsource.values.plain_values import plain_values
from spark_groupsource.values.protobuf import protobuf_fields
from spark_groupsource.values.protobuf.plain_protobuf import WrittenProtobuf
from spark_groupsource.values.protobuf.protobuf_blocks import ProtobufDecoder
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.protobuf.protobuf_types import message_type
from spark_groupsource.values.registry.schema_headers import read_confluent

# what google.protobuf accepts: a value of another type as an unknown field, text of proto2, times as integers, and tags
# and numbers of more than 32 and 64 bits
_STRICTER = {REASONS[each] for each in (WIRE_TYPE, ENUM, TEXT, TIME, TAG, VARINT, DEPTH)}
_LONG_TAG = re.compile(rb"[\x80-\xff]{5}")


def rows(values: pa.Array) -> list[Any]:
    """Returns Python objects with times in microseconds, and maps as entries in the order of their keys.

    Of entries with the same key the last one is returned.
    """
    return [_row(each) for each in values]


def _row(found: pa.Scalar) -> Any:
    if not found.is_valid:
        return None
    if pa.types.is_struct(found.type):
        return {name: _row(each) for name, each in found.items()}
    if pa.types.is_map(found.type):
        entries = {_row(entry["key"]): _row(entry["value"]) for entry in found.values}
        return sorted(entries.items(), key=repr)
    if pa.types.is_list(found.type):
        return [_row(each) for each in found.values]
    return found.value if pa.types.is_temporal(found.type) else found.as_py()


@contextmanager
def _few_lanes(count: int) -> Iterator[None]:
    """Reads blocks of at most `count` values one after the other."""
    before = protobuf_fields._FEW_LANES  # private: which of both ways is chosen
    protobuf_fields._FEW_LANES = count
    try:
        yield
    finally:
        protobuf_fields._FEW_LANES = before


class Paths:
    """Decodes values of the root message of a file."""

    def __init__(self, schemas: Schemas, depth: int) -> None:
        self._schemas = schemas
        self._depth = depth
        self._files = ProtoFiles("The schema", b64encode(schemas.descriptor_set).decode())
        self._message = self._files.message("message", "pkg.M0", depth)
        self.type = message_type(self._message)
        self._decoder = ProtobufDecoder(self._message, self.type)

    def decode(self, data: Sequence[bytes]) -> Decoded:
        """Decodes values in every way, and compares the results."""
        found = {}
        for name, count in (("field by field", 0), ("value by value", 1 << 20)):
            with _few_lanes(count):
                found[name] = self._decoder.decode(byte_strings(list(data)))
        found["chosen"] = first = self._decoder.decode(byte_strings(list(data)))
        with_neighbors = [each for value in data for each in (b"\xff\xff", value, b"", value[:-1])]
        near = self._decoder.decode(byte_strings(with_neighbors))
        listed = {at // 4: reason for at, reason in near.malformed.items() if at % 4 == 1}
        found["with neighbors"] = Decoded(near.values.take(pa.array(range(1, 4 * len(data), 4))), listed)
        found["with ids"] = self._with_ids(data)
        for name, each in found.items():
            each.values.validate(full=True)
            assert dict(each.malformed) == dict(first.malformed), (name, each.malformed, first.malformed)
            assert repr(rows(each.values)) == repr(rows(first.values)), name
        self._check_single(data, first)
        self._check_selected(data, first)
        self._check_plain(data)
        return first

    def _with_ids(self, data: Sequence[bytes]) -> Decoded:
        named = read_confluent(byte_strings([b"\0\0\0\0\x05\0" + each for each in data]), None, "")
        return self._decoder.decode_named(named)

    def _check_single(self, data: Sequence[bytes], expected: Decoded) -> None:
        for row, value in enumerate(data):
            found = self._decoder.decode(byte_strings([value]))
            assert found.malformed.get(0) == expected.malformed.get(row), value
            assert repr(rows(found.values)[0]) == repr(_row(expected.values[row])), value

    def _check_selected(self, data: Sequence[bytes], expected: Decoded) -> None:
        for field in self.type:
            found = ProtobufDecoder(self._message, pa.struct([field])).decode(byte_strings(list(data)))
            assert set(found.malformed) <= set(expected.malformed), field.name
            for row in range(len(data)):
                if row not in expected.malformed:
                    assert repr(_row(found.values[row])) == repr({field.name: _row(expected.values[row][field.name])})

    def _check_plain(self, data: Sequence[bytes]) -> None:
        """Values for people are those of the columns."""
        message = self._files.message("message", "pkg.M0", 8)
        expected = _converted(ProtobufDecoder(message, message_type(message)).decode(byte_strings(list(data))))
        found = WrittenProtobuf(self._files, _converted).decode([b"\0" + each for each in data], [None] * len(data))
        assert repr(found) == repr(expected)


def _converted(decoded: Decoded) -> list[Any]:
    values = plain_values(decoded.values)
    malformed = {row: Malformed(reason) for row, reason in decoded.malformed.items()}
    return [malformed.get(row, each) for row, each in enumerate(values)]


def check(seed: int, count: int, is_wide: bool = True) -> int:
    """Compares random values of a random file with google.protobuf; returns how many were decoded.

    Raises: AssertionError.
    """
    syntax = SYNTAXES[seed % len(SYNTAXES)]
    schemas = Schemas(seed, syntax, is_wide)
    rng = schemas.rng
    depth = rng.choice([-1, 1, 2, 3])
    paths = Paths(schemas, depth)
    whole = [schemas.value().SerializeToString() for _ in range(count)]
    whole += [rng.choice(whole) + rng.choice(whole) for _ in range(count // 3)]
    damaged = [damaged_value(rng, whole) for _ in range(count)]
    data = [*whole, *damaged]
    found = paths.decode(data)
    is_complete = _is_complete(schemas.type.DESCRIPTOR, max(depth, 1))
    for row, value in enumerate(data):
        try:
            message = schemas.type.FromString(value)
            if not message.IsInitialized():
                raise DecodeError
            expected = shown(message, max(depth, 1))
        except DecodeError:
            # fields that are left out are not read, and a tag of more than five bytes is one for Java
            is_decoded = not is_complete or row >= len(whole) and _LONG_TAG.search(value)
            assert row in found.malformed or is_decoded, (seed, row, value)
            continue
        except UnrepresentableTimeError:
            assert found.malformed.get(row) == REASONS[TIME] or row >= len(whole), (seed, row, value)
            continue
        if row in found.malformed:
            assert row >= len(whole) and found.malformed[row] in _STRICTER, (seed, row, value, found.malformed[row])
        elif row < len(whole) or not _has_unknown_entries(message):
            assert repr(_row(found.values[row])) == repr(expected), (seed, row, value)
    return len(data) - len(found.malformed)


def _has_unknown_entries(message: Any) -> bool:
    """Returns whether google.protobuf ignores entries of maps: those with unknown fields, which Java keeps."""
    maps = {field.number for field in message.DESCRIPTOR.fields if is_map(field)}
    inner: list[Any] = []
    for field, value in message.ListFields():
        if is_map(field):
            inner += value.values() if field.message_type.fields_by_name["value"].message_type is not None else ()
        elif field.message_type is not None:
            inner += value if field.is_repeated else [value]
    return any(each.field_number in maps for each in UnknownFieldSet(message)) or any(map(_has_unknown_entries, inner))


def _is_complete(descriptor: Any, depth: int, outer: tuple[str, ...] = ()) -> bool:
    """Returns whether every field of a message is a column."""
    outer = (*outer, descriptor.full_name)
    if not all(has_column(field, depth, outer) for field in descriptor.fields):
        return False
    inner = [field.message_type for field in descriptor.fields if field.message_type is not None]
    return all(_is_complete(each, depth, outer) for each in inner)


def damaged_value(rng: Any, values: Sequence[bytes]) -> bytes:
    """Returns a value that is cut, changed, joined of parts of two, or of random bytes."""
    value, other = rng.choice(values), rng.choice(values)
    at, size = rng.randrange(len(value) + 1), rng.randrange(1, 5)
    changed = bytearray(value)
    for _ in range(size):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return rng.choice(
        [
            value[:at],
            bytes(changed),
            value[:at] + other[rng.randrange(len(other) + 1) :],
            value[:at] + rng.randbytes(size) + value[at:],
            value[:at] + value[at + size :],
            value + rng.choice([b"\0", b"\x80", b"\xff" * rng.randrange(1, 12), b"\xff" * 9 + b"\x7f"]),
            rng.randbytes(rng.randrange(20)),
        ]
    )  # fmt: skip


def check_schema(seed: int) -> bool:
    """Decodes values by a damaged schema; returns whether it was accepted.

    Raises: any error but ConfigurationError.
    """
    schemas = Schemas(seed, SYNTAXES[seed % len(SYNTAXES)], seed % 2 > 0)
    rng = schemas.rng
    data = [schemas.value().SerializeToString() for _ in range(4)]
    changed = damaged_value(rng, [schemas.descriptor_set]) if rng.random() < 0.3 else _changed_set(rng, schemas)
    text = b64encode(changed).decode()
    try:
        message = ProtoFiles("The schema", text).message("message", "pkg.M0", rng.choice([-1, 2]))
        kind = message_type(message)
    except ConfigurationError:
        return False
    for each in (kind, *(pa.struct([field]) for field in kind)):
        ProtobufDecoder(message, each).decode(byte_strings(data)).values.validate(full=True)
    return True


def _changed_set(rng: Any, schemas: Schemas) -> bytes:
    """Returns a descriptor set with changed declarations of fields and enums."""
    found = descriptor_pb2.FileDescriptorSet.FromString(schemas.descriptor_set)
    file = found.file[-1]
    messages = [*file.message_type, *(each for message in file.message_type for each in message.nested_type)]
    fields = [field for message in messages for field in message.field]
    names = [f".pkg.{each.name}" for each in (*file.message_type, *file.enum_type)] + ["", ".pkg.Missing"]
    for _ in range(rng.choice([1, 1, 2, 4])):
        field = rng.choice(fields)
        name, values = rng.choice(
            [
                ("type", range(1, 19)),
                ("label", (1, 2, 3)),
                ("number", (0, 1, 2, -1, 1 << 28, 1 << 30)),
                ("type_name", names),
                ("default_value", ("", "1", "-1", "x", "1e400", "nan", "99999999999999999999", "true", "\\777", "\\x")),
                ("name", ("", "key", "value", "f1", "seconds", "nanos")),
                ("oneof_index", (0, 1, 9, -1)),
                ("proto3_optional", (True, False)),
            ]
        )
        setattr(field, name, rng.choice(values))
    message = rng.choice(messages)
    if rng.random() < 0.1:
        message.name = rng.choice(["Timestamp", "Duration", "M1", ""])
    if rng.random() < 0.1:
        message.options.map_entry = not message.options.map_entry
    if rng.random() < 0.2:
        del file.enum_type[0].value[:]
    return found.SerializeToString()
