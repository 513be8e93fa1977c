"""Client of a schema registry, and values that name their writer's schema."""

from __future__ import annotations

import io
import json
import ssl
from base64 import b64encode
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from schema_registry import SchemaRegistryServer
from support import certificates
from support.certificates import write_pem

from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.registry import registry_client as registry
from spark_groupsource.values.registry.registry_address import RegistryAddress
from spark_groupsource.values.registry.registry_client import SchemaRegistry
from spark_groupsource.values.registry.schema_headers import read_confluent, read_glue
from spark_groupsource.values.typed_columns import TypedColumn, column_decoder

URL = "value.schema.registry.url"
KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields], **more
    }  # fmt: skip


READER = record(("id", ["null", "long"]), ("name", ["null", "string"]))
for field in READER["fields"]:
    field["default"] = None


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(registry, "_BACKOFF_MS", 5)
    with SchemaRegistryServer() as running:
        yield running


def address(server, wait_ms: int = 2_000, **given: Any) -> RegistryAddress:
    return RegistryAddress((server.url,), wait_ms=wait_ms, **given)


def client(server, **given: Any) -> SchemaRegistry:
    return SchemaRegistry(address(server, **given), URL)


def encoded(schema: Any, datum: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return out.getvalue()


def prefixed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def decode(server, values: list[bytes | None], headers: Any = None, **given: Any):
    given = {
        "format": "avro",
        "schema": json.dumps(READER),
        "header": "confluent",
        "registry": address(server),
        **given,
    }
    decoder = column_decoder(TypedColumn(ColumnFormat("value", **given), KIND))
    return decoder(pa.array(values, pa.binary()), None if headers is None else pa.array(headers, HEADERS))


def test_each_value_is_read_by_its_writers_schema(server) -> None:
    first, second = record(("id", "int"), ("name", "string")), record(("name", ["null", "string"]), ("id", "long"))
    ids = [server.register("s", each) for each in (first, second, record(("name", "string")))]
    values = [
        prefixed(ids[0], encoded(first, {"id": 1, "name": "a"})),
        None,
        prefixed(ids[1], encoded(second, {"id": 2**40, "name": None})),
        prefixed(ids[0], encoded(first, {"id": -1, "name": "b"})),
        prefixed(ids[2], encoded(record(("name", "string")), {"name": "c"})),
    ]
    expected = [
        {"id": 1, "name": "a"}, None, {"id": 2**40, "name": None}, {"id": -1, "name": "b"}, {"id": None, "name": "c"},
    ]  # fmt: skip
    for data, rows in ((values, expected), (values[3:4], expected[3:4]), ([None], [None])):
        found = decode(server, data)
        assert (found.values.to_pylist(), found.malformed) == (rows, {})
    # once per process
    assert sorted(server.requests) == [f"GET /schemas/ids/{each}" for each in ids]


def test_malformed_values_have_the_id_of_their_schema(server) -> None:
    schema = record(("id", "long"), ("name", "string"))
    one, text = server.register("s", schema), server.register("s", record(("id", "string")))
    protobuf = server.register("p", "syntax", "PROTOBUF")
    good = prefixed(one, encoded(schema, {"id": 1, "name": "a"}))
    values = [
        b"",
        b"\0\0\0\0",
        b"{}{}{}",
        good[:-1],
        prefixed(99, b"x"),
        prefixed(protobuf, b"x"),
        prefixed(text, b"\2x"),
        good,
    ]
    found = decode(server, values)
    assert found.values.to_pylist() == [None] * 7 + [{"id": 1, "name": "a"}]
    header, unknown = (
        "it does not begin with a zero byte and the id of a schema",
        "the registry has no Avro schema with this id",
    )
    reasons = [header] * 3 + [found.malformed[3], unknown, unknown, found.malformed[6]]
    assert found.malformed == dict(enumerate(reasons)) and "id" in found.malformed[6]
    assert found.schema_ids == {3: str(one), 4: "99", 5: str(protobuf), 6: str(text)}


def test_ids_in_record_headers_precede_those_in_values(server) -> None:
    schema = record(("id", "long"))
    schema_id = server.register("s", schema)
    guid = bytes.fromhex(server.guid(schema_id).replace("-", ""))
    values = [encoded(schema, {"id": number}) for number in range(5)]
    values[2] = prefixed(schema_id, values[2])
    name = "__value_schema_id"
    headers = [
        [{"key": name, "value": b"\0" + bytes(4)}, {"key": name, "value": b"\1" + guid}],
        [{"key": "other", "value": None}, {"key": name, "value": prefixed(schema_id, b"")}],
        [{"key": "__key_schema_id", "value": b"\1" + guid}],
        [{"key": name, "value": b"\2"}],
        None,
    ]
    found = decode(server, values, headers)
    assert [row and row["id"] for row in found.values.to_pylist()] == [0, 1, 2, None, None]
    assert found.malformed[3] == "its header __value_schema_id has no id of a schema" and set(found.malformed) == {3, 4}
    assert f"GET /schemas/guids/{server.guid(schema_id)}" in server.requests
    assert decode(server, values[2:3], [[]]).values.to_pylist() == [{"id": 2, "name": None}]


def test_headers_of_slices_and_of_json(server) -> None:
    data = pa.array([b"xx", prefixed(7, b'{"id": 1}'), None, prefixed(7, b""), b"no", prefixed(8, b"[")], pa.binary())
    named = read_confluent(data.slice(1, 4), None, "h")
    assert named.data.to_pylist() == [b'{"id": 1}', None, b"", None] and named.malformed.keys() == {3}
    assert {key: rows.tolist() for key, rows in named.rows.items()} == {7: [0, 2]}
    found = decode(server, data.to_pylist(), format="json", schema="id bigint, name string", registry=None)
    assert found.values.to_pylist()[1] == {"id": 1, "name": None} and set(found.malformed) == {0, 4, 5}
    assert found.schema_ids == {5: "8"} and not server.requests


def test_glue_headers() -> None:
    import uuid
    import zlib

    ids = [uuid.UUID(int=1), uuid.UUID(int=2**100)]
    values = [
        b"\3\0" + ids[1].bytes + b"a", b"\3\5" + ids[0].bytes + zlib.compress(b"bcd"), None, b"\3\0short",
        b"\3\5" + ids[0].bytes + b"no zlib", b"\3\1" + ids[0].bytes, b"\3\0" + ids[1].bytes,
        b"\3\5" + ids[0].bytes + zlib.compress(b"bcd") + b"e", b"\3\5" + ids[0].bytes + zlib.compress(b"bcd")[:-1],
    ]  # fmt: skip
    named = read_glue(pa.array(values, pa.binary()))
    assert named.data.to_pylist() == [b"a", b"bcd", None, None, None, None, b"", None, None]
    assert {key: rows.tolist() for key, rows in named.rows.items()} == {str(ids[0]): [1], str(ids[1]): [0, 6]}
    no_header = "it does not begin with the 18 bytes of an AWS Glue header"
    no_zlib = "it is not exactly the zlib data that its header says"
    assert named.malformed == {3: no_header, 4: no_zlib, 5: no_header, 7: no_zlib, 8: no_zlib}
    assert read_glue(pa.array([None], pa.binary())).data.to_pylist() == [None]


def test_types_of_other_subjects_are_resolved(server) -> None:
    country = {"type": "enum", "name": "Country", "symbols": ["CH", "NZ"]}
    place = record(("city", "string"), ("country", "Country"), name="Place", namespace="geo")
    refers = {"name": "Country", "subject": "country", "version": 1}
    server.register("country", country)
    server.register("place", place, references=[refers])
    person = record(("home", "geo.Place"), ("work", ["null", "geo.Place"]), ("born", "Country"))
    person_id = server.register(
        "person", person, references=[refers, {"name": "geo.Place", "subject": "place", "version": 1}]
    )
    found = client(server).schema(person_id)
    datum = {"home": {"city": "Chur", "country": "CH"}, "work": None, "born": "NZ"}
    parsed = fastavro.parse_schema(json.loads(found))
    assert fastavro.schemaless_reader(io.BytesIO(encoded(json.loads(found), datum)), parsed, None) == datum
    missing = server.register("person", record(("x", "X")), references=[{"name": "X", "subject": "x/y", "version": 3}])
    with pytest.raises(ConfigurationError, match="its reference to version 3 of subject x/y does not exist"):
        client(server).schema(missing)
    assert "GET /subjects/x%2Fy/versions/3?deleted=true" in server.requests


def test_a_registry_that_is_down_is_no_malformed_value(server) -> None:
    schema_id = server.register("s", record(("id", "long")))
    failures = [(503, {}), (429, {}), (500, {})]
    server.intercept = lambda *request: failures.pop() if failures else None
    assert client(server).schema(schema_id) is not None
    server.intercept = lambda *request: (503, {})
    with pytest.raises(
        # the last attempt has little time left
        NetworkError,
        match=r"Reading /schemas/ids/1 .* for 1000 ms: .*( responded 503|: timed out)\. Check option value",
    ):
        client(server, wait_ms=1000).schema(1)
    server.intercept = lambda *request: None
    both = RegistryAddress(("http://127.0.0.1:1", server.url))
    assert SchemaRegistry(both, URL).schema(schema_id) is not None


def test_an_address_that_is_no_registry_makes_no_value_malformed(server) -> None:
    server.intercept = lambda *request: (404, {"detail": "Not Found"})
    with pytest.raises(ConfigurationError, match=f"responded 404, as no schema registry does. Correct option {URL}"):
        client(server).schema(1)


def test_an_unknown_id_is_requested_again_later(server, monkeypatch) -> None:
    found = client(server)
    assert found.schema(1) is None and found.schema(1) is None and len(server.requests) == 1
    server.register("s", record(("id", "long")))
    later = type("Later", (), {"now_ms": lambda _: 2**60})()
    monkeypatch.setattr("spark_groupsource.values.registry.registry_client._CLOCK", later)
    assert found.schema(1) is not None


def test_credentials(server) -> None:
    server.register("s", record(("id", "long")))
    basic = "Basic " + b64encode(b"alice:secret").decode()
    expected = {"authorization": basic}
    server.intercept = lambda method, path, headers: None if expected.items() <= headers.items() else (401, {})
    assert client(server, user_info="alice:secret").schema(1) is not None
    for given in ({"user_info": "alice:other"}, {"token": "other"}, {}):
        with pytest.raises(
            AuthenticationError, match=r"\(401\). Set value.basic.auth.user.info or value.bear"
        ) as caught:
            client(server, **given).schema(1)
        assert "other" not in str(caught.value) and "other" not in repr(address(server, **given))
    expected = {"authorization": "Bearer t", "target-sr-cluster": "lsrc-1"}
    options = {"value.bearer.auth.token": "t", "value.bearer.auth.logical.cluster": "lsrc-1"}
    parsed = parse(**{URL: server.url, "value.format": "avro", **options}).values.value.registry
    assert SchemaRegistry(parsed, URL).schema(1) is not None
    server.intercept = lambda *request: (403, {})
    with pytest.raises(AuthenticationError, match="permission is missing"):
        client(server).schema(1)


def test_tls(tmp_path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_pem(tmp_path / "server.pem", certificates.SERVER, certificates.KEY))
    context.load_verify_locations(cadata=certificates.CA)
    context.verify_mode = ssl.CERT_REQUIRED
    # with TLS 1.3 the alert follows the handshake, and is lost when the server resets the connection
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    prefix = "value.schema.registry.ssl"
    own = {f"{prefix}.keystore.location": write_pem(tmp_path / "own.pem", certificates.CLIENT, certificates.KEY)}
    with SchemaRegistryServer(context) as server:
        schema_id = server.register("s", record(("id", "long")))
        given = {URL: server.url, "value.format": "avro"}
        trusted = {f"{prefix}.truststore.location": write_pem(tmp_path / "ca.pem", certificates.CA)}
        found = parse(**given, **trusted, **own).values.value.registry
        assert SchemaRegistry(found, URL).schema(schema_id) is not None and "own.pem" not in repr(found)
        for settings in (own, trusted):
            found = parse(**given, **settings, **{"kafka.default.api.timeout.ms": "5000"}).values.value.registry
            with pytest.raises(AuthenticationError, match="TLS handshake with https://.* failed"):
                SchemaRegistry(found, URL).schema(schema_id)


def test_large_schemas_and_a_thousand_versions(server) -> None:
    large = record(*((f"field{number}", ["null", "string"]) for number in range(20_000)))
    schema_id = server.register("large", large)
    assert len(client(server).schema(schema_id)) > 1_000_000
    for number in range(1_000):
        server.register("s", record((f"f{number}", "int")))
    latest = client(server).version("s")
    assert (latest.version, latest.schema_id) == (1000, schema_id + 1000)
    assert client(server).version("s", 2).schema.text == json.dumps(record(("f1", "int")))
    assert client(server).version("s", 1001) is None and client(server).version("other") is None


def parse(**given: str):
    return parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given})


