"""Checks of the running queries: control sockets of their reader processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from spark_groupsource.cli.doctor_findings import Check, CheckResult, Facts, Status, failed, outcome
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.source.control_client import ControlClient
from spark_groupsource.source.process.control_socket import all_control_sockets


class Readiness(str, Enum):
    """What is required of the queries."""

    ALIVE = "alive"
    JOINED = "joined"


class ReaderStates(NamedTuple):
    required: Readiness
    readers: Mapping[str, Any]
    """Name of a control socket -> state of its reader, or the error of a reader that does not respond."""


def _read_queries(required: Readiness, facts: Facts) -> ReaderStates:
    paths = all_control_sockets()
    with ThreadPoolExecutor(max(1, len(paths)), "groupsource doctor") as pool:
        states = pool.map(lambda path: outcome(lambda: _state(path)), paths)
        found = {path.name: state for path, state in zip(paths, states)}
    # None: the socket of a reader that has ended
    return ReaderStates(required, {name: state for name, state in found.items() if state is not None})


def _state(path: Path) -> Mapping[str, Any] | None:
    reader = ControlClient.connect(path)
    if reader is None:
        return None
    with reader:
        return reader.status()


def evaluate_queries(found: ReaderStates) -> Iterator[CheckResult]:
    """Bad for no reader, and for one that is not as required.

    A reader that listens and does not respond is alive: it serves one request at a time, and a drain, or the offsets
    of a transaction while a broker is down, take long.
    """
    not_joined = Status.BAD if found.required is Readiness.JOINED else Status.UNKNOWN
    if not found.readers:
        fix = "Start the query; use its user id and its TMPDIR for this command."
        yield CheckResult(Status.BAD, "No streaming query of this user runs here.", fix)
    for state in found.readers.values():
        if isinstance(state, GroupSourceError):
            fix = "It may be draining or publishing a batch; if it lasts, look at the lag of the group."
            yield CheckResult(*failed("", state, not_joined, fix)[1:])
            continue
        text = f"Reader process {state['reader_pid']} of group {state['group']!r} is {state['state']}"
        if state.get("generation", -1) >= 0:
            partitions = f"{len(state['partitions'])} partitions"
            yield CheckResult(Status.GOOD, f"{text}: generation {state['generation']}, {partitions}.")
        else:
            fix = "If it lasts, run: groupsource doctor --group GROUP."
            yield CheckResult(not_joined, f"{text} and has not joined.", fix)


QUERY_CHECKS: tuple[Check[Readiness], ...] = (Check("queries", _read_queries, evaluate_queries),)
"""Checks of the queries whose drivers have this directory for temporary files; they take at most about four seconds."""
