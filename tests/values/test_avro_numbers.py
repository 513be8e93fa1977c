"""Decimals, dates and times of Avro: exact, or malformed."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from support.decoded_values import decode_avro, encode_avro, parsed_avro
from support.examples import scaled

from spark_groupsource.values.avro.avro_blocks import AvroDecoder
from spark_groupsource.values.avro.avro_resolution import UnresolvedError
from spark_groupsource.values.plain_values import plain_type

DECIMAL, VARINT = "a decimal exceeds its precision", "an integer has more than 64 bits, or exceeds its type"


def decimals(kind: str, precision: int, scale: int, size: int = 0) -> dict[str, Any]:
    more = {"size": size, "name": "f"} if kind == "fixed" else {}
    return {"type": kind, "logicalType": "decimal", "precision": precision, "scale": scale, **more}


def around(limit: int, bits: int) -> list[int]:
    """Returns numbers at both ends of a range, and at each boundary of bytes and words."""
    edges = [0, limit, -limit, *(sign << shift for sign in (1, -1) for shift in range(7, bits))]
    return [edge + more for edge in edges for more in (-1, 0, 1) if -(1 << bits - 1) <= edge + more < 1 << bits - 1]


def exact(column: pa.Array, scale: int) -> list[int | None]:
    """Returns the unscaled numbers of a column of decimals."""
    return [None if each is None else int(str(each).replace(".", "")) if not scale else unscaled(each, scale)
            for each in column.to_pylist()]  # fmt: skip


def unscaled(number: Decimal, scale: int) -> int:
    sign, digits, exponent = number.as_tuple()
    found = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -found if sign else found


def minimal(number: int, extra: int = 0) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8 + extra, "big", signed=True)


@pytest.mark.parametrize("precision", range(1, 39))
def test_a_decimal_of_every_precision_is_exact_or_malformed(precision: int) -> None:
    for scale in sorted({0, precision // 2, precision}):
        limit = 10**precision
        numbers = around(limit, 144)
        data = [minimal(number, extra) for number in numbers for extra in (0, 12)]
        expected = [number if -limit < number < limit else None for number in numbers for _ in range(2)]
        schema = decimals("bytes", precision, scale)
        found = decode_avro(schema, schema, [bytes([2 * len(each)]) + each for each in data])
        assert exact(found.values, scale) == expected
        assert found.malformed == {row: DECIMAL for row, number in enumerate(expected) if number is None}


@pytest.mark.parametrize("size", range(1, 20))
def test_a_decimal_in_a_fixed_of_every_size(size: int) -> None:
    most = len(str((1 << 8 * size - 1) - 1)) - 1
    for precision in sorted({1, min(most, 38), min(most, 38) // 2 or 1}):
        limit = 10**precision
        numbers = around(limit, 8 * size)
        schema = decimals("fixed", precision, precision // 3, size)
        found = decode_avro(schema, schema, [number.to_bytes(size, "big", signed=True) for number in numbers])
        expected = [number if -limit < number < limit else None for number in numbers]
        assert exact(found.values, precision // 3) == expected


@pytest.mark.parametrize("precision", [39, 57, 64, 76])
def test_longer_decimals_are_shown_to_people(precision: int) -> None:
    schema = parsed_avro(decimals("bytes", precision, 3))
    numbers = around(10**precision, 272)
    data = [minimal(number) for number in numbers]
    values = pa.array([bytes([2 * len(each)]) + each for each in data], pa.binary())
    found = AvroDecoder(schema, schema, plain_type(schema)).decode(values)
    expected = [number if abs(number) < 10**precision else None for number in numbers]
    assert exact(found.values, 3) == expected


SCALES = [(4, 2), (4, 0), (38, 10), (38, 2), (6, 2), (18, 2), (19, 2), (64, 2)]


@pytest.mark.parametrize("kind", ["bytes", "fixed"])
@pytest.mark.parametrize("writer", SCALES)
@pytest.mark.parametrize("reader", SCALES[:-1])
def test_a_decimal_of_another_scale_or_precision(kind: str, writer: tuple[int, int], reader: tuple[int, int]) -> None:
    """It is read if every number of the writer is one of the reader, and is no other number."""
    source, target = decimals(kind, *writer, size=30), decimals(kind, *reader, size=30)
    numbers = [0, 1, -1, 9999, -(10 ** writer[0]) + 1]
    data = [number.to_bytes(30, "big", signed=True) for number in numbers]
    data = data if kind == "fixed" else [b"\x3c" + each for each in data]
    if writer[1] == reader[1] and writer[0] <= reader[0]:
        found = decode_avro(source, target, data)
        assert exact(found.values, reader[1]) == numbers and not found.malformed
    else:
        with pytest.raises(UnresolvedError, match=r"was written as decimal.* has decimal"):
            decode_avro(source, target, data)


@pytest.mark.parametrize(
    ("digits", "precision", "scale"), [(38, 38, 10), (38, 38, 0), (29, 30, 29), (28, 28, 28), (1, 5, 5)]
)
def test_the_default_of_a_decimal_has_all_its_digits(digits: int, precision: int, scale: int) -> None:
    for number in (10**digits - 1, 1 - 10**digits, 10**digits - 7):
        given = minimal(number).decode("latin-1")
        field = {"name": "d", "type": decimals("bytes", precision, scale), "default": given}
        found = decode_avro(record(), record(field), [b""])
        assert exact(found.values.field("d"), scale) == [number]
    too_long = {"name": "d", "type": decimals("bytes", 2, 0), "default": minimal(100).decode("latin-1")}
    with pytest.raises(UnresolvedError, match="the default of field d is invalid: it exceeds its precision"):
        decode_avro(record(), record(too_long), [b""])


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields)}


UNITS = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}
KINDS = ["", "local-"]


def times(kind: str, unit: str) -> dict[str, str]:
    return {"type": "long", "logicalType": f"{kind}timestamp-{unit}"}


@pytest.mark.parametrize("reader", UNITS)
@pytest.mark.parametrize("writer", UNITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("branch", [False, True], ids=["type", "branch of a union"])
def test_a_time_of_every_unit_is_the_same_time_or_malformed(kind: str, writer: str, reader: str, branch: bool) -> None:
    numbers = around((1 << 63) // 1000, 64) + around((1 << 63) // 1_000_000, 64)
    source: Any = ["string", times(kind, writer)] if branch else times(kind, writer)
    # the column has microseconds, or the number of nanoseconds
    target = 1 if reader == "nanos" else 1000
    expected = [number * UNITS[writer] // target for number in numbers]
    valid = [number if -(1 << 63) <= number < 1 << 63 else None for number in expected]
    data = [b"\x02" * branch + encode_avro("long", number) for number in numbers]
    found = decode_avro(source, times(kind, reader), data)
    assert found.values.cast(pa.int64()).to_pylist() == valid
    assert found.malformed == {row: VARINT for row, number in enumerate(valid) if number is None}


@pytest.mark.parametrize("logical", ["timestamp-millis", "local-timestamp-millis", "timestamp-micros"])
def test_the_default_of_a_time_is_that_time_or_no_default(logical: str) -> None:
    for number in around((1 << 63) // 1000, 63):
        field = {"name": "t", "type": {"type": "long", "logicalType": logical}, "default": number}
        expected = number * (1000 if logical.endswith("millis") else 1)
        try:
            found = decode_avro(record(), record(field), [b""]).values.field("t").cast(pa.int64()).to_pylist()
            assert found == [expected]
        except UnresolvedError:
            assert not -(1 << 63) <= expected < 1 << 63


@pytest.mark.parametrize("kind", ["int", "long"])
def test_integers_of_every_length(kind: str) -> None:
    """A value of up to ten bytes is its number, or exceeds its type; also with more bytes than it needs."""
    bits = 32 if kind == "int" else 64
    numbers = around(0, 64)
    data = [encode_avro("long", number) for number in numbers]
    long = [each[:-1] + bytes([each[-1] | 0x80]) + b"\x80" * more + b"\x00" for each in data
            for more in range(9 - len(each))]  # fmt: skip
    same = [number for number, each in zip(numbers, data) for _ in range(9 - len(each))]
    found = decode_avro(kind, kind, data + long)
    fits = [number if -(1 << bits - 1) <= number < 1 << bits - 1 else None for number in numbers + same]
    assert found.values.to_pylist() == fits
    assert set(found.malformed.values()) <= {VARINT}


def test_dates_are_any_number_of_days() -> None:
    date = {"type": "int", "logicalType": "date"}
    numbers = around(0, 32)
    found = decode_avro(date, date, [encode_avro("int", number) for number in numbers])
    assert found.values.cast(pa.int32()).to_pylist() == numbers and not found.malformed


@pytest.mark.parametrize("kind", ["float", "double"])
def test_numbers_that_become_wider_are_those_of_fastavro(kind: str) -> None:
    rng = random.Random(7)
    numbers = around(0, 64) + [rng.randrange(-(1 << 63), 1 << 63) for _ in range(scaled(2000, 200))]
    found = decode_avro("long", kind, [encode_avro("long", number) for number in numbers])
    # Java and fastavro round once, to the nearest
    expected = pa.array(numbers, pa.int64()).cast(found.values.type, safe=False)
    assert found.values.equals(expected)
