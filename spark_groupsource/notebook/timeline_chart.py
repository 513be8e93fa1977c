"""`timeline`: the chart of the rebalances of a group."""

from __future__ import annotations

import json
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Mapping

from spark_groupsource.common.arguments import check_integer, check_text
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.rebalances.timeline_values import Timeline
from spark_groupsource.monitor.tables.cells import duration_text
from spark_groupsource.notebook.cluster import Group
from spark_groupsource.notebook.group_reads import file_timelines, group_timeline, lag_samples, query_group
from spark_groupsource.notebook.layout import clock_text, headline, picture
from spark_groupsource.notebook.svg import svg

_EXTRA = "Run: pip install 'spark-groupsource[notebook]'."
_SHOWN_REBALANCES = 20
_FRAME_SCRIPT = """
let color = matchMedia("(prefers-color-scheme: dark)").matches ? "#e6e6e6" : "#1f1f1f";
try { color = getComputedStyle(frameElement.parentElement).color; } catch (e) {}
const axis = {labelColor: color, titleColor: color, domainColor: color, tickColor: color};
const spec = JSON.parse(document.getElementById("spec").textContent.replaceAll("TEXT-COLOR", color));
vegaEmbed("#chart", spec, {actions: false, renderer: "svg"}).then(() => {
  const chart = document.getElementById("chart"), drawn = chart.querySelector("svg");
  // a narrow cell shows the whole chart, smaller
  const scale = Math.min(1, innerWidth / drawn.getBoundingClientRect().width);
  chart.style.cssText = `transform-origin:0 0;transform:scale(${scale});height:${drawn.clientHeight * scale}px`;
  // the scroll height is at least that of the frame
  try { frameElement.style.height = Math.ceil(drawn.getBoundingClientRect().bottom) + 16 + "px"; } catch (e) {}
});
"""


def timeline(
    source: Any, *, group: str | None = None, generation: int | None = None, cluster: Any = None
) -> TimelineChart:
    """Returns the chart of the rebalances of a group: owners of partitions, members, phases, causes and lag.

    Args:
        source: a streaming query that reads with groupsource; a group (``connect(...).group(...)``); or a file of
            group events (option ``rebalanceLog``).
        group: name of the group, for a file with several.
        generation: shows only the rebalance that produced this generation.
        cluster: result of ``connect``, for a query whose brokers require security settings.
    Raises: ConfigurationError for another kind of source, and for a query that has not read yet; GroupSourceError for a
        group that does not exist; OSError; BrokerError, NetworkError.
    """
    check_text("group", group, optional=True, meaning="the name of a group")
    check_integer("generation", generation, 0, optional=True)
    if isinstance(source, Timeline):
        found = source
    elif isinstance(source, (str, Path)):
        found = _of_file(Path(source), group)
    elif isinstance(source, Group):
        found = group_timeline(source)
    else:
        with query_group(source, cluster) as selected:
            found = group_timeline(selected, lag_samples(selected))
    return TimelineChart(found, generation)


def _of_file(path: Path, group: str | None) -> Timeline:
    if not path.exists():
        raise ConfigurationError(
            f"Argument source: file {path} does not exist. For a group, give connect(...).group({path.name!r})."
        )
    found = file_timelines(path)
    if group is None and len(found) > 1:
        names = ", ".join(sorted(found))
        raise ConfigurationError(f"File {path} has {len(found)} groups. Set group to one of {names}.")
    name = group or next(iter(found), None)
    if name is None or name not in found:
        raise ConfigurationError(f"File {path} has no events of {'a group' if name is None else f'group {name!r}'}.")
    return found[name]


