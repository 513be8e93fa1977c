"""Runs pytest in several processes that take test files from shared queues.

    python tests/support/run_tests.py [--plan all|quick] [--processes N] [--rerun] [--write-times] [PYTEST-ARGUMENT ...]

Processes of their own take less processor time than workers of pytest-xdist: a worker collects every file. The lines of
a process begin with its number while its tests run. Failures follow when it ends, and one summary, in the form of
pytest's, when all have ended. Arguments with ``-n`` or a path are left to one pytest.

With ``--rerun``, a few failed tests run once more when nothing runs beside them. Those that pass then are named as
flaky in the summary: each is a defect of the test or of the code, and the run succeeds. So do tests with an error in
their fixtures or after their end, which may be what a failed test has left open.

``--write-times`` writes the seconds of each file into ``file_seconds.tsv``; use a machine that runs nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.queued_files import write_queue  # noqa: E402
from support.selection import PLANS, queued_files, queues_of_process, write_seconds  # noqa: E402

SUMMARY = "short test summary info"
_SECTION = re.compile(r"=+ (.*?) =+$")
_COUNTS = re.compile(r"(\d+) (failed|passed|skipped|deselected|xfailed|xpassed|warnings?|errors?)\b")
_CLOSING = re.compile(r".* in [\d.]+s( \([\d:]+\))?$")
# in the order of pytest's closing line
_KINDS = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")
_FAILURES = ("failed", "error")
_NO_TESTS = 5
_FAILED = re.compile(r"(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$")
# more failures are no accident
_MOST_RERUN = 5
# more than cores: tests of groups and applications wait for most of their time
_PROCESSES = 6
_MEMORY = "/dev/shm"
_MEMORY_BYTES = 4 << 30
_lock = threading.Lock()


class PytestProcess:
    """One process of pytest and what it has printed.

    Attributes: `details`, the lines of its failures and warnings; `summary`, those of its short summary; `counts`, of
    its closing line; `is_complete`, whether it has printed that line.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.number = number
        self.details: list[str] = []
        self.summary: list[str] = []
        self.counts: Counter[str] = Counter()
        self.is_complete = False
        self._section = ""
        # a process group of its own would not receive the interrupt of a terminal
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=descriptors,
            env=environment,
        )
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


def memory_directory() -> str | None:
    """Returns a directory in memory for the files of the tests; None, for the usual one, if there is none of use.

    Brokers wait for the disk at each flush. No test can see whether data are on a disk.
    """
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return None
    # tests execute files that they write
    is_of_use = found.f_bavail * found.f_frsize >= _MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC
    return _MEMORY if is_of_use and os.access(_MEMORY, os.W_OK) else None


def start(plan: str, processes: int, arguments: Sequence[str], directory: Path) -> list[PytestProcess]:
    """Starts the processes; each has a file for its times and two directories below `directory`.

    One is for its tests: in directories of its own choice, pytest removes those of earlier sessions, at the same time
    as other processes. The other one is for temporary files, of brokers for example: commands show the queries of every
    application with the same TMPDIR, also those of the tests of another process.
    """
    pytest = [sys.executable, "-m", "pytest", "-n", "0", "--no-header", "--color=no", "-p", "support.queued_files"]
    pytest += ["-o", "console_output_style=classic"]  # a process cannot know its number of tests
    queues = {name: write_queue(files) for name, files in queued_files(plan).items()}
    started = []
    for number in range(1, processes + 1):
        own = [queues[name] for name in queues_of_process(number, processes)] if plan == "all" else [queues["plain"]]
        options = ["--queues", ",".join(map(str, own)), "--times", str(directory / f"{number}.json")]
        options += ["--basetemp", str(directory / str(number))]
        temporary = directory / f"t{number}"  # short: the path of a control socket has at most 107 characters
        temporary.mkdir()
        environment = {**os.environ, "TMPDIR": str(temporary)}
        started.append(PytestProcess(number, [*pytest, *options, *arguments], own, environment))
    for descriptor in queues.values():
        os.close(descriptor)
    return started


def run(
    plan: str, processes: int, arguments: Sequence[str], *, writes_times: bool = False, reruns: bool = False
) -> int:
    """Runs all test files; returns the exit status: 0 only if every process has succeeded, see `--rerun`."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pytest-", dir=memory_directory(), ignore_cleanup_errors=True) as name:
        directory = Path(name)
        status = _wait(start(plan, processes, arguments, directory), started, reruns)
        if writes_times and not status:
            measured = [json.loads(file.read_text(encoding="utf-8")) for file in directory.glob("*.json")]
            write_seconds(plan, {name: seconds for each in measured for name, seconds in each.items()})
    return status


def passes_alone(tests: Sequence[str]) -> bool:
    """Runs tests once more, in one process; returns whether all passed."""
    _print([f" once more, alone: {len(tests)} ".center(100, "=")])
    command = [sys.executable, "-m", "pytest", "-n", "0", "--no-header", "--color=no", "-p", "no:randomly", *tests]
    return subprocess.call(command) == 0


def _wait(running: Sequence[PytestProcess], started: float, reruns: bool = False) -> int:
    """Prints the summary when all processes have ended; returns the exit status."""
    try:
        statuses = [each.wait() for each in running]
    finally:
        for each in running:
            if each.process.poll() is None:
                each.process.terminate()
    counts = sum((each.counts for each in running), Counter[str]())
    lines = sorted((line for each in running for line in each.summary if line), key=lambda line: line.split(" ")[0])
    for each, status in zip(running, statuses):
        if status not in (0, 1) or (status and not each.counts.keys() & set(_FAILURES)):
            lines.append(f"ERROR process {each.number} of {len(running)} ended with status {status}")
            counts["error"] += 1
    failed = [found[1] for line in lines if (found := _FAILED.match(line))]
    is_each_named = len(failed) == sum(counts[kind] for kind in _FAILURES) and set(statuses) <= {0, 1}
    if reruns and failed and is_each_named and len(failed) <= _MOST_RERUN and passes_alone(sorted({*failed})):
        lines = [f"FLAKY {line.split(' ', 1)[1]}" if _FAILED.match(line) else line for line in lines]
        counts["passed"] += counts.pop("failed", 0)
        del counts["error"]
        statuses = [0]
    if lines:
        _print([f" {SUMMARY} ".center(100, "="), *lines])
    _print([closing_line(counts, time.monotonic() - started)])
    status = max(abs(status) for status in statuses)
    return status or (0 if counts["passed"] or counts["skipped"] else _NO_TESTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", choices=PLANS, default="all", help="`quick`: no queues for Spark and a real Kafka")
    parser.add_argument("--processes", type=int, help=f"default: {_PROCESSES}")
    parser.add_argument("--rerun", action="store_true", help="run failed tests once more, alone")
    parser.add_argument("--write-times", action="store_true", help="write the seconds of each file into the table")
    options, arguments = parser.parse_known_args()
    if any(re.match(r"-n|--numprocesses", each) or Path(each.split("::")[0]).exists() for each in arguments):
        return subprocess.call([sys.executable, "-m", "pytest", *arguments])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        processes = options.processes or _PROCESSES
        return run(options.plan, processes, arguments, writes_times=options.write_times, reruns=options.rerun)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
