"""Callback type for messages to the operator."""

from __future__ import annotations

from typing import Callable

Reporter = Callable[[str], None]
"""Takes one line for the operator, for example an error that no request reports."""
