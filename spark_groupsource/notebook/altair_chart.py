"""The chart of a timeline in Altair (extra `notebook`)."""

from __future__ import annotations

import warnings
from typing import Any, Iterator, Mapping, Sequence

import altair as alt

from spark_groupsource.notebook.layout import Picture, Row, Segment, clock_text
from spark_groupsource.notebook.svg import THEMES

_WIDTH = 780
_LABEL_PX = 150
_HATCH_PX = 6
_MIN_PX = 1.5
_CHAR_PX = 6.5
_MANY_MARKS = 40
# Vega may draw twice as many
_TICKS = 5
_SHORT_MS = 8_000
# so that a mark at the start is drawn whole
_MARGIN_PX = 5
# a color that is readable on light and dark pages
_NOTEBOOK_TEXT = "#808080"
_FONT = "Inter, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"
_NO_AXIS = alt.Axis(labels=False, ticks=False, domain=False, grid=False)
_Datasets = dict[str, Sequence[Mapping[str, Any]]]


def vega_lite(picture: Picture, theme: str = "notebook") -> dict[str, Any]:
    """Draws a picture; the mouse wheel zooms the time axis.

    Args:
        theme: as in `svg`.
    Returns: the specification of a Vega-Lite chart.
    """
    datasets: _Datasets = {}
    with warnings.catch_warnings():
        # the panels share the parameter of the zoom
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        chart = _chart(picture, theme, datasets)
        # Altair takes a second to validate a thousand rows of data
        return {**chart.to_dict(), "datasets": datasets}


def _data(datasets: _Datasets, name: str, values: Sequence[Mapping[str, Any]]) -> Any:
    datasets[name] = values
    return alt.Chart(alt.NamedData(name=name))


def _chart(picture: Picture, theme: str, datasets: _Datasets) -> Any:
    text = _NOTEBOOK_TEXT if theme == "notebook" else THEMES[theme].text
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    margin_ms = _MARGIN_PX * (picture.end_ms - picture.start_ms) / _WIDTH
    # Vega draws one label of the times within a second
    kind: Any = "linear" if picture.end_ms - picture.start_ms <= _SHORT_MS else "utc"
    scale = alt.Scale(domain=[picture.start_ms - margin_ms, picture.end_ms], type=kind)
    panels = []
    if picture.partitions:
        panels.append(_rows("partitions", picture.partitions, picture, scale, datasets))
    if picture.members:
        panels.append(_rows("members", picture.members, picture, scale, datasets))
    if picture.lag:
        panels.append(_lag(picture, scale, datasets))
    shade = _shade(picture, scale, text, datasets)
    shaded = [alt.layer(*shade, panel).properties(height=panel.height) for panel in panels]
    panels = [_causes(picture, scale, text, datasets), *shaded, _time_axis(picture, scale, datasets)]
    stacked = [panel.properties(width=_WIDTH).add_params(zoom) for panel in panels]
    chart = alt.vconcat(*stacked, _legend(picture, text, datasets), spacing=6)
    title = alt.TitleParams(picture.title, subtitle=picture.subtitle, anchor="start", offset=12)
    background = "transparent" if theme == "notebook" else THEMES[theme].background
    muted = {"domainColor": text, "tickColor": text, "gridOpacity": 0.15, "gridColor": text, "labelLimit": _LABEL_PX}
    return (
        chart.properties(title=title)
        .resolve_scale(x="shared", color="independent")
        .configure(background=background, font=_FONT)
        .configure_view(stroke=None)
        .configure_axis(labelColor=text, titleColor=text, **muted)
        .configure_title(color=text, subtitleColor=text, fontSize=15)
    )


def _time_axis(picture: Picture, scale: Any, datasets: _Datasets) -> Any:
    """Draws the labels of the time: a panel of its own, because layers would have to agree about them."""
    text = "%H:%M:%S.%L" if scale.type == "linear" else "%H:%M:%S"
    labels = f"utcFormat(datum.value, '{text}')"
    axis = alt.Axis(tickCount=_TICKS, labelExpr=labels, grid=False, labelOverlap=False, labelFlush=False)
    base = _data(datasets, "time", [{"start": picture.start_ms}, {"start": picture.end_ms}])
    return base.mark_point(opacity=0).encode(x=_x(scale, axis=axis)).properties(height=1)


