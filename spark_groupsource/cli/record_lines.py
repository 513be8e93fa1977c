"""Output of records: values, JSON lines, and the format strings of kcat."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from spark_groupsource.cli.console_serdes import Serde, decode_text
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.python_values import time_text

Row = dict[str, Any]
"""One record: column -> value, with key and value as bytes and the timestamp in epoch ms."""
Writer = Callable[[Row], str]

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)


def unescaped(text: str) -> str:
    """Returns a text with the characters of its escapes, for example ``\\n`` and ``\\x1f``."""
    return _ESCAPE.sub(lambda found: _character(found[1]), text)


def _character(escape: str) -> str:
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPES.get(escape, f"\\{escape}")


def encoded(text: str) -> bytes:
    """Returns the output of a writer as bytes, those of format raw as they were."""
    return text.encode("utf-8", "surrogateescape")


def value_writer(value: Serde, key: Serde, with_position: bool, null: str, separator: str | None) -> Writer:
    """Returns a function that prints the value, after the position or the key if it is requested."""

    def write(row: Row) -> str:
        text = null if row["value"] is None else as_text(row, "value", value)
        if not with_position and separator is None:
            return f"{text}\n"
        shown = "-" if row["key"] is None else as_text(row, "key", key)
        if with_position:
            time = None if row["timestamp"] is None else time_text(row["timestamp"] * 1000)
            return f"{time} {row['partition']}:{row['offset']} {shown} {text}\n"
        return f"{null if row['key'] is None else shown}{separator}{text}\n"

    return write


def json_writer(value: Serde, key: Serde) -> Writer:
    """Returns a function that prints an object, which ``produce --json`` reads."""

    def write(row: Row) -> str:
        found = {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp": row["timestamp"],
            "key": None if row["key"] is None else decoded(row, "key", key),
            "value": None if row["value"] is None else decoded(row, "value", value),
            "headers": [
                [header["key"], None if header["value"] is None else decode_text(header["value"])]
                for header in row["headers"] or ()
            ],
        }
        return json.dumps(found, ensure_ascii=False) + "\n"

    return write


def format_writer(template: str, value: Serde, key: Serde) -> Writer:
    """Returns a function that prints a format string of kcat, without a line end of its own.

    Tokens: %s value, %S its length, -1 for null, %R the same as int32; %k key, %K its length; %t topic, %p partition,
    %o offset, %T timestamp in epoch ms, %h headers, %% a percent sign.

    Raises: ConfigurationError for another token.
    """
    tokens: dict[str, Writer] = {
        "s": lambda row: "" if row["value"] is None else as_text(row, "value", value),
        "S": lambda row: str(-1 if row["value"] is None else len(row["value"])),
        "R": lambda row: _int32(-1 if row["value"] is None else len(row["value"])),
        "k": lambda row: "" if row["key"] is None else as_text(row, "key", key),
        "K": lambda row: str(-1 if row["key"] is None else len(row["key"])),
        "t": lambda row: str(row["topic"]),
        "p": lambda row: str(row["partition"]),
        "o": lambda row: str(row["offset"]),
        "T": lambda row: str(row["timestamp"]),
        "h": _headers_text,
        "%": lambda row: "%",
    }
    parts: list[str | Writer] = []
    position = 0
    for found in _TOKEN.finditer(template):
        parts.append(template[position : found.start()])
        position = found.end()
        token, escape = found.groups()
        if token is not None and token not in tokens:
            raise ConfigurationError(
                f"Option --format has the unknown token %{token}. The tokens are %{', %'.join(tokens)}."
            )
        if token is not None:
            parts.append(tokens[token])
        else:
            parts.append(_character(escape))
    parts.append(template[position:])
    return lambda row: "".join(part if isinstance(part, str) else part(row) for part in parts)


def decoded(row: Row, column: str, converter: Serde) -> Any:
    """Returns a key or value that is not null, as `DecodedRows` has decoded it, or else as `converter` does."""
    name = f"{column}_decoded"
    return row[name] if name in row else converter.decode(row[column])


def as_text(row: Row, column: str, converter: Serde) -> str:
    """Returns a decoded key or value as text; bytes that are not UTF-8 are escaped."""
    found = decoded(row, column, converter)
    if isinstance(found, str):
        return found
    if isinstance(found, dict) and found.keys() == {"base64"}:
        return bytes(row[column]).decode("utf-8", "backslashreplace")
    return json.dumps(found, ensure_ascii=False)


def _int32(number: int) -> str:
    return number.to_bytes(4, "big", signed=True).decode("utf-8", "surrogateescape")


def _headers_text(row: Row) -> str:
    pairs = ((h["key"], "NULL" if h["value"] is None else h["value"]) for h in row["headers"] or ())
    return ",".join(
        f"{name}={value if isinstance(value, str) else value.decode('utf-8', 'backslashreplace')}"
        for name, value in pairs
    )
