"""The chart of a timeline as SVG, without other packages."""

from __future__ import annotations

from html import escape
from typing import Iterable, Iterator, NamedTuple, Sequence

from spark_groupsource.notebook.layout import Picture, Row, Segment, clock_text, tick_times

_LEFT, _RIGHT, _WIDTH = 176, 20, 980
_CHAR_PX = 6.3
_MIN_PX = 1.5
_MANY_MARKS = 40
_TICKS = 9


class Theme(NamedTuple):
    """Colors outside the data. The colors of a notebook follow its own theme."""

    background: str
    text: str


THEMES = {
    "light": Theme("#ffffff", "#1f1f1f"),
    "dark": Theme("#111418", "#e6e6e6"),
    "notebook": Theme("none", "currentColor"),
}


class _Scale(NamedTuple):
    start_ms: int
    end_ms: int

    def x(self, at_ms: float) -> float:
        share = (at_ms - self.start_ms) / (self.end_ms - self.start_ms)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def svg(picture: Picture, theme: str = "notebook") -> str:
    """Draws a picture.

    Args:
        theme: ``light``, ``dark``, or ``notebook``: no background, and text in the color of the page.
    """
    colors = THEMES[theme]
    scale = _Scale(picture.start_ms, picture.end_ms)
    parts: list[str] = []
    y = 24.0
    parts.append(_text(12, y, picture.title, 'font-size="15" font-weight="600"'))
    parts.append(_text(12, y + 18, picture.subtitle, 'font-size="11" opacity="0.75"'))
    y += 34
    top = y
    y = _marks(picture, scale, y, parts)
    y = _rows("partitions", picture.partitions, scale, y, parts)
    y = _rows("members", picture.members, scale, y, parts)
    if picture.lag:
        y = _lag(picture, scale, y, parts)
    axis_y = y
    axis, y = list(_axis(scale, top, y)), y + 30
    y = _legend(picture.legend, y, parts)
    height = y + 8
    frame = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="{colors.background}"/>'
    lines = []
    opacity = 0.4 if len(picture.marks) <= _MANY_MARKS else 0.15
    for mark in picture.marks:
        x, end = max(scale.x(mark.at_ms), _LEFT), min(scale.x(mark.end_ms), _WIDTH - _RIGHT)
        place = f'y="{top + 36:.0f}" height="{axis_y - top - 36:.0f}"'
        lines.append(f'<rect x="{x:.1f}" width="{max(end - x, 0):.1f}" {place} fill-opacity="0.07"/>')
        lines.append(f'<rect x="{x - 0.4:.1f}" width="0.8" {place} fill-opacity="{opacity}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        f'height="{height:.0f}" style="max-width:100%;height:auto;color:{colors.text}" role="img" '
        f'font-family="Inter, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif" fill="{colors.text}">'
        f"<title>{escape(picture.title)}</title>{_HATCH}{frame}{''.join(axis)}{''.join(lines)}{''.join(parts)}</svg>"
    )


_HATCH = (
    '<defs><pattern id="gs-hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" fill="#e53935" fill-opacity="0.14"/>'
    '<line x1="0" y1="0" x2="0" y2="5" stroke="#e53935" stroke-width="2.4"/></pattern></defs>'
)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, segment: Segment) -> str:
    fill = "url(#gs-hatch)" if segment.style == "hatch" else segment.color
    light = ' fill-opacity="0.4"' if segment.style == "light" else ""
    title = f"<title>{escape(segment.text)}</title>"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{light}>{title}</rect>'
    )


def _visible(segments: Sequence[Segment], scale: _Scale) -> Iterator[tuple[float, float, Segment]]:
    """Yields position and width; hatched segments have at least `_MIN_PX`, and others less than a third are omitted."""
    for segment in segments:
        left, right = scale.x(segment.start_ms), scale.x(segment.end_ms)
        if right - left >= _MIN_PX / 3 and segment.style != "hatch":
            yield left, right - left, segment
    previous = -1.0
    for segment in segments:
        left, right = scale.x(segment.start_ms), scale.x(segment.end_ms)
        if segment.style == "hatch" and right > previous:
            yield left, max(right - left, _MIN_PX), segment
            previous = max(right, left + _MIN_PX)


def _rows(title: str, rows: Sequence[Row], scale: _Scale, y: float, parts: list[str]) -> float:
    if not rows:
        return y
    height = 18 if len(rows) <= 20 else 14 if len(rows) <= 40 else 11
    parts.append(_text(12, y + 12, title, 'font-size="11" font-weight="600" opacity="0.75"'))
    y += 18
    for row in rows:
        size = min(11, height - 1)
        baseline = y + height / 2 + size * 0.36
        parts.append(_text(_LEFT - 8, baseline, row.label, f'font-size="{size}" text-anchor="end"'))
        parts.extend(_rect(x, y + 1, w, height - 2, segment) for x, w, segment in _visible(row.segments, scale))
        y += height
    return y + 8


