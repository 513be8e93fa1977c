"""Ends of Avro values of types that contain themselves.

Such values are nested as deeply as they were written, so this walks over them without recursion.

Source: Avro specification 1.12 (binary encoding).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from typing import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from spark_groupsource.values.avro.avro_schema import AvroField, AvroType
from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_lanes import Lanes, ValueBytes
from spark_groupsource.values.lanes.avro_scan import DamagedValueError, read_block_count, read_long, skip_bytes

_MAX_TYPES = 100_000
_INT_LIMIT = 1 << 31


class WalkedNode:
    """A type that is not selected, and contains itself or is nested deeply."""

    def __init__(self, avro: AvroType) -> None:
        self._avro = avro

    def skip(self, data: ValueBytes, at: int) -> int:
        return end_of_value(self._avro, data, at)

    def read(self, lanes: Lanes) -> pa.Array | None:
        for lane in np.flatnonzero(lanes.reason == 0).tolist():
            begin = int(lanes.position[lane])
            data = lanes.value(lane)
            try:
                lanes.position[lane] = begin + end_of_value(self._avro, data, 0)
            except IndexError:
                lanes.fail_lane(lane, reasons.TRUNCATED)
            except DamagedValueError as error:
                lanes.fail_lane(lane, error.reason)
            lanes.keep_empty_items(lane, data)
        return None


def end_of_value(avro: AvroType, data: ValueBytes, at: int) -> int:
    """Returns the position after a value.

    Raises: IndexError or DamagedValueError for the first byte that is invalid.
    """
    pending: list[Iterator[AvroType]] = [iter([avro])]
    while pending:
        each = next(pending[-1], None)
        if each is None:
            pending.pop()
            continue
        if each.is_empty:
            continue
        if each.kind == "record":
            pending.append(field.type for field in each.fields)
        elif each.kind == "union":
            branch, at = read_long(data, at)
            if not 0 <= branch < len(each.branches):
                raise DamagedValueError(reasons.BRANCH)
            pending.append(iter(each.branches[branch : branch + 1]))
        elif each.items is not None:
            item = each.items if each.kind == "array" else _entry(each.items)
            count, at = read_block_count(data, at, item.is_empty)
            if count:
                # the next block follows the items
                pending += [iter([each]), repeat(item, count)]
        else:
            at = _ENDS[each.kind](each, data, at)
            if at > len(data):
                raise IndexError
        if len(pending) > _MAX_TYPES:
            raise DamagedValueError(reasons.NESTING)
    return at


@lru_cache(maxsize=1000)
def _entry(items: AvroType) -> AvroType:
    """Returns the entries of a map as records."""
    found = AvroType("record")
    found.add_fields((AvroField("key", AvroType("string")), AvroField("value", items)))
    return found


def _integer(avro: AvroType, data: ValueBytes, at: int) -> int:
    value, at = read_long(data, at)
    if avro.kind == "int" and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise DamagedValueError(reasons.VARINT)
    return at


def _enum(avro: AvroType, data: ValueBytes, at: int) -> int:
    index, at = read_long(data, at)
    if not 0 <= index < len(avro.symbols):
        raise DamagedValueError(reasons.SYMBOL)
    return at


def _bytes(avro: AvroType, data: ValueBytes, at: int) -> int:
    return skip_bytes(data, at)


_ENDS: Mapping[str, Callable[[AvroType, ValueBytes, int], int]] = {
    "boolean": lambda avro, data, at: at + 1,
    "float": lambda avro, data, at: at + 4,
    "double": lambda avro, data, at: at + 8,
    "fixed": lambda avro, data, at: at + avro.size,
    "int": _integer,
    "long": _integer,
    "enum": _enum,
    "bytes": _bytes,
    "string": _bytes,
}
