"""Results of a group's lag and history, with their charts."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence, TypeVar

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.tables.cells import duration_text
from spark_groupsource.monitor.tables.results import Result
from spark_groupsource.notebook.svg import THEMES

_MAX_BARS = 40
_LEFT, _BAR, _WIDTH, _ROW = 260, 420, 980, 20
_LABEL_CHARS = 38
_COLOR, _MARKED_COLOR = "#3b8fd0", "#e53935"

_Found = TypeVar("_Found", bound="GroupResult")


class Bar(NamedTuple):
    """One bar; `text` is beside it, `title` at the mouse pointer; a marked one is red."""

    label: str
    value: float
    text: str
    title: str
    is_marked: bool = False


class BarChart:
    """Horizontal bars as SVG; a notebook shows it, and `save` writes it.

    Args:
        rest: what the bars beyond the first 40 are.
    """

    def __init__(self, title: str, bars: Sequence[Bar], rest: str) -> None:
        self._title, self._bars, self._rest = title, bars, rest

    def svg(self, theme: str = "light") -> str:
        """Returns the chart as SVG; `theme` is ``light``, ``dark`` or ``notebook``: in the colors of the page.

        Raises: ConfigurationError for another theme.
        """
        if theme not in THEMES:
            raise ConfigurationError(f"Argument theme must be one of {', '.join(THEMES)}, got {theme!r}.")
        colors, shown = THEMES[theme], self._bars[:_MAX_BARS]
        largest = max((bar.value for bar in shown), default=0) or 1
        parts = [_text(12, 24, self._title, 'font-size="15" font-weight="600"')]
        y = 40
        for bar in shown:
            parts.append(_drawn(bar, y, _BAR * bar.value / largest))
            y += _ROW
        omitted = len(self._bars) - len(shown)
        if omitted:
            parts.append(_text(12, y + 14, f"and {omitted:,} {self._rest}", 'font-size="11" opacity="0.75"'))
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
            raise ConfigurationError(f"Files of this chart end with .svg, got {Path(path).name!r}.")
        Path(path).write_text(self.svg(theme))

    def _repr_html_(self) -> str:
        return self.svg("notebook")

    def __repr__(self) -> str:
        return self._title


class GroupResult(Result):
    """Rows about one group."""

    group: str

    @classmethod
    def of_group(cls: type[_Found], group: str, rows: Result) -> _Found:
        """Returns the same rows with the name of their group."""
        found = cls.__new__(cls)
        found.__dict__.update(vars(rows), group=group)
        return found


class LagResult(GroupResult):
    """The lag of a group; see `Group.lag`."""

    def chart(self) -> BarChart:
        """Returns a bar for the lag of each partition, the largest first, red without an owner."""
        # partitions without a commit have no lag
        known = [row for row in self if row["lag"] is not None]
        known.sort(key=lambda row: (-row["lag"], row["topic"], row["partition"]))
        total = sum(row["lag"] for row in known)
        title = f"Group {shortened(self.group, 60)}: lag {total:,} offsets in {len(known):,} partitions"
        return BarChart(title, [_lag_bar(row) for row in known], "partitions with less lag")


class HistoryResult(GroupResult):
    """The rebalances of a group; see `Group.history`. `timeline(group)` draws what happened in them."""

    def chart(self) -> BarChart:
        """Returns a bar for the duration of each rebalance, the last first, red if records were repeated."""
        rows = [row for row in reversed(list(self)) if _duration_ms(row) is not None]
        title = f"Group {shortened(self.group, 60)}: duration of {len(rows):,} rebalances"
        return BarChart(title, [_rebalance_bar(row) for row in rows], "earlier rebalances")


def _lag_bar(row: Mapping[str, Any]) -> Bar:
    partition, owner, behind = f"{row['topic']}-{row['partition']}", row.get("client_id"), row.get("lag_ms")
    label = f"{partition} · {owner or 'no owner'}" if "client_id" in row else partition
    lag = f"{row['lag']:,}" + (f", {duration_text(behind)} behind" if behind else "")
    title = f"{partition}: {lag}" + (f", owner {row['consumer_id']}" if row.get("consumer_id") else "")
    return Bar(label, row["lag"], lag, title, "client_id" in row and not owner)


def _rebalance_bar(row: Mapping[str, Any]) -> Bar:
    duration_ms, repeated = _duration_ms(row) or 0, row["repeated_records"]
    text = duration_text(duration_ms)
    if row["partitions_moved"]:
        text += f", {row['partitions_moved']:,} partitions moved"
    if repeated:
        text += f", {repeated:,} records repeated"
    actor = f" · {row['client_id']}" if row["client_id"] else ""
    title = f"{row['completed_at']}: {row['difference'] or row['cause']}"
    return Bar(f"{row['generation']} · {row['cause']}{actor}", duration_ms, text, title, bool(repeated))


def _duration_ms(row: Mapping[str, Any]) -> int | None:
    phases = [row[name] for name in ("join_ms", "sync_ms") if row[name] is not None]
    return sum(phases) if phases else None


def _drawn(bar: Bar, y: float, width: float) -> str:
    color = _MARKED_COLOR if bar.is_marked else _COLOR
    return (
        f"<g><title>{_safe(bar.title)}</title>"
        + _text(_LEFT - 8, y + 14, _label(bar.label), 'font-size="11" text-anchor="end"')
        + f'<rect x="{_LEFT}" y="{y + 3}" width="{max(width, 1):.1f}" height="{_ROW - 6}" fill="{color}"/>'
        + _text(_LEFT + max(width, 1) + 6, y + 14, bar.text, 'font-size="11"')
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
