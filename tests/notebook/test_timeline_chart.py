"""Timeline chart of a group: rows, text, SVG and HTML files."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import vl_convert

import spark_groupsource as gs
from spark_groupsource.errors import ConfigurationError
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
from spark_groupsource.notebook import timeline_chart
from spark_groupsource.notebook.layout import MAX_ROWS, clock_text, picture, tick_times
from spark_groupsource.notebook.timeline_chart import TimelineChart

START = 1_795_348_800_000


def periods_of(change: int, end: int, first: MemberActivity, then: MemberActivity) -> list[MemberPeriod]:
    return [MemberPeriod(START, change, first), MemberPeriod(change, end, then)]


def sample(partitions: int = 4, rebalances: int = 1, kept: int = 0) -> Timeline:
    """Two members exchange all partitions but the first `kept` at each rebalance, 10 s apart, 1 s without owner."""
    owners: dict[TopicPartition, list[OwnerPeriod]] = {}
    end = START + 10_000 * (rebalances + 1)
    for number in range(partitions):
        periods = []
        for at in range(rebalances + 1):
            first, last = START + 10_000 * at, START + 10_000 * (at + 1)
            moving = number >= kept
            owner = "a" if not moving or (number + at * (number % 7 + 1)) % 2 else "b"
            gap = 1_000 if at < rebalances else 0
            periods.append(OwnerPeriod(first, last - gap, owner))
            if gap:
                periods.append(OwnerPeriod(last - gap, last, None))
        owners[TopicPartition("flights", number)] = periods
    members = {
        "a": periods_of(START + 9_000, end, MemberActivity.READING, MemberActivity.IDLE),
        "b": periods_of(START + 5_000, end, MemberActivity.WAITING, MemberActivity.EXPIRED),
    }
    markers = [
        RebalanceMarker(done - 1_000, done, at + 2, "JOINED", "<new>", "app-1", "app-0", partitions, 7, 4.0)
        for at in range(rebalances)
        for done in [START + 10_000 * (at + 1)]
    ]
    started = START + 9_000
    bands = [PhaseBand(2, Phase.JOIN, started, started + 500), PhaseBand(2, Phase.BATCH, started, started + 200)]
    names = {"a": "app-0", "b": "app-1"}
    lag = [(START + at * 1_000, at * 10) for at in range(20)]
    return Timeline("flight-delays", START, end, owners, members, names, bands, markers, lag)


def test_headline_rows_and_texts() -> None:
    drawn = picture(sample())
    assert drawn.title == "Group flight-delays: 1 rebalance, 4 partition-seconds without an owner"
    assert drawn.subtitle == "2026-11-22 12:00:00 to 12:00:20 UTC"
    later = sample()._replace(end_ms=START + 86_400_000)
    assert picture(later).subtitle == "2026-11-22 12:00:00 to 2026-11-23 12:00:00 UTC"
    assert [row.label for row in drawn.partitions] == [f"flights-{n}" for n in range(4)]
    gap = drawn.partitions[1].segments[1]
    assert gap.style == "hatch" and gap.text == "flights-1: no owner for 1 s, 12:00:09 to 12:00:10"
    assert drawn.members[1].segments[1].style == "hatch" and "expired" in drawn.members[1].segments[1].text
    lines = drawn.marks[0].text.splitlines()
    assert lines == [
        "JOINED at 12:00:09", "generation 2", "took 1 s", "reason: <new>", "actor: app-1", "slowest member: app-0",
        "4 partitions moved", "7 rows repeated",
    ]  # fmt: skip


def test_one_rebalance() -> None:
    drawn = picture(sample(rebalances=3), 3)
    assert drawn.start_ms == START + 18_750 and drawn.end_ms == START + 20_250 and len(drawn.marks) == 1
    assert drawn.title == (
        "Group flight-delays, generation 3: JOINED by app-1, 4 partition-seconds without an owner"
    )
    # the margins end with the timeline
    short = sample(rebalances=1)
    drawn_short = picture(short._replace(start_ms=START + 8_950, end_ms=START + 10_100), 2)
    assert (drawn_short.start_ms, drawn_short.end_ms) == (START + 8_950, START + 10_100)
    chart = TimelineChart(sample(rebalances=3)).rebalance(3)
    assert repr(chart).splitlines()[0] == drawn.title and len(repr(chart).splitlines()) == 2
    counted = sample(rebalances=3)
    unknown = counted.markers[1]._replace(unowned_seconds=None)
    assert counted.unowned_seconds_of(unknown) == 4
    with pytest.raises(KeyError, match="Generation 9 is not in the timeline of group 'flight-delays'"):
        picture(sample(), 9)


def test_times_of_the_axis() -> None:
    for span_ms, step_ms in ((5, 1), (1_185, 200), (7_000, 2_000), (60_000, 10_000), (86_400_000, 14_400_000)):
        times = list(tick_times(START + 7, START + 7 + span_ms, 6))
        assert {after - before for before, after in zip(times, times[1:])} == {step_ms} and 3 <= len(times) <= 7
        assert all(at_ms % step_ms == 0 and START + 7 <= at_ms <= START + 7 + span_ms for at_ms in times)
    assert list(tick_times(START, START, 6)) == [START]


def test_many_partitions_are_folded_to_those_that_moved() -> None:
    drawn = picture(sample(100, 1, kept=90))
    labels = [row.label for row in drawn.partitions]
    assert len(labels) == 3 or len(labels) < 10
    assert drawn.subtitle.endswith("5 partitions that moved, 100 in all") or " that moved, 100 in all" in drawn.subtitle
    assert all(int(re.findall(r"\d+", label)[0]) >= 90 for label in labels)
    assert len(picture(sample(1_000, 5)).partitions) <= MAX_ROWS
    assert "none moved" in picture(sample(100, 1, kept=100)).subtitle


@pytest.mark.parametrize("theme", ["light", "dark", "notebook"])
def test_svg_is_well_formed_and_has_no_links(theme: str) -> None:
    text = TimelineChart(sample()).svg(theme)
    root = ElementTree.fromstring(text)
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title and "reason: <new>" in title for title in titles)
    assert re.findall(r"https?://(?!www.w3.org)", text) == [] and ("currentColor" in text)


def test_an_empty_timeline_is_drawn() -> None:
    empty = Timeline("g", 0, 0, {}, {}, {}, [], [], [])
    assert "0 rebalances, 0 partition-seconds" in TimelineChart(empty).svg()
    assert repr(TimelineChart(empty)) == "Group g: 0 rebalances, 0 partition-seconds without an owner"


def test_text_of_the_chart() -> None:
    lines = repr(TimelineChart(sample(rebalances=25))).splitlines()
    assert lines[1].startswith("12:00:59  generation 7: JOINED by app-1 in 1 s, 4 partitions moved")
    assert lines[-1] == "and 5 earlier rebalances"
    assert (duration_text(20), duration_text(1_500), duration_text(600_000)) == ("20 ms", "1.5 s", "10 min")
    assert clock_text(START + 5) == "12:00:00.005"


def test_a_large_timeline_is_drawn_within_two_seconds() -> None:
    large = sample(1_000, 100)
    started = time.process_time()
    assert len(TimelineChart(large).svg()) > 10_000
    assert time.process_time() - started < 2


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(timeline_chart, "find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    chart = gs.timeline(sample())
    assert chart._repr_html_().startswith("<svg") and chart.unowned_seconds == 4
    for name in ("c.svg", "c.html"):
        chart.save(tmp_path / name, "dark")
        assert "partition-seconds" in (tmp_path / name).read_text()
    with pytest.raises(ModuleNotFoundError, match=r"altair is not installed. Run: pip install 'spark-group"):
        chart.altair()
    with pytest.raises(ModuleNotFoundError, match="vl_convert is not installed"):
        chart.save(tmp_path / "c.png")
    with pytest.raises(ConfigurationError, match=r"Chart files end with .html, .svg, .png, .json, got 'c.gif'"):
        chart.save(tmp_path / "c.gif")


@pytest.mark.slow
def times(values: Timeline, generation: int | None = None) -> list[str]:
    """The labels of the time axis that Vega draws."""
    drawn: str = vl_convert.vegalite_to_svg(TimelineChart(values, generation).vega_lite("light"))
    return re.findall(r">(\d\d:\d\d:\d\d[.\d]*)</text>", drawn)


@pytest.mark.slow
def test_with_the_extra(tmp_path: Path) -> None:
    chart: Any = TimelineChart(sample(rebalances=2))
    page = chart._repr_html_()
    assert page.startswith("<iframe srcdoc=") and 'src="http' not in chart.html()
    found = chart.altair().to_dict(validate=False)
    assert found["datasets"]["partitions"] and len(found["datasets"]["rebalances"]) == 2
    # also without lag, the last panel has the times
    assert times(sample()._replace(lag=[], members={})) == ["12:00:00", "12:00:05", "12:00:10", "12:00:15", "12:00:20"]
    seconds = ["18.800", "19.000", "19.200", "19.400", "19.600", "19.800", "20.000", "20.200"]
    assert times(sample(rebalances=3), 3) == [f"12:00:{second}" for second in seconds]
    chart.save(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_other_sources_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Argument source must be a streaming query or a group"):
        gs.timeline(3)
    (tmp_path / "events").write_text("")
    with pytest.raises(ConfigurationError, match="has no events of a group"):
        gs.timeline(tmp_path / "events")
