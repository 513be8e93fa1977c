"""Result of decoding a block of keys or values."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Protocol

import pyarrow as pa

from spark_groupsource.log_text import escaped

MAX_REASON_CHARS = 200


class Decoded(NamedTuple):
    """Decoded values.

    Attributes:
        values: one for each input; null where the input is null or malformed.
        malformed: row -> reason.
        schema_ids: row -> id of the writer's schema, of malformed rows that name one.
    """

    values: pa.Array
    malformed: Mapping[int, str] = {}
    schema_ids: Mapping[int, str] = {}


class Malformed(str):
    """Why a value is malformed, in place of the value."""


class Decoder(Protocol):
    """Decodes a block of keys or values."""

    def decode(self, data: pa.Array) -> Decoded:
        """Decodes a binary array. A malformed value is no error."""


def bounded_reason(reason: str) -> str:
    """Returns one line of at most `MAX_REASON_CHARS` characters, which is valid text without control characters."""
    line = escaped(" ".join(reason.encode("utf-8", "replace").decode().split()))
    return line if len(line) <= MAX_REASON_CHARS else f"{line[: MAX_REASON_CHARS - 3]}..."
