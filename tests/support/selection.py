"""Selection of tests: which a run without ``--soak`` leaves out, and the files of one of several processes."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import pytest

CLUSTERS = ("embedded", "kafka")
TESTS = Path(__file__).parents[1]


def is_for_soak(item: pytest.Item) -> bool:
    """Whether the test is marked ``soak``, or is a Spark test on the cluster that this test is not selected for."""
    if item.get_closest_marker("soak") is not None:
        return True
    callspec = getattr(item, "callspec", None)
    if callspec is None or "cluster" not in callspec.params or item.get_closest_marker("spark") is None:
        return False
    cluster = callspec.params["cluster"]
    others = [part for part in callspec.id.split("-") if part != cluster]
    return bool(cluster != selected_cluster("-".join([item.originalname, *others])))  # type: ignore[attr-defined]


def selected_cluster(test: str) -> str:
    """Returns the cluster of a Spark test: always the same one, and each one for about half of the tests."""
    return CLUSTERS[zlib.crc32(test.encode()) % len(CLUSTERS)]


@cache
def files_of_share(share: str) -> frozenset[Path]:
    """Returns the test files of share ``K/N``: of the sorted files every N-th, so that each directory is divided."""
    number, count = map(int, share.split("/"))
    return frozenset(sorted(TESTS.rglob("test_*.py"))[number - 1 :: count])
