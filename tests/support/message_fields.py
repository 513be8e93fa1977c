"""Messages as plain data, and as the peer decodes them."""

from __future__ import annotations

import uuid
from typing import Any

from spark_groupsource.wire.decoder import decode_exactly
from spark_groupsource.wire.encoder import encode_body


def encoded_and_decoded(message: Any, version: int) -> Any:
    """Returns the message as decoded: without the fields that the version lacks."""
    return decode_exactly(type(message), version, memoryview(encode_body(message, version)))


def fields_of(message: Any, version: int | None = None) -> dict[str, Any]:
    """Returns the fields by name, those of `version` if it is given; ids and bytes are text."""
    return {
        field.name: _plain(getattr(message, field.name), version)
        for field in message.FIELDS
        if version is None or version in field.versions
    }


def _plain(value: Any, version: int | None) -> Any:
    if hasattr(value, "FIELDS"):
        return fields_of(value, version)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each, version) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode(errors="backslashreplace")
    return str(value) if isinstance(value, uuid.UUID) else value
