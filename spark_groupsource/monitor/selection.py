"""Selection of groups and topics by names and patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

from spark_groupsource.common.name_patterns import check_pattern, is_pattern, split_names
from spark_groupsource.errors import ConfigurationError


@dataclass(frozen=True)
class NameSelection:
    """Names and patterns of groups or topics; a name matches itself, a pattern (Python's re) whole names."""

    exact: tuple[str, ...]
    patterns: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names if there is no pattern, so that only they are requested; None otherwise."""
        return None if self.patterns else self.exact

    def matches(self, name: str) -> bool:
        return name in self.exact or any(re.fullmatch(pattern, name) for pattern in self.patterns)

    def selected(self, names: Iterable[str]) -> list[str]:
        """Returns the names that match, sorted."""
        return sorted(name for name in set(names) if self.matches(name))


def parse_selection(name: str, text: str) -> NameSelection:
    """Parses names and patterns separated by commas; a pattern also selects the name that is its text.

    Raises: ConfigurationError for an empty list and an invalid pattern.
    """
    entries = split_names(text)
    if not entries:
        raise ConfigurationError(f"Option {name} must be names or patterns separated by commas, got {text!r}.")
    patterns = [check_pattern(name, entry, "names or regular expressions") for entry in entries if is_pattern(entry)]
    return NameSelection(entries, tuple(patterns))


def parse_name(name: str, text: str) -> NameSelection:
    """Selects one name, which may have any characters."""
    return NameSelection((text,))


def parse_name_pattern(name: str, text: str) -> NameSelection:
    """Selects the names that one regular expression matches as a whole. Raises: ConfigurationError."""
    if not text:
        raise ConfigurationError(f"Option {name} must not be empty. Give it a regular expression or leave it out.")
    return NameSelection((), (check_pattern(name, text),))
