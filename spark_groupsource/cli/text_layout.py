"""Tables and sentences within the width of a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

_GAP = "  "
# narrowest text column, and narrowest text after a label
_MIN_COLUMN, _MIN_TEXT = 8, 20
# a line may end after one of these characters
_BREAK = re.compile(r"(?<=[-._/,;: @])")


def output_width() -> int | None:
    """Returns the columns of the terminal, or the environment variable COLUMNS; None for a file or a pipe without it.

    Scripts read the lines of a pipe, so that they are not divided.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Returns a table with the least widths of its columns, each line with a line end.

    Where it is wider than `width`, headers and cells with text are divided into several lines; where that is not
    enough, each row is a paragraph of names and values.
    """
    natural = [max(len(line[at]) for line in (header, *rows)) for at in range(len(header))]
    if width is None or _total(natural) <= width:
        return _lines([list(header), *map(list, rows)], natural)
    least = [_least_width(name, [row[at] for row in rows]) for at, name in enumerate(header)]
    if _total(least) > width:
        return paragraphs(header, rows, width)
    widths = [min(full, max(low, max((len(row[at]) for row in rows), default=0))) for at, (full, low) in
              enumerate(zip(natural, least))]
    while _total(widths) > width:
        # the widest of those that can be narrower
        at = max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: widths[at])
        widths[at] -= 1
    lines = []
    for row in (header, *rows):
        cells = [divided(cell, size) for cell, size in zip(row, widths)]
        for number in range(max(map(len, cells))):
            lines.append([parts[number] if number < len(parts) else "" for parts in cells])
    return _lines(lines, widths)


def sentences(texts: Sequence[str], width: int | None) -> list[str]:
    """Returns lines, each divided where it is longer than `width`; the rest is indented by four more columns."""
    found: list[str] = []
    for text in texts:
        if width is None or len(text) <= width:
            found.append(text)
            continue
        indent = text[: len(text) - len(text.lstrip())]
        found += filled(text, width, indent, indent + "    ")
    return found


def filled(text: str, width: int, first: str, rest: str) -> list[str]:
    """Returns a text in lines of `width` columns, with indentation."""
    shown = textwrap.TextWrapper(
        width=max(width, len(rest) + _MIN_TEXT), initial_indent=first, subsequent_indent=rest,
        break_on_hyphens=False, break_long_words=True,
    )  # fmt: skip
    return shown.wrap(text.strip()) or [first.rstrip()]


def divided(text: str, width: int) -> list[str]:
    """Returns a text in pieces of at most `width` characters, which end after punctuation where possible."""
    pieces = [""]
    for part in _BREAK.split(text):
        while pieces[-1] and len(pieces[-1]) + len(part.rstrip()) > width and len(part) <= width:
            pieces.append("")
        joined = pieces.pop() + part
        while len(joined.rstrip()) > width:
            pieces.append(joined[:width])
            joined = joined[width:]
        pieces.append(joined)
    return [piece.rstrip() for piece in pieces]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _least_width(name: str, cells: Sequence[str]) -> int:
    """Returns the width of a header that is divided after its hyphens, and of cells; numbers are not divided."""
    longest = max(map(len, cells), default=0)
    is_text = any(not cell.lstrip("-").isdecimal() and cell != "-" for cell in cells)
    return max(min(longest, _MIN_COLUMN) if is_text else longest, *(len(part) for part in _BREAK.split(name)))


def _lines(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    return "".join(_GAP.join(f"{cell:<{size}}" for cell, size in zip(line, widths)).rstrip() + "\n" for line in lines)


def paragraphs(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Returns each row as a paragraph of names and values, several in a line."""
    found = []
    for row in rows:
        lines = [""]
        for name, cell in zip(header, row):
            pair = f"{name} {cell}"
            if lines[-1] and len(lines[-1]) + len(_GAP) + len(pair) <= width:
                lines[-1] += f"{_GAP}{pair}"
                continue
            first, *others = divided(pair, max(width, _MIN_TEXT))
            lines += [first, *others]
        found.append("".join(f"{line}\n" for line in lines[1:]))
    return "\n".join(found)
