"""Number of array elements of a message, which decides how long its encoding takes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from spark_groupsource.wire.messages import BaseField

_Arrays = tuple[tuple[str, "_Arrays"], ...]
"""Names of the array fields of a structure, each with the array fields of its elements."""


def has_more_elements(message: Any, limit: int) -> bool:
    """Returns whether `message` has more than `limit` array elements. Takes time in proportion to `limit`."""
    message_class: Any = type(message)  # mypy does not accept a class as Hashable
    arrays = _arrays_of_class(message_class)
    return bool(arrays) and _count(message, arrays, limit) > limit


def _count(value: Any, arrays: _Arrays, limit: int) -> int:
    total = 0
    for name, inner in arrays:
        elements = getattr(value, name, None) or ()
        total += len(elements)
        if total > limit:
            return total
        if inner:
            for element in elements:
                total += _count(element, inner, limit - total)
                if total > limit:
                    return total
    return total


@lru_cache(maxsize=None)
def _arrays_of_class(message_class: Any) -> _Arrays:
    return _arrays(message_class._struct)


def _arrays(struct: BaseField) -> _Arrays:
    found: list[tuple[str, _Arrays]] = []
    for field in struct.fields.values():
        if field.is_array():
            element = field.array_of
            found.append((field.name, _arrays(element) if element.is_struct() else ()))
    return tuple(found)
