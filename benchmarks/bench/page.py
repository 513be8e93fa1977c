"""The figures as the page benchmarks/figures.md and a chart."""

from __future__ import annotations

import os
import re
import statistics
from itertools import groupby
from pathlib import Path
from typing import Sequence
from xml.sax.saxutils import escape

from bench.figures import Figure

_HEAD = """\
# Figures

Every row of `benchmarks/run.py`, which writes this page; do not edit. [README.md](README.md) says how they are measured
and what they mean.
"""
_ROW, _BAR, _LEFT, _WIDTH = 22, 14, 400, 860
_MAX_RATIO = 8.0


def number(value: float) -> str:
    """Returns a value with three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(figures: Sequence[Figure]) -> list[str]:
    """Returns the rows of a Markdown table."""
    lines = [
        "| measure | rival | groupsource | rival's value | ratio | target | met |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for figure in figures:
        name = f"{figure.measure}: {figure.case}" if figure.case else figure.measure
        if figure.error:
            lines.append(f"| {name} | {figure.rival_name} | error: {_one_line(figure.error)} | | | | no |")
            continue
        own = f"{number(statistics.median(figure.own))} {figure.unit}"
        rival = f"{number(statistics.median(figure.rival))} {figure.unit}" if figure.rival else ""
        cells = [name, figure.rival_name, own, rival, _ratio(figure), _target(figure), _is_met(figure)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ratio(figure: Figure) -> str:
    ratios = figure.ratios()
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _target(figure: Figure) -> str:
    if figure.least_ratio is not None:
        return f"{figure.least_ratio:.3g}"
    if figure.largest_difference is not None:
        return f"{figure.largest_difference:.3g} {figure.unit} more"
    if figure.largest_value is not None:
        return f"{figure.largest_value:.3g} {figure.unit}"
    return ""


def _is_met(figure: Figure) -> str:
    distance = figure.distance()
    return {True: "yes", False: f"no, {distance}" if distance else "no", None: ""}[figure.is_target_met()]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "/")[:160]


def chart(figures: Sequence[Figure]) -> str:
    """Returns an SVG with a bar for each ratio, and a mark at its target."""
    rows = [(f, ratio) for f in figures if not f.is_detail and (ratio := f.ratio()) is not None]
    measures = list(dict.fromkeys(figure.measure for figure, _ in rows))
    rows.sort(key=lambda row: measures.index(row[0].measure))
    height = _ROW * (len(rows) + len(measures)) + 40
    scale = (_WIDTH - _LEFT - 70) / _MAX_RATIO
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Ratios to rivals">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<line x1="{_LEFT + scale:.1f}" y1="8" x2="{_LEFT + scale:.1f}" y2="{height - 24}" stroke="#9aa0a6"/>',
        f'<text x="{_LEFT + scale:.1f}" y="{height - 8}" text-anchor="middle" fill="#5f6368">1 (as fast)</text>',
    ]
    y = 8
    for measure, group in groupby(rows, key=lambda row: row[0].measure):
        parts.append(f'<text x="8" y="{y + 15}" font-weight="bold" fill="#202124">{escape(measure)}</text>')
        y += _ROW
        for figure, ratio in group:
            label = f"{figure.case} / {figure.rival_name}"
            width = min(ratio, _MAX_RATIO) * scale
            color = "#1a73e8" if figure.is_target_met() is not False else "#d93025"
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end" fill="#202124">{escape(label)}</text>')
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>')
            parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 12}" fill="#202124">{ratio:.2f}</text>')
            if figure.least_ratio is not None and figure.least_ratio <= _MAX_RATIO:
                x = _LEFT + figure.least_ratio * scale
                line = f'x1="{x:.1f}" y1="{y - 2}" x2="{x:.1f}" y2="{y + _BAR + 2}"'
                parts.append(f'<line {line} stroke="#202124" stroke-width="2"/>')
            y += _ROW
    return "\n".join([*parts, "</svg>", ""])


def write_page(
    page: Path, picture: Path, figures: Sequence[Figure], machine: str, missing: Sequence[str] = ()
) -> None:
    """Writes the page and the chart.

    Args: `missing`, the measures that have no figures yet.
    """
    link = f"![Ratios to rivals]({Path(os.path.relpath(picture, page.parent)).as_posix()})"
    note = [f"Without figures, because the run was stopped: {', '.join(missing)}.", ""] if missing else []
    replace_text(page, "\n".join([_HEAD, machine, "", *table(figures), "", *note, link, ""]))
    replace_text(picture, chart(figures))


def replace_text(path: Path, text: str) -> None:
    """Replaces a file as a whole: an interrupted run leaves the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    os.replace(temporary, path)
