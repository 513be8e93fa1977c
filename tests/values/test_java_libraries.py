"""Decoders of Avro and Protobuf beside the Java libraries of Spark.

Both are in PySpark's archive: Avro, and Protobuf as a shaded part of ORC.
"""

from __future__ import annotations

import json
import random
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from py4j.protocol import Py4JJavaError
from support.avro_strategies import avro_cases
from support.decoded_values import decode_avro, decode_protobuf, encode_avro, ordered
from support.examples import scaled
from support.java_tools import java_gateway, plain_java_errors, spark_jars
from support.protobuf_messages import Field, Schemas

from spark_groupsource.values.avro.avro_resolution import UnresolvedError
from spark_groupsource.values.registry.protobuf_indexes import varint

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def jvm():
    with java_gateway(spark_jars()) as gateway:
        # the fast reader fails for the default of an array in a union
        gateway.jvm.org.apache.avro.generic.GenericData.get().setFastReaderEnabled(False)
        yield gateway.jvm


class Resolver:
    """Java's reader of a writer's values as those of a reader; it returns them written as the reader's."""

    def __init__(self, jvm: Any, writer: Any, reader: Any) -> None:
        parse = lambda schema: jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema))  # noqa: E731
        avro, target = jvm.org.apache.avro, parse(reader)
        self._jvm = jvm
        self._reader = avro.generic.GenericDatumReader(parse(writer), target)
        self._writer = avro.generic.GenericDatumWriter(target)

    def read(self, data: bytes) -> bytes | None:
        """Returns None for a value that Java rejects."""
        io, out = self._jvm.org.apache.avro.io, self._jvm.java.io.ByteArrayOutputStream()
        try:
            with plain_java_errors():
                found = self._reader.read(None, io.DecoderFactory.get().binaryDecoder(data, None))
        except Py4JJavaError:
            return None
        encoder = io.EncoderFactory.get().binaryEncoder(out, None)
        self._writer.write(found, encoder)
        encoder.flush()
        return bytes(out.toByteArray())


def in_namespace(schema: Any) -> Any:
    """Returns a reader's schema with the writer's namespace: Java compares names with their namespaces."""
    if isinstance(schema, list):
        return [in_namespace(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: in_namespace(each) if name in ("type", "items", "values") else each for name, each in schema.items()}
    if "fields" in schema:
        found["fields"] = [{**each, "type": in_namespace(each["type"])} for each in schema["fields"]]
    if "name" in schema:
        found["name"] = "w." + schema["name"].rpartition(".")[2]
    return found


@settings(max_examples=scaled(200, 15))
@given(avro_cases())
def test_avro_is_resolved_as_by_java(jvm, case: tuple[Any, Any, list[Any]]) -> None:
    writer, reader, values = case[0], in_namespace(case[1]), case[2]
    data = [encode_avro(writer, value) for value in values]
    resolver = Resolver(jvm, writer, reader)
    expected = [resolver.read(each) for each in data]
    try:
        found = decode_avro(writer, reader, data)
    except UnresolvedError:
        assert expected == [None] * len(data)
        return
    assert list(found.malformed) == [row for row, each in enumerate(expected) if each is None]
    rows = decode_avro(reader, reader, [each for each in expected if each is not None]).values
    kept = [row for row in found.values.to_pylist() if row is not None]
    assert repr(ordered(kept)) == repr(ordered(rows.to_pylist()))


class DynamicMessages:
    """Java's DynamicMessage of a message, shown as Spark's ProtobufDeserializer does."""

    def __init__(self, jvm: Any, schemas: Schemas) -> None:
        protobuf = jvm.org.apache.orc.protobuf
        file = getattr(protobuf, "DescriptorProtos$FileDescriptorProto").parseFrom(schemas.file.SerializeToString())
        descriptors = getattr(protobuf, "Descriptors$FileDescriptor")
        none = jvm.py4j.reflection.ReflectionUtil.classForName("org.apache.orc.protobuf.Descriptors$FileDescriptor")
        dependencies = jvm.java.lang.reflect.Array.newInstance(none, 0)
        self._descriptor = descriptors.buildFrom(file, dependencies).findMessageTypeByName("M0")
        self._parse = protobuf.DynamicMessage.parseFrom

    def read(self, data: bytes) -> Any:
        """Returns None for a value that Java rejects, or that has a known field of another wire type."""
        try:
            with plain_java_errors():
                message = self._parse(self._descriptor, data)
        except Py4JJavaError:
            return None
        numbers = {field.getNumber() for field in self._descriptor.getFields()}
        return None if numbers & set(message.getUnknownFields().asMap().keySet()) else self._shown(message)

    def _shown(self, message: Any) -> dict[str, Any]:
        found = {}
        for field in message.getDescriptorForType().getFields():
            is_set = field.isRepeated() or field.hasDefaultValue() or message.hasField(field)
            found[field.getName()] = self._value(field, message.getField(field)) if is_set else None
        return found

    def _value(self, field: Any, value: Any) -> Any:
        if field.isMapField():
            fields = [field.getMessageType().findFieldByName(name) for name in ("key", "value")]
            # a key that is written twice is an entry twice
            entries = [tuple(self._one(each, entry.getField(each)) for each in fields) for entry in value]
            return sorted(entries, key=repr)
        return [self._one(field, each) for each in value] if field.isRepeated() else self._one(field, value)

    def _one(self, field: Any, value: Any) -> Any:
        kind = field.getJavaType().toString()
        if kind == "MESSAGE":
            return self._shown(value)
        if kind == "ENUM":
            return value.getName()
        return bytes(value.toByteArray()) if kind == "BYTE_STRING" else value


def zeros(schemas: Schemas) -> bytes:
    """Returns the default of each number and text of the root message, as it is not written."""
    found = b""
    for field in schemas.type.DESCRIPTOR.fields:
        if field.message_type is None and not field.is_repeated:
            wire = {Field.TYPE_DOUBLE: 1, Field.TYPE_FIXED64: 1, Field.TYPE_SFIXED64: 1, Field.TYPE_FLOAT: 5}
            wire |= {Field.TYPE_FIXED32: 5, Field.TYPE_SFIXED32: 5, Field.TYPE_STRING: 2, Field.TYPE_BYTES: 2}
            size = {1: 8, 5: 4}.get(wire.get(field.type, 0), 1)
            found += varint(field.number << 3 | wire.get(field.type, 0)) + bytes(size)
    return found


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize("seed", range(100, 104))
def test_protobuf_is_decoded_as_by_java(jvm, seed: int, syntax: str) -> None:
    schemas = Schemas(seed, syntax)
    rng = random.Random(seed)
    data = [schemas.value().SerializeToString() for _ in range(4)]
    # fields in another order or twice, and damaged values
    data += [data[0] + data[1], data[2][:-1], data[3] + rng.randbytes(3), data[0] + zeros(schemas), zeros(schemas)]
    # messages and other fields of a oneof in turn
    data += [b"".join(rng.choice(data[:4]) for _ in range(4))]
    java = DynamicMessages(jvm, schemas)
    expected = [java.read(each) for each in data]
    found = decode_protobuf(schemas.descriptor_set, "pkg.M0", data)
    rows = ordered(found.values.to_pylist(), repr)
    for row, (each, ours) in enumerate(zip(expected, rows)):
        # the wire types of inner messages are checked here only
        if "another wire type" not in found.malformed.get(row, ""):
            assert repr(ours) == repr(each), b64encode(data[row])