def test_errors_of_tls_files_name_the_options_of_the_registry(tmp_path) -> None:
    for name in ("ca.location", "keystore.location"):
        option = f"value.schema.registry.ssl.{name}"
        given = {URL: "https://127.0.0.1:1", "value.format": "avro", option: str(tmp_path / "none.pem")}
        options = parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given})
        with pytest.raises(ConfigurationError) as caught:
            SchemaRegistry(options.values.value.registry, URL).version("t-value", None)
        assert "none.pem" in str(caught.value) and "kafka.ssl" not in str(caught.value)
        assert "value.schema.registry.ssl.key.password where the key is encrypted" in str(caught.value)


def test_settings_of_tls_and_of_waiting(tmp_path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("")
    given = {URL: "https://r:1", "value.format": "avro", "value.schema.registry.ssl.ca.location": str(path)}
    found = parse(**given, **{"kafka.default.api.timeout.ms": "5000"}).values.value.registry
    assert found.tls.ca_file == str(path) and found.wait_ms == 5000
    assert parse(**given, **{"kafkaConsumer.pollTimeoutMs": "700"}).values.value.registry.wait_ms == 700


@pytest.mark.parametrize(
    "given, message",
    [
        ({URL: "registry:8081"}, "must be a list of http or https addresses"),
        ({URL: "http://a:secret@r:1"}, "must be a list of http or https addresses"),
        ({URL: "http://r:1"}, "has no effect with value.format=binary"),
        ({"value.basic.auth.user.info": "a:secret"}, "has no effect without value.schema.registry.url"),
        ({"value.schema.registry.ssl.key.password": "secret"}, "has no effect without value.schema.registry.url"),
        (
            {"value.format": "avro", URL: "http://r:1", "value.schema.registry.ssl.ca.locatoin": "/x"},
            "is unknown. Did you mean value.schema.registry.ssl.ca.location?",
        ),
        (
            {"value.format": "avro", URL: "http://r:1", "value.bearer.auth.token": "secret",
             "value.basic.auth.user.info": "a:secret"},
            "and value.bearer.auth.token are both set",
        ),
        ({"value.format": "avro", "value.bearer.auth.credentials.source": "OAUTHBEARER"}, "must be static_token"),
        ({"value.format": "avro", URL: "http://r:1", "value.schema.header": "glue"}, "AWS Glue has another interface"),
    ],
)  # fmt: skip
def test_invalid_options_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Options? value.*{message}") as caught:
        parse(**given)
    assert "secret" not in str(caught.value)
