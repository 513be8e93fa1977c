"""What the outputs hold, and what a run must keep to: nothing missing, nothing committed that no output holds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet

Position = tuple[int, int]


class Output:
    """A Parquet sink's rows, as far as Spark has committed them to the sink's own log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: set[str] = set()
        self.positions: Counter[Position] = Counter()
        self.values: set[int] = set()

    def refresh(self) -> None:
        """Reads the files that came since."""
        log = self._directory / "rows" / "_spark_metadata"
        if not log.exists():
            return
        for entry in sorted(log.iterdir()):
            if not entry.name.removesuffix(".compact").isdigit():
                continue
            for line in entry.read_text().splitlines()[1:]:
                path = unquote(urlparse(json.loads(line)["path"]).path)
                if path not in self._seen:
                    self._seen.add(path)
                    table = pyarrow.parquet.read_table(path, partitioning=None)
                    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
                    for partition, offset, value in zip(*columns):
                        self.positions[partition, offset] += 1
                        self.values.add(int(value))


class Ledger:
    """The outputs together; `foreign` is what members outside of Spark have consumed."""

    def __init__(self, directories: list[Path]) -> None:
        self.outputs = [Output(directory) for directory in directories]
        self.foreign: list[Counter[Position]] = []
        self.checks = 0
        self._commits: dict[int, int] = {}
        self._held_to: dict[int, int] = {}

    def refresh(self) -> Counter[Position]:
        """How often each position was delivered in all."""
        delivered: Counter[Position] = Counter()
        for output in self.outputs:
            output.refresh()
            delivered.update(output.positions)
        for seen in self.foreign:
            # counted by another thread meanwhile
            delivered.update(seen.copy())
        return delivered

    def check_commits(self, commits: dict[int, int]) -> None:
        """Partition -> offset, asked for before the outputs are read.

        Raises: AssertionError when a commit went back, or passed what the outputs hold.
        """
        back = {p: (self._commits[p], offset) for p, offset in commits.items() if offset < self._commits.get(p, 0)}
        assert not back, f"commits went back (partition: was, is): {back}"
        delivered = self.refresh()
        for p, offset in commits.items():
            missing = [n for n in range(self._held_to.get(p, 0), offset) if (p, n) not in delivered]
            assert not missing, f"{p} is committed to {offset}, but no output holds offsets {missing[:10]}"
            self._held_to[p] = offset
        self._commits = commits
        self.checks += 1

    def missing(self, ends: dict[int, int]) -> list[Position]:
        """Every position of the logs that was delivered to nobody."""
        delivered = self.refresh()
        return [(p, n) for p, end in sorted(ends.items()) for n in range(end) if (p, n) not in delivered]

    def repeats(self) -> int:
        """Deliveries beyond the first of each position."""
        return sum(count - 1 for count in self.refresh().values())
