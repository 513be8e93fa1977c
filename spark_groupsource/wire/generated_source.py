"""Source of a generated function, and the objects that it names."""

from __future__ import annotations

from typing import Any, Mapping


class GeneratedSource:
    """Lines of a function for one version of a message, and what its names refer to.

    Numbers are collected, as a struct layout and an expression for each, until other bytes follow.
    """

    def __init__(self, version: int, flexible: bool, names: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self.names = dict(names)
        self._version = version
        self._flexible = flexible
        self._run = ""
        self._numbers: list[str] = []
        self._count = 0

    def add(self, depth: int, *lines: str) -> None:
        self.lines += [" " * depth + line for line in lines]

    def _name(self, prefix: str, value: Any = None) -> str:
        """Returns a new name, of `value` if it is given."""
        self._count += 1
        name = f"{prefix}{self._count}"
        if value is not None:
            self.names[name] = value
        return name

    def _number(self, code: str, expression: str) -> None:
        self._run += code
        self._numbers.append(expression)
