"""Queues of test files, and the summary of several processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support import run_tests, selection
from support.queued_files import taken_files, write_queue
from support.run_tests import PytestProcess, closing_line, run
from support.selection import (
    PLANS,
    QUEUES,
    TEST_FILES,
    TESTS,
    expected_seconds,
    file_name,
    queued_files,
    queues_of_process,
)

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


@pytest.mark.parametrize("plan", PLANS)
def test_each_test_file_is_in_one_queue_and_long_files_come_first(plan: str) -> None:
    queues = queued_files(plan)
    assert sorted(file for files in queues.values() for file in files) == sorted(TESTS.rglob("test_*.py"))
    seconds = expected_seconds(plan)
    for files in queues.values():
        expected = [seconds[name] for name in map(file_name, files) if name in seconds]
        assert expected == sorted(expected, reverse=True)


def test_files_that_use_spark_are_run_by_half_of_the_processes() -> None:
    uses_spark = {TESTS / "source" / f"test_{name}.py" for name in ("stream", "batch_read", "restart_positions")}
    uses_spark |= {TESTS / "parity" / f"test_same_{name}.py" for name in ("frames", "progress")}
    assert uses_spark <= set(queued_files("all")["spark"])
    assert ["spark" in queues_of_process(number, 4) for number in (1, 2, 3, 4)] == [True, True, False, False]
    assert queues_of_process(1, 1) == QUEUES


def test_each_file_is_taken_once() -> None:
    first, second = write_queue(TEST_FILES[:5]), write_queue(TEST_FILES[5:7])
    one, other = taken_files([first, second]), taken_files([second])
    taken = [next(one), next(other), *one, *other]
    assert taken == [TEST_FILES[0], TEST_FILES[5], *TEST_FILES[1:5], TEST_FILES[6]]
    for queue in (first, second):
        os.close(queue)


def test_measured_seconds_replace_those_of_their_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {plan: expected_seconds(plan) for plan in PLANS}
    monkeypatch.setattr(selection, "TIMES", tmp_path / "file_seconds.tsv")
    monkeypatch.setattr(selection, "expected_seconds", known.__getitem__)
    selection.write_seconds("all", {"group/test_sync.py": 77.03, "group/test_removed.py": 3.0})
    rows = [line.split("\t") for line in selection.TIMES.read_text("utf-8").splitlines()]
    assert rows[0] == ["file", *PLANS] and [row[0] for row in rows[1:]] == list(map(file_name, TEST_FILES))
    (row,) = [row for row in rows if row[0] == "group/test_sync.py"]
    assert row[1:] == [f"{known['quick'][row[0]]:.1f}", "77.0"]


def test_a_file_that_was_not_measured_runs_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new = "group/test_sync.py"
    known = {plan: {name: each for name, each in expected_seconds(plan).items() if name != new} for plan in PLANS}
    monkeypatch.setattr(selection, "TIMES", tmp_path / "file_seconds.tsv")
    monkeypatch.setattr(selection, "expected_seconds", known.__getitem__)
    selection.write_seconds("quick", {new: 3.0})
    assert f"{new}\t3.0\t\n" in selection.TIMES.read_text("utf-8")
    first = {file_name(file) for file in queued_files("quick")["plain"] if file_name(file) not in known["quick"]}
    assert new in first
    assert {file_name(file) for file in queued_files("quick")["plain"][: len(first)]} == first


def test_lines_of_a_process_are_divided_into_progress_details_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    process = PytestProcess(3, [sys.executable, "-c", OUTPUT])
    assert process.wait() == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["3| tests/test_a.py .F", f"{'=' * 20} FAILURES {'=' * 20}", "assert False"]
    assert process.summary == ["FAILED tests/test_a.py::test_b - assert False"]
    assert process.counts == {"failed": 1, "passed": 2, "warning": 3, "error": 1}
    closing = closing_line(process.counts, 61.5)
    assert closing.strip("= ") == "1 failed, 2 passed, 3 warnings, 1 error in 61.50s (0:01:01)"


def test_processes_have_temporary_files_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(run_tests, "PytestProcess", lambda _, command, *others: started.append((command, others[1])))
    run_tests.start("all", 4, [], tmp_path)
    used = [Path(command[command.index("--basetemp") + 1]) for command, _ in started]
    assert len(set(used)) == 4 and {path.parent for path in used} == {tmp_path}
    temporary = {Path(environment["TMPDIR"]) for _, environment in started}
    assert len(temporary) == 4 and not temporary & {*used}
    assert all(path.parent == tmp_path and path.is_dir() for path in temporary)


def test_temporary_files_are_in_memory_if_there_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_tests, "_MEMORY", str(tmp_path))
    monkeypatch.setattr(run_tests, "_MEMORY_BYTES", 1)
    assert run_tests.memory_directory() == str(tmp_path)
    monkeypatch.setattr(run_tests, "_MEMORY_BYTES", 1 << 60)
    assert run_tests.memory_directory() is None
    monkeypatch.setattr(run_tests, "_MEMORY_BYTES", 1)
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(
        run_tests.os, "statvfs", lambda _: os.statvfs_result([*found[:8], found.f_flag | os.ST_NOEXEC, found[9]])
    )
    assert run_tests.memory_directory() is None
    monkeypatch.undo()
    monkeypatch.setattr(run_tests, "_MEMORY", str(tmp_path / "missing"))
    assert run_tests.memory_directory() is None


def test_a_process_without_a_closing_line_has_failed() -> None:
    process = PytestProcess(1, [sys.executable, "-c", "print('tests/test_a.py .')"])
    assert process.wait() == 1 and not process.is_complete


@pytest.mark.slow
def test_a_process_that_fails_without_a_failed_test_fails_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("quick", 1, ["--no-such-option"]) == 4
    shown = capfd.readouterr().out.splitlines()
    assert "ERROR process 1 of 1 ended with status 4" in shown
    assert "1 error in" in shown[-1]


FAILURES = """
print("=" * 9 + " short test summary info " + "=" * 9)
print("FAILED tests/test_a.py::test_b[x y] - assert False - or so")
print("ERROR tests/test_a.py::test_c - ExceptionGroup: a socket that test_b has left open")
print("SKIPPED [1] tests/test_a.py:7: no reason")
print("=" * 9 + " 1 failed, 2 passed, 1 skipped, 1 error in 0.50s " + "=" * 9)
raise SystemExit(1)
"""


@pytest.mark.parametrize(
    "passes, reruns, status, closing",
    [
        (True, True, 0, "3 passed, 1 skipped in"),
        (False, True, 1, "1 failed, 2 passed, 1 skipped, 1 error in"),
        (True, False, 1, "1 failed, 2 passed, 1 skipped, 1 error in"),
    ],
)
def test_tests_that_fail_and_pass_alone_are_flaky(
    passes: bool,
    reruns: bool,
    status: int,
    closing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone: list[str] = []
    monkeypatch.setattr(run_tests, "start", lambda *_: [PytestProcess(1, [sys.executable, "-c", FAILURES])])
    monkeypatch.setattr(run_tests, "passes_alone", lambda tests: alone.extend(tests) or passes)
    assert run("quick", 1, [], reruns=reruns) == status
    shown = capsys.readouterr().out.splitlines()
    assert closing in shown[-1] and alone == ["tests/test_a.py::test_b[x y]", "tests/test_a.py::test_c"] * reruns
    words = ("FAILED", "ERROR") if status else ("FLAKY", "FLAKY")
    assert f"{words[0]} tests/test_a.py::test_b[x y] - assert False - or so" in shown
    assert f"{words[1]} tests/test_a.py::test_c - ExceptionGroup: a socket that test_b has left open" in shown
    assert "SKIPPED [1] tests/test_a.py:7: no reason" in shown


@pytest.mark.slow
def test_tests_run_alone_pass_or_fail(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("def test_passes(): assert 1 == 1\ndef test_fails(): assert 1 == 2\n")
    assert run_tests.passes_alone([f"{file}::test_passes"])
    assert not run_tests.passes_alone([f"{file}::test_passes", f"{file}::test_fails"])
