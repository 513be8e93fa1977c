"""Errors without file descriptors name the limit and how to raise it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.common.descriptors import describe_os_error, raise_descriptor_limit
from spark_groupsource.common.net import Address, LocalListener, dial
from spark_groupsource.errors import NetworkError
from spark_groupsource.source.control_client import ControlClient

LIMIT = r"the process has no file descriptor left \(limit [\d,]+\)\. Raise the limit: ulimit -n, LimitNOFILE"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Lowers the limit of this process to what it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_without_descriptors() -> None:
    with no_descriptors(), pytest.raises(NetworkError, match=f"Connecting to 127.0.0.1:1 failed: {LIMIT}"):
        dial(Address("127.0.0.1", 1), 1_000)


def test_a_control_socket_without_descriptors(tmp_path: Path) -> None:
    listener = LocalListener(str(tmp_path / "s"))
    with no_descriptors(), pytest.raises(NetworkError, match=f"Listening on .*/t failed: {LIMIT}"):
        LocalListener(str(tmp_path / "t"))
    with no_descriptors(), pytest.raises(NetworkError, match=f"Connecting to .*/s failed: {LIMIT}"):
        # the reader has not ended
        ControlClient.connect(Path(listener.path))
    listener.close()


def test_a_segment_without_descriptors(tmp_path: Path) -> None:
    cache = FileCache()
    with no_descriptors(), pytest.raises(OSError) as raised:
        cache.descriptor(str(tmp_path / "0.log"))
    assert describe_os_error(raised.value, "Check permissions.").startswith("the process has no file descriptor left")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENFILE, "the machine has no file descriptor left. Raise the limit: sysctl fs.file-max."),
        (errno.EACCES, "Permission denied. Check permissions."),
    ],
)
def test_other_errors(code: int, expected: str) -> None:
    assert describe_os_error(OSError(code, os.strerror(code)), "Check permissions.") == expected


def test_a_process_raises_its_soft_limit() -> None:
    code = """
import resource
from spark_groupsource.common.descriptors import descriptor_limit, raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
raise_descriptor_limit()
print(descriptor_limit())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "128"


@pytest.mark.parametrize(
    ("soft", "highest", "expected"),
    [
        # macOS: the hard limit is unlimited, but no soft limit may be above OPEN_MAX
        (256, 10_240, 10_240),
        (20_480, 10_240, 20_480),
        # nothing may be raised
        (256, 256, 256),
    ],
)
def test_a_limit_that_the_system_rejects_is_kept(
    soft: int, highest: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [soft]

    def set_limit(kind: int, given: tuple[int, int]) -> None:
        if given[0] == resource.RLIM_INFINITY or given[0] > highest:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(given[0])

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    raise_descriptor_limit()
    assert limits[-1] == expected
