"""Decoding of single JSON values with the conversions of Spark's from_json.

`json_blocks` decodes whole blocks; this module decodes the values that a block decoder cannot read, and decides which
of them are malformed.

Source: Spark `JacksonParser`; Jackson `Base64Variant`; Java `BigDecimal`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Callable

import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import strings
from spark_groupsource.values.json.text_times import check_micros, days_of, local_micros_of, micros_of

Convert = Callable[[Any], Any]

MAX_DEPTH = 500
"""Levels of arrays and objects in a value: Python's parser fails at some more, depending on its caller."""

_WHITESPACE = " \t\r\n"
_INTEGER = re.compile(r"-?\d+")
# digits are those of Unicode, as in Java
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+))?")
_EXACT = Context(prec=2 * 38 + 1, rounding=ROUND_HALF_UP)
_MAX_EXPONENT_DIGITS = 10
_NOT_FINITE = {
    "NaN": "nan",
    "+INF": "inf", "Infinity": "inf", "+Infinity": "inf",
    "-INF": "-inf", "-Infinity": "-inf",
}  # fmt: skip
_BASE64 = re.compile(r"(?:[\x00-\x20]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*[\x00-\x20]*")
_BLANKS = re.compile(r"[\x00-\x20]+")
_GROUPS = re.compile(r"[^=]+=*")
_ESCAPED = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.S)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class _Number(str):
    """A number, or NaN or Infinity, as it is written."""


class _Object(list[tuple[str, Any]]):
    """The keys and values of an object, also of keys that are repeated."""


class MalformedValueError(ValueError):
    """A value is not of its format or schema; the message is the reason."""


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_Object)


