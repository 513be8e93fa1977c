"""Odd responses, addresses and credentials of a schema registry."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_registry import SchemaRegistryServer
from support.examples import scaled

from spark_groupsource.errors import AuthenticationError, ConfigurationError, GroupSourceError, NetworkError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.registry import registry_client as registry
from spark_groupsource.values.registry.registry_address import RegistryAddress
from spark_groupsource.values.registry.registry_client import SchemaRegistry, UnreadableSchemaError
from spark_groupsource.values.registry.registry_responses import parse_error_code, parse_schema_response
from spark_groupsource.values.typed_columns import TypedColumn, column_decoder

URL = "value.schema.registry.url"
GOOD = {"schema": '"int"', "subject": "s", "version": 1, "id": 1}


class RawServer:
    """Responds to each connection with the same bytes, and closes it."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.requests.append(connection.recv(1 << 16))
                connection.sendall(self.response.replace(b"SELF", self.url.encode()))
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

    def close(self) -> None:
        # accept() returns only when a connection arrives
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(autouse=True)
def no_retry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_BACKOFF_MS", RegistryAddress.wait_ms)


@pytest.fixture
def raw_server() -> Iterator[RawServer]:
    server = RawServer(b"")
    yield server
    server.close()


def http(status: str, body: bytes = b"", headers: str = "", length: int | None = None) -> bytes:
    size = "" if length is not None and length < 0 else f"Content-Length: {len(body) if length is None else length}\r\n"
    return f"HTTP/1.1 {status}\r\n{size}{headers}\r\n".encode() + body


def body(**changed: Any) -> bytes:
    found = {**GOOD, **changed}
    return http("200 OK", json.dumps({name: each for name, each in found.items() if each is not ...}).encode())


CHUNKED = "Transfer-Encoding: chunked\r\n"
ODD = {
    "nothing": (b"", "Remote end closed connection"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "response is invalid: BadStatusLine"),
    "no status": (b"HTTP/1.1 \r\n\r\n", "response is invalid: BadStatusLine"),
    "a long line": (http("200 OK", headers=f"X: {'x' * 70_000}\r\n"), "response is invalid: LineTooLong"),
    "many headers": (http("200 OK", headers="X: x\r\n" * 200), "response is invalid: HTTPException"),
    "an empty body": (http("200 OK"), "the response is empty"),
    "no content": (http("204 No Content"), "the response is empty"),
    "HTML": (http("200 OK", b"<html></html>"), "the response is no JSON"),
    "invalid UTF-8": (http("200 OK", b'{"schema": "\xff"}'), "the response is no JSON"),
    "deep JSON": (http("200 OK", b"[" * 200_000), "the response is no JSON"),
    "a long number": (http("200 OK", b"1" * 5000), "the response is no JSON"),
    "a list": (http("200 OK", b"[]"), "the response is no JSON object"),
    "null": (http("200 OK", b"null"), "the response is no JSON object"),
    "text": (http("200 OK", b'"schema"'), "the response is no JSON object"),
    "no schema": (body(schema=...), "the response has no schema"),
    "a schema that is an object": (body(schema={"type": "int"}), "the response has another type of schema"),
    "a schema that is null": (body(schema=None), "the response has another type of schema"),
    "a type that is a number": (body(schemaType=1), "the response has another type of schemaType"),
    "references that are text": (body(references="x"), "the response has references that are no list"),
    "references of text": (body(references=["x"]), "the response has references that are no list"),
    "a reference without name": (body(references=[{"subject": "s", "version": 1}]), "the response has no name"),
    "a reference to version null": (
        body(references=[{"name": "n", "subject": "s", "version": None}]),
        "the response has another type of version",
    ),
    "chunks that end early": (http("200 OK", b"5\r\n{", CHUNKED, -1), "response is invalid: IncompleteRead"),
    "an invalid chunk": (http("200 OK", b"zz\r\n{", CHUNKED, -1), "response is invalid: IncompleteRead"),
    "a length that is too long": (http("200 OK", b"{}", length=100), "response is invalid: IncompleteRead"),
    "a length that is too short": (http("200 OK", b'{"schema": ""}', length=5), "the response is no JSON"),
    "too many bytes": (http("200 OK", b" " * ((16 << 20) + 1)), "the response has more than 16 MiB"),
    "a redirect to itself": (http("302 Found", headers="Location: SELF/x\r\n"), "responded 302"),
    "a redirect to nowhere": (http("302 Found"), "responded 302"),
    "a redirect to a file": (http("301 Moved", headers="Location: file:///etc/passwd\r\n"), "responded 301"),
    "a redirect to ftp": (http("307 Moved", headers="Location: ftp://127.0.0.1/x\r\n"), "responded 307"),
    "a redirect to no address": (http("302 Found", headers="Location: http://[\r\n"), "127.0.0.1"),
    "a redirect to no port": (http("302 Found", headers="Location: http://h:port/\r\n"), "InvalidURL"),
    "not modified": (http("304 Not Modified"), "responded 304"),
    "500": (http("500 Error", b"{"), "responded 500"),
    "503": (http("503 Unavailable"), "responded 503"),
    "599": (http("599 Unknown", b"\xff"), "responded 599"),
}


