"""The driver JVM of a process, also as process 1."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "from spark_groupsource.source.process.driver_process import driver_pid; print(driver_pid())"
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def can_isolate() -> bool:
    has_command = shutil.which("unshare") is not None
    return has_command and subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_isolate(), reason="namespaces need unshare and its permissions")
def test_jvm_that_is_the_first_process_of_its_container(tmp_path: Path) -> None:
    # Spark's published images run a spark-submit of their own without tini
    java = tmp_path / "java"
    shutil.copy("/bin/sh", java)
    # Python descends from it through another process, as from Spark's daemon
    daemon = shlex.join(["sh", "-c", f"{shlex.join([sys.executable, '-c', SCRIPT])}; true"])
    run = subprocess.run([*NAMESPACE, str(java), "-c", f"{daemon}; true"], capture_output=True, text=True, timeout=60)
    assert run.stdout == "1\n", run.stderr
