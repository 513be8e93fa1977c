"""Which tests a run without ``--soak`` leaves out."""

from __future__ import annotations

import zlib

import pytest

CLUSTERS = ("embedded", "kafka")


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
