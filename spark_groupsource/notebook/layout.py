"""Rows, colors and texts of the chart of a timeline. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.timeline_values import (
    MemberActivity,
    MemberPeriod,
    OwnerPeriod,
    Phase,
    PhaseBand,
    RebalanceMarker,
    Timeline,
)
from spark_groupsource.monitor.tables.cells import duration_text

MAX_ROWS = 60
_LEGEND_OWNERS = 12
_LABEL_CHARS = 22
_TICK_STEPS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 43_200_000, 86_400_000,
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

# Okabe and Ito, then Tol's muted colors: distinguishable with every kind of color blindness
_OWNER_COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442",
    "#332288", "#999933", "#882255", "#88ccee", "#ddcc77", "#117733", "#aa4499",
)  # fmt: skip
UNOWNED_COLOR = "#e53935"
PHASE_COLORS: Mapping[Phase, str] = {
    Phase.BATCH: "#d8c9a0",
    Phase.JOIN: "#c3b1e1",
    Phase.SYNC: "#8e6bbf",
    Phase.FIRST_RECORD: "#5e3c99",
}
# states without a color have that of the member
_STATE_COLORS: Mapping[MemberActivity, str] = {
    MemberActivity.IDLE: "#d0d0d0",
    MemberActivity.JOINING: "#a0a0a0",
    MemberActivity.SYNCING: "#707070",
}


class Segment(NamedTuple):
    """Part of a row; `style` is ``solid``, ``light`` or ``hatch``."""

    start_ms: int
    end_ms: int
    color: str
    style: str
    text: str


class Row(NamedTuple):
    """One row of the chart."""

    label: str
    segments: Sequence[Segment]


class Mark(NamedTuple):
    """A rebalance: line at its start; `text` is shown at the mouse pointer."""

    at_ms: int
    end_ms: int
    label: str
    text: str


class Picture(NamedTuple):
    """What the chart shows. `legend` has label, color and style."""

    title: str
    subtitle: str
    start_ms: int
    end_ms: int
    partitions: Sequence[Row]
    members: Sequence[Row]
    bands: Sequence[Segment]
    marks: Sequence[Mark]
    lag: Sequence[tuple[int, int]]
    legend: Sequence[tuple[str, str, str]]


def picture(timeline: Timeline, generation: int | None = None) -> Picture:
    """Lays out a timeline.

    Above `MAX_ROWS` partitions, those that moved are shown, and those with the same owners at the same times share a
    row.

    Args:
        generation: shows the time of this rebalance only.
    Raises: KeyError for a generation that is not in the timeline.
    """
    start_ms, end_ms = _window(timeline, generation)
    colors = {name: _OWNER_COLORS[at % len(_OWNER_COLORS)] for at, name in enumerate(timeline.members)}
    groups, note = _folded(timeline, start_ms, end_ms)
    rows = [
        Row(label, [_owner_segment(label, period, timeline, colors) for period in periods])
        for label, periods in groups
    ]
    members = [
        Row(
            _label(timeline.names.get(name, name)),
            [_state_segment(name, period, timeline, colors) for period in _within(periods, start_ms, end_ms)],
        )
        for name, periods in timeline.members.items()
    ]
    bands = [_band_segment(band) for band in timeline.bands if start_ms <= band.end_ms and band.start_ms <= end_ms]
    marks = [_mark(m) for m in timeline.markers if start_ms <= (m.completed_ms or end_ms) and m.started_ms <= end_ms]
    times = f"{_date(start_ms)} {clock_text(start_ms)} to {clock_text(end_ms)} UTC"
    if _date(end_ms) != _date(start_ms):
        times = times.replace(" to ", f" to {_date(end_ms)} ")
    return Picture(
        headline(timeline, generation),
        " · ".join(filter(None, (times, note))),
        start_ms,
        max(end_ms, start_ms + 1),
        rows,
        [row for row in members if row.segments][-MAX_ROWS:],
        bands,
        marks,
        [point for point in timeline.lag if start_ms <= point[0] <= end_ms],
        _legend(timeline, colors, bool(rows)),
    )


def headline(timeline: Timeline, generation: int | None = None) -> str:
    """Returns the title: group, its rebalances or the one of a generation, partition-seconds without an owner.

    Raises: KeyError for a generation that is not in the timeline.
    """
    group = escaped(shortened(timeline.group, 60))
    if generation is None:
        count, seconds = len(timeline.markers), timeline.unowned_seconds
        what = f"Group {group}: {count:,} rebalance{'' if count == 1 else 's'}"
    else:
        marker = _marker(timeline, generation)
        seconds = timeline.unowned_seconds_of(marker)
        actor = f" by {_label(marker.actor, 40)}" if marker.actor else ""
        what = f"Group {group}, generation {generation}: {marker.cause}{actor}"
    amount = f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"
    return f"{what}, {amount} partition-seconds without an owner"


def _date(at_ms: float) -> str:
    return f"{_EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%d}"


def clock_text(at_ms: float) -> str:
    """Returns the time of day in UTC, with milliseconds where they are not zero."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    text = at.strftime("%H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}" if at.microsecond >= 1000 else text


