"""Conformance report: complete and up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conformance.report import Line, collect, marker_problems, problems, render, render_summary
from support.assertions import Assertions

CHECKLIST = [Line("GC-001", "testOne", "one"), Line("GC-002", "testTwo", "two"), Line("HB-001", "testBeat", "beat")]


def test_every_line_has_a_test_or_a_reason() -> None:
    script = Path(__file__).with_name("report.py")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr or done.stdout


def test_line_with_neither_test_nor_reason_is_a_problem() -> None:
    assert problems(CHECKLIST, {"GC-001": ["a"], "HB-001": ["b"]}, {"GC-002": "why"}) == []
    (found,) = problems(CHECKLIST, {"GC-001": ["a"]}, {"GC-002": "why"})
    assert found == "HB-001 has neither a test that shows it nor a reason why it does not apply."


def test_marker_of_an_unknown_line_is_a_problem() -> None:
    shown = {line.id: ["a"] for line in CHECKLIST}
    (found,) = problems(CHECKLIST, shown | {"GC-999": ["group/test_join.py::test_it"]}, {})
    assert "GC-999" in found and "group/test_join.py::test_it" in found
    (found,) = problems(CHECKLIST, shown, {"XX-001": "why"})
    assert found == "XX-001 is not a line of the checklist."


def test_line_with_both_test_and_reason_is_a_problem() -> None:
    shown = {line.id: ["a"] for line in CHECKLIST}
    (found,) = problems(CHECKLIST, shown, {"GC-001": "why"})
    assert found == "GC-001 is shown by a test and therefore cannot be not applicable."


def test_partly_applicable_line_needs_a_test() -> None:
    shown = {line.id: ["a"] for line in CHECKLIST}
    assert problems(CHECKLIST, shown, {}, {"GC-001": "why"}) == []
    (found,) = problems(CHECKLIST, {"GC-001": ["a"], "HB-001": ["b"]}, {"GC-002": "why"}, {"GC-002": "why"})
    assert found == "GC-002 is listed as partly applicable, but no test shows it."


MARK = "@pytest.mark.conformance('GC-001')\n"
SOURCE = f"""
import pytest
import helpers
from helpers import check, prepare

def same(a, b):
    assert a == b

{MARK}def test_direct(): assert 1 == 1
{MARK}def test_raises():
    with pytest.raises(ValueError): int("x")
{MARK}def test_helper(): same(1, 1)
{MARK}def test_imported_helper(): check(1)
{MARK}def test_helper_of_a_module(): helpers.check(1)
"""


@pytest.mark.parametrize(
    "added, problem",
    [
        ("", None),
        (f"{MARK}def test_added(): prepare(1)\n", "asserts nothing"),
        (f"{MARK}def test_added(): assert True\n", "asserts nothing"),
        (f"{MARK}def test_added(): helpers.Bench().check()\n", "asserts nothing"),
        (f"{MARK}def added(): assert 1 == 1\n", "does not collect it"),
        (f"{MARK}@pytest.mark.skip()\ndef test_added(): assert 1 == int('1')\n", "does not collect it"),
        ("def test_direct(): assert 2 == 2\n", "is defined more than once"),
    ],
)
def test_marked_test_must_exist_and_assert(tmp_path: Path, added: str, problem: str | None) -> None:
    (tmp_path / "helpers.py").write_text(
        "def check(x): assert x\ndef prepare(x): return x\nclass Bench:\n    def check(self): assert self\n"
    )
    test = tmp_path / "test_it.py"
    test.write_text(SOURCE + added)
    assertions = Assertions([tmp_path])
    found = marker_problems(tmp_path, [test], assertions)
    assert "test_it.py::test_direct" in collect(tmp_path, [test], assertions)["GC-001"]
    assert (len(found) == 1 and problem in found[0]) if problem else not found, found


def test_page_has_each_line() -> None:
    shown = {"GC-001": {"group/test_join.py::test_b", "a.py::test_a"}}
    page = render(CHECKLIST, shown, {"GC-002": "why"})
    proof = "[test_a](../tests/a.py)<br>[test_b](../tests/group/test_join.py)"
    assert f"| GC-001 | `testOne`: one | {proof} |" in page
    assert "| GC-002 | `testTwo`: two | *not applicable*: why |" in page
    assert "| HB-001 | `testBeat`: beat | **nothing** |" in page
    assert f"{proof}<br>*in part*: the rest |" in render(CHECKLIST, shown, {}, {"GC-001": "the rest"})


def test_summary_counts_lines() -> None:
    summary = render_summary(CHECKLIST, {"GC-001"}, {"GC-002"})
    assert "request by request | 2 | 1 | 1 |" in summary and "|  | all | 3 | 1 | 1 |" in summary
