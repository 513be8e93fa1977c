"""Values of Kafka's serializers."""

from __future__ import annotations

import struct
from uuid import UUID

import pyarrow as pa
import pytest

from spark_groupsource.values.serdes import NumberDecoder, StringDecoder, UuidDecoder


@pytest.mark.parametrize(
    "name, code, numbers",
    [
        ("short", ">h", [-(2**15), 7]),
        ("int", ">i", [-(2**31), 2**31 - 1]),
        ("long", ">q", [-(2**63), 2**63 - 1]),
        ("float", ">f", [0.5, -1.25]),
        ("double", ">d", [0.1, float("inf")]),
    ],
)
def test_numbers(name: str, code: str, numbers: list[float]) -> None:
    first, last = (struct.pack(code, number) for number in numbers)
    values = [first, None, b"", last + b"\0", last]
    found = NumberDecoder(name).decode(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [numbers[0], None, None, None, numbers[1]]
    width = struct.calcsize(code)
    assert found.malformed == {2: f"0 bytes, {name} has {width}", 3: f"{width + 1} bytes, {name} has {width}"}
    assert NumberDecoder(name).decode(pa.array(values, pa.binary())[4:]).values.to_pylist() == [numbers[1]]
    assert NumberDecoder(name).decode(pa.nulls(2, pa.binary())).values.to_pylist() == [None, None]


def test_text_replaces_invalid_bytes() -> None:
    found = StringDecoder().decode(pa.array([b"a\xc3\xa9", None, b"", b"\xff!"], pa.binary()))
    assert (found.values.to_pylist(), found.malformed) == (["a\u00e9", None, "", "\ufffd!"], {})


def test_uuids_are_text() -> None:
    text = str(UUID(int=2**127 + 5))
    good = UuidDecoder().decode(pa.array([text.encode(), None, text.upper().encode()], pa.binary()))
    assert (good.values.to_pylist(), good.malformed) == ([text, None, text], {})
    bad = UuidDecoder().decode(pa.array([text.encode(), b"\xff" * 16, b"x" * 36], pa.binary()))
    assert bad.values.to_pylist() == [text, None, None]
    assert bad.malformed == {row: f"{size} bytes, which are no UUID in text form" for row, size in ((1, 16), (2, 36))}
