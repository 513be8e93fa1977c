"""Selection and order of tests: soak variants, queues of files.

Several processes take test files from queues (`queued_files`). Long files come first: with a long file at the end, one
process would run it while the others have nothing to do.
"""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

CLUSTERS = ("embedded", "kafka")
TESTS = Path(__file__).parents[1]
TEST_FILES = tuple(sorted(TESTS.rglob("test_*.py")))
# seconds of each file in each plan, written by `run_tests.py --write-times`
TIMES = Path(__file__).with_name("file_seconds.tsv")
PLANS = ("quick", "all")
# by what a file uses that takes seconds to start
QUEUES = ("spark", "kafka", "plain")
# a file that was not measured is new or changed its plan, and may be long: first, it does not make the others wait
_UNKNOWN_SECONDS = math.inf
_LONG_SECONDS = 5.0


def is_for_soak(item: pytest.Item) -> bool:
    """Whether only a run with ``--soak`` has the test.

    It is marked ``soak``, or its cluster is not selected: a test that is marked ``spark`` or ``one_cluster`` has
    one selected cluster, a test of foreign clients alone has the embedded broker.
    """
    if item.get_closest_marker("soak") is not None:
        return True
    callspec = getattr(item, "callspec", None)
    if callspec is not None and item.get_closest_marker("foreign") is not None:
        return bool(callspec.params.get("cluster") == "kafka")
    has_one = any(item.get_closest_marker(name) is not None for name in ("spark", "one_cluster"))
    if callspec is None or "cluster" not in callspec.params or not has_one:
        return False
    cluster = callspec.params["cluster"]
    others = [part for part in callspec.id.split("-") if part != cluster]
    return bool(cluster != selected_cluster("-".join([item.originalname, *others])))  # type: ignore[attr-defined]


def place(item: pytest.Item) -> float:
    """Returns the place of a test's file in the order of a run, equal for all files that are not long."""
    seconds = expected_seconds("all").get(file_name(item.path), 0.0)
    return -seconds if seconds >= _LONG_SECONDS else 0.0


def file_name(file: Path) -> str:
    """Returns the path of a test file below `tests`."""
    return file.relative_to(TESTS).as_posix()


def selected_cluster(test: str) -> str:
    """Returns the cluster of a test that has one: always the same one, and each one for about half of the tests."""
    return CLUSTERS[zlib.crc32(test.encode()) % len(CLUSTERS)]


@cache
def expected_seconds(plan: str) -> Mapping[str, float]:
    """Returns the measured seconds of each file in a run of the plan; an empty cell is a file that was not measured."""
    with TIMES.open(encoding="utf-8", newline="") as rows:
        return {row["file"]: float(row[plan]) for row in csv.DictReader(rows, delimiter="\t") if row[plan]}


def write_seconds(plan: str, measured: Mapping[str, float]) -> None:
    """Replaces the seconds of a plan, and removes files that no longer exist."""
    known = {each: dict(expected_seconds(each)) for each in PLANS}
    known[plan].update(measured)
    lines = ["\t".join(("file", *PLANS))]
    for name in map(file_name, TEST_FILES):
        seconds = (known[each].get(name) for each in PLANS)
        lines.append("\t".join((name, *("" if each is None else f"{each:.1f}" for each in seconds))))
    TIMES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def queued_files(plan: str) -> dict[str, list[Path]]:
    """Returns the files of each queue, the longest first; the plan ``quick`` starts neither Spark nor Kafka."""
    seconds = expected_seconds(plan)
    queues: dict[str, list[Path]] = {name: [] for name in QUEUES}
    for file in sorted(TEST_FILES, key=lambda file: -seconds.get(file_name(file), _UNKNOWN_SECONDS)):
        queues[_queue_of(file) if plan == "all" else "plain"].append(file)
    return queues


def queues_of_process(number: int, count: int) -> tuple[str, ...]:
    """Returns the queues of one of `count` processes, counted from 1, in its order.

    A Spark session and a real Kafka each take seconds to start and to warm up. So half of the processes run the files
    that use Spark, and the other half those that use a real Kafka alone, which mostly wait.
    """
    if count == 1:
        return QUEUES
    return ("spark", "plain") if number <= (count + 1) // 2 else ("kafka", "plain")


def _queue_of(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    # a word is enough: a file that only mentions Spark is put among those that use it, which does no harm
    if re.search(r"\bspark\b", text):
        return "spark"
    return "kafka" if re.search(r"\b(kafka|cluster|java)\b *[,):]", text) else "plain"