def calls(address: RegistryAddress) -> list[Any]:
    return [
        lambda: SchemaRegistry(address, URL).schema(1),
        lambda: SchemaRegistry(address, URL).version("s"),
        lambda: SchemaRegistry(address, URL).latest_version("s"),
    ]


@pytest.mark.parametrize("name", ODD)
def test_odd_responses_are_named_with_the_address_and_the_option(raw_server, name: str) -> None:
    raw_server.response, reason = ODD[name]
    address = RegistryAddress((raw_server.url,), user_info="user:secret")
    for call in calls(address):
        with pytest.raises(NetworkError) as caught:
            call()
        text = str(caught.value)
        assert raw_server.url in text and reason in text and f"Check option {URL}" in text, text
        assert "secret" not in text and "\n" not in text


@pytest.mark.parametrize("missing", ["version", "id"])
@pytest.mark.parametrize("value", [..., None, "1", 1.5, True, [1]])
def test_a_version_without_its_number(raw_server, missing: str, value: Any) -> None:
    raw_server.response = body(**{missing: value})
    address = RegistryAddress((raw_server.url,))
    assert SchemaRegistry(address, URL).schema(1) == '"int"'
    with pytest.raises(NetworkError, match=f"the response has .*{missing}. Check option"):
        SchemaRegistry(address, URL).version("s")


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        ("401 Unauthorized", AuthenticationError, r"rejected the credentials \(401\). Set value.basic.auth.user.info"),
        ("403 Forbidden", AuthenticationError, r"permission is missing \(403\)"),
        ("404 Not Found", ConfigurationError, "responded 404, as no schema registry does"),
        ("400 Bad Request", ConfigurationError, "responded 400, as no schema registry does"),
        ("410 Gone", ConfigurationError, "responded 410, as no schema registry does"),
    ],
)
def test_statuses_that_no_repetition_changes(raw_server, status: str, kind: type[Exception], message: str) -> None:
    for content in (b"", b"\xff", b"[]", b'{"error_code": "40403"}', b"[" * 100_000):
        raw_server.response = http(status, content)
        for call in calls(RegistryAddress((raw_server.url,), token="secret", wait_ms=60_000)):
            with pytest.raises(kind, match=message) as caught:
                call()
            assert raw_server.url in str(caught.value) and "secret" not in str(caught.value)
    # a body that ends early is none
    raw_server.response = http(status, b"{", length=50)
    with pytest.raises(kind, match=message):
        SchemaRegistry(RegistryAddress((raw_server.url,)), URL).schema(1)


def test_a_redirect_is_followed_and_named(raw_server) -> None:
    with SchemaRegistryServer() as server:
        server.register("s", "int")
        secrets: list[str | None] = []
        server.intercept = lambda method, path, headers: secrets.append(headers.get("authorization"))
        raw_server.response = http("302 Found", headers=f"Location: {server.url}/schemas/ids/1\r\n")
        address = RegistryAddress((raw_server.url,), token="t")
        assert SchemaRegistry(address, URL).schema(1) == "int"
        # another server gets no credentials
        assert secrets == [None]
        server.intercept = lambda *request: (401, {})
        with pytest.raises(AuthenticationError, match=f"redirected to {server.url}"):
            SchemaRegistry(address, URL).schema(1)


def test_a_redirect_within_the_server_carries_the_credentials() -> None:
    class Moved(RawServer):
        def _serve(self) -> None:
            for response in (http("301 Moved", headers="Location: /new\r\n"), body()):
                connection, _ = self._listener.accept()
                with connection:
                    self.requests.append(connection.recv(1 << 16))
                    connection.sendall(response)

    server = Moved(b"")
    address = RegistryAddress((server.url,), token="t")
    assert SchemaRegistry(address, URL).schema(1) == '"int"'
    assert all(b"Authorization: Bearer t\r\n" in each for each in server.requests) and len(server.requests) == 2
    server.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.floats(allow_nan=True),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from([*GOOD, "schemaType", "references", "name"]), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=scaled(2000, 100))
@given(st.one_of(st.binary(max_size=30), JSON.map(lambda each: json.dumps(each).encode())), st.booleans())
def test_any_body_is_a_schema_or_no_response(content: bytes, is_version: bool) -> None:
    parse_error_code(content)
    try:
        found = parse_schema_response(content, is_version)
    except ValueError as error:
        assert "response" in str(error) and not isinstance(error, UnicodeError)
    else:
        assert isinstance(found.schema, str) and isinstance(found.kind, str)


