"""Decoding of keys and values for people: text, JSON, Avro, Protobuf, hexadecimal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Mapping, Sequence

import pyarrow as pa

from spark_groupsource.common.arguments import shown
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.decoded import Malformed
from spark_groupsource.values.format_options import AVRO, CONFLUENT, NO_HEADER, PROTOBUF, ColumnFormat
from spark_groupsource.values.json.framed_json import parse_json, seems_json
from spark_groupsource.values.plain_values import PlainDecoder, descriptors, plain_decoder, schema_text

Decoder = Callable[[str, Sequence["bytes | None"]], "list[Any]"]
"""Decodes a column, given its name and values."""


def decoders(
    decode: str | Mapping[str, str],
    schema: Any = None,
    written: Mapping[str, ColumnFormat] = {},
    message: str | None = None,
) -> dict[str, Decoder]:
    """Returns the decoder of the columns key and value.

    Args:
        decode: ``auto``, ``utf-8``, ``json``, ``avro``, ``protobuf`` or ``hex``, for both columns or by column; a
            format with a schema alone is that of the value.
        schema: schema of the column with ``avro`` (JSON text or parsed) or ``protobuf`` (a descriptor set or text).
        written: column -> a registry with the writers' schemas.
        message: name of the Protobuf message.
    Raises: ConfigurationError.
    """
    formats = [*_DECODERS, *_WITH_SCHEMA]
    names: Any = decode
    if isinstance(decode, str):
        names = {"value": decode} if decode in _WITH_SCHEMA else {"key": decode, "value": decode}
    if not isinstance(names, Mapping) or not all(c in ("key", "value") and n in formats for c, n in names.items()):
        raise ConfigurationError(
            f"Argument decode must be one of {', '.join(formats)}, or a mapping from key and value to one of them, "
            f"got {shown(decode)}."
        )
    found: dict[str, Decoder] = {}
    for column, name in names.items():
        if name in _WITH_SCHEMA:
            found[column] = _with_schema(column, name, schema, message, written.get(column))
        else:
            found[column] = _DECODERS[name]
    kinds = ("AVRO", "PROTOBUF", "JSON")
    automatic = {column: partial(_auto_written, plain_decoder(given, kinds)) for column, given in written.items()}
    chosen: dict[str, Decoder] = {"key": _auto, "value": _auto, **found}
    return {
        column: automatic[column] if decoder is _auto and column in automatic else decoder
        for column, decoder in chosen.items()
    }


def _auto_written(decode: PlainDecoder, name: str, values: Sequence[bytes | None]) -> list[Any]:
    """As they were written if all values name a schema of the registry, else as `_auto`."""
    if all(value is None or value[:1] == b"\0" for value in values):
        found = list(decode(pa.array(values, pa.binary()), None))
        if not any(isinstance(each, Malformed) for each in found):
            return found
    return _auto(name, values)


def _auto(name: str, values: Sequence[bytes | None]) -> list[Any]:
    """JSON if all values are objects or arrays, text if all are printable UTF-8, else hexadecimal."""
    present = [value for value in values if value is not None]
    if present and all(map(seems_json, present)):
        try:
            return _json(name, values)
        except ConfigurationError:
            pass
    try:
        texts = [value.decode() for value in present]
    except UnicodeDecodeError:
        return _hex(name, values)
    if all(char.isprintable() or char in "\t\r\n" for text in texts for char in text):
        return _text(name, values)
    return _hex(name, values)


def _text(name: str, values: Sequence[bytes | None]) -> list[Any]:
    return [None if value is None else value.decode("utf-8", "backslashreplace") for value in values]


def _hex(name: str, values: Sequence[bytes | None]) -> list[Any]:
    return [None if value is None else value.hex() for value in values]


def _json(name: str, values: Sequence[bytes | None]) -> list[Any]:
    try:
        return [None if value is None else parse_json(value) for value in values]
    except ValueError as error:
        raise ConfigurationError(
            f"Decoding column {name} as JSON failed: {error}. Set decode to auto, utf-8 or hex."
        ) from error


def _with_schema(column: str, name: str, schema: Any, message: str | None, written: ColumnFormat | None) -> Decoder:
    title = _WITH_SCHEMA[name]
    if schema is not None:
        text = descriptors(f"argument schema of column {column}", schema) if name == PROTOBUF else schema_text(schema)
        formats = [ColumnFormat(column, name, text, header=each, message=message) for each in (CONFLUENT, NO_HEADER)]
    elif written is not None:
        formats = [replace(written, format=name)]
    else:
        raise ConfigurationError(
            f"Option decode is {name}, which requires a schema. Set argument schema to {_SCHEMAS[name]}, or argument "
            "registry."
        )
    attempts = [plain_decoder(given) for given in formats]

    def decode(name: str, values: Sequence[bytes | None]) -> list[Any]:
        # a value without the header of a registry is bare
        found = [attempt(pa.array(values, pa.binary()), None) for attempt in attempts]
        chosen = [next((each for each in row if not isinstance(each, Malformed)), row[-1]) for row in zip(*found)]
        for each in chosen:
            if isinstance(each, Malformed):
                raise ConfigurationError(
                    f"Decoding column {name} as {title} failed: {each}. Give the schema that the records were written "
                    "with."
                )
        return chosen

    return decode


_WITH_SCHEMA = {AVRO: "Avro", PROTOBUF: "Protobuf"}
_SCHEMAS = {AVRO: "the JSON text of an Avro schema", PROTOBUF: "a descriptor set or the text of a .proto file"}
_DECODERS: Mapping[str, Decoder] = {"auto": _auto, "utf-8": _text, "json": _json, "hex": _hex}
