"""Avro values whose header names a schema of a registry."""

from __future__ import annotations

import io
import json
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError
from spark_groupsource.source.options import parse_options
from spark_groupsource.values import registry
from spark_groupsource.values.avro_writers import WrittenAvroDecoder
from spark_groupsource.values.registry import SchemaRegistry
from spark_groupsource.values.registry_address import RegistryAddress


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]}


SCHEMAS = {
    1: record(("id", "int"), ("name", "string")),
    2: record(("name", ["null", "string"]), ("extra", {"type": "array", "items": "double"}), ("id", "long")),
    3: record(("name", "string")),
    4: record(("id", "string")),
    300: record(("id", "long")),
}
KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        status, body = 404, {"error_code": 40403}
        schema_id = int(self.path.rpartition("/")[2])
        if self.server.password and self.headers.get("Authorization") != self.server.password:
            status = 401
        elif self.server.failures:
            self.server.failures -= 1
            status = 503
        elif schema_id in SCHEMAS:
            status, body = 200, {"schema": json.dumps(SCHEMAS[schema_id])}
        elif schema_id == 9:
            status, body = 200, {"schema": "syntax", "schemaType": "PROTOBUF"}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(registry, "_PAUSES_S", (0, 0))
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.requests, running.password, running.failures = [], "", 0
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def address(server, user_info: str | None = None) -> RegistryAddress:
    return RegistryAddress((f"http://127.0.0.1:{server.server_port}",), user_info)


def value(schema_id: int, datum: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMAS[schema_id]), datum)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_each_value_is_read_by_its_writers_schema(server) -> None:
    values = [
        value(1, {"id": 1, "name": "a"}),
        None,
        value(2, {"id": 2**40, "name": None, "extra": [0.5, 1.5]}),
        value(300, {"id": 7}),
        value(1, {"id": -1, "name": "b"}),
        value(3, {"name": "c"}),
    ]
    decoder = WrittenAvroDecoder(SchemaRegistry(address(server), "value.schema.registry.url"), KIND)
    expected = [
        {"id": 1, "name": "a"}, None, {"id": 2**40, "name": None}, {"id": 7, "name": None}, {"id": -1, "name": "b"},
        {"id": None, "name": "c"},
    ]  # fmt: skip
    for data, rows in ((values, expected), (values[4:5], expected[4:5]), ([None], [None])):
        found = decoder.decode(pa.array(data, pa.binary()))
        assert (found.values.to_pylist(), found.malformed) == (rows, {})
    assert sorted(server.requests) == [f"/schemas/ids/{each}" for each in (1, 2, 3, 300)]


def test_malformed_values_have_the_id_of_their_schema(server) -> None:
    good = value(1, {"id": 1, "name": "a"})
    values = [b"", b"\0\0\0\0", b"{}{}{}", good[:-1], b"\0\0\0\0\5x", b"\0\0\0\0\x09x", value(4, {"id": "x"}), good]
    decoder = WrittenAvroDecoder(SchemaRegistry(address(server), "value.schema.registry.url"), KIND)
    found = decoder.decode(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [None] * 7 + [{"id": 1, "name": "a"}]
    header = "it does not begin with a zero byte and the id of a schema"
    unknown = "the registry has no Avro schema with this id, or one with references to others"
    assert found.malformed == {
        0: header, 1: header, 2: header, 3: "a length is negative, or exceeds the value", 4: unknown, 5: unknown,
        6: "field id was written as string, the schema of the query has int64",
    }  # fmt: skip
    assert found.schema_ids == {3: "1", 4: "5", 5: "9", 6: "4"}


def test_a_registry_that_is_down_is_no_malformed_value(server) -> None:
    client = SchemaRegistry(address(server), "value.schema.registry.url")
    server.failures = 2
    assert client.schema(300) == json.dumps(SCHEMAS[300])
    server.failures = 3
    with pytest.raises(NetworkError, match=r"Reading /schemas/ids/1 .* responded 503. Check option value.schema.reg"):
        client.schema(1)
    closed = f"http://127.0.0.1:{server.server_port}"
    server.failures = 0
    both = SchemaRegistry(RegistryAddress(("http://127.0.0.1:1", closed)), "value.schema.registry.url")
    assert both.schema(300) is not None


def test_user_and_password(server) -> None:
    server.password = "Basic " + b64encode(b"alice:secret").decode()
    assert SchemaRegistry(address(server, "alice:secret"), "value.schema.registry.url").schema(3) is not None
    with pytest.raises(AuthenticationError, match="responded 401. Correct option value.basic.auth") as caught:
        SchemaRegistry(address(server, "alice:other"), "value.schema.registry.url").schema(3)
    assert "other" not in str(caught.value) and "other" not in repr(address(server, "alice:other"))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"value.schema.registry.url": "registry:8081"}, "must be a list of http or https addresses"),
        ({"value.schema.registry.url": "http://a:secret@r:1"}, "must be a list of http or https addresses"),
        ({"value.schema.registry.url": "http://r:1"}, "has no effect with value.format=binary"),
        ({"value.basic.auth.user.info": "a:secret"}, "has no effect without value.schema.registry.url"),
    ],
)
def test_invalid_options_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Option value.*{message}") as caught:
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given})
    assert "secret" not in str(caught.value)
