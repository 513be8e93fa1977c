"""Results of a group's lag and history, with their charts."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Mapping, TypeVar

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.tables.cells import duration_text
from spark_groupsource.monitor.tables.results import Result
from spark_groupsource.notebook.svg import THEMES

if TYPE_CHECKING:
    from spark_groupsource.notebook.cluster import Group
    from spark_groupsource.notebook.timeline_chart import TimelineChart

_MAX_BARS = 40
_LEFT, _BAR, _WIDTH, _ROW = 260, 420, 980, 20
_LABEL_CHARS = 38
_COLOR, _UNOWNED_COLOR = "#3b8fd0", "#e53935"


_Found = TypeVar("_Found", bound="GroupResult")


class GroupResult(Result):
    """Rows about one group."""

    group: Group

    @classmethod
    def of_group(cls: type[_Found], group: Group, rows: Result) -> _Found:
        """Returns the same rows with their group."""
        found = cls.__new__(cls)
        found.__dict__.update(vars(rows), group=group)
        return found


class LagResult(GroupResult):
    """The lag of a group; see `Group.lag`."""

    def chart(self) -> LagChart:
        """Returns a chart of the partitions with the largest lag."""
        return LagChart(self.group.name, self)


class HistoryResult(GroupResult):
    """The rebalances of a group; see `Group.history`."""

    def chart(self) -> TimelineChart:
        """Returns the chart of the rebalances, which reads the group again; as `timeline(group)`."""
        from spark_groupsource.notebook.timeline_chart import timeline

        return timeline(self.group)


class LagChart:
    """A bar for the lag of each partition, as SVG; a notebook shows it, and `save` writes it."""

    def __init__(self, group: str, rows: Iterable[Mapping[str, Any]]) -> None:
        # partitions without a commit have no lag
        known = [row for row in rows if row["lag"] is not None]
        self._rows = sorted(known, key=lambda row: (-row["lag"], row["topic"], row["partition"]))
        total = sum(row["lag"] for row in known)
        self._title = f"Group {shortened(group, 60)}: lag {total:,} offsets in {len(known):,} partitions"

    def svg(self, theme: str = "light") -> str:
        """Returns the chart as SVG; `theme` is ``light``, ``dark`` or ``notebook``: in the colors of the page.

        Raises: ConfigurationError for another theme.
        """
        if theme not in THEMES:
            raise ConfigurationError(f"Argument theme must be one of {', '.join(THEMES)}, got {theme!r}.")
        colors, shown = THEMES[theme], self._rows[:_MAX_BARS]
        largest = max((row["lag"] for row in shown), default=0) or 1
        parts = [_text(12, 24, self._title, 'font-size="15" font-weight="600"')]
        y = 40
        for row in shown:
            parts.append(_bar(row, y, _BAR * row["lag"] / largest))
            y += _ROW
        omitted = len(self._rows) - len(shown)
        if omitted:
            note = f"and {omitted:,} partitions with less lag"
            parts.append(_text(12, y + 14, note, 'font-size="11" opacity="0.75"'))
            y += _ROW
        size = f'viewBox="0 0 {_WIDTH} {y + 8}" width="{_WIDTH}" height="{y + 8}"'
        font = "Inter, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" fill="{colors.text}" font-family="{font}" '
            f'style="max-width:100%;height:auto;color:{colors.text}"><title>{_safe(self._title)}</title>'
            f'<rect width="{_WIDTH}" height="{y + 8}" fill="{colors.background}"/>{"".join(parts)}</svg>'
        )

    def save(self, path: str | Path, theme: str = "light") -> None:
        """Writes the chart to a file that ends with .svg. Raises: ConfigurationError, OSError."""
        if Path(path).suffix.lower() != ".svg":
            raise ConfigurationError(f"Chart files of the lag end with .svg, got {Path(path).name!r}.")
        Path(path).write_text(self.svg(theme))

    def _repr_html_(self) -> str:
        return self.svg("notebook")

    def __repr__(self) -> str:
        return self._title


def _bar(row: Mapping[str, Any], y: float, width: float) -> str:
    partition, owner = f"{row['topic']}-{row['partition']}", row.get("client_id")
    label = _label(f"{partition} · {owner or 'no owner'}" if "client_id" in row else partition)
    behind = row.get("lag_ms")
    lag = f"{row['lag']:,}" + (f", {duration_text(behind)} behind" if behind else "")
    text = f"{partition}: {lag}" + (f", owner {row['consumer_id']}" if row.get("consumer_id") else "")
    color = _UNOWNED_COLOR if "client_id" in row and not owner else _COLOR
    return (
        f"<g><title>{_safe(text)}</title>"
        + _text(_LEFT - 8, y + 14, label, 'font-size="11" text-anchor="end"')
        + f'<rect x="{_LEFT}" y="{y + 3}" width="{max(width, 1):.1f}" height="{_ROW - 6}" fill="{color}"/>'
        + _text(_LEFT + max(width, 1) + 6, y + 14, lag, 'font-size="11"')
        + "</g>"
    )


def _label(text: str) -> str:
    """Returns the begin and the end of a text that is too long."""
    clean, half = escaped(text), _LABEL_CHARS // 2
    return clean if len(clean) <= _LABEL_CHARS else f"{clean[:half]}…{clean[1 - half :]}"


def _text(x: float, y: float, text: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(escaped(shortened(text, 500)))