def tick_times(start_ms: int, end_ms: int, most: int) -> Sequence[int]:
    """Returns the times of the labels of an axis: multiples of a round duration, at most one more than `most`."""
    span = end_ms - start_ms
    step = next((each for each in _TICK_STEPS_MS if span / each <= most), -(-span // most))
    return range(-(-start_ms // step) * step, end_ms + 1, step)


def _window(timeline: Timeline, generation: int | None) -> tuple[int, int]:
    if generation is None:
        return timeline.start_ms, timeline.end_ms
    marker = _marker(timeline, generation)
    ends = [band.end_ms for band in timeline.bands if band.generation == generation]
    starts = [band.start_ms for band in timeline.bands if band.generation == generation]
    completed_ms = timeline.end_ms if marker.completed_ms is None else marker.completed_ms
    first, last = min([marker.started_ms, *starts]), max([completed_ms, *ends])
    margin = max((last - first) // 4, 20)
    return max(first - margin, timeline.start_ms), max(min(last + margin, timeline.end_ms), last)


def _marker(timeline: Timeline, generation: int) -> RebalanceMarker:
    marker = next((m for m in timeline.markers if m.generation == generation), None)
    if marker is None:
        raise KeyError(f"Generation {generation} is not in the timeline of group {timeline.group!r}.")
    return marker


def _within(periods: Iterable[MemberPeriod], start_ms: int, end_ms: int) -> list[MemberPeriod]:
    return [
        p._replace(start_ms=max(p.start_ms, start_ms), end_ms=min(p.end_ms, end_ms))
        for p in periods
        if p.start_ms < end_ms and p.end_ms > start_ms
    ]


def _folded(
    timeline: Timeline, start_ms: int, end_ms: int
) -> tuple[list[tuple[str, Sequence[OwnerPeriod]]], str]:
    """Returns the rows with their periods, and a note about the partitions that have no row of their own."""
    shown: Mapping[TopicPartition, Sequence[OwnerPeriod]] = timeline.partitions
    if (start_ms, end_ms) != (timeline.start_ms, timeline.end_ms):
        shown = {partition: _clipped(periods, start_ms, end_ms) for partition, periods in shown.items()}
    if len(shown) <= MAX_ROWS:
        return [(_label(str(partition)), periods) for partition, periods in shown.items()], ""
    same: dict[tuple[OwnerPeriod, ...], list[TopicPartition]] = {}
    for partition, periods in shown.items():
        same.setdefault(tuple(periods), []).append(partition)
    by_moves = sorted(same.items(), key=lambda each: -_moves(each[0]))
    moved = [partitions for periods, partitions in by_moves if _moves(periods)]
    chosen = (moved or [partitions for _, partitions in by_moves])[:MAX_ROWS]
    rows = [(_group_label(partitions), shown[partitions[0]]) for partitions in sorted(chosen)]
    count, moved_count = sum(map(len, chosen)), sum(map(len, moved))
    what = "that moved" if moved else "of the group (none moved)"
    left = f" (of {moved_count:,})" if count < moved_count else ""
    return rows, f"{count:,}{left} partitions {what}, {len(shown):,} in all"


def _clipped(periods: Sequence[OwnerPeriod], start_ms: int, end_ms: int) -> list[OwnerPeriod]:
    return [
        OwnerPeriod(max(p.start_ms, start_ms), min(p.end_ms, end_ms), p.owner)
        for p in periods
        if p.start_ms < end_ms and p.end_ms > start_ms
    ]


def _moves(periods: Sequence[OwnerPeriod]) -> int:
    owners = [period.owner for period in periods if period.owner is not None]
    return sum(before != after for before, after in zip(owners, owners[1:]))


def _group_label(partitions: Sequence[TopicPartition]) -> str:
    first = _label(str(partitions[0]))
    return first if len(partitions) == 1 else f"{first} +{len(partitions) - 1:,}"


def _owner_segment(label: str, period: OwnerPeriod, timeline: Timeline, colors: Mapping[str, str]) -> Segment:
    start_ms, end_ms, owner = period
    times = f"{duration_text(end_ms - start_ms)}, {clock_text(start_ms)} to {clock_text(end_ms)}"
    if owner is None:
        return Segment(start_ms, end_ms, UNOWNED_COLOR, "hatch", f"{label}: no owner for {times}")
    name = _label(timeline.names.get(owner, owner), 60)
    return Segment(start_ms, end_ms, colors.get(owner, "#808080"), "solid", f"{label}: {name} for {times}")


def _state_segment(name: str, period: MemberPeriod, timeline: Timeline, colors: Mapping[str, str]) -> Segment:
    start_ms, end_ms, state = period
    style = "light" if state is MemberActivity.WAITING else "hatch" if state is MemberActivity.EXPIRED else "solid"
    color = UNOWNED_COLOR if state is MemberActivity.EXPIRED else _STATE_COLORS.get(state, colors.get(name, "#808080"))
    times = f"{duration_text(end_ms - start_ms)}, {clock_text(start_ms)} to {clock_text(end_ms)}"
    text = f"{_label(timeline.names.get(name, name), 60)}: {state.value} for {times}"
    return Segment(start_ms, end_ms, color, style, text)


def _band_segment(band: PhaseBand) -> Segment:
    generation = "" if band.generation is None else f", generation {band.generation}"
    text = f"{band.phase.value}: {duration_text(band.end_ms - band.start_ms)}{generation}"
    style = "light" if band.phase is Phase.BATCH else "solid"
    return Segment(band.start_ms, band.end_ms, PHASE_COLORS[band.phase], style, text)


def _mark(marker: RebalanceMarker) -> Mark:
    lines = [
        f"{marker.cause} at {clock_text(marker.started_ms)}",
        f"generation {marker.generation}" if marker.generation is not None else "not completed",
        f"took {duration_text(marker.completed_ms - marker.started_ms)}" if marker.completed_ms is not None else "",
        f"reason: {_label(marker.reason, 120)}" if marker.reason else "",
        f"actor: {_label(marker.actor, 60)}" if marker.actor else "",
        f"slowest member: {_label(marker.slowest_member, 60)}" if marker.slowest_member else "",
        f"{marker.partitions_moved:,} partitions moved" if marker.partitions_moved is not None else "",
        f"{marker.repeated_records:,} rows repeated" if marker.repeated_records is not None else "",
    ]
    end_ms = marker.started_ms if marker.completed_ms is None else marker.completed_ms
    return Mark(marker.started_ms, end_ms, marker.cause, "\n".join(filter(None, lines)))


def _legend(timeline: Timeline, colors: Mapping[str, str], has_rows: bool) -> list[tuple[str, str, str]]:
    names = list(timeline.members)
    legend = [(_label(timeline.names.get(name, name)), colors[name], "solid") for name in names[:_LEGEND_OWNERS]]
    if len(names) > _LEGEND_OWNERS:
        legend.append((f"and {len(names) - _LEGEND_OWNERS:,} more members", "#808080", "solid"))
    states = {period.state for periods in timeline.members.values() for period in periods}
    hatched = ["no owner"] * has_rows + [MemberActivity.EXPIRED.value] * (MemberActivity.EXPIRED in states)
    if hatched:
        legend.append((", ".join(hatched), UNOWNED_COLOR, "hatch"))
    if MemberActivity.WAITING in states:
        legend.append((MemberActivity.WAITING.value, colors[names[0]], "light"))
    legend += [(state.value, color, "solid") for state, color in _STATE_COLORS.items() if state in states]
    phases = {band.phase for band in timeline.bands}
    return legend + [(f"phase: {phase.value}", PHASE_COLORS[phase], "solid") for phase in Phase if phase in phases]


def _label(text: str, limit: int = _LABEL_CHARS) -> str:
    clean = escaped(text)
    return clean if len(clean) <= limit else f"{clean[: limit - 8]}…{clean[-7:]}"
