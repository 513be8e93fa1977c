"""Formats of keys and values: text, JSON, numbers of Kafka's serializers, Avro."""

from __future__ import annotations

import io
import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.json.framed_json import parse_json

# format -> struct of Kafka's serializer; all are big-endian
_NUMBERS = {"short": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d"}
FORMATS = ("text", "raw", "json", "hex", "base64", *_NUMBERS, "avro")
READ_FORMATS = (*FORMATS, "protobuf")
_SCHEMA_HEADER = struct.Struct(">bI")


Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class Serde(NamedTuple):
    """Conversion of a key or value: `encode` from text or a JSON value, `decode` to a JSON value."""

    encode: Encode
    decode: Decode


def serde(option: str, name: str, schema: Path | None, schema_id: int | None = None) -> Serde:
    """Returns the conversion of one format.

    Args:
        option: the option that names the format, for messages.
        schema: file of an Avro schema.
        schema_id: id that precedes each Avro datum, as a schema registry's serializer writes it; None without.
    Raises: ConfigurationError, also from `encode` and `decode`, for data that is not of the format.
    """
    encode: Encode
    decode: Decode
    if name == "avro":
        encode, decode = _avro(schema, schema_id)
    elif name in _NUMBERS:
        encode, decode = _number(_NUMBERS[name])
    else:
        others: dict[str, tuple[Encode, Decode]] = {
            "text": (_text_bytes, decode_text),
            # as they are: `encoded` of record_lines writes the same bytes
            "raw": (_text_bytes, lambda data: str(data, "utf-8", "surrogateescape")),
            "json": (_json_bytes, lambda data: parse_json(bytes(data))),
            "hex": (lambda value: bytes.fromhex(_text(value)), lambda data: bytes(data).hex()),
            "base64": (lambda value: b64decode(value, validate=True), lambda data: b64encode(data).decode()),
        }
        encode, decode = others[name]
    return Serde(_checked(encode, option, name), _checked(decode, option, name))


def decode_text(data: bytes) -> Any:
    """Returns text, or ``{"base64": ...}`` for bytes that are not UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _number(code: str) -> tuple[Encode, Decode]:
    layout, number = struct.Struct(code), float if code in (">f", ">d") else int
    return (lambda value: layout.pack(number(value))), (lambda data: layout.unpack(data)[0])


def _text_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else _compact(value)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _json_bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, str)):
        text = value.encode() if isinstance(value, str) else value
        json.loads(text)
        return text
    return _compact(value)


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _checked(function: Callable[[Any], Any], option: str, name: str) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        try:
            return function(value)
        # fastavro raises many classes for a datum that does not fit
        except Exception as error:
            raise ConfigurationError(
                f"Option {option} is {name}, but a record is not: {str(value)[:60]!r} ({str(error)[:200]})."
            ) from error

    return call


def _avro(schema: Path | None, schema_id: int | None) -> tuple[Encode, Decode]:
    """Returns the encoder of fastavro; consumed records are decoded by block (`cli.decoded_rows`)."""
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Option --schema cannot be used: fastavro is not installed. Run: pip install 'spark-groupsource[avro]'."
        ) from error
    if schema is None:
        raise ConfigurationError("Format avro needs a schema. Set --schema or --key-schema to a file.")
    try:
        parsed = fastavro.parse_schema(json.loads(schema.read_text("utf-8")))
    except Exception as error:
        raise ConfigurationError(f"Reading Avro schema {schema} failed: {error}. Check --schema.") from error

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        if schema_id is not None:
            out.write(_SCHEMA_HEADER.pack(0, schema_id))
        datum = json.loads(value) if isinstance(value, (bytes, str)) else value
        fastavro.schemaless_writer(out, parsed, datum, strict_allow_default=True)
        return out.getvalue()

    return encode, decode_text
