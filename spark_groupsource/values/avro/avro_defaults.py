"""Default values of Avro fields, as values of Spark's types.

Source: Avro specification 1.12 (schema record, field default values).
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Callable, Mapping

import pyarrow as pa

from spark_groupsource.values.avro.avro_schema import AvroType

_BITS = {"int": 31, "long": 63}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def default_value(avro: AvroType, given: Any, kind: pa.DataType | None) -> Any:
    """Returns a default in JSON as the Python object that PyArrow converts to the type of its column.

    Args:
        kind: of records, only its fields are returned; None for a type that is not selected, of which only the
            outermost value is checked.
    Raises: ValueError if it is not of the type.
    """
    return _DEFAULTS[avro.kind](avro, given, kind)


def _checked(given: Any, *kinds: type) -> Any:
    if type(given) not in kinds:
        raise ValueError(f"{_shown(given)} is not of its type")
    return given


def _shown(given: Any) -> str:
    return str(given)[:40]


def _integer(avro: AvroType, given: Any, kind: pa.DataType | None) -> int:
    number: int = _checked(given, int)
    limit = 1 << _BITS[avro.kind]
    if avro.logical.endswith("-millis"):
        number *= 1000
    if not -limit <= number < limit:
        raise ValueError(f"{_shown(given)} exceeds its type")
    return number


def _float(avro: AvroType, given: Any, kind: pa.DataType | None) -> float:
    if given in _NOT_FINITE:
        return float(given)
    number = _checked(given, int, float)
    try:
        return float(number)
    except OverflowError:
        # as Java reads such a number
        return math.copysign(math.inf, number)


def _bytes(avro: AvroType, given: Any, kind: pa.DataType | None) -> bytes | Decimal:
    data: bytes = _checked(given, str).encode("latin-1")
    if avro.kind == "fixed" and len(data) != avro.size:
        raise ValueError(f"{len(data)} bytes are not of its size")
    if avro.logical == "decimal":
        unscaled = int.from_bytes(data, "big", signed=True)
        if abs(unscaled) >= 10**avro.precision:
            raise ValueError("it exceeds its precision")
        # arithmetic of Decimal would round it
        return Decimal(f"{unscaled}e-{avro.scale}")
    return data


def _enum(avro: AvroType, given: Any, kind: pa.DataType | None) -> str:
    if given not in avro.symbols:
        raise ValueError(f"{_shown(given)} is no symbol")
    return str(given)


def _array(avro: AvroType, given: Any, kind: pa.DataType | None) -> list[Any]:
    assert avro.items is not None
    items = _checked(given, list)
    return [] if kind is None else [default_value(avro.items, each, kind.value_type) for each in items]


def _map(avro: AvroType, given: Any, kind: pa.DataType | None) -> list[tuple[str, Any]]:
    assert avro.items is not None
    entries = _checked(given, dict)
    if kind is None:
        return []
    return [(key, default_value(avro.items, each, kind.item_type)) for key, each in entries.items()]


def _record(avro: AvroType, given: Any, kind: pa.DataType | None) -> dict[str, Any]:
    selected = {} if kind is None else {field.name: field.type for field in kind}
    found = {}
    for field in avro.fields:
        if field.name not in _checked(given, dict) and not field.has_default:
            raise ValueError(f"field {field.name} is missing")
        if field.name in selected:
            value = given.get(field.name, field.default)
            found[field.name] = default_value(field.type, value, selected[field.name])
    return found


def _union(avro: AvroType, given: Any, kind: pa.DataType | None) -> Any:
    """Returns the default as the first branch that it fits."""
    member = 0
    for branch in avro.read_branches:
        try:
            if branch.kind == "null" or not avro.is_struct:
                return default_value(branch, given, kind)
            name = f"member{member}"
            index = -1 if kind is None else kind.get_field_index(name)
            return {name: default_value(branch, given, kind.field(index).type if kind and index >= 0 else None)}
        except ValueError:
            member += branch.kind != "null"
    raise ValueError(f"{_shown(given)} fits no branch of its union")


def _null(avro: AvroType, given: Any, kind: pa.DataType | None) -> None:
    _checked(given, type(None))


_DEFAULTS: Mapping[str, Callable[[AvroType, Any, pa.DataType | None], Any]] = {
    "null": _null,
    "boolean": lambda avro, given, kind: _checked(given, bool),
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "bytes": _bytes,
    "string": lambda avro, given, kind: _checked(given, str),
    "fixed": _bytes,
    "enum": _enum,
    "record": _record,
    "array": _array,
    "map": _map,
    "union": _union,
}
