"""Size of a message in array elements, which determines its encoding time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterator

from spark_groupsource.wire.messages import BaseField

_BYTES_PER_ELEMENT = 1_000  # take as long
_Arrays = tuple[tuple[str, "_Arrays | None"], ...]
"""Names of the array fields of a structure, each with the fields of its elements; None for a field with bytes."""


def has_more_elements(message: Any, limit: int) -> bool:
    """Returns whether `message` has more than `limit` array elements, with 1,000 bytes of data as one.

    Takes time in proportion to `limit`.
    """
    message_class: Any = type(message)  # mypy does not accept a class as Hashable
    count = _counter(message_class)
    if count is None:
        return False
    try:
        return count(message, limit) > limit
    except AttributeError:  # elements may be tuples
        return _count(message, _arrays_of_class(message_class), limit) > limit


def data_bytes(message: Any) -> int:
    """Returns the bytes of record sets and other data in `message`."""
    message_class: Any = type(message)
    return _data_bytes(message, _arrays_of_class(message_class))


def _data_bytes(value: Any, arrays: _Arrays) -> int:
    total = 0
    for name, inner in arrays:
        elements = getattr(value, name, None) or ()
        if inner is None:
            total += len(elements)
        elif inner:
            total += sum(_data_bytes(element, inner) for element in elements)
    return total


@lru_cache(maxsize=None)
def _counter(message_class: Any) -> Callable[[Any, int], int] | None:
    """Returns a generated `_count` of a class, because every response is counted; None if it has no arrays."""
    arrays = _arrays_of_class(message_class)
    if not arrays:
        return None
    names: dict[str, Any] = {}
    lines = ["def count(value0, limit):", " total = 0", *_counter_lines(arrays, 0), " return total"]
    exec("\n".join(lines), names)
    found: Callable[[Any, int], int] = names["count"]
    return found


def _counter_lines(arrays: _Arrays, level: int) -> Iterator[str]:
    indent = " " * (level + 1)
    leaves = [
        f"len(value{level}.{name} or ())" + (f" // {_BYTES_PER_ELEMENT}" if inner is None else "")
        for name, inner in arrays
        if not inner
    ]
    if leaves:
        yield f"{indent}total += {' + '.join(leaves)}"
        yield f"{indent}if total > limit: return total"
    for name, inner in arrays:
        if inner:
            yield f"{indent}elements{level} = value{level}.{name} or ()"
            yield f"{indent}total += len(elements{level})"
            yield f"{indent}if total > limit: return total"
            yield f"{indent}for value{level + 1} in elements{level}:"
            yield from _counter_lines(inner, level + 1)


def _count(value: Any, arrays: _Arrays, limit: int) -> int:
    total = 0
    for name, inner in arrays:
        elements = getattr(value, name, None) or ()
        total += len(elements) if inner is not None else len(elements) // _BYTES_PER_ELEMENT
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
    found: list[tuple[str, _Arrays | None]] = []
    for field in struct.fields.values():
        if field.is_array():
            element = field.array_of
            found.append((field.name, _arrays(element) if element.is_struct() else ()))
        elif field.type_str in ("bytes", "records"):
            found.append((field.name, None))
    return tuple(found)
