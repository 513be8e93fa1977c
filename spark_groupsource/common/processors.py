"""Number of processors that this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator


def processor_count(root: Path = Path("/")) -> int:
    """Returns the processors of the affinity mask, or fewer by the quotas of the control groups, rounded up.

    Java counts them in the same way (``Runtime.availableProcessors``), and so does Spark for ``local[*]``.

    Args:
        root: directory of ``proc`` and ``sys``.
    """
    return max(1, min([_affinity(), *_quotas(root)]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # macOS
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[int]:
    """Yields the quotas of the control group of this process and of those above it (cgroups(7)), in processors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        # not Linux, or hidden by a sandbox
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            mount /= "cpu"
        # a container may show the path on its host: then the root of the mount is the group of the container
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            quota = _quota_1(directory) if controllers else _quota_2(directory)
            if quota is not None:
                yield quota
            if directory == mount:
                break


def _quota_2(group: Path) -> int | None:
    """Returns the quota of version 2: ``max 100000`` is none."""
    quota, _, period = _text(group / "cpu.max").partition(" ")
    return _processors(quota, period)


def _quota_1(group: Path) -> int | None:
    """Returns the quota of version 1: -1 is none."""
    return _processors(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _processors(quota: str, period: str) -> int | None:
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return None
    return -(-int(quota) // int(period))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
