"""Selection of groups and topics by names and patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

from spark_groupsource.errors import ConfigurationError

# a name with one of these characters is a pattern; a dot alone is part of many names
_PATTERN_CHARACTERS = re.compile(r"[*+?^$|()\[\]{}\\]")


@dataclass(frozen=True)
class NameSelection:
    """Names and patterns of groups or topics; a name matches itself, a pattern (Python's re) whole names.

    Attributes:
        names: the names if there is no pattern, so that only they are requested; None otherwise.
    """

    entries: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...] | None:
        return None if any(map(_is_pattern, self.entries)) else self.entries

    def matches(self, name: str) -> bool:
        return any(name == entry or (_is_pattern(entry) and re.fullmatch(entry, name)) for entry in self.entries)

    def selected(self, names: Iterable[str]) -> list[str]:
        """Returns the names that match, sorted."""
        return sorted(name for name in set(names) if self.matches(name))


def parse_selection(name: str, text: str) -> NameSelection:
    """Parses names and patterns separated by commas.

    Raises: ConfigurationError for an empty list and an invalid pattern.
    """
    entries = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not entries:
        raise ConfigurationError(f"Option {name} must be names or patterns separated by commas, got {text!r}.")
    for entry in filter(_is_pattern, entries):
        try:
            re.compile(entry)
        except re.error as error:
            raise ConfigurationError(
                f"Option {name} must be names or regular expressions of Python's re module, got {entry!r}: {error}."
            ) from error
    return NameSelection(entries)


def _is_pattern(entry: str) -> bool:
    return _PATTERN_CHARACTERS.search(entry) is not None
