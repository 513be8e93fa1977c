"""Collected log lines of a broker or of its storage."""

from __future__ import annotations

import logging


class ReportedLines(list[str]):
    """The lines in order; an instance is a `Reporter`. `levels` are the levels of the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []

    def __call__(self, line: str, level: int = logging.WARNING, /) -> None:
        self.append(line)
        self.levels.append(level)