def _x(scale: Any, field: str = "start", axis: Any = _NO_AXIS) -> Any:
    kind = "Q" if scale.type == "linear" else "T"
    return alt.X(f"{field}:{kind}", scale=scale, title=None, axis=axis)


def _tooltip() -> list[Any]:
    return [alt.Tooltip("text:N", title=" ")]


def _causes(picture: Picture, scale: Any, text: str, datasets: _Datasets) -> Any:
    marks, free = [], [0.0, 0.0]
    px_per_ms = _WIDTH / (picture.end_ms - picture.start_ms)
    for mark in picture.marks:
        width = len(mark.label) * _CHAR_PX
        left = min((mark.at_ms - picture.start_ms) * px_per_ms, _WIDTH - width)
        line = next((at for at in (0, 1) if free[at] <= left), None)
        if line is not None:
            free[line] = left + width + 12
        label = "" if line is None else mark.label
        label_ms = picture.start_ms + left / px_per_ms
        fixed = {"start": mark.at_ms, "label_ms": label_ms, "cause": mark.label, "label": label, "line": line or 0}
        marks.append({**fixed, **dict(_lines(mark.text))})
    fields = sorted({field for mark in marks for field in mark} - {"start", "line", "label", "label_ms"})
    tooltip = [alt.Tooltip(f"{field}:N") for field in fields]
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, 3]), axis=None)
    base = _data(datasets, "causes", marks).encode(x=_x(scale), tooltip=tooltip)
    labels = base.mark_text(align="left", color=text, fontSize=10, clip=True).transform_calculate(
        y="1.9 + 0.8 * datum.line"
    )
    triangles = base.mark_point(shape="triangle-down", filled=True, color=text, size=45).transform_calculate(y="1.3")
    values = [_value(band, 0.0, 0.8 if band.style == "solid" else 0.4) for band in sorted(picture.bands, key=_is_batch)]
    bands = (
        _data(datasets, "phases", values)
        .mark_rect(clip=True)
        .encode(x=_x(scale), x2="end", y=y, y2="y2:Q", color=alt.Color("color:N", scale=None), tooltip=_tooltip())
    )
    labels = labels.encode(x=_x(scale, "label_ms"), y=y, text="label:N")
    return alt.layer(bands, labels, triangles.encode(y=y)).properties(height=56)


def _shade(picture: Picture, scale: Any, text: str, datasets: _Datasets) -> list[Any]:
    """Returns a line at the start of each rebalance, and its time in gray."""
    times = [{"start": mark.at_ms, "end": mark.end_ms} for mark in picture.marks]
    base = _data(datasets, "rebalances", times).encode(x=_x(scale))
    opacity = 0.4 if len(times) <= _MANY_MARKS else 0.15
    return [
        base.mark_rect(clip=True, color=text, opacity=0.09).encode(x2="end"),
        base.mark_rule(clip=True, color=text, opacity=opacity, strokeWidth=0.8),
    ]


