"""The paths by which JSON values are decoded, for comparison.

PyArrow's reader, the compiled scanner and the decoder of single values must agree about each value, whatever the values
beside it are.
"""

from __future__ import annotations

import re
from typing import Callable, Sequence
from unittest.mock import patch

import pyarrow as pa

from spark_groupsource.values.json import json_scans
from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.json.json_records import MalformedValueError, record_decoder
from spark_groupsource.values.python_values import python_values

MALFORMED = "malformed"
Path = Callable[[pa.DataType, Sequence["bytes | None"]], "list[str]"]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# no reader rejects the first one, every reader rejects the second one
_GOOD, _BAD = b"{}", b'{"a":'


def single_values(kind: pa.DataType, values: Sequence[bytes | None]) -> list[str]:
    """Decodes each value by itself."""
    decode, found = record_decoder(kind), []
    for value in values:
        try:
            found.append(_shown(pa.array([None if value is None else decode(value)], kind))[0])
        except MalformedValueError:
            found.append(MALFORMED)
    return found


def beside_good_values(kind: pa.DataType, values: Sequence[bytes | None]) -> list[str]:
    """Decodes each value between two that are not malformed, so that PyArrow's reader sees it."""
    decoder = JsonDecoder(kind)
    return [_decoded(decoder, [_GOOD, value, _GOOD])[1] for value in values]


def beside_a_malformed_value(kind: pa.DataType, values: Sequence[bytes | None]) -> list[str]:
    """Decodes all values of a block of which each second one is malformed."""
    mixed = [each for value in values for each in (value, _BAD)]
    return _decoded(JsonDecoder(kind), mixed)[::2]


def one_block(kind: pa.DataType, values: Sequence[bytes | None]) -> list[str]:
    """Decodes all values together, for a second time by a decoder that has seen them."""
    decoder = JsonDecoder(kind)
    first, second = _decoded(decoder, values), _decoded(decoder, values)
    assert first == second, "a decoder decodes the same block in another way"
    return first


def scanned_block(kind: pa.DataType, values: Sequence[bytes | None]) -> list[str]:
    """Decodes all values together by the compiled scanner, if it reads the type."""
    # private: the scanner is loaded after many rows
    with patch.object(json_scans._Rows, "load_after", -1):
        return one_block(kind, values)


PATHS: dict[str, Path] = {
    "beside good values": beside_good_values,
    "beside malformed values": beside_a_malformed_value,
    "one block": one_block,
    "scanned block": scanned_block,
}


def disagreements(kind: pa.DataType, values: Sequence[bytes | None], paths: Sequence[str] = tuple(PATHS)) -> list[str]:
    """Returns a line for each value that a path decodes in another way than the decoder of single values."""
    expected = single_values(kind, values)
    return [
        f"{kind}: {value!r} is {wanted}, and {found} by path '{name}'"
        for name in paths
        for value, wanted, found in zip(values, expected, PATHS[name](kind, values))
        if wanted != found
    ]


def _decoded(decoder: JsonDecoder, values: Sequence[bytes | None]) -> list[str]:
    # an array that begins within its buffers
    found = decoder.decode(pa.array([b"1e5", *values], pa.binary()).slice(1))
    found.values.validate(full=True)
    assert all(reason.encode() and not _CONTROL.search(reason) for reason in found.malformed.values()), found.malformed
    return [MALFORMED if row in found.malformed else text for row, text in enumerate(_shown(found.values))]


def _shown(values: pa.Array) -> list[str]:
    return [repr(value) for value in python_values(values)]
