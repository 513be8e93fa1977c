"""Values of confluent-kafka's serializers, read with a schema registry.

The registry may be any that has Confluent's interface: the one of `jobs/schema_registry.py`, or a vendor's.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from support.topics import create_topic

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.spark.datasource import GroupDataSource

Row = dict[str, Any]
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    ],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, timezone.utc)


def order(number: int, **more: Any) -> Row:
    """Returns an order, as the serializer takes it and as it is read."""
    total, tags = Decimal(number) / 100, {"n": str(number), "null": None}
    return {"id": number, "total": total, "day": date(2026, 1, 2), "at": AT, "tags": tags, "state": "PAID", **more}


class RegistryChecks:
    """Writes and reads at one broker and one registry."""

    def __init__(self, bootstrap_servers: str, registry: str) -> None:
        self._bootstrap = bootstrap_servers
        self._url = registry
        self.client = SchemaRegistryClient({"url": registry})

    def close(self) -> None:
        """Closes the connections of confluent-kafka's client."""
        self.client.__exit__()

    def topic(self) -> str:
        """Creates a topic."""
        name = f"orders-{uuid4().hex[:8]}"
        create_topic(self._bootstrap, name)
        return name

    def write(self, topic: str, serializer: Any, values: Sequence[Any]) -> None:
        """Writes values with one of confluent-kafka's serializers."""
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for value in values:
            headers: list[tuple[str, Any]] = []
            data = serializer(value, SerializationContext(topic, MessageField.VALUE, headers))
            producer.produce(topic, data, headers=headers)
        assert not producer.flush(30)

    def read(self, topic: str, **given: str) -> list[Row]:
        """Reads the values of a topic, with the columns that `load()` finds."""
        options = {"value.format": "avro", "value.schema.registry.url": self._url, "subscribe": topic}
        options |= {name.replace("_", "."): text for name, text in given.items()}
        source = GroupDataSource({"kafka.bootstrap.servers": self._bootstrap, **options})
        found = source.schema()
        source = pickle.loads(pickle.dumps(source))
        reader = source.reader(found)
        rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        return [_plain(row) for row in sorted(rows, key=lambda row: row["offset"])]

    def check_avro(self) -> None:
        """Two versions of a subject, ids in values and in record headers."""
        topic = self.topic()
        self.write(topic, AvroSerializer(self.client, json.dumps(ORDER)), [order(1), order(2)])
        newer = {**ORDER, "fields": [*ORDER["fields"], NOTE]}
        serializer = AvroSerializer(self.client, json.dumps(newer))
        self.write(topic, serializer, [order(3, note="three")])
        latest = [order(1, note=None), order(2, note=None), order(3, note="three")]
        assert [row["value"] for row in self.read(topic)] == latest
        assert [row["value"] for row in self.read(topic, value_schema_version="1")] == [order(1), order(2), order(3)]
        assert self.client.get_latest_version(f"{topic}-value").version == 2

    def check_headers(self) -> None:
        """Ids in record headers, of a registry that has UUIDs of schemas."""
        from confluent_kafka.schema_registry import header_schema_id_serializer

        topic = self.topic()
        serializer = AvroSerializer(
            self.client, json.dumps(ORDER), conf={"schema.id.serializer": header_schema_id_serializer}
        )
        self.write(topic, serializer, [order(1)])
        assert [row["value"] for row in self.read(topic)] == [order(1)]

    def check_record_names(self) -> None:
        """The subject is the name of the record."""
        from confluent_kafka.schema_registry import record_subject_name_strategy

        topic, name = self.topic(), f"shop.Order{uuid4().hex[:8]}"
        schema = json.dumps({**ORDER, "name": name.rpartition(".")[2]})
        conf = {"subject.name.strategy": record_subject_name_strategy}
        self.write(topic, AvroSerializer(self.client, schema, conf=conf), [order(1)])
        given = {"value_subject_name_strategy": "RecordNameStrategy", "value_record_name": name}
        assert [row["value"] for row in self.read(topic, **given)] == [order(1)]

    def check_references(self) -> None:
        """A schema with a type of another subject."""
        topic = self.topic()
        place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
        self.client.register_schema(f"{topic}-place", Schema(json.dumps(place), "AVRO"))
        visit = {**place, "name": "Visit", "fields": [{"name": name, "type": "Place"} for name in ("from", "to")]}
        references = [SchemaReference("Place", f"{topic}-place", 1)]
        serializer = AvroSerializer(self.client, Schema(json.dumps(visit), "AVRO", references))
        value = {"from": {"city": "Chur"}, "to": {"city": "Bern"}}
        self.write(topic, serializer, [value])
        assert [row["value"] for row in self.read(topic)] == [value]

    def check_json(self) -> None:
        """JSON, with the columns of its JSON Schema."""
        properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
        schema = {"title": "Order", "type": "object", "properties": properties}
        topic = self.topic()
        self.write(topic, JSONSerializer(json.dumps(schema), self.client), [{"id": 1, "name": "a"}, {"id": 2}])
        found = self.read(topic, value_format="json")
        assert [row["value"] for row in found] == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]

    def check_protobuf(self) -> None:
        """Protobuf, with the columns of the schema, an imported file and one that every compiler has."""
        place = descriptor_pb2.FileDescriptorProto(
            name=f"place-{uuid4().hex[:8]}.proto", package="geo", syntax="proto3"
        )
        place.message_type.add(name="Place").field.add(name="city", number=1, label=1, type=9)
        file = descriptor_pb2.FileDescriptorProto(
            name=f"visit-{uuid4().hex[:8]}.proto", package="shop", syntax="proto3"
        )
        file.dependency.extend([place.name, timestamp_pb2.DESCRIPTOR.name])
        file.message_type.add(name="Unused")
        visit = file.message_type.add(name="Visit")
        visit.field.add(name="id", number=1, label=1, type=3)
        visit.field.add(name="to", number=2, label=1, type=11, type_name=".geo.Place")
        visit.field.add(name="at", number=3, label=1, type=11, type_name=".google.protobuf.Timestamp")
        pool = descriptor_pool.DescriptorPool()
        for each in (timestamp_pb2.DESCRIPTOR.serialized_pb, place.SerializeToString(), file.SerializeToString()):
            pool.AddSerializedFile(each)
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Visit"))
        topic = self.topic()
        serializer = ProtobufSerializer(message, self.client, {"use.deprecated.format": False})
        values = [message(id=1, to={"city": "Chur"}), message(id=2)]
        self.write(topic, serializer, values)
        found = self.read(topic, value_format="protobuf", value_message_name="shop.Visit")
        expected = [{"id": 1, "to": {"city": "Chur"}, "at": None}, {"id": 2, "to": None, "at": None}]
        assert [row["value"] for row in found] == expected

    def check_deleted_subjects(self) -> None:
        """Values remain readable by their ids; load() names the subject that is gone."""
        topic = self.topic()
        self.write(topic, AvroSerializer(self.client, json.dumps(ORDER)), [order(1)])
        self.client.delete_subject(f"{topic}-value")
        assert [row["value"] for row in self.read(topic, value_schema=json.dumps(ORDER))] == [order(1)]
        try:
            self.read(topic)
        except ConfigurationError as error:
            assert f"no version of subject {topic}-value" in str(error), error
        else:
            raise AssertionError("load() found a deleted subject")

    def check_unknown_ids(self) -> None:
        """They are malformed values."""
        topic = self.topic()
        producer = Producer({"bootstrap.servers": self._bootstrap})
        producer.produce(topic, b"\0\0\x0f\xff\xffx")
        producer.flush(30)
        (row,) = self.read(topic, value_schema=json.dumps(ORDER), mode="PERMISSIVE")
        assert row["_error"]["schemaId"] == "1048575" and "no Avro schema with this id" in row["_error"]["reason"], row


def _plain(row: Row) -> Row:
    """Returns a row with maps as dictionaries."""
    value = row.get("value")
    if isinstance(value, dict) and isinstance(value.get("tags"), list):
        value["tags"] = dict(value["tags"])
    return row


CHECKS = [name for name in vars(RegistryChecks) if name.startswith("check_")]
