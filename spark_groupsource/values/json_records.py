"""Decoding of single JSON values with the conversions of Spark's from_json.

`json_blocks` decodes whole blocks; this module decodes the values that a block decoder cannot read, and decides which
of them are malformed.

Source: Spark `JacksonParser`, `SparkDateTimeUtils.stringToTimestamp`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Callable

import pyarrow as pa

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_INTEGER = re.compile(r"-?\d+")
_DATE = re.compile(r"(\d{4})-(\d{1,2})(?:-(\d{1,2}))?(?:[T ].*)?", re.S)
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?\s*(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?)?"
)
_NOT_FINITE = {
    "NaN": "nan",
    "INF": "inf", "+INF": "inf", "Infinity": "inf", "+Infinity": "inf",
    "-INF": "-inf", "-Infinity": "-inf",
}  # fmt: skip


class _Number(str):
    """A number, or NaN or Infinity, as it is written."""


class MalformedValueError(ValueError):
    """A value is not of its format or schema; the message is the reason."""


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def record_decoder(kind: pa.DataType) -> Callable[[bytes], Any]:
    """Returns the function that decodes a JSON value as `kind`; None for an empty value, as from_json.

    It raises MalformedValueError.
    """
    convert = _converter(kind)

    def decode(value: bytes) -> Any:
        try:
            text = value.decode("utf-8")
            found = _DECODER.decode(text) if text.strip(" \t\r\n") else None
            if found is None and text.strip(" \t\r\n"):
                raise MalformedValueError("the value is null")
            return None if found is None else convert(found)
        except MalformedValueError:
            raise
        except RecursionError:
            raise MalformedValueError("it is nested too deep") from None
        except UnicodeDecodeError as error:
            raise MalformedValueError(f"invalid UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise MalformedValueError(f"{error.msg} at character {error.pos}") from None
        except (ValueError, ArithmeticError) as error:
            raise MalformedValueError(str(error)) from None

    return decode


def _converter(kind: pa.DataType) -> Convert:
    """Returns the conversion of a parsed JSON value; null is the same in every type."""
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind):
        element = _nullable(_converter(kind.value_type))
        return lambda value: [element(each) for each in _checked(value, list, kind)]
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    return _SCALARS[str(kind)]


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _checked(value: Any, wanted: type, kind: Any) -> Any:
    if type(value) is not wanted:
        raise MalformedValueError(f"{_shown(value)} is not of type {_type_name(kind)}")
    return value


def _shown(value: Any) -> str:
    return _raw_text(value)[:60]


def _type_name(kind: Any) -> str:
    return str(kind).split("<")[0].split("[")[0]


def _struct(kind: pa.DataType) -> Convert:
    converters = [(field.name, _nullable(_converter(field.type))) for field in kind]

    def convert(value: Any) -> dict[str, Any]:
        found = _checked(value, dict, kind)
        row = {}
        for name, each in converters:
            try:
                row[name] = each(found.get(name))
            except MalformedValueError as error:
                raise MalformedValueError(f"{name}: {error}") from None
        return row

    return convert


def _map(kind: pa.DataType) -> Convert:
    item = _nullable(_converter(kind.item_type))
    return lambda value: [(key, item(each)) for key, each in _checked(value, dict, kind).items()]


def _integer(kind: pa.DataType) -> Convert:
    limit = 1 << (kind.bit_width - 1)

    def convert(value: Any) -> int:
        text = _checked(value, _Number, kind)
        if not _INTEGER.fullmatch(text) or len(text) > 20 or not -limit <= int(text) < limit:
            raise MalformedValueError(f"{text[:60]} is not of type {kind}")
        return int(text)

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    quantum = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if not isinstance(value, str):
            raise MalformedValueError(f"{_shown(value)} is not of type decimal")
        with localcontext() as context:
            context.prec = 2 * 38 + 1
            number = Decimal(str(value)).quantize(quantum, ROUND_HALF_UP)
        if len(number.as_tuple().digits) > kind.precision:
            raise MalformedValueError(f"{value[:60]} exceeds decimal({kind.precision},{kind.scale})")
        return number

    return convert


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return float(_NOT_FINITE[value])
        if type(value) is _Number:
            return float(value)
    raise MalformedValueError(f"{_shown(value)} is not of type double")


def _boolean(value: Any) -> bool:
    found: bool = _checked(value, bool, "boolean")
    return found


def _raw_text(value: Any) -> str:
    """Returns a string as it is, and any other value as JSON text without whitespace."""
    if isinstance(value, str):
        # a lone surrogate becomes a question mark, as in Java
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_nested_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_nested_text, value)) + "]"
    return json.dumps(value)


def _nested_text(value: Any) -> str:
    return _quoted(value) if type(value) is str else _raw_text(value)


def _quoted(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)


def _binary(value: Any) -> bytes:
    return b64decode(_checked(value, str, "binary"), validate=True)


def _date(value: Any) -> date:
    text = _checked(value, str, "date")
    found = _DATE.fullmatch(text.strip())
    if not found:
        raise MalformedValueError(f"{text[:60]!r} is not of type date")
    return date(int(found[1]), int(found[2]), int(found[3] or 1))


def _micros(value: Any) -> tuple[int, bool]:
    """Returns microseconds since 1970, and whether the text names a zone."""
    text = _checked(value, str, "timestamp")
    found = _TIMESTAMP.fullmatch(text.strip())
    if not found:
        raise MalformedValueError(f"{text[:60]!r} is not of type timestamp")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    micros = (moment - _EPOCH) // timedelta(microseconds=1) + int(((found[7] or "") + "000000")[:6])
    return micros - _zone_micros(found[8]), found[8] is not None


def _zone_micros(zone: str | None) -> int:
    if zone is None or not zone.startswith(("+", "-")):
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
    if hours > 18 or minutes > 59:
        raise MalformedValueError(f"{zone} is no zone offset")
    return (hours * 60 + minutes) * 60_000_000 * (-1 if zone[0] == "-" else 1)


def _timestamp(value: Any) -> int:
    if type(value) is _Number and _INTEGER.fullmatch(value):
        # seconds, as in Spark
        return int(value) * 1_000_000
    return _micros(value)[0]


def _local_timestamp(value: Any) -> int:
    micros, has_zone = _micros(value)
    if has_zone:
        raise MalformedValueError(f"{value[:60]!r} has a zone, which timestamp_ntz has not")
    return micros


_SCALARS: dict[str, Convert] = {
    str(pa.float32()): _float,
    str(pa.float64()): _float,
    str(pa.bool_()): _boolean,
    str(pa.string()): _raw_text,
    str(pa.binary()): _binary,
    str(pa.date32()): _date,
    str(pa.timestamp("us", "UTC")): _timestamp,
    str(pa.timestamp("us")): _local_timestamp,
}
