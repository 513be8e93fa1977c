"""Heartbeats of a read task, which detect that its member was fenced."""

from __future__ import annotations

import logging
import threading

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.fencing import (
    FIND_TIMEOUT_MS,
    GENERATIONS_AHEAD,
    CurrentGeneration,
    generation_mismatch,
)
from spark_groupsource.client.membership.membership_values import lowest_version
from spark_groupsource.client.network.outage import Outage
from spark_groupsource.client.network.retry import retry_level
from spark_groupsource.errors import (
    FENCING_ERRORS,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    NetworkError,
)
from spark_groupsource.wire.messages import HeartbeatRequest

_ERROR_WAIT_MS = 2 * FIND_TIMEOUT_MS
# time limit of the first heartbeat after the last record; it doubles with each further one
_FIRST_WAIT_MS = 5_000
_log = logging.getLogger(__name__)

# during a rebalance the batch in flight may finish within the rebalance timeout
_ACCEPTED = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})


class TaskHeartbeat:
    """Sends heartbeats for one member from a separate thread, while the context is open.

    A heartbeat without a response is retried and is no error: only the coordinator decides whether a member is fenced.

    Args:
        retains_partitions: the batch was planned during a rebalance in which the member retains the partitions
            of the task. The member may then be in that generation or a later one; the coordinator rejects all but the
            current one.
        outage: how long `check_now` waits for the coordinator; None for default.api.timeout.ms.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        group_id: str,
        member_id: str,
        generation_id: int,
        group_instance_id: str | None = None,
        heartbeat_interval_ms: int = 3_000,
        retains_partitions: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._member_id = member_id
        self._generation_id = generation_id
        self._retains_partitions = retains_partitions
        # the last generation that was not illegal, at first that of the task
        self.accepted_generation_id = generation_id
        self._group_instance_id = group_instance_id
        self._interval_ms = heartbeat_interval_ms
        self._stopping = threading.Event()
        self._failure: GroupSourceError | None = None
        # set when the coordinator rejects a heartbeat, before the group's generation is read for the error
        self._is_fenced = False
        self._has_error = threading.Event()
        self._log_prefix = f"[group={group_id} member={member_id} generation={generation_id}]"
        self._outage = outage
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {member_id}", daemon=True)

    def __enter__(self) -> TaskHeartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the thread, which sends the first heartbeat at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; waits for a pending heartbeat, at most for one interval."""
        self._stopping.set()
        self._thread.join(self._interval_ms / 1000)

    def check(self) -> None:
        """Raises an error if the coordinator has fenced the member, or no further heartbeat can succeed.

        Sends no request. Every later check raises, too. The first may wait up to `_ERROR_WAIT_MS` for the current
        generation.

        Raises: GenerationMismatchError for a fenced member; another GroupSourceError that no retry ends, for example
            AuthenticationError.
        """
        if self._is_fenced:
            self._has_error.wait(_ERROR_WAIT_MS / 1000)
        if self._failure is not None:
            raise self._failure
        if self._is_fenced:
            raise self._error_without_cause()

    def check_now(self) -> None:
        """Returns when the present coordinator, which has loaded the group, has accepted a heartbeat.

        Raises: as `check`; BrokerError or NetworkError if no heartbeat is accepted for as long as the outage may last,
            or at once if no retry ends the error.
        """
        self.check()
        cluster, longest_ms = self._cluster, self._cluster.settings.default_api_timeout_ms
        outage, retry = self._outage or Outage.bounded(cluster.clock, longest_ms), cluster.retry()
        outage.begin()
        failure: GroupSourceError
        while True:
            # a coordinator that does not respond may have been replaced
            bound_ms = max(self._interval_ms, _FIRST_WAIT_MS) << min(retry.attempt, 20)
            try:
                wait_ms = outage.left_ms(min(bound_ms, longest_ms))
                cluster.confirm_coordinator(self._group_id, wait_ms)
                cluster.await_loaded(self._group_id, wait_ms)
                code = self.send_heartbeat(wait_ms)
                if code in _ACCEPTED and cluster.has_loaded(self._group_id):
                    outage.ended()
                    return
                if code in _ACCEPTED:
                    raise NetworkError(f"The coordinator of group '{self._group_id}' has moved.")
                failure = self._error(code)
                if not isinstance(failure, BrokerError) or not failure.retriable:
                    raise failure
            except (NetworkError, BrokerError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                failure = error
            if outage.is_over_limit(failure):
                raise failure
            retry.backoff(failure)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                code = self.send_heartbeat(self._interval_ms)
                if code not in _ACCEPTED:
                    error = self._error(code)
                    if self._is_fenced:
                        return
                    _log.warning("%s Heartbeat failed, retrying: %s", self._log_prefix, error)
            except (NetworkError, BrokerError) as error:
                _log.log(retry_level(error), "%s Heartbeat failed, retrying: %s", self._log_prefix, error)
            except GroupSourceError as error:
                # not retriable, for example rejected credentials: check() raises it in the task
                self._failure = error
                return
            self._stopping.wait(self._interval_ms / 1000)

    def send_heartbeat(self, timeout_ms: int) -> int:
        """Sends a heartbeat and returns the error code, that of another generation if the member may be in one.

        After ILLEGAL_GENERATION each generation from that of the task on is tried. A member that retains its partitions
        may be in any of them. For another one only that of a downgraded group is accepted, which waits for the member
        (REBALANCE_IN_PROGRESS); see `find_downgraded_generation`.

        Raises: BrokerError, NetworkError, AuthenticationError.
        """
        # read once: both this thread and check_now may advance it
        tried = self.accepted_generation_id
        code = self._send(tried, timeout_ms)
        is_dynamic = self._group_instance_id is None
        if code != ErrorCode.ILLEGAL_GENERATION or not (self._retains_partitions or is_dynamic):
            return code
        # from the first generation on: a coordinator that fails before it appends a generation falls back
        for generation_id in range(self._generation_id, tried + GENERATIONS_AHEAD + 1):
            if generation_id == tried:
                continue
            code = self._send(generation_id, timeout_ms)
            if code == ErrorCode.NONE and not self._retains_partitions:
                return ErrorCode.ILLEGAL_GENERATION
            if code != ErrorCode.ILLEGAL_GENERATION:
                self.accepted_generation_id = generation_id
                break
        return code

    def _send(self, generation_id: int, timeout_ms: int) -> int:
        request = HeartbeatRequest(
            group_id=self._group_id,
            generation_id=generation_id,
            member_id=self._member_id,
            group_instance_id=self._group_instance_id,
        )
        cluster, min_version = self._cluster, lowest_version(request)
        return cluster.call_coordinator(self._group_id, request, timeout_ms, min_version=min_version).error_code

    def _error(self, code: int) -> GroupSourceError:
        if code not in FENCING_ERRORS:
            return BrokerError(code, f"Heartbeat of member {self._member_id} of group '{self._group_id}'")
        self._is_fenced = True
        try:
            self._failure = generation_mismatch(
                CurrentGeneration(self._cluster, self._group_id),
                group_id=self._group_id,
                member_id=self._member_id,
                generation_id=self._generation_id,
                code=code,
            )
        finally:
            self._has_error.set()
        return self._failure

    def _error_without_cause(self) -> GenerationMismatchError:
        return GenerationMismatchError(
            group_id=self._group_id,
            member_id=self._member_id,
            generation_id=self._generation_id,
            cause="the coordinator rejected a heartbeat",
        )