@settings(max_examples=scaled(300, 40))
@given(st.binary(max_size=40), st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 404 \r\n\r\n"]))
def test_any_bytes_are_an_error_of_the_registry(content: bytes, begin: bytes) -> None:
    server = RawServer(begin + content)
    with contextlib.suppress(GroupSourceError):
        SchemaRegistry(RegistryAddress((server.url,)), URL).version("s")
    server.close()


def test_values_whose_schema_cannot_be_read_are_malformed() -> None:
    with SchemaRegistryServer() as server:
        int_id = server.register("s", "int")
        missing = {"name": "X", "subject": "x", "version": 1}
        broken = [
            server.register("s", {"type": "record", "name": "r", "fields": []}, references=[missing]),
            server.register("s", "{"),
            server.register("s", "[" * 5000),
            server.register("s", {"type": "decimal"}),
            server.register("s", {"type": "record", "name": "r", "fields": [{"name": "x", "type": "Other"}]}),
        ]
        reader = ColumnFormat("value", "avro", '"int"', registry=RegistryAddress((server.url,)), header="confluent")
        decode = column_decoder(TypedColumn(reader, pa.int32()))
        ids = [int_id, *broken, 99]
        values = pa.array([b"\0" + each.to_bytes(4, "big") + b"\2" for each in ids], pa.binary())
        found = decode(values, None)
        assert found.values.to_pylist() == [1] + [None] * 6
        assert found.schema_ids == {row: str(each) for row, each in enumerate(ids) if row}
        assert "version 1 of subject x does not exist" in found.malformed[1]
        with pytest.raises(UnreadableSchemaError, match="Correct the schema in the registry"):
            SchemaRegistry(RegistryAddress((server.url,)), URL).schema(broken[0])


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://", "does not begin with http:// or https://"),
        ("http://:8081", "invalid host or port"),
        ("http://h:port", "invalid host or port"),
        ("http://h:99999", "invalid host or port"),
        ("http://h:0", "invalid host or port"),
        ("http://[::1", "invalid host or port"),
        (f"http://{'a' * 64}.b", "invalid host or port"),
        ("http://a..b", "invalid host or port"),
        ("http://h/a b", "must be percent-encoded"),
        ("http://h/\x00x", "must be percent-encoded"),
        ("http://h/a\nHost: x", "must be percent-encoded"),
        ("http://r\u00e9gistry", "must be percent-encoded"),
        ("http://h?secret=1", "has a query or fragment"),
        ("http://h#x", "has a query or fragment"),
        ("http://user:secret@h", "has a user or password"),
        ("ftp://h", "does not begin with http:// or https://"),
        ("h:8081", "does not begin with http:// or https://"),
        ("http:/h", "does not begin with http:// or https://"),
        (",", "is missing"),
    ],
)
def test_invalid_addresses_are_rejected_when_they_are_given(url: str, problem: str) -> None:
    for text in (url, f"http://good:1,{url}") if url != "," else (url,):
        with pytest.raises(ConfigurationError, match=f"Option {URL} must be a list of http.*{problem}. Cor") as caught:
            parse(**{URL: text})
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def parse(**given: str):
    return parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "avro", **given})


@pytest.mark.parametrize("url", ["HTTP://h:1", "https://[::1]:8081/path/", "http://h/apis/ccompat/v7", "http://h%20x"])
def test_valid_addresses(url: str) -> None:
    assert parse(**{URL: url}).values.value.registry.urls == (url.rstrip("/"),)


@pytest.mark.parametrize(
    "option",
    [
        "basic.auth.user.info",
        "bearer.auth.token",
        "bearer.auth.logical.cluster",
        "bearer.auth.identity.pool.id",
    ],
)
@pytest.mark.parametrize("text", ["se\ncret", "se\rcret", "se\x00cret", "se\x7fcret", "se\ud800cret"])
def test_credentials_with_line_breaks_are_rejected_without_their_text(option: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Option value.{option} .*control character. Give it with") as caught:
        parse(**{URL: "http://h:1", f"value.{option}": text})
    assert "cret" not in str(caught.value)


def test_a_token_that_is_no_header() -> None:
    with pytest.raises(ConfigurationError, match="Option value.bearer.auth.token has a character that is not ASCII"):
        parse(**{URL: "http://h:1", "value.bearer.auth.token": "t\u00e9"})
    assert parse(**{URL: "http://h:1", "value.basic.auth.user.info": "us\u00e9r:p"}).values.value.registry
    assert parse(**{URL: "http://h:1", "value.bearer.auth.token": " t\n"}).values.value.registry.token == "t"
