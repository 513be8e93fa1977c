"""Processor time of a session's processes, also of those that end unreaped.

PySpark's daemon ignores SIGCHLD, so the kernel adds the time of a worker that ends to no other process. A thread
therefore reads /proc four times per second and keeps the last value of each process: the sum never decreases.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 0.25


class Stat(NamedTuple):
    """Fields of /proc/PID/stat; times in ticks.

    Attributes:
        own: user and system time of the process.
        reaped: that of its children for which it has waited, and of theirs.
    """

    parent: int
    session: int
    own: int
    reaped: int
    start: int


@dataclass
class _Process:
    """Last known times of a process.

    Attributes:
        known_reaped: times of its ended children that were read, which `reaped` contains if it waited for them.
        unknown_reaped: part of `reaped` that was not read from the children.
    """

    stat: Stat
    known_reaped: int = 0
    unknown_reaped: int = 0

    def update(self, stat: Stat) -> None:
        self.stat = stat
        self.unknown_reaped = max(self.unknown_reaped, stat.reaped - self.known_reaped)


class SessionTimes:
    """Processor time of the processes of a session and their descendants."""

    def __init__(self, session_id: int) -> None:
        self._session_id = session_id
        self._live: dict[int, _Process] = {}
        self._others: set[int] = set()
        self._ended_ticks = 0
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """Returns the processor time so far; 0 where there is no /proc."""
        with self._lock:
            self._observe()
            live = sum(each.stat.own + each.unknown_reaped for each in self._live.values())
            return (self._ended_ticks + live) / _TICKS

    def by_process(self) -> dict[int, float]:
        """Returns the processor time of each live process."""
        with self._lock:
            self._observe()
            return {pid: process.stat.own / _TICKS for pid, process in self._live.items()}

    def watch(self) -> None:
        """Reads the times repeatedly in a daemon thread."""
        threading.Thread(target=self._repeat, name="processor-time", daemon=True).start()

    def _repeat(self) -> None:
        pause = threading.Event()
        while not pause.wait(_INTERVAL_S):
            self.seconds()

    def _observe(self) -> None:
        pids = process_ids()
        # a parent before its children: its reaped time contains no child that is found alive afterwards
        started = sorted(self._live.items(), key=lambda item: item[1].stat.start)
        stats = {pid: stat for pid, _ in started if (stat := read_stat(pid)) is not None}
        for pid, process in reversed(started):
            if pid not in stats or stats[pid].start != process.stat.start:
                self._end(pid)
        for pid, process in self._live.items():
            process.update(stats[pid])
        self._others &= pids
        new = [(stat.start, pid, stat) for pid in pids - self._live.keys() - self._others if (stat := read_stat(pid))]
        for _, pid, stat in sorted(new):
            if stat.session == self._session_id or stat.parent in self._live:
                self._live[pid] = _Process(stat, unknown_reaped=stat.reaped)
            else:
                self._others.add(pid)

    def _end(self, pid: int) -> None:
        """Keeps the times of an ended process, and excludes them from what its parent reaps."""
        process = self._live.pop(pid)
        self._ended_ticks += process.stat.own + process.unknown_reaped
        parent = self._live.get(process.stat.parent)
        if parent is not None:
            parent.known_reaped += process.stat.own + process.stat.reaped


def process_ids() -> set[int]:
    """Returns the ids of all processes; none without /proc."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} if os.path.isdir("/proc") else set()


def read_stat(pid: int) -> Stat | None:
    """Returns the parent and the times of a process, None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return Stat(int(fields[1]), int(fields[3]), user + system, reaped_user + reaped_system, int(fields[19]))


_times: SessionTimes | None = None


def processor_seconds() -> float:
    """Processor time of this session's processes so far, ended ones included; 0 where there is no /proc.

    A process that the kernel reaps, such as a PySpark worker, may miss the last 250 ms before its end.
    """
    global _times
    if _times is None:
        _times = SessionTimes(os.getsid(0))
        _times.watch()
    return _times.seconds()


def thread_seconds(pid: int) -> Iterator[tuple[int, str, float]]:
    """Yields the id, the name and the processor time of each thread of a process."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        user, system = map(int, rest.split()[11:13])
        yield int(path.parent.name), head.partition("(")[2], (user + system) / _TICKS


def process_seconds(pid: int) -> float:
    """Processor time of one process, nan if it does not exist."""
    stat = read_stat(pid)
    return float("nan") if stat is None else stat.own / _TICKS
