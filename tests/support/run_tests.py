"""Runs pytest in several processes, each with a share of the files.

    python tests/support/run_tests.py [--plan all|quick] [--processes 4] [PYTEST-ARGUMENT ...]

Processes of their own take less processor time than workers of pytest-xdist: a worker collects every file. The lines of
a process begin with its number while its tests run. Failures follow when it ends, and one summary, in the form of
pytest's, when all have ended. Arguments with ``-n`` or a path are left to one pytest.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

SUMMARY = "short test summary info"
_SECTION = re.compile(r"=+ (.*?) =+$")
_COUNTS = re.compile(r"(\d+) (failed|passed|skipped|deselected|xfailed|xpassed|warnings?|errors?)\b")
_CLOSING = re.compile(r".* in [\d.]+s( \([\d:]+\))?$")
# in the order of pytest's closing line
_KINDS = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")
_FAILURES = ("failed", "error")
_NO_TESTS = 5
_lock = threading.Lock()


class Share:
    """One process of pytest and what it has printed.

    Attributes: `details`, the lines of its failures and warnings; `summary`, those of its short summary; `counts`, of
    its closing line; `is_complete`, whether it has printed that line.
    """

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.details: list[str] = []
        self.summary: list[str] = []
        self.counts: Counter[str] = Counter()
        self.is_complete = False
        self._section = ""
        # a process group of its own would not receive the interrupt of a terminal
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self) -> int:
        """Returns the exit status, 1 if the process ended without a closing line."""
        self._thread.join()
        status = self.process.wait()
        return status if self.is_complete or status else 1

    def add(self, line: str) -> str | None:
        """Files one line of output; returns it if it is about progress."""
        header = _SECTION.match(line)
        if header and _CLOSING.match(header.group(1)):
            self.is_complete = True
            self.counts.update({_kind(name): int(number) for number, name in _COUNTS.findall(header.group(1))})
        elif header and header.group(1) != "test session starts":
            self._section = header.group(1)
            if self._section != SUMMARY:
                self.details.append(line)
        elif header:
            return None
        elif self._section == SUMMARY:
            self.summary.append(line)
        elif self._section:
            self.details.append(line)
        else:
            return line
        return None

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                shown = self.add(line.rstrip("\n"))
                if shown:
                    _print([f"{self.number}| {shown}"])
        if self.details:
            _print(self.details)


def _kind(name: str) -> str:
    return name if name == "passed" else name.removesuffix("s")


def _print(lines: Iterable[str]) -> None:
    with _lock:
        print("\n".join(lines), flush=True)


def closing_line(counts: Counter[str], seconds: float) -> str:
    """Returns the closing line of pytest for the counts of all processes."""
    parts = []
    for kind in _KINDS:
        if counts[kind]:
            plural = "s" if kind in ("warning", "error") and counts[kind] > 1 else ""
            parts.append(f"{counts[kind]} {kind}{plural}")
    minutes, rest = divmod(int(seconds), 60)
    duration = f"{seconds:.2f}s ({minutes // 60}:{minutes % 60:02}:{rest:02})"
    return f" {', '.join(parts) or 'no tests ran'} in {duration} ".center(100, "=")


def run(plan: str, processes: int, arguments: Sequence[str]) -> int:
    """Runs all shares; returns the exit status: 0 only if every process has succeeded."""
    started = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "-n", "0", "--no-header", "--color=no"]
    shares = [
        Share(number, [*pytest, "--share", f"{plan}:{number}/{processes}", *arguments])
        for number in range(1, processes + 1)
    ]
    try:
        statuses = [share.wait() for share in shares]
    finally:
        for share in shares:
            if share.process.poll() is None:
                share.process.terminate()
    counts = sum((share.counts for share in shares), Counter[str]())
    lines = sorted((line for share in shares for line in share.summary if line), key=lambda line: line.split(" ")[0])
    for share, status in zip(shares, statuses):
        if status not in (0, 1) or (status and not share.counts.keys() & set(_FAILURES)):
            lines.append(f"ERROR process {share.number} of {processes} ended with status {status}")
            counts["error"] += 1
    if lines:
        _print([f" {SUMMARY} ".center(100, "="), *lines])
    _print([closing_line(counts, time.monotonic() - started)])
    status = max(abs(status) for status in statuses)
    return status or (0 if counts["passed"] or counts["skipped"] else _NO_TESTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", choices=("all", "quick"), default="all", help="which times the shares are made from")
    parser.add_argument("--processes", type=int, default=4)
    options, arguments = parser.parse_known_args()
    if any(re.match(r"-n|--numprocesses", each) or Path(each.split("::")[0]).exists() for each in arguments):
        return subprocess.call([sys.executable, "-m", "pytest", *arguments])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(options.plan, options.processes, arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
