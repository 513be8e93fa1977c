"""Decoding of keys and values for people: text, JSON, Avro, hexadecimal."""

from __future__ import annotations

import io
import json
from typing import Any, Callable, Mapping, Sequence

from spark_groupsource.errors import ConfigurationError

Decoder = Callable[[str, Sequence["bytes | None"]], "list[Any]"]
"""Decodes a column, given its name and values."""

_CONFLUENT_HEADER = 5


def decoders(decode: str | Mapping[str, str], schema: Any = None) -> dict[str, Decoder]:
    """Returns the decoder of the columns key and value.

    Args:
        decode: ``auto``, ``utf-8``, ``json``, ``avro`` or ``hex``, for both columns or by column.
        schema: Avro schema (JSON text or parsed) of the column with ``avro``.
    Raises: ConfigurationError; ModuleNotFoundError for Avro without fastavro.
    """
    if isinstance(decode, str):
        names: Mapping[str, str] = {"value": decode} if decode == "avro" else {"key": decode, "value": decode}
    else:
        names = decode
    found: dict[str, Decoder] = {}
    for column, name in names.items():
        if column not in ("key", "value") or name not in _DECODERS and name != "avro":
            raise ConfigurationError(
                f"Argument decode must be one of {', '.join([*_DECODERS, 'avro'])}, or a mapping from key and value to "
                f"one of them, got {decode!r}."
            )
        found[column] = _avro(schema) if name == "avro" else _DECODERS[name]
    return {"key": _auto, "value": _auto, **found}


def _auto(name: str, values: Sequence[bytes | None]) -> list[Any]:
    """JSON if all values are objects or arrays, text if all are printable UTF-8, else hexadecimal."""
    present = [value for value in values if value is not None]
    try:
        texts = [value.decode() for value in present]
    except UnicodeDecodeError:
        return _hex(name, values)
    if present and all(text[:1] in "{[" and text for text in texts):
        try:
            return _json(name, values)
        except ConfigurationError:
            return _text(name, values)
    if all(char.isprintable() or char in "\t\r\n" for text in texts for char in text):
        return _text(name, values)
    return _hex(name, values)


def _text(name: str, values: Sequence[bytes | None]) -> list[Any]:
    return [None if value is None else value.decode("utf-8", "backslashreplace") for value in values]


def _hex(name: str, values: Sequence[bytes | None]) -> list[Any]:
    return [None if value is None else value.hex() for value in values]


def _json(name: str, values: Sequence[bytes | None]) -> list[Any]:
    try:
        return [None if value is None else json.loads(value) for value in values]
    except ValueError as error:
        raise ConfigurationError(
            f"Decoding column {name} as JSON failed: {error}. Set decode to auto, utf-8 or hex."
        ) from error


def _avro(schema: Any) -> Decoder:
    if schema is None:
        raise ConfigurationError(
            "Option decode is avro, which requires a schema. Set argument schema to the JSON text of an Avro schema."
        )
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Decoding Avro failed: fastavro is not installed. Run: pip install fastavro.", name="fastavro"
        ) from error
    parsed = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)

    def decode(name: str, values: Sequence[bytes | None]) -> list[Any]:
        return [None if value is None else _record(name, value) for value in values]

    def _record(name: str, value: bytes) -> Any:
        # the header of Confluent's serializers: 0 and the id of the schema
        starts = (_CONFLUENT_HEADER, 0) if value[:1] == b"\0" and len(value) >= _CONFLUENT_HEADER else (0,)
        for start in starts:
            data = io.BytesIO(value[start:])
            try:
                record = fastavro.schemaless_reader(data, parsed, None)
            except Exception as error:  # fastavro has no base class of errors
                failure: Exception = error
                continue
            if not data.read(1):
                return record
            failure = ValueError("bytes are left after the record")
        raise ConfigurationError(
            f"Decoding column {name} as Avro failed: {failure}. Give the schema that the records were written with."
        ) from failure

    return decode


_DECODERS: Mapping[str, Decoder] = {"auto": _auto, "utf-8": _text, "json": _json, "hex": _hex}
