"""mkdocs hooks: repository links, tables on a phone, diagrams without other hosts.

A link to a file beside ``docs/`` leads somewhere in the repository only; the site has its text and the path. On a
phone the rows of a table are blocks (`site.css`): each cell but the first has the header of its column as an attribute.
On wider screens, columns of short names are as wide as these, and long names have places to break at. The theme loads
Mermaid from a CDN unless the page has it: `make docs` puts ``mermaid.min.js`` into ``build/`` where npm is installed,
and these hooks add it to the site.
"""

from __future__ import annotations

import re
import shutil
from html import escape, unescape
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).resolve().parents[1] / "build" / "mermaid" / "mermaid.min.js"
_TARGET = "assets/javascripts/mermaid.min.js"
_REPOSITORY_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(\.\./([^)#]*)[^)]*\)")
# as Markdown writes them: one cell per line, no tables in cells
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_DIAGRAM = re.compile(r'<pre class="mermaid">.*?</pre>', re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</t[hd]>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_NAME = re.compile(r"(?<![&\w])[\w.=/:,$\[-]{3,}")
_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[\w)\]][_./=:,])(?=[\w\[])")
# headers that say no more than the cell
_OBVIOUS = ("", "Description", "Reason")
_SHORT_CHARS, _NAME_CHARS, _PART_CHARS = 24, 36, 12
# of the narrowest page that has tables: a character, the padding of a cell, the table
_CHAR_PX, _PADDING_PX, _TABLE_PX = 7.4, 28, 660


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces links into the repository by their text; hides the navigation beside the landing page."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    return _REPOSITORY_LINK.sub(_repository_text, markdown)


def _repository_text(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    return text if path in text else f"{text} (`{path}`)"


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Prepares tables for every width; marks the landing page."""
    html = _TABLE.sub(lambda table: prepared(table[0]), html)
    html = _DIAGRAM.sub(r'<div class="diagram">\g<0></div>', html)
    return f'<div class="home">{html}</div>' if page.is_homepage else html


def prepared(table: str) -> str:
    """Returns a table with labels, short columns and places to break names.

    The label of a cell is the header of its column, as ``data-label``, except in the first column. A column of cells of
    at most `_SHORT_CHARS` characters has the class ``short``, if the table is still narrow enough then. A table that is
    too wide also with divided names has the attribute ``data-wide``, for a smaller font.
    """
    rows = [_CELL.findall(row) for row in _ROW.findall(table)]
    columns = [[_text(cell[2]) for cell in column] for column in zip(*rows)]
    longest = [max(map(len, column)) for column in columns]
    # a reader looks up the names in the first column: they stay whole
    most = [_NAME_CHARS if at == 0 else _PART_CHARS for at in range(len(columns))]
    segments = [max(_longest_part(text, limit) for text in column) for column, limit in zip(columns, most)]
    # figures are not divided
    is_right = ["right" in cell[1] for cell in rows[-1]]
    segments = [max(map(len, columns[at][1:])) if is_right[at] else chars for at, chars in enumerate(segments)]
    short = {at for at, chars in enumerate(longest) if chars <= _SHORT_CHARS}
    needed = sum(longest[at] if at in short else segments[at] for at in range(len(columns))) * _CHAR_PX
    if needed + _PADDING_PX * len(columns) > _TABLE_PX:
        short = set()
    is_wide = sum(segments) * _CHAR_PX + _PADDING_PX * len(columns) > _TABLE_PX

    def row(match: re.Match[str]) -> str:
        number = iter(range(len(columns)))

        def cell(found: re.Match[str]) -> str:
            at = next(number)
            label = columns[at][0] if found[1] == "td" and at else ""
            attributes = f' data-label="{escape(label)}"' if label not in _OBVIOUS else ""
            attributes += ' class="short"' if at in short else ""
            return f"<{found[1]}{found[2]}{attributes}>{_divided(found[3], most[at])}</{found[1]}>"

        return _CELL.sub(cell, match[0])

    return _ROW.sub(row, table.replace("<table>", "<table data-wide>") if is_wide else table)


def _text(cell: str) -> str:
    return unescape(_TAG.sub("", cell)).strip()


def _longest_part(text: str, most: int) -> int:
    """Returns the length of the longest part of a text that is not divided, names of up to `most` characters whole."""
    words = text.split()
    parts = ([word] if len(word) <= most else _BREAK.split(word) for word in words)
    return max((len(part) for divided in parts for part in divided), default=0)


def _divided(cell: str, most: int) -> str:
    """Returns a cell whose names of more than `most` characters may be divided at their parts, and no others."""

    def name(found: re.Match[str]) -> str:
        if len(found[0]) > most:
            return _BREAK.sub("<wbr>", found[0])
        return f'<span class="name">{found[0]}</span>' if "-" in found[0] and most == _NAME_CHARS else found[0]

    parts = re.split(r"(<[^>]+>)", cell)
    return "".join(part if part.startswith("<") else _NAME.sub(name, part) for part in parts)


def on_config(config: Any) -> Any:
    """Adds the script to every page."""
    if _SCRIPT.exists():
        config.extra_javascript.append(_TARGET)
    return config


def on_post_build(config: Any) -> None:
    """Copies the script into the site."""
    if _SCRIPT.exists():
        target = Path(config.site_dir) / _TARGET
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_SCRIPT, target)
