"""Checks of the arguments of Python calls: one-line errors, near names."""

from __future__ import annotations

import difflib
from numbers import Real
from typing import Any, Iterable, Mapping, SupportsIndex

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import bounded_names

_NEAR = 3
_SHOWN_CHARS = 80


def check_text(name: str, value: Any, *, optional: bool = False, meaning: str = "text") -> None:
    """Raises: ConfigurationError unless `value` is a text that is not empty, or None where it is `optional`."""
    if isinstance(value, str) and value or optional and value is None:
        return
    raise ConfigurationError(f"Argument {name} must be {meaning}{_or_none(optional)}, got {shown(value)}.")


def check_integer(name: str, value: Any, minimum: int, maximum: int | None = None, *, optional: bool = False) -> None:
    """Raises: ConfigurationError unless `value` is an integer within the bounds, or None where it is `optional`."""
    # those of NumPy and pandas, too
    is_integer = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    if is_integer and minimum <= value and (maximum is None or value <= maximum) or optional and value is None:
        return
    bounds = f"of at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    raise ConfigurationError(f"Argument {name} must be an integer {bounds}{_or_none(optional)}, got {shown(value)}.")


def check_mapping(name: str, value: Any, meaning: str) -> None:
    """Raises: ConfigurationError unless `value` is a mapping with texts as keys, or None."""
    if value is None or isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return
    # the value may contain a password
    raise ConfigurationError(f"Argument {name} must be {meaning} or None, got {_type(value)}.")


def check_seconds(name: str, value: Any, *, can_be_zero: bool = False) -> None:
    """Raises: ConfigurationError unless `value` is a positive number of seconds, or 0 where it `can_be_zero`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and (value > 0 or can_be_zero and value == 0):
        return
    bounds = "a number of seconds of at least 0" if can_be_zero else "a positive number of seconds"
    raise ConfigurationError(f"Argument {name} must be {bounds}, got {shown(value)}.")


def check_query(name: str, value: Any) -> None:
    """Raises: ConfigurationError unless `value` is a streaming query of Spark."""
    # without a call of the JVM
    if "isActive" not in dir(value):
        raise ConfigurationError(
            f"Argument {name} must be a streaming query, the result of start(), got {shown(value)}."
        )


def check_writer(name: str, value: Any) -> None:
    """Raises: ConfigurationError unless `value` is the writer of a stream, the result of writeStream."""
    if "trigger" not in dir(value):
        raise ConfigurationError(
            f"Argument {name} must be the writer of a stream, the result of writeStream, got {shown(value)}."
        )


def shown(value: Any) -> str:
    """Returns a value for an error message, in one line; of other values than texts and numbers the type alone."""
    if not isinstance(value, (str, int, float, type(None))):
        return _type(value)
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Returns up to three other names nearest to a misspelled one, the nearest first; case does not matter."""
    by_folded: dict[str, list[str]] = {}
    for each in sorted(set(known) - {name}):
        by_folded.setdefault(each.casefold(), []).append(each)
    found = difflib.get_close_matches(name.casefold(), list(by_folded), n=_NEAR)
    return [each for folded in found for each in by_folded[folded]][:_NEAR]


def near_names(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that says what a misspelled name may mean: the near names of the known ones.

    Without a near one it has some of the known names, and is empty if there are none.
    """
    names = sorted(set(known))
    near = close_names(name, names)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Known names: {bounded_names(names)}." if names else ""


def _or_none(optional: bool) -> str:
    return " or None" if optional else ""


def _type(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
