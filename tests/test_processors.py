"""The number of processors: affinity and control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_groupsource.common.processors import processor_count


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


GROUP = "proc/self/cgroup"
V1, V2 = "sys/fs/cgroup/cpu", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({GROUP: "0::/", f"{V2}/cpu.max": "max 100000"}, 16),
        ({GROUP: "0::/", f"{V2}/cpu.max": "200000 100000"}, 2),
        # Java rounds up, too
        ({GROUP: "0::/", f"{V2}/cpu.max": "250000 100000"}, 3),
        ({GROUP: "0::/", f"{V2}/cpu.max": "10000 100000"}, 1),
        # a limit of a group above
        ({GROUP: "0::/pods/a", f"{V2}/pods/cpu.max": "400000 100000", f"{V2}/pods/a/cpu.max": "max 100000"}, 4),
        ({GROUP: "0::/pods/a", f"{V2}/pods/cpu.max": "400000 100000", f"{V2}/pods/a/cpu.max": "100000 50000"}, 2),
        # the group of a container on its host
        ({GROUP: "0::/../../a", f"{V2}/cpu.max": "300000 100000"}, 3),
        ({GROUP: "4:cpu,cpuacct:/a", f"{V1}/a/cpu.cfs_quota_us": "150000", f"{V1}/a/cpu.cfs_period_us": "100000"}, 2),
        ({GROUP: "4:cpu,cpuacct:/host/a", f"{V1}/cpu.cfs_quota_us": "5", f"{V1}/cpu.cfs_period_us": "1"}, 5),
        ({GROUP: "3:cpuset:/\n4:cpu:/", f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"}, 16),
        # both versions: the controller of processors is in one of them
        (
            {
                GROUP: "9:name=systemd:/\n1:cpu:/\n0::/",
                f"{V1}/cpu.cfs_quota_us": "300000",
                f"{V1}/cpu.cfs_period_us": "100000",
            },
            3,
        ),
    ],
)
def test_quotas_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    write(tmp_path, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    assert processor_count(tmp_path) == expected


def test_affinity_and_its_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert processor_count(tmp_path) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processor_count(tmp_path) == 1
