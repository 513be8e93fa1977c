"""pytest plugin: takes test files from shared queues and measures them.

    pytest -p support.queued_files --queues 5,7 [--times FILE]

A queue is a pipe, written by `run_tests` before the processes start: the number of a test file in `TEST_FILES`, in four
bytes. A read of four bytes takes one number, so that each file runs in one process. A process takes the files of its
first queue, then those of the next one. It collects a file when the one before it ends, and imports no other files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.selection import TEST_FILES, file_name

RECORD_BYTES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--queues", help="descriptors of the queues of test files, separated by commas")
    parser.addoption("--times", type=Path, help="write the seconds of each file to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    queues = config.getoption("queues")
    if queues:
        config.pluginmanager.register(QueuedFiles([int(each) for each in queues.split(",")]))


def write_queue(files: Sequence[Path]) -> int:
    """Returns the descriptor of a queue with the files, which the processes inherit."""
    reading, writing = os.pipe()
    numbers = b"".join(TEST_FILES.index(file).to_bytes(RECORD_BYTES, "big") for file in files)
    assert len(numbers) <= 65_536, "the capacity of a pipe on Linux"
    os.write(writing, numbers)
    os.close(writing)
    os.set_inheritable(reading, True)
    return reading


def taken_files(queues: Sequence[int]) -> Iterator[Path]:
    """Takes one file after another, until all queues are empty."""
    for queue in queues:
        while number := os.read(queue, RECORD_BYTES):
            yield TEST_FILES[int.from_bytes(number, "big")]


class QueuedFiles:
    """Imports and runs one test file after another.

    pytest's own collection finds the files and the conftest modules of their directories, and imports no test file.
    """

    def __init__(self, queues: Sequence[int]) -> None:
        self._queues = queues
        self._modules: dict[Path, pytest.Module] = {}
        self._taken: Path | None = None
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        # it would print the number of tests of each file
        session.config.pluginmanager.getplugin("terminalreporter").report_collect = lambda final=False: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Returns no tests of a file that this process has not taken."""
        if not isinstance(collector, pytest.Module) or collector.path == self._taken:
            return None
        self._modules[collector.path] = collector
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """As pytest's loop; the next test, of which pytest needs to know, may be in another file."""
        collected = 0
        item: pytest.Item | None = None
        for following in self._items(session):
            collected += 1
            if item is not None:
                self._run(item, following)
            item = following
        if item is not None:
            self._run(item, None)
        session.testscollected = collected
        return True

    def _items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        hook = session.config.hook
        for self._taken in taken_files(self._queues):
            self._seconds[file_name(self._taken)] = 0.0
            session.items = list(session.genitems(self._modules[self._taken]))
            hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
            hook.pytest_collection_finish(session=session)
            yield from session.items

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        started = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        name = file_name(item.path)
        self._seconds[name] += time.monotonic() - started
        if item.session.shouldfail:
            raise item.session.Failed(item.session.shouldfail)
        if item.session.shouldstop:
            raise item.session.Interrupted(item.session.shouldstop)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Arguments may select no test of the files that this process has taken."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        times = session.config.getoption("times")
        if times:
            times.write_text(json.dumps(self._seconds), encoding="utf-8")
