"""Heartbeats of a read task: an executor learns by itself that its member's partitions have gone to someone else."""

from __future__ import annotations

import logging
import threading

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.membership.fencing import FIND_TIMEOUT_MS, mismatch
from spark_groupsource.errors import (
    FENCING_ERRORS,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    NetworkError,
)
from spark_groupsource.wire.messages import HeartbeatRequest

_TOLD_WITHIN_MS = 2 * FIND_TIMEOUT_MS
_log = logging.getLogger(__name__)

# a rebalance that has begun does not end the batch in flight: it has until the rebalance time-out
_HARMLESS = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
# a round that fails is followed by another; more than these between two heartbeats are not looked for
_ROUNDS_AHEAD = 16


class TaskHeartbeat:
    """Beats for one member in one generation, in a thread of its own, while the context lasts.

    A heartbeat that gets no answer is tried again and fails nothing: whether the member is still one, only its
    coordinator can say.

    Args:
        retains_partitions: the batch was planned during a rebalance in which the member keeps what is read. Then the
            member's later generations are as good: the coordinator tells by refusing all but the right number.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        member_id: str,
        generation_id: int,
        group_instance_id: str | None = None,
        heartbeat_interval_ms: int = 3_000,
        retains_partitions: bool = False,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._member_id = member_id
        self._generation_id = generation_id
        self._retains_partitions = retains_partitions
        # what the coordinator knows the member by, as last heard
        self._current_id = generation_id
        self._group_instance_id = group_instance_id
        self._interval_ms = heartbeat_interval_ms
        self._stopping = threading.Event()
        self._failure: GroupSourceError | None = None
        # set as soon as the coordinator has said no; finding out the group's generation comes after
        self._fenced = False
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {member_id}", daemon=True)

    def __enter__(self) -> TaskHeartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Sends the first heartbeat at once, in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the beating; a heartbeat under way is waited for, at most for one interval."""
        self._stopping.set()
        self._thread.join(self._interval_ms / 1000)

    def check(self) -> None:
        """Raises GenerationMismatchError if a heartbeat has learnt that the member is fenced; does not ask.

        From that moment no check passes; the error may take about `FIND_TIMEOUT_MS` to find out the new generation.
        """
        if self._fenced:
            self._told.wait(_TOLD_WITHIN_MS / 1000)
        if self._failure is not None:
            raise self._failure
        if self._fenced:
            raise self._unexplained()

    def check_now(self) -> None:
        """Asks the coordinator.

        Raises: GenerationMismatchError naming both generations where that can be found out; BrokerError or
            NetworkError when no answer is to be had within default.api.timeout.ms.
        """
        self.check()
        retry = self._cluster.retry()
        while True:
            code = self._beat(retry.remaining_ms)
            if code in _HARMLESS:
                return
            error = self._error(code)
            if not isinstance(error, BrokerError) or not error.retriable:
                raise error
            retry.again(error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                code = self._beat(self._interval_ms)
                if code not in _HARMLESS:
                    error = self._error(code)
                    if self._fenced:
                        return
                    _log.warning("heartbeat of member %s failed and is repeated: %s", self._member_id, error)
            except (NetworkError, BrokerError) as error:
                _log.warning("heartbeat of member %s failed and is repeated: %s", self._member_id, error)
            except GroupSourceError as error:
                # wrong credentials, a peer that is no broker: no use in going on, and the task must hear of it
                self._failure = error
                return
            self._stopping.wait(self._interval_ms / 1000)

    def _beat(self, timeout_ms: int) -> int:
        # read once: the beating thread and whoever checks now may both find a later one
        tried = self._current_id
        code = self._ask(tried, timeout_ms)
        if code != ErrorCode.ILLEGAL_GENERATION or not self._retains_partitions:
            return code
        # upward, and from where it began: a coordinator that is lost before it has written a generation forgets it
        for generation_id in range(self._generation_id, tried + _ROUNDS_AHEAD + 1):
            if generation_id == tried:
                continue
            code = self._ask(generation_id, timeout_ms)
            if code != ErrorCode.ILLEGAL_GENERATION:
                self._current_id = generation_id
                break
        return code

    def _ask(self, generation_id: int, timeout_ms: int) -> int:
        request = HeartbeatRequest(
            group_id=self._group_id,
            generation_id=generation_id,
            member_id=self._member_id,
            group_instance_id=self._group_instance_id,
        )
        floor = 3 if self._group_instance_id is not None else 0
        answer = self._cluster.call_coordinator(self._group_id, request, timeout_ms, floor=floor)
        return int(answer.error_code)

    def _error(self, code: int) -> GroupSourceError:
        if code not in FENCING_ERRORS:
            return BrokerError(code, f"heartbeat of member {self._member_id} of group {self._group_id}")
        self._fenced = True
        try:
            self._failure = mismatch(
                self._cluster,
                group_id=self._group_id,
                member_id=self._member_id,
                generation_id=self._generation_id,
                code=code,
            )
        finally:
            self._told.set()
        return self._failure

    def _unexplained(self) -> GenerationMismatchError:
        return GenerationMismatchError(
            group_id=self._group_id,
            member_id=self._member_id,
            generation_id=self._generation_id,
            cause="the coordinator no longer takes it for a member",
        )
