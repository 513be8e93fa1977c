"""Every line of the checklist is shown by a test or has a reason, and the page that says so is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conformance.report import Line, problems, render

CHECKLIST = [Line("GC-001", "testOne", "one"), Line("GC-002", "testTwo", "two"), Line("HB-001", "testBeat", "beat")]


def test_every_line_is_accounted_for() -> None:
    script = Path(__file__).with_name("report.py")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr or done.stdout


def test_a_line_with_neither_test_nor_reason_is_named() -> None:
    assert problems(CHECKLIST, {"GC-001": ["a"], "HB-001": ["b"]}, {"GC-002": "why"}) == []
    (found,) = problems(CHECKLIST, {"GC-001": ["a"]}, {"GC-002": "why"})
    assert found == "HB-001 has neither a test that shows it nor a reason why it does not apply"


def test_a_marker_of_an_unknown_line_is_named() -> None:
    shown = {line.id: ["a"] for line in CHECKLIST}
    (found,) = problems(CHECKLIST, shown | {"GC-999": ["group/test_join.py::test_it"]}, {})
    assert "GC-999" in found and "group/test_join.py::test_it" in found
    (found,) = problems(CHECKLIST, shown, {"XX-001": "why"})
    assert found == "XX-001 is no line of the checklist"


def test_no_line_is_accounted_for_twice() -> None:
    shown = {line.id: ["a"] for line in CHECKLIST}
    (found,) = problems(CHECKLIST, shown, {"GC-001": "why"})
    assert found == "GC-001 is shown by a test: it cannot be not applicable"


def test_the_page_tells_each_line_and_counts_them() -> None:
    page = render(CHECKLIST, {"GC-001": {"group/test_join.py::test_b", "a.py::test_a"}}, {"GC-002": "why"})
    assert "| GC-001 | `testOne`: one | [test_a](../tests/a.py)<br>[test_b](../tests/group/test_join.py) |" in page
    assert "| GC-002 | `testTwo`: two | *not applicable*: why |" in page
    assert "| HB-001 | `testBeat`: beat | **nothing** |" in page
    assert "|  | all | 3 | 1 | 1 |" in page
