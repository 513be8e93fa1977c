"""Signal flag: nested signals do not deadlock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from spark_groupsource.source.process.signal_flag import SignalFlag

SIGNALS = 5_000


def storm() -> None:
    """Sets the flag in the main thread while a handler sets it too, as fast as signals arrive."""
    flag, ended = SignalFlag(), threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: flag.set())

    def send() -> None:
        for _ in range(SIGNALS):
            os.kill(os.getpid(), signal.SIGUSR1)
        ended.set()

    threading.Thread(target=send, daemon=True).start()
    while not ended.is_set():
        flag.set()
        flag.wait(0)
    print("ended")


def test_signals_that_interrupt_set_do_not_deadlock() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_flag_is_set_until_it_is_cleared() -> None:
    flag = SignalFlag()
    assert not flag.is_set() and not flag.wait(0)
    flag.set()
    flag.set()
    assert flag.is_set() and flag.wait(0) and flag.wait(0)
    flag.clear()
    assert not flag.is_set() and not flag.wait(0)


if __name__ == "__main__":
    storm()
