"""Source of a generated function, and the objects that it names."""

from __future__ import annotations

from typing import Any, Callable, Mapping


class GeneratedSource:
    """Lines of functions for one version of a message, and what their names refer to."""

    def __init__(self, version: int, flexible: bool, names: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self.names = dict(names)
        self.version = version
        self.flexible = flexible
        self._count = 0

    def add(self, depth: int, *lines: str) -> None:
        self.lines += [" " * depth + line for line in lines]

    def name(self, prefix: str, value: Any = None) -> str:
        """Returns a new name, of `value` if it is given."""
        self._count += 1
        name = f"{prefix}{self._count}"
        if value is not None:
            self.names[name] = value
        return name

    def compile(self, function: str) -> Callable[..., Any]:
        """Returns the generated function of this name."""
        exec("\n".join(self.lines), self.names)
        return self.names[function]  # type: ignore[no-any-return]
