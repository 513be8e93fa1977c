"""Selection of tests by share, and the summary of several processes."""

from __future__ import annotations

import sys

import pytest
from support.run_tests import Share, closing_line, run
from support.selection import ALL_SECONDS, QUICK_SECONDS, TESTS, files_of_share

OUTPUT = """
import sys
print("=" * 20, "test session starts", "=" * 20)
print("tests/test_a.py .F", flush=True)
print("=" * 20, "FAILURES", "=" * 20)
print("assert False")
print("=" * 20, "short test summary info", "=" * 20)
print("FAILED tests/test_a.py::test_b - assert False")
print("=" * 9, "1 failed, 2 passed, 3 warnings, 1 error in 61.50s (0:01:01)", "=" * 9)
sys.exit(1)
"""


@pytest.mark.parametrize("plan", ["quick", "all"])
def test_each_test_file_is_in_one_share(plan: str) -> None:
    shares = [files_of_share(f"{plan}:{number}/3") for number in (1, 2, 3)]
    assert sorted(path for share in shares for path in share) == sorted(TESTS.rglob("test_*.py"))
    assert files_of_share(f"{plan}:1/1") == frozenset().union(*shares)


def test_files_that_use_spark_are_in_half_of_the_shares() -> None:
    uses_spark = {TESTS / "source" / f"test_{name}.py" for name in ("stream", "batch_read", "restart_positions")}
    uses_spark |= {TESTS / "parity" / f"test_same_{name}.py" for name in ("frames", "progress")}
    assert uses_spark <= files_of_share("all:1/4") | files_of_share("all:2/4")


@pytest.mark.parametrize("seconds", [QUICK_SECONDS, ALL_SECONDS])
def test_expected_times_are_those_of_existing_files(seconds: dict[str, float]) -> None:
    assert [name for name in seconds if not (TESTS / name).exists()] == []


def test_lines_of_a_process_are_divided_into_progress_details_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    share = Share(3, [sys.executable, "-c", OUTPUT])
    assert share.wait() == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["3| tests/test_a.py .F", f"{'=' * 20} FAILURES {'=' * 20}", "assert False"]
    assert share.summary == ["FAILED tests/test_a.py::test_b - assert False"]
    assert share.counts == {"failed": 1, "passed": 2, "warning": 3, "error": 1}
    closing = closing_line(share.counts, 61.5)
    assert closing.strip("= ") == "1 failed, 2 passed, 3 warnings, 1 error in 61.50s (0:01:01)"


def test_a_process_without_a_closing_line_has_failed() -> None:
    share = Share(1, [sys.executable, "-c", "print('tests/test_a.py .')"])
    assert share.wait() == 1 and not share.is_complete


def test_a_process_that_fails_without_a_failed_test_fails_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("quick", 2, ["--no-such-option"]) == 4
    shown = capfd.readouterr().out.splitlines()
    assert "ERROR process 2 of 2 ended with status 4" in shown
    assert "2 errors in" in shown[-1]
