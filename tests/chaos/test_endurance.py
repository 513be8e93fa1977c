"""Samples and comparison of `endurance.py`; ``make soak`` has the long run."""

import os
import socket
import sys
import threading

import pytest
from chaos.endurance import TOLERANCE, compare, sample


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_resources_of_a_process_are_counted():
    before, ended = sample([os.getpid()]), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with socket.socket():
            after = sample([os.getpid()])
    finally:
        ended.set()
        thread.join()
    assert (after.threads, after.sockets) == (before.threads + 1, before.sockets + 1)
    assert after.descriptors >= before.descriptors + 1
    assert sample([os.getpid()] * 2).processes == 2
    assert sample([2**30]).processes == 0


@pytest.mark.parametrize("name", TOLERANCE)
def test_growth_is_reported_and_noise_is_not(name):
    steady, peaks = [100.0] * 50, [100.0] * 49 + [500.0]
    assert compare("driver", name, steady) == []
    assert compare("driver", name, peaks) == []
    growing = [100.0 + n for n in range(50)]
    assert compare("driver", name, growing) == [f"driver: {name} grew from 114.5 to 144.5"]
