"""File descriptors of this process: limit, and errors without any left."""

from __future__ import annotations

import errno
import resource
import sys
from contextlib import suppress

# OPEN_MAX of macOS, which rejects a higher soft limit where the hard limit is unlimited; see setrlimit(2)
_OPEN_MAX = 10_240


def descriptor_limit() -> int:
    """Returns the soft limit of the process."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft_limit == resource.RLIM_INFINITY else soft_limit


def raise_descriptor_limit() -> None:
    """Sets the soft limit to the hard limit, as Java does (-XX:+MaxFDLimit); keeps it where the system rejects that.

    The usual soft limit of 1024 exists for programs that use select. A process that a JVM starts inherits its limit.

    Source: HotSpot's os::init_2.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [hard_limit, _OPEN_MAX] if soft_limit in range(_OPEN_MAX) else [hard_limit]
    for limit in limits:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
            return


def is_out_of_descriptors(error: OSError) -> bool:
    """Returns whether the process or the machine has no file descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def describe_os_error(error: OSError, remedy: str) -> str:
    """Returns the reason and the remedy; without descriptors, their limit and how to raise it instead of `remedy`."""
    if error.errno == errno.EMFILE:
        return (
            f"the process has no file descriptor left (limit {descriptor_limit():,}). "
            "Raise the limit: ulimit -n, LimitNOFILE of a service, --ulimit nofile of a container."
        )
    if error.errno == errno.ENFILE:
        return "the machine has no file descriptor left. Raise the limit: sysctl fs.file-max."
    return f"{error.strerror or error}. {remedy}"
