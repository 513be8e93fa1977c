"""Size of a message in array elements, which determines its encoding time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterator

from spark_groupsource.wire.schemas import Field

_BYTES_PER_ELEMENT = 1_000  # take as long
_Arrays = tuple[tuple[str, "_Arrays | None"], ...]
"""Names of the array fields of a structure, each with the fields of its elements; None for a field with bytes."""


def has_more_elements(message: Any, limit: int) -> bool:
    """Returns whether `message` has more than `limit` array elements, with 1,000 bytes of data as one.

    Takes time in proportion to `limit`.
    """
    message_class: Any = type(message)  # mypy does not accept a class as Hashable
    count = _counter(message_class)
    return count is not None and count(message, limit) > limit


@lru_cache(maxsize=None)
def _counter(message_class: Any) -> Callable[[Any, int], int] | None:
    """Returns a generated function, because every response is counted; None if the class has no arrays.

    Args of the function: the message, and the number of elements from which on it need not count. It returns the count.
    """
    arrays = _arrays(message_class.FIELDS)
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


def _arrays(fields: tuple[Field, ...]) -> _Arrays:
    found: list[tuple[str, _Arrays | None]] = []
    for field in fields:
        if field.is_array:
            found.append((field.name, () if field.fields is None else _arrays(field.fields)))
        elif field.type in ("bytes", "records"):
            found.append((field.name, None))
    return tuple(found)
