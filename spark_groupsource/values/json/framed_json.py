"""JSON values for people, also after the header of a schema registry.

Source: Confluent wire format: a zero byte and the id of a schema, four bytes, precede the JSON.
"""

from __future__ import annotations

import json
from typing import Any

from spark_groupsource.values.registry.schema_headers import PREFIX_BYTES


def parse_json(data: bytes) -> Any:
    """Parses JSON with or without the header. Raises: ValueError, also for JSON that is nested too deeply."""
    return parse_bare_json(_without_header(data))


def parse_bare_json(data: bytes) -> Any:
    """Parses JSON. Raises: as `parse_json`."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def seems_json(data: bytes) -> bool:
    """Returns whether a value begins as an object or an array, with or without the header."""
    return _without_header(data)[:1] in (b"{", b"[")


def _without_header(data: bytes) -> bytes:
    # no JSON begins with a zero byte
    return data[PREFIX_BYTES:] if data[:1] == b"\0" else data
