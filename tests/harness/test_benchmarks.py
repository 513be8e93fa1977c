"""The figures of the benchmarks: ratios, targets, the page."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.budget import BUDGET, table  # noqa: E402
from bench.children import run_lines  # noqa: E402
from bench.figures import Figure, Results  # noqa: E402
from bench.page import write_page  # noqa: E402
from bench.streams import PHASES, Sample, comparison_rows  # noqa: E402
from support.waiting import wait_until  # noqa: E402

FASTER = Figure("read", "all columns", "s", [1.0, 2.0, 1.0], "Kafka", [3.0, 4.0, 4.0], least_ratio=3.0)


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    assert FASTER.ratios() == [3.0, 2.0, 4.0] and FASTER.ratio() == 3.0 and FASTER.is_target_met()
    rate = Figure("requests", "", "/s", [50.0], "Kafka", [100.0], is_rate=True, least_ratio=1.0)
    assert rate.ratio() == 0.5 and rate.is_target_met() is False


def test_a_figure_reaches_a_difference_or_a_value() -> None:
    assert Figure("start", "", "s", [1.2], "Kafka", [1.0], largest_difference=0.3).is_target_met()
    assert not Figure("memory", "", "MB", [100.0, 300.0], largest_value=256).is_target_met()
    assert Figure("no goal", "", "s", [1.0], "Kafka", [2.0]).is_target_met() is None
    assert Figure("failed", "", "", error="timeout").is_target_met() is False


def test_the_distance_is_what_is_missing() -> None:
    assert FASTER.distance() == ""
    assert Figure("read", "", "s", [1.0], "Kafka", [1.5], least_ratio=2.0).distance() == "25 % below"
    assert Figure("start", "", "s", [1.5], "Kafka", [1.0], largest_difference=0.3).distance() == "0.2 s above"
    assert Figure("memory", "", "MB", [300.0], largest_value=256).distance() == "44 MB above"


def test_figures_survive_their_json_form() -> None:
    assert Figure.from_json(FASTER.to_json()) == FASTER


def test_the_page_has_the_figures(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "chart.svg"
    write_page(page, picture, [FASTER, Figure("broken", "", "", error="a | b\nc")], "2 processors")
    text = page.read_text()
    assert text.startswith("# Figures\n") and text.endswith("\n![Ratios to rivals](chart.svg)\n")
    assert "| read: all columns | Kafka | 1 s | 4 s | 3.00 (2.00 to 4.00) | 3 | yes |" in text
    assert "error: a / b c" in text and "3.00" in picture.read_text()


def test_a_row_that_explains_others_is_not_in_the_chart(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "chart.svg"
    write_page(page, picture, [Figure("phase", "addBatch", "ms", [1.0], "Kafka", [2.0], is_detail=True)], "")
    assert "phase: addBatch" in page.read_text() and "addBatch" not in picture.read_text()


def test_the_chart_has_one_heading_for_each_measure(tmp_path: Path) -> None:
    picture = tmp_path / "chart.svg"
    names = ("read", "processor", "read", "processor")
    write_page(tmp_path / "page.md", picture, [Figure(name, "", "s", [1.0], "Kafka", [2.0]) for name in names], "")
    headings = re.findall(r'font-weight="bold"[^>]*>(\w+)<', picture.read_text())
    assert headings == ["read", "processor"] and 'height="172"' in picture.read_text()


def test_the_page_names_the_measures_without_figures(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "images" / "chart.svg"
    write_page(page, picture, [FASTER], "2 processors", ["joins", "memory"])
    assert "Without figures, because the run was stopped: joins, memory." in page.read_text()
    write_page(page, picture, [FASTER], "2 processors")
    assert "stopped" not in page.read_text()
    assert [path.name for path in sorted(tmp_path.rglob("*.*"))] == ["chart.svg", "page.md"]


def test_results_survive_their_json_form() -> None:
    results = Results("2 processors", {"read": [FASTER]}, {"read": 1.5})
    found = Results.from_json(results.to_json())
    assert found == results and found.in_order(["other", "read"]) == [FASTER]


def test_all_measures_take_thirteen_minutes_and_three_if_quick() -> None:
    totals = {mode: sum(row.size(mode).seconds for row in BUDGET.values()) for mode in ("normal", "quick")}
    assert totals["normal"] <= 780 and totals["quick"] <= 180
    *rows, total = table("normal", list(BUDGET))
    assert len(rows) == 1 + len(BUDGET) and total.split() == ["total", str(totals["normal"])]


def test_each_measure_has_a_budget() -> None:
    import run

    assert list(run.measures()) == list(BUDGET)


@pytest.mark.slow
def test_a_child_that_does_not_end_is_killed_with_its_sessions() -> None:
    printed = []
    with pytest.raises(TimeoutError):
        for line in run_lines(["sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600"], 0.5, {"PATH": os.defpath}):
            printed.append(line)

    def has_ended() -> bool:
        try:
            state = Path(f"/proc/{printed[0]}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state in "ZX"  # a zombie until its new parent waits for it

    wait_until(has_ended, "the process has ended")  # the signal is handled some time after it was sent


def test_both_sources_have_a_row_and_a_ratio() -> None:
    phases = [1.0] * len(PHASES)
    kafka, own = Sample(9, [1_000.0, 30.0], phases), Sample(8, [500.0, 60.0], phases)
    theirs, ours, ratio = comparison_rows("tcp", {"groupsource": own, "kafka": kafka})
    assert theirs[:5] == ["tcp", "kafka", "9", "1,000", "30"] and ours[:5] == ["tcp", "groupsource", "8", "500", "60"]
    assert ratio[:5] == ["tcp", "ratio", "", "0.50", "2.00"] and len(ratio) == len(ours) == 5 + len(PHASES)