def record_decoder(kind: pa.DataType) -> Callable[[bytes], Any]:
    """Returns the function that decodes a JSON value as `kind`; None for an empty value, as from_json.

    Dates and times are days and microseconds since 1970. It raises MalformedValueError.
    """
    convert = _converter(kind)

    def decode(value: bytes) -> Any:
        try:
            if is_too_deep(value):
                raise MalformedValueError("it is nested too deep")
            text = value.decode("utf-8")
            if not text.strip(_WHITESPACE):
                return None
            found = _DECODER.decode(text)
            if found is None:
                raise MalformedValueError("the value is null")
            return convert(found)
        except MalformedValueError:
            raise
        except RecursionError:
            raise MalformedValueError("it is nested too deep") from None
        except UnicodeDecodeError as error:
            raise MalformedValueError(f"invalid UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise MalformedValueError(f"{error.msg} at character {error.pos}") from None

    return decode


def is_too_deep(value: bytes) -> bool:
    """Returns whether a value has more levels than `MAX_DEPTH`."""
    if len(value) <= MAX_DEPTH or value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return False
    brackets = np.frombuffer(_STRING.sub(b"", value).translate(None, _NO_BRACKETS), np.uint8)
    # those that open have the bit 2 not set
    depth = np.cumsum(np.where(brackets & 4, -1, 1))
    return bool(depth.max(initial=0) > MAX_DEPTH)


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
    converters = {field.name: _converter(field.type) for field in kind}

    def convert(value: Any) -> dict[str, Any]:
        row = dict.fromkeys(converters)
        # the last one of repeated keys is the value, and each must be valid
        for name, each in _checked(value, _Object, kind):
            to = converters.get(name)
            if to is None:
                continue
            try:
                row[name] = None if each is None else to(each)
            except MalformedValueError as error:
                raise MalformedValueError(f"{name}: {error}") from None
        return row

    return convert


def _map(kind: pa.DataType) -> Convert:
    item = _nullable(_converter(kind.item_type))
    return lambda value: [(_plain(key), item(each)) for key, each in _checked(value, _Object, kind)]


def _integer(kind: pa.DataType) -> Convert:
    limit = 1 << (kind.bit_width - 1)

    def convert(value: Any) -> int:
        text = _checked(value, _Number, kind)
        if not _INTEGER.fullmatch(text) or len(text) > 20 or not -limit <= int(text) < limit:
            raise MalformedValueError(f"{text[:60]} is not of type {kind}")
        return int(text)

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    name = f"decimal({kind.precision},{kind.scale})"
    quantum = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        text = value.replace(",", "") if type(value) is str else value
        found = _DECIMAL.fullmatch(text) if isinstance(value, str) else None
        # in Java a character beyond U+FFFF is two, and neither is a digit
        if found is None or len((found[1] or "").lstrip("+-0")) > _MAX_EXPONENT_DIGITS or max(text) > "\uffff":
            raise MalformedValueError(f"{_shown(value)} is not of type {name}")
        try:
            number = Decimal(text).quantize(quantum, context=_EXACT)
        except ArithmeticError:
            number = None
        if number is None or len(number.as_tuple().digits) > kind.precision:
            raise MalformedValueError(f"{_shown(value)} exceeds {name}")
        return number

    return convert


def _double(value: Any) -> float:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return float(_NOT_FINITE[value])
        if type(value) is _Number:
            return float(value)
    raise MalformedValueError(f"{_shown(value)} is not of type double")


def _float(value: Any) -> float:
    found = _double(value)
    try:
        # a number that is rounded to a double first may become another float
        single: float = strings([str(value)]).cast(pa.float32())[0].as_py()
    except pa.ArrowInvalid:
        return found
    return single


def _boolean(value: Any) -> bool:
    found: bool = _checked(value, bool, "boolean")
    return found


def _plain(text: str) -> str:
    """Returns text in which lone surrogates are question marks, as in Java."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _raw_text(value: Any) -> str:
    """Returns a string as it is, and any other value as JSON text without whitespace."""
    if isinstance(value, str):
        return _plain(str(value))
    parts: list[str] = []
    _write_json(value, parts)
    return "".join(parts)


def _write_json(value: Any, parts: list[str]) -> None:
    """Writes JSON text as Jackson writes it, but numbers as they are. One frame for each level of `MAX_DEPTH`."""
    separator = ""
    if type(value) is _Object:
        parts.append("{")
        for key, each in value:
            parts.append(f"{separator}{_quoted(key)}:")
            _write_json(each, parts)
            separator = ","
        parts.append("}")
    elif type(value) is list:
        parts.append("[")
        for each in value:
            parts.append(separator)
            _write_json(each, parts)
            separator = ","
        parts.append("]")
    elif type(value) is str:
        parts.append(_quoted(value))
    else:
        parts.append(value if isinstance(value, str) else json.dumps(value))


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    return _SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04X}"


def base64_bytes(text: str) -> bytes:
    """Returns the bytes of base64, which may be several texts with padding. Raises: MalformedValueError."""
    if len(text) % 4 == 0:
        try:
            return b64decode(text, validate=True)
        except ValueError:
            pass
    if not _BASE64.fullmatch(text):
        raise MalformedValueError(f"{text[:60]!r} is no base64")
    return b"".join(map(b64decode, _GROUPS.findall(_BLANKS.sub("", text))))


def _binary(value: Any) -> bytes:
    return base64_bytes(_checked(value, str, "binary"))


def _of_text(parse: Callable[[str], int], name: str) -> Convert:
    def convert(value: Any) -> int:
        text = _checked(value, str, name)
        try:
            return parse(text)
        except ValueError as error:
            raise MalformedValueError(f"{text[:60]!r} is not of type {name}: {error}") from None

    return convert


_text_micros = _of_text(micros_of, "timestamp")


def _timestamp(value: Any) -> int:
    if type(value) is not _Number:
        micros: int = _text_micros(value)
        return micros
    if not _INTEGER.fullmatch(value) or len(value) > 20:
        raise MalformedValueError(f"{value[:60]} is not of type timestamp")
    try:
        # seconds, as in Spark
        return check_micros(int(value) * 1_000_000)
    except ValueError as error:
        raise MalformedValueError(f"{value} is not of type timestamp: {error}") from None


_SCALARS: dict[str, Convert] = {
    str(pa.float32()): _float,
    str(pa.float64()): _double,
    str(pa.bool_()): _boolean,
    str(pa.string()): _raw_text,
    str(pa.binary()): _binary,
    str(pa.date32()): _of_text(days_of, "date"),
    str(pa.timestamp("us", "UTC")): _timestamp,
    str(pa.timestamp("us")): _of_text(local_micros_of, "timestamp_ntz"),
}
