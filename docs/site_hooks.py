"""mkdocs hooks: repository links, tables on a phone, diagrams without other hosts.

A link to a file beside ``docs/`` leads somewhere in the repository only; the site has its text. On a phone the rows of
a table are blocks (`site.css`): each cell but the first has the header of its column as an attribute. The theme loads
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
_REPOSITORY_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(\.\./[^)]*\)")
# as Markdown writes them: one cell per line, no tables in cells
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADER = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b")
# headers that say no more than the cell
_OBVIOUS = ("", "Description", "Reason")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces links into the repository by their text; hides the navigation beside the landing page."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    return _REPOSITORY_LINK.sub(r"\1", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Labels the cells of tables; marks the landing page."""
    html = _TABLE.sub(lambda table: labeled(table[0]), html)
    return f'<div class="home">{html}</div>' if page.is_homepage else html


def labeled(table: str) -> str:
    """Returns a table with the header of its column at each cell, as ``data-label``, except in the first column."""
    headers = [unescape(re.sub(r"<[^>]+>", "", header)).strip() for header in _HEADER.findall(table)]

    def row(match: re.Match[str]) -> str:
        labels = iter(headers)

        def cell(_: re.Match[str]) -> str:
            label = next(labels, "")
            return "<td" if label in _OBVIOUS or label == headers[0] else f'<td data-label="{escape(label)}"'

        return _CELL.sub(cell, match[0])

    return _ROW.sub(row, table)


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
