"""Callback type for log lines of the broker."""

from __future__ import annotations

import logging
from typing import Protocol


class Reporter(Protocol):
    """Receives one log line, for example an error that no response contains; levels are those of `logging`."""

    def __call__(self, line: str, level: int = logging.WARNING, /) -> object: ...
