"""Compares the records of the outputs with the committed offsets.

A delivery is identified by its batch: the application and the micro-batch number, or the foreign member. Each repeated
record can be traced to the batches that delivered it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet
from support.file_sink import files_of, log_entries

Position = tuple[int, int]


class Batch(NamedTuple):
    """The application or foreign member and its micro-batch; `number` is -1 for a foreign member."""

    source: str
    number: int


class Repeat(NamedTuple):
    """A position that was delivered twice: the first batch and the later one."""

    position: Position
    first: Batch
    again: Batch


class Output:
    """Rows of a Parquet sink that Spark has committed to the sink's metadata log."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._sink = directory / "rows"
        self._entries: set[str] = set()
        self._files: set[str] = set()
        self.values: set[int] = set()

    @property
    def batches(self) -> int:
        """Number of the last micro-batch in the metadata log; -1 before the first."""
        return max((int(name.partition(".")[0]) for name in self._entries), default=-1)

    def new_deliveries(self) -> list[tuple[Batch, Position]]:
        """Returns the deliveries since the last call."""
        found = []
        for entry in log_entries(self._sink):
            if entry.name not in self._entries:
                batch = Batch(self._name, int(entry.name.partition(".")[0]))
                for path in files_of(entry):
                    if path not in self._files:
                        self._files.add(path)
                        found += [(batch, position) for position in self._read(path)]
                self._entries.add(entry.name)
        return found

    def _read(self, path: str) -> list[Position]:
        table = pyarrow.parquet.read_table(path, partitioning=None)
        partitions, offsets, values = (table[name].to_pylist() for name in ("partition", "offset", "value"))
        self.values.update(map(int, values))
        return list(zip(partitions, offsets))


class ForeignOutput:
    """The positions that a foreign member consumed, as lines ``partition offset``."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._read_bytes = 0

    def new_deliveries(self) -> list[tuple[Batch, Position]]:
        """Returns the deliveries since the last call; an incomplete line is left for the next one."""
        with open(self._path, "rb") as file:
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        pairs = (line.split() for line in whole.splitlines())
        return [(Batch(self._name, -1), (int(partition), int(offset))) for partition, offset in pairs]


class DeliveryTracker:
    """The deliveries of all outputs. Thread-safe."""

    def __init__(self) -> None:
        self.checks = 0
        self._outputs: list[Output | ForeignOutput] = []
        self._lock = threading.Lock()
        self._batches: list[Batch] = []
        self._numbers: dict[Batch, int] = {}
        self._first: dict[Position, int] = {}
        self._repeats: list[Repeat] = []
        self._commits: dict[int, int] = {}
        self._checked_to: dict[int, int] = {}

    def add(self, output: Output | ForeignOutput) -> None:
        """Adds an output."""
        with self._lock:
            self._outputs.append(output)

    def values(self) -> set[int]:
        """Returns every value in the Parquet outputs."""
        with self._lock:
            return set().union(*(output.values for output in self._outputs if isinstance(output, Output)))

    def check_commits(self, commits: dict[int, int]) -> None:
        """Checks committed offsets (partition -> offset), fetched before the outputs are read.

        Raises: AssertionError when an offset decreased, or is ahead of the outputs.
        """
        with self._lock:
            back = {p: (self._commits[p], n) for p, n in commits.items() if n < self._commits.get(p, 0)}
            assert not back, f"committed offsets decreased (partition: before, now): {back}"
            self._refresh()
            for p, offset in commits.items():
                missing = [n for n in range(self._checked_to.get(p, 0), offset) if (p, n) not in self._first]
                assert not missing, f"{p} is committed to {offset}, but no output contains offsets {missing[:10]}"
                self._checked_to[p] = offset
            self._commits = dict(commits)
            self.checks += 1

    def missing(self, ends: dict[int, int]) -> list[Position]:
        """Returns every position below the end offsets that no output contains."""
        with self._lock:
            self._refresh()
            return [(p, n) for p, end in sorted(ends.items()) for n in range(end) if (p, n) not in self._first]

    def repeats(self) -> list[Repeat]:
        """Returns every delivery after the first of a position, in the order of detection."""
        with self._lock:
            self._refresh()
            return list(self._repeats)

    def _refresh(self) -> None:
        for output in self._outputs:
            for batch, position in output.new_deliveries():
                number = self._numbers.get(batch)
                if number is None:
                    number = self._numbers[batch] = len(self._batches)
                    self._batches.append(batch)
                first = self._first.get(position)
                if first is None:
                    self._first[position] = number
                else:
                    self._repeats.append(Repeat(position, self._batches[first], batch))