class TimelineChart:
    """The chart of a timeline; a notebook shows it, and `save` writes it.

    With the extra `notebook` it is a chart of Vega-Lite that needs no network, else SVG. Both show details at the mouse
    pointer.

    Attributes:
        timeline: the values of the chart.
    """

    def __init__(self, values: Timeline, generation: int | None = None) -> None:
        self.timeline = values
        self._generation = generation

    @property
    def _headline(self) -> str:
        return headline(self.timeline, self._generation)

    @property
    def unowned_seconds(self) -> float:
        """Sum over the partitions of the seconds without an owner, between two owners."""
        return self.timeline.unowned_seconds

    def rebalance(self, generation: int) -> TimelineChart:
        """Returns the chart of the rebalance that produced a generation. Raises: KeyError."""
        picture(self.timeline, generation)
        return TimelineChart(self.timeline, generation)

    def altair(self, theme: str = "notebook") -> Any:
        """Returns the chart as an Altair chart. Raises: ModuleNotFoundError without Altair."""
        return _imported("altair").Chart.from_dict(self.vega_lite(theme), validate=False)

    def vega_lite(self, theme: str = "notebook") -> dict[str, Any]:
        """Returns the specification of the chart. Raises: ModuleNotFoundError without Altair."""
        _imported("altair")
        from spark_groupsource.notebook.altair_chart import vega_lite

        return vega_lite(picture(self.timeline, self._generation), theme)

    def svg(self, theme: str = "light") -> str:
        """Returns the chart as SVG; `theme` is ``light``, ``dark`` or ``notebook``."""
        return svg(picture(self.timeline, self._generation), theme)

    def html(self) -> str:
        """Returns a page with the chart that needs no network."""
        body = _embedded(self.vega_lite()) if _has_vega() else svg(picture(self.timeline, self._generation))
        return f'<!doctype html><meta charset="utf-8"><title>{escape(self._headline)}</title>{body}'

    def save(self, path: str | Path, theme: str = "light") -> None:
        """Writes the chart to a file; the suffix is .html, .svg, .png or .json (Vega-Lite).

        Raises: ConfigurationError for another suffix; ModuleNotFoundError for a PNG without vl-convert; OSError.
        """
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix not in _WRITERS:
            raise ConfigurationError(f"Chart files end with {', '.join(_WRITERS)}, got {target.name!r}.")
        target.write_bytes(_WRITERS[suffix](self, theme))

    def _repr_html_(self) -> str:
        if not _has_vega():
            return svg(picture(self.timeline, self._generation))
        # a frame of its own: scripts of notebooks and of other charts do not meet
        return (
            f'<iframe srcdoc="{escape(self.html())}" style="width:100%;border:0;height:640px;color-scheme:normal" '
            f'title="{escape(self._headline)}"></iframe>'
        )

    def __repr__(self) -> str:
        lines = [self._headline]
        markers = [m for m in self.timeline.markers if self._generation in (None, m.generation)]
        for marker in markers[-_SHOWN_REBALANCES:]:
            took = ""
            if marker.completed_ms is not None:
                took = f" in {duration_text(marker.completed_ms - marker.started_ms)}"
            actor = f" by {marker.actor}" if marker.actor else ""
            moved = "" if marker.partitions_moved is None else f", {marker.partitions_moved:,} partitions moved"
            number = "?" if marker.generation is None else marker.generation
            lines.append(f"{clock_text(marker.started_ms)}  generation {number}: {marker.cause}{actor}{took}{moved}")
        omitted = len(markers) - _SHOWN_REBALANCES
        return "\n".join(lines + ([f"and {omitted:,} earlier rebalances"] if omitted > 0 else []))


def _png(chart: TimelineChart, theme: str) -> bytes:
    converter = _imported("vl_convert")
    png: bytes = converter.svg_to_png(chart.svg(theme), scale=2)
    return png


_WRITERS: Mapping[str, Callable[[TimelineChart, str], bytes]] = {
    ".html": lambda chart, theme: chart.html().encode(),
    ".svg": lambda chart, theme: chart.svg(theme).encode(),
    ".png": _png,
    ".json": lambda chart, theme: json.dumps(chart.vega_lite(theme)).encode(),
}


def _has_vega() -> bool:
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def _embedded(specification: Mapping[str, Any]) -> str:
    """Returns the chart with the JavaScript of Vega in the page."""
    bundle = _imported("vl_convert").javascript_bundle().replace("</script", "<\\/script")
    text = json.dumps(specification).replace("</", "<\\/").replace('"#808080"', '"TEXT-COLOR"')
    return (
        '<body style="margin:0;background:transparent"><div id="chart"></div>'
        f'<script type="application/json" id="spec">{text}</script>'
        f"<script>{bundle}</script><script>{_FRAME_SCRIPT}</script></body>"
    )


def _imported(name: str) -> Any:
    try:
        return __import__(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Drawing the chart failed: {name} is not installed. {_EXTRA}", name=name) from error
