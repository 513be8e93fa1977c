"""Default values of Avro fields, as values of Spark's types.

Source: Avro specification 1.12 (schema record, field default values).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Callable, Mapping

from spark_groupsource.values.avro_schema import AvroType, nullable_branch

_BITS = {"int": 31, "long": 63}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def default_value(avro: AvroType, given: Any) -> Any:
    """Returns a default in JSON as the Python object that PyArrow converts to the type of its column.

    Raises: ValueError if it is not of the type.
    """
    return _DEFAULTS[avro.kind](avro, given)


def _checked(given: Any, *kinds: type) -> Any:
    if type(given) not in kinds:
        raise ValueError(f"{str(given)[:40]} is not of its type")
    return given


def _integer(avro: AvroType, given: Any) -> int:
    number: int = _checked(given, int)
    if not -(1 << _BITS[avro.kind]) <= number < 1 << _BITS[avro.kind]:
        raise ValueError(f"{number} exceeds its type")
    return number * 1000 if avro.logical.endswith("-millis") else number


def _float(avro: AvroType, given: Any) -> float:
    return float(given if given in _NOT_FINITE else _checked(given, int, float))


def _bytes(avro: AvroType, given: Any) -> bytes | Decimal:
    data: bytes = _checked(given, str).encode("latin-1")
    if avro.kind == "fixed" and len(data) != avro.size:
        raise ValueError(f"{len(data)} bytes are not of its size")
    if avro.logical == "decimal":
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-avro.scale)
    return data


def _enum(avro: AvroType, given: Any) -> str:
    if given not in avro.symbols:
        raise ValueError(f"{str(given)[:40]} is no symbol")
    return str(given)


def _array(avro: AvroType, given: Any) -> list[Any]:
    assert avro.items is not None
    return [default_value(avro.items, each) for each in _checked(given, list)]


def _map(avro: AvroType, given: Any) -> list[tuple[str, Any]]:
    assert avro.items is not None
    return [(key, default_value(avro.items, each)) for key, each in _checked(given, dict).items()]


def _record(avro: AvroType, given: Any) -> dict[str, Any]:
    found = {}
    for field in avro.fields:
        if field.name not in _checked(given, dict) and not field.has_default:
            raise ValueError(f"field {field.name} is missing")
        found[field.name] = default_value(field.type, given.get(field.name, field.default))
    return found


def _union(avro: AvroType, given: Any) -> Any:
    """Returns the default as the first branch that it fits."""
    member = 0
    for branch in avro.branches:
        try:
            value = default_value(branch, given)
        except ValueError:
            member += branch.kind != "null"
            continue
        return value if branch.kind == "null" or nullable_branch(avro) else {f"member{member}": value}
    raise ValueError(f"{str(given)[:40]} fits no branch of its union")


def _null(avro: AvroType, given: Any) -> None:
    _checked(given, type(None))


_DEFAULTS: Mapping[str, Callable[[AvroType, Any], Any]] = {
    "null": _null,
    "boolean": lambda avro, given: _checked(given, bool),
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "bytes": _bytes,
    "string": lambda avro, given: _checked(given, str),
    "fixed": _bytes,
    "enum": _enum,
    "record": _record,
    "array": _array,
    "map": _map,
    "union": _union,
}
