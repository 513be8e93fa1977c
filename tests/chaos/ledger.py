"""What the outputs hold, and what a run must keep to: nothing missing, nothing committed that no output holds.

Every delivery is known by its batch: the application and the number of the micro-batch, or the foreign member. So each
repeat can be traced to the batches it came with.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

import pyarrow.parquet

Position = tuple[int, int]


class Batch(NamedTuple):
    """Who delivered, and in which micro-batch; `number` is -1 for a foreign member."""

    source: str
    number: int


class Repeat(NamedTuple):
    """A position that was delivered again: by whom first, by whom now."""

    position: Position
    first: Batch
    again: Batch


class Output:
    """A Parquet sink's rows, as far as Spark has committed them to the sink's own log."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._log = directory / "rows" / "_spark_metadata"
        self._entries: set[str] = set()
        self._files: set[str] = set()
        self.values: set[int] = set()

    @property
    def batches(self) -> int:
        """The number of the last micro-batch the sink has committed; -1 before the first."""
        return max((int(name.partition(".")[0]) for name in self._entries), default=-1)

    def news(self) -> list[tuple[Batch, Position]]:
        """What came since the last call."""
        if not self._log.exists():
            return []
        found = []
        # a compacted entry repeats the earlier ones and adds its own batch
        names = {path.name for path in self._log.iterdir() if path.name.partition(".")[0].isdigit()}
        for name in sorted(names - self._entries, key=lambda name: int(name.partition(".")[0])):
            batch = Batch(self._name, int(name.partition(".")[0]))
            for line in (self._log / name).read_text().splitlines()[1:]:
                path = unquote(urlparse(json.loads(line)["path"]).path)
                if path not in self._files:
                    self._files.add(path)
                    found += [(batch, position) for position in self._read(path)]
            self._entries.add(name)
        return found

    def _read(self, path: str) -> list[Position]:
        table = pyarrow.parquet.read_table(path, partitioning=None)
        partitions, offsets, values = (table[name].to_pylist() for name in ("partition", "offset", "value"))
        self.values.update(map(int, values))
        return list(zip(partitions, offsets))


class ForeignOutput:
    """The positions a foreign member has written down, as lines ``partition offset``."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._read_bytes = 0

    def news(self) -> list[tuple[Batch, Position]]:
        """What came since the last call; a line that is not whole yet comes with a later one."""
        with open(self._path, "rb") as file:
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        pairs = (line.split() for line in whole.splitlines())
        return [(Batch(self._name, -1), (int(partition), int(offset))) for partition, offset in pairs]


class Ledger:
    """All outputs together; may be used from several threads."""

    def __init__(self) -> None:
        self.checks = 0
        self._outputs: list[Output | ForeignOutput] = []
        self._lock = threading.Lock()
        self._batches: list[Batch] = []
        self._numbers: dict[Batch, int] = {}
        self._first: dict[Position, int] = {}
        self._repeats: list[Repeat] = []
        self._commits: dict[int, int] = {}
        self._held_to: dict[int, int] = {}

    def add(self, output: Output | ForeignOutput) -> None:
        """From now on its deliveries count."""
        with self._lock:
            self._outputs.append(output)

    def values(self) -> set[int]:
        """Every value in an output of Spark."""
        with self._lock:
            return set().union(*(output.values for output in self._outputs if isinstance(output, Output)))

    def check_commits(self, commits: dict[int, int]) -> None:
        """Partition -> offset, asked for before the outputs are read.

        Raises: AssertionError when a commit went back, or passed what the outputs hold.
        """
        with self._lock:
            back = {p: (self._commits[p], n) for p, n in commits.items() if n < self._commits.get(p, 0)}
            assert not back, f"commits went back (partition: was, is): {back}"
            self._refresh()
            for p, offset in commits.items():
                missing = [n for n in range(self._held_to.get(p, 0), offset) if (p, n) not in self._first]
                assert not missing, f"{p} is committed to {offset}, but no output holds offsets {missing[:10]}"
                self._held_to[p] = offset
            self._commits = dict(commits)
            self.checks += 1

    def missing(self, ends: dict[int, int]) -> list[Position]:
        """Every position of the logs that was delivered to nobody."""
        with self._lock:
            self._refresh()
            return [(p, n) for p, end in sorted(ends.items()) for n in range(end) if (p, n) not in self._first]

    def repeats(self) -> list[Repeat]:
        """Deliveries beyond the first of each position, in the order they were seen."""
        with self._lock:
            self._refresh()
            return list(self._repeats)

    def _refresh(self) -> None:
        for output in self._outputs:
            for batch, position in output.news():
                number = self._numbers.get(batch)
                if number is None:
                    number = self._numbers[batch] = len(self._batches)
                    self._batches.append(batch)
                first = self._first.get(position)
                if first is None:
                    self._first[position] = number
                else:
                    self._repeats.append(Repeat(position, self._batches[first], batch))