def _marks(picture: Picture, scale: _Scale, y: float, parts: list[str]) -> float:
    """Draws causes, in two lines where they overlap, and the phases of the rebalances."""
    free = [0.0, 0.0]
    for mark in picture.marks:
        x = scale.x(mark.at_ms)
        width = len(mark.label) * _CHAR_PX + 16
        title = f"<title>{escape(mark.text)}</title>"
        triangle = f'<path d="M{x - 4:.1f},{y + 30:.1f} h8 l-4,7 z">{title}</path>'
        left = min(x - 4, _WIDTH - _RIGHT - width)
        line = next((at for at in (1, 0) if free[at] <= left), None)
        label = ""
        if line is not None:
            free[line] = left + width
            place = f'x="{left:.1f}" y="{y + 11 + 14 * line:.1f}"'
            label = f'<text {place} font-size="10.5">{escape(mark.label)}{title}</text>'
        parts.append(f"<g>{triangle}{label}</g>")
    y += 40
    if picture.bands:
        parts.append(_text(_LEFT - 8, y + 8, "phases", 'font-size="11" text-anchor="end"'))
        # members wait for their batches during the join phase: both are visible
        for band in sorted(picture.bands, key=lambda band: band.style == "light"):
            left, right = max(scale.x(band.start_ms), _LEFT), min(scale.x(band.end_ms), _WIDTH - _RIGHT)
            height = 4 if band.style == "light" else 10
            parts.append(_rect(left, y, max(right - left, _MIN_PX / 2), height, band._replace(style="solid")))
        y += 18
    return y


def _lag(picture: Picture, scale: _Scale, y: float, parts: list[str]) -> float:
    height = 70.0
    highest = max(max(lag for _, lag in picture.lag), 1)
    parts.append(_text(12, y + 12, "lag", 'font-size="11" font-weight="600" opacity="0.75"'))
    base = y + 18 + height
    parts.append(_text(_LEFT - 8, y + 26, f"{highest:,}", 'font-size="11" text-anchor="end"'))
    parts.append(_text(_LEFT - 8, base, "0", 'font-size="11" text-anchor="end"'))
    points = [(scale.x(at_ms), base - height * lag / highest) for at_ms, lag in picture.lag]
    line = " ".join(f"{x:.1f},{top:.1f}" for x, top in _thinned(points))
    area = f"{points[0][0]:.1f},{base:.1f} {line} {points[-1][0]:.1f},{base:.1f}"
    parts.append(f'<polygon points="{area}" fill="#3b8fd0" fill-opacity="0.22"/>')
    parts.append(f'<polyline points="{line}" fill="none" stroke="#3b8fd0" stroke-width="1.5"/>')
    step = max(len(points) // 200, 1)
    for (x, top), (at_ms, lag) in list(zip(points, picture.lag))[::step]:
        title = f"<title>lag {lag:,} at {clock_text(at_ms)}</title>"
        parts.append(f'<circle cx="{x:.1f}" cy="{top:.1f}" r="4" fill="#0072b2" fill-opacity="0">{title}</circle>')
    return base + 10


def _thinned(points: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """At most about two points per pixel, the extremes of each."""
    if len(points) <= 2 * _WIDTH:
        return points
    by_pixel: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        by_pixel.setdefault(int(point[0]), []).append(point)
    return [p for each in by_pixel.values() for p in sorted({min(each, key=_height), max(each, key=_height)})]


def _height(point: tuple[float, float]) -> float:
    return point[1]


def _axis(scale: _Scale, top: float, y: float) -> Iterator[str]:
    for at_ms in tick_times(scale.start_ms, scale.end_ms, _TICKS):
        x = scale.x(at_ms)
        yield _line(x, x, top + 40, y + 4, 0.1)
        yield _text(x, y + 17, clock_text(at_ms), 'font-size="10.5" text-anchor="middle"')
    yield _line(_LEFT, _WIDTH - _RIGHT, y, y, 0.4)


def _line(x1: float, x2: float, y1: float, y2: float, opacity: float) -> str:
    place = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="currentColor" stroke-opacity="{opacity}"/>'


def _legend(legend: Sequence[tuple[str, str, str]], y: float, parts: list[str]) -> float:
    x = 12.0
    for label, color, style in legend:
        width = 20 + len(label) * _CHAR_PX + 14
        if x + width > _WIDTH - _RIGHT and x > 12:
            x, y = 12.0, y + 18
        parts.append(_rect(x, y, 14, 10, Segment(0, 0, color, style, label)))
        parts.append(_text(x + 19, y + 9, label, 'font-size="11"'))
        x += width
    return y + 18
