"""Text for log lines and error messages: escaped, bounded.

Names in requests and responses are chosen by other programs. A line break in one would forge a log line, and an escape
sequence would change the operator's terminal.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePath
from traceback import walk_tb

MAX_LINE_CHARS = 2_000
"""Longest log line; the rest is omitted."""
_MAX_FRAMES = 12


def escaped(text: str) -> str:
    """Returns `text` with Python's escape sequences in place of control characters and line breaks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shortened(text: str, limit: int) -> str:
    """Returns at most about `limit` characters of `text`, then the number of the others."""
    omitted = len(text) - limit
    return f"{text[:limit]}... ({omitted:,} more characters)" if omitted > 0 else text


def log_line(text: str) -> str:
    """Returns `text` as one log line of bounded length."""
    # cut first: the cost is bounded too
    return escaped(shortened(text, MAX_LINE_CHARS))


def describe_error(error: BaseException) -> str:
    """Returns type, message and cause of an unexpected error in one line, and its innermost frames, innermost first.

    Example: ``KeyError: 'x' (data.py:215 produce, dispatch.py:40 handle)``.
    """
    frames = [
        f"{PurePath(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
    ][::-1][:_MAX_FRAMES]
    text = f"{type(error).__name__}: {shortened(str(error), MAX_LINE_CHARS // 4)}"
    text += f" ({', '.join(frames)})" if frames else ""
    return f"{text}, caused by {describe_error(error.__cause__)}" if error.__cause__ is not None else text


def timed_line(text: str, level: str, at_ms: int) -> str:
    """Returns a log line with its local time and level, in the form of `logging` with ``asctime``.

    Args:
        at_ms: epoch ms.
    """
    at = datetime.fromtimestamp(at_ms // 1000).strftime("%Y-%m-%d %H:%M:%S")
    return f"{at},{at_ms % 1000:03} {level} {text}"
