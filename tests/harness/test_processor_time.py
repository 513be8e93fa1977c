"""Processor time of a benchmark: no process that ends is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.processor_time import SessionTimes  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

BURNED_S = 0.1
# /proc has the time as two numbers of ticks of 10 ms, each rounded down
PARENT = f"""
import os, signal, sys, time
if sys.argv[1] == "ignores":
    # as PySpark's daemon does: the kernel adds the child's time to no process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.fork()
if child == 0:
    while time.process_time() < {BURNED_S} + 0.02:
        pass
    print("burned", flush=True)
    sys.stdin.readline()
    os._exit(0)
try:
    os.waitpid(child, 0)
except ChildProcessError:
    pass
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["ignores", "waits"])
def test_the_time_of_a_child_that_ends_is_counted_once(kind: str) -> None:
    command = [sys.executable, "-S", "-c", PARENT, kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        times = SessionTimes(parent.pid)
        assert parent.stdout.readline() == "burned\n"
        before = times.seconds()
        parent.stdin.write("end\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ended\n"
        after = times.seconds()
        parent.stdin.write("end\n")
    assert BURNED_S <= before <= after < before + BURNED_S
    assert times.seconds() >= after
