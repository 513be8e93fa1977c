"""Well-behaved clients in their own process, which measure the effect of attacks.

Each is a thread with one connection that sends a request, checks the response and waits for 10 ms. They run in another
process than the attacks, so that its work is not measured.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetch, fetched_values, produce
from support.raw_members import commit, committed, heartbeat, join, sync
from support.waiting import wait_until

from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import FindCoordinatorRequest

KINDS = ("heartbeat", "commit", "produce", "fetch")
_INTERVAL_S = 0.01
_START_TIMEOUT_S = 60
_LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Reading(NamedTuple):
    """What the neighbors have seen since the previous reading.

    Attributes: `worst_ms`, the longest response time by kind of request, pending requests included; `responses`, their
    number; `peak_mb`, the largest resident memory of the broker, 0 if it is not known; `failures`, wrong or missing
    responses.
    """

    worst_ms: dict[str, float]
    responses: int
    peak_mb: float
    failures: list[str]


class _Neighbor(threading.Thread):
    """Calls `step` again and again, which sends one request and raises AssertionError for a wrong response."""

    def __init__(self, kind: str, step: Callable[[], None]) -> None:
        super().__init__(name=kind, daemon=True)
        self._step = step
        self._lock = threading.Lock()
        self._worst_s, self._count, self._started_s, self._failure = 0.0, 0, 0.0, ""

    def run(self) -> None:
        while not self._failure:
            self._started_s = time.monotonic()
            try:
                self._step()
            except Exception as error:  # reported by the parent process
                self._failure = f"{self.name}: {type(error).__name__}: {error}"
            with self._lock:
                self._worst_s = max(self._worst_s, time.monotonic() - self._started_s)
                self._count += 1
                self._started_s = 0.0
            time.sleep(_INTERVAL_S)

    def take(self) -> tuple[float, int, str]:
        """Longest response time in ms, number of responses and failure since the previous call."""
        with self._lock:
            pending_s = time.monotonic() - self._started_s if self._started_s else 0.0
            taken = max(self._worst_s, pending_s) * 1000, self._count, self._failure
            self._worst_s, self._count = 0.0, 0
        return taken


def _batch_now(value: bytes) -> bytes:
    """A batch that retention keeps."""
    return batch(value, timestamp_ms=int(time.time() * 1000))


def _steps(address: str) -> dict[str, Callable[[], None]]:
    """Prepares a topic and groups of this process; returns the step of each neighbor."""
    name = f"neighbors-{os.getpid()}"
    connections = {kind: RawConnection(address) for kind in KINDS}
    create_topic(connections["produce"], name)
    wait_until(
        lambda: produce(connections["produce"], name, _batch_now(b"0")).error_code == 0, "the topic has a leader", 60
    )
    members = {kind: _member(connections[kind], f"{name}-{kind}") for kind in ("heartbeat", "commit")}
    state = {"committed": 0, "produced": 0, "position": 0}

    def step_heartbeat() -> None:
        assert heartbeat(connections["heartbeat"], members["heartbeat"], f"{name}-heartbeat") == 0

    def step_commit() -> None:
        state["committed"] += 1
        group = f"{name}-commit"
        assert commit(connections["commit"], members["commit"], state["committed"], name, group) == 0
        if state["committed"] % 20 == 0:
            assert committed(connections["commit"], group) == {(name, 0): (state["committed"], "m")}

    def step_produce() -> None:
        response = produce(connections["produce"], name, _batch_now(b"%d" % (state["produced"] + 1)))
        assert response.error_code == 0
        state["produced"] += 1

    def step_fetch() -> None:
        response = fetch(connections["fetch"], name, state["position"])
        assert response.error_code == 0
        for value in fetched_values(response):
            assert value is not None
            number = int(value)
            assert number in (state["position"], 0), f"value {number} at offset {state['position']}"
            state["position"] += 1

    return {"heartbeat": step_heartbeat, "commit": step_commit, "produce": step_produce, "fetch": step_fetch}


def _member(connection: RawConnection, group: str):
    """A member of `group`; the coordinator may have to be loaded first."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    wait_until(lambda: connection.call(request, 4).coordinators[0].error_code == 0, "the coordinator is known", 60)
    joined = join(connection, group=group)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while joined.error_code in _LOADING and time.monotonic() < deadline_s:
        time.sleep(0.1)
        joined = join(connection, group=group)
    assert joined.error_code == 0, f"JoinGroup failed with error {joined.error_code}"
    assert sync(connection, joined, group).error_code == 0
    return joined


def resident_mb(process_id: int) -> float:
    """Resident memory of a process, 0 if it is unknown."""
    with suppress(OSError):
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def _serve(pipe: Connection, address: str, process_id: int | None) -> None:
    """Runs the neighbors; sends a reading for each message."""
    neighbors = [_Neighbor(kind, step) for kind, step in _steps(address).items()]
    for neighbor in neighbors:
        neighbor.start()
    pipe.send("ready")
    peak_mb = 0.0
    while True:
        if process_id is not None:
            peak_mb = max(peak_mb, resident_mb(process_id))
        if not pipe.poll(_INTERVAL_S):
            continue
        pipe.recv()
        taken = {neighbor.name: neighbor.take() for neighbor in neighbors}
        failures = [failure for _, _, failure in taken.values() if failure]
        worst_ms = {kind: worst for kind, (worst, _, _) in taken.items()}
        pipe.send(Reading(worst_ms, sum(count for _, count, _ in taken.values()), peak_mb, failures))
        peak_mb = 0.0


class Neighbors:
    """The process of the neighbors. `reading` returns what they have seen since its previous call."""

    def __init__(self, address: str, process_id: int | None) -> None:
        self._arguments = (address, process_id)
        self._process: SpawnProcess | None = None
        assert self.restart(3 * _START_TIMEOUT_S), "the neighbors did not start"

    def restart(self, timeout_s: float) -> bool:
        """Replaces the process, because a neighbor ends with its first failure; returns whether all of them run."""
        self.stop()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            return self._pipe.poll(timeout_s) and self._pipe.recv() == "ready"
        except EOFError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def reading(self) -> Reading:
        try:
            self._pipe.send("reading")
            reading: Reading = self._pipe.recv()
        except (OSError, EOFError):
            return Reading(dict.fromkeys(KINDS, 0.0), 0, 0.0, ["the process of the neighbors has ended"])
        return reading