def _is_batch(band: Segment) -> bool:
    return band.style == "light"


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yields the lines of the text of a mark as fields of the tooltip."""
    for line in text.splitlines()[1:]:
        name, found, value = line.partition(": ")
        if found:
            yield name, value
            continue
        first, _, rest = line.partition(" ")
        yield (rest, first) if first.replace(",", "").isdigit() else (first, rest)


def _value(segment: Segment, y: float, y2: float) -> dict[str, Any]:
    return {
        "start": segment.start_ms, "end": segment.end_ms, "y": y, "y2": y2, "color": segment.color,
        "opacity": 0.4 if segment.style == "light" else 1.0, "text": segment.text,
    }  # fmt: skip


def _rows(title: str, rows: Sequence[Row], picture: Picture, scale: Any, datasets: _Datasets) -> Any:
    step = 18 if len(rows) <= 20 else 14 if len(rows) <= 40 else 11
    ms_per_px = (picture.end_ms - picture.start_ms) / _WIDTH
    solid: list[dict[str, Any]] = []
    hatched: list[dict[str, Any]] = []
    lines: list[Mapping[str, float]] = []
    for number, row in enumerate(rows):
        for segment in row.segments:
            is_hatch = segment.style == "hatch"
            if not is_hatch and segment.end_ms - segment.start_ms < ms_per_px / 2:
                continue
            value = _value(segment, number + 0.06, number + 0.94)
            (hatched if is_hatch else solid).append(value)
            if is_hatch:
                value["end"] = max(segment.end_ms, segment.start_ms + _MIN_PX * ms_per_px)
                lines.extend(_hatch(segment.start_ms, value["end"], number, ms_per_px * _HATCH_PX))
    labels = "".join(f"datum.value == {at + 0.5} ? {_quoted(row.label)} : " for at, row in enumerate(rows)) + "''"
    axis = alt.Axis(
        values=[at + 0.5 for at in range(len(rows))], labelExpr=labels, ticks=False, domain=False, grid=False,
        minExtent=_LABEL_PX, maxExtent=_LABEL_PX, labelFontSize=min(step - 1, 11), labelOverlap=False, labelPadding=6,
        titleFontSize=11, titleAngle=0, titleAlign="left", titleAnchor="start", titleX=-_LABEL_PX, titleY=-6,
    )  # fmt: skip
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, len(rows)], reverse=True, nice=False), axis=axis, title=title)
    color = alt.Color("color:N", scale=None)
    bars = _data(datasets, title, solid).mark_rect(clip=True).encode(
        x=_x(scale), x2="end", y=y, y2="y2:Q", color=color, opacity=alt.Opacity("opacity:Q", scale=None),
        tooltip=_tooltip(),
    )  # fmt: skip
    gaps = _data(datasets, f"{title} hatched", hatched).mark_rect(clip=True, opacity=0.22).encode(
        x=_x(scale), x2="end", y=y, y2="y2:Q", color=color, tooltip=_tooltip()
    )  # fmt: skip
    stripes = _data(datasets, f"{title} lines", lines).mark_rule(clip=True, strokeWidth=1.6, color="#e53935").encode(
        x=_x(scale), x2="end", y=y, y2="y2:Q"
    )  # fmt: skip
    return alt.layer(bars, gaps, stripes).properties(height=step * len(rows))


def _hatch(start: float, end: float, row: int, step_ms: float) -> Iterator[Mapping[str, float]]:
    """Yields diagonal lines that fill a segment, cut at its ends."""
    low, high = row + 0.06, row + 0.94
    slant = 1.6 * step_ms
    at = start - slant + step_ms / 2
    while at < end:
        left, right = max(at, start), min(at + slant, end)
        if left < right:
            rise = (high - low) / slant
            yield {"start": left, "end": right, "y": high - (left - at) * rise, "y2": high - (right - at) * rise}
        at += step_ms


def _lag(picture: Picture, scale: Any, datasets: _Datasets) -> Any:
    values = [{"start": at_ms, "lag": lag, "text": f"{lag:,} at {clock_text(at_ms)}"} for at_ms, lag in picture.lag]
    axis = alt.Axis(
        minExtent=_LABEL_PX, maxExtent=_LABEL_PX, titleAngle=0, titleAlign="left", titleX=-_LABEL_PX, titleY=4,
        tickCount=3, titleFontSize=11, format=",.0f",
    )  # fmt: skip
    y = alt.Y("lag:Q", axis=axis, title="lag")
    mark = {"line": {"color": "#3b8fd0", "strokeWidth": 1.5}, "color": "#3b8fd0", "fillOpacity": 0.22, "clip": True}
    chart = _data(datasets, "lag", values).mark_area(**mark)
    return chart.encode(x=_x(scale), y=y, tooltip=_tooltip()).properties(height=80)


def _legend(picture: Picture, text: str, datasets: _Datasets) -> Any:
    """Draws the legend as one chart, in columns."""
    columns = 5
    values = [
        {"column": n % columns, "row": n // columns, "label": label, "color": color,
         "opacity": 0.4 if style == "light" else 1.0, "sign": "▨" if style == "hatch" else "■"}
        for n, (label, color, style) in enumerate(picture.legend)
    ]  # fmt: skip
    rows = -(-len(values) // columns)
    base = _data(datasets, "legend", values).encode(
        alt.X("column:Q", scale=alt.Scale(domain=[0, columns]), axis=None),
        alt.Y("row:Q", scale=alt.Scale(domain=[-0.5, max(rows, 1) - 0.5], reverse=True), axis=None),
    )
    signs = base.mark_text(align="left", fontSize=15).encode(
        text="sign:N", color=alt.Color("color:N", scale=None), opacity=alt.Opacity("opacity:Q", scale=None)
    )
    labels = base.mark_text(align="left", dx=16, color=text, fontSize=11).encode(text="label:N")
    layered = alt.layer(signs, labels).resolve_scale(x="independent").properties(width=_WIDTH, height=18 * max(rows, 1))
    return layered


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
