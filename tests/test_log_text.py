"""Log lines: one line each, escaped, bounded, with an entity."""

from __future__ import annotations

import ast
import logging
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Sequence

import pytest

from spark_groupsource.broker.report_writer import DescriptorWriter, ReportLine, ReportWriter
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import ApiError, ErrorCode, as_sentence
from spark_groupsource.log_text import MAX_LINE_CHARS, describe_error, log_line


def test_control_characters_are_escaped() -> None:
    forged = "[group=g\n[broker] Forged\r\x1b[2J\x85\u2028\u202e] joined as Müller, 日本"
    assert log_line(forged) == (
        "[group=g\\n[broker] Forged\\r\\x1b[2J\\x85\\u2028\\u202e] joined as Müller, 日本"
    )


def test_a_long_line_is_cut() -> None:
    assert log_line("x" * MAX_LINE_CHARS) == "x" * MAX_LINE_CHARS
    assert log_line("x" * (MAX_LINE_CHARS + 1500)) == "x" * MAX_LINE_CHARS + "... (1,500 more characters)"
    assert len(log_line("\0" * 1_000_000)) < 5 * MAX_LINE_CHARS


def test_an_unexpected_error_is_one_line() -> None:
    def fail() -> None:
        raise RuntimeError("a\ndefect") from KeyError("k")

    try:
        fail()
    except RuntimeError as error:
        line = log_line(describe_error(error))
    assert line.startswith("RuntimeError: a\\ndefect (test_log_text.py:") and line.endswith(", caused by KeyError: 'k'")
    assert " fail, test_log_text.py:" in line


def test_texts_of_a_broker_are_escaped_and_cut() -> None:
    assert as_sentence("no\nsuch topic.") == "The broker's message: no\\nsuch topic."
    error = ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "x" * 40_000)
    assert len(error.message.encode()) < 0x7FFF and error.message.endswith("(39,000 more characters)")


def test_report_writer_keeps_the_order_and_ignores_failures() -> None:
    written: list[ReportLine] = []

    def write(lines: Sequence[ReportLine]) -> None:
        written.extend(lines)
        if lines[0][:2] == ("a", logging.WARNING):
            raise BrokenPipeError("closed")

    before_ms = SystemClock().timestamp_ms()
    writer = ReportWriter(write)
    writer("a")
    while not written:  # what follows is in a call of its own
        time.sleep(0.001)
    writer("b", logging.INFO)
    writer("c")
    writer.close()
    assert [line[:2] for line in written] == [("a", logging.WARNING), ("b", logging.INFO), ("c", logging.WARNING)]
    times = [before_ms, *(line.at_ms for line in written), SystemClock().timestamp_ms()]
    assert times == sorted(times)


def test_report_writer_writes_the_lines_of_a_pause_together() -> None:
    calls: list[int] = []
    writer = ReportWriter(lambda lines: calls.append(len(lines)))
    for _ in range(800):
        writer("line")
    writer.close()
    assert sum(calls) == 800 and len(calls) < 20


def test_report_writer_does_not_wait_for_a_full_output() -> None:
    accepts, written = threading.Event(), list[str]()

    def write(lines: Sequence[ReportLine]) -> None:
        accepts.wait(20)
        written.extend(line.text for line in lines)

    writer = ReportWriter(write)
    for number in range(5_000):
        writer(str(number))
    accepts.set()
    writer(f"{5_000}")
    writer.close()
    assert written[0] == "0" and len(written) < 1_010
    assert any("Dropped log lines" in line for line in written)


def test_the_command_writes_whole_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.write

    def write_half(descriptor: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(descriptor, data[: max(len(data) // 2, 1)])  # as a signal interrupts a write

    monkeypatch.setattr("spark_groupsource.broker.report_writer.os.write", write_half)
    at_ms = 1_700_000_000_007
    texts = [f"{number} {'x' * length}" for number, length in enumerate([20] * 400 + [9_000])]
    lines = [ReportLine(text, logging.INFO, at_ms) for text in texts]
    DescriptorWriter(2)(lines)
    monkeypatch.undo()
    at = datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    assert capfd.readouterr().err == "".join(f"{at},007 INFO {text}\n" for text in texts)
    assert sizes[0] <= 4_096


def test_every_log_line_starts_with_its_entity() -> None:
    package = Path(__file__).resolve().parents[1] / "spark_groupsource"
    wrong = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"), attr=method), args=arguments):
                    text = arguments[1 if method == "log" else 0]
                    # the argument of %s is a prefix with the entity
                    if isinstance(text, ast.Constant) and not str(text.value).startswith(("[", "%s")):
                        wrong.append(f"{path.relative_to(package)}:{node.lineno}: {text.value}")
    assert not wrong
