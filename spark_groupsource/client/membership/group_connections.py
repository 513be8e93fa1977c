"""Connections of the members of one process to their group coordinator.

All members share one connection for the requests that the coordinator responds to at once. A JoinGroup or SyncGroup
request waits for other members and delays whatever follows it on its connection, so it has one of its own, which is
used again by the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.routing import COORDINATOR_MOVED
from spark_groupsource.client.membership.blocking_calls import BlockingCalls
from spark_groupsource.client.membership.shared_membership import SharedMembership
from spark_groupsource.client.network.request_pipeline import RequestPipeline
from spark_groupsource.errors import ErrorCode, GroupSourceError, NetworkError, error_name
from spark_groupsource.model import Node
from spark_groupsource.wire.messages import DescribeGroupsRequest

_log = logging.getLogger(__name__)

LOOKUP_MS = 5_000
"""Time limit of a lookup of the coordinator."""
# the rebalances that follow a rebalance use its connections
_MAX_IDLE_MS = 30_000
# bounds the time to open a connection, which doubles with each failure
_MAX_DOUBLINGS = 20


class GroupConnections:
    """Belongs to the event loop of the members."""

    def __init__(self, cluster: ClusterClient, shared: SharedMembership, calls: BlockingCalls) -> None:
        self._cluster = cluster
        self._shared = shared
        self._calls = calls
        self._group_id = shared.settings.group_id
        self._prefix = f"[group={self._group_id}]"
        self._node: Node | None = None
        self._pipeline: RequestPipeline | None = None
        self._opening: asyncio.Task[RequestPipeline] | None = None
        # failures to open a connection since the last success
        self._attempts = 0
        # open connections without a request, the one that was used last at the end
        self._idle: deque[tuple[int, Node, RequestPipeline]] = deque()
        self._used: set[RequestPipeline] = set()
        # opened by a thread and not started by the loop yet; guarded by `changed`
        self._unstarted: set[RequestPipeline] = set()
        self._sweep: asyncio.TimerHandle | None = None
        # the check in progress or the last one, and when it began
        self._check: tuple[Node, int, asyncio.Task[str]] | None = None

    async def shared_connection(self) -> tuple[Node, RequestPipeline]:
        """Returns the coordinator and the connection that all members share; opens it if necessary.

        Raises: BrokerError, NetworkError.
        """
        if self._pipeline is not None and self._pipeline.is_closed:
            self.mark_unknown(self._node, "the connection was lost.")
        node, pipeline = self._node, self._pipeline
        if node is None or pipeline is None or not self._is_usable(node, pipeline):
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open_shared())
                self._opening.add_done_callback(self._opened)
            # a member that gives up does not end it for the others
            pipeline = await asyncio.shield(self._opening)
            node = self._node
        if node is None:
            raise NetworkError("The connection to the coordinator is closed.")
        return node, pipeline

    def _is_usable(self, node: Node, pipeline: RequestPipeline) -> bool:
        return not pipeline.is_expired and self._cluster.cached_coordinator(self._group_id) == node

    def _opened(self, opening: asyncio.Task[RequestPipeline]) -> None:
        self._opening = None
        if not opening.cancelled():
            # retrieved by the members that wait for it, if any
            opening.exception()

    async def _open_shared(self) -> RequestPipeline:
        node = await self._find_coordinator()
        former = self._pipeline
        if former is not None and node == self._node and not former.is_closed and not former.is_expired:
            return former
        try:
            pipeline = self._started(await self._calls.run_now(self._open_pipeline, node, self._open_ms()))
        except NetworkError as error:
            self._attempts += 1
            self.mark_unknown(node, str(error))
            raise
        self._attempts = 0
        former, self._pipeline, self._node = self._pipeline, pipeline, node
        if former is not None:
            # KIP-368: what was sent before the login expired still has its response
            former.retire()
        _log.info("%s Connected to coordinator %s.", self._prefix, node)
        self._restart_session_timers()
        return pipeline

    async def _find_coordinator(self) -> Node:
        known = self._cluster.cached_coordinator(self._group_id)
        if known is not None:
            return known
        lookup_ms = min(LOOKUP_MS, self._shared.settings.session_timeout_ms)
        return await self._calls.run_now(self._cluster.find_coordinator, self._group_id, lookup_ms)

    def _started(self, pipeline: RequestPipeline) -> RequestPipeline:
        with self._shared.changed:
            self._unstarted.discard(pipeline)
        pipeline.start()
        return pipeline

    def _open_ms(self) -> int:
        """Returns how long opening a connection may take: twice as long after each failure (KIP-601)."""
        return self._cluster.settings.connect_timeout_ms << min(self._attempts, _MAX_DOUBLINGS)

    def _open_pipeline(self, node: Node, open_ms: int) -> RequestPipeline:
        """Opens a connection to the coordinator, in a thread."""
        if self._cluster.cached_coordinator(self._group_id) != node:
            # it has failed for a member that tried before
            raise NetworkError(f"Connecting to {node} was canceled: the coordinator is looked up again.")
        settings = self._cluster.settings
        timeout_ms = min(settings.request_timeout_ms, self._shared.settings.session_timeout_ms, open_ms)
        pipeline = self._cluster.open_pipeline(self._cluster.node_address(node), timeout_ms)
        with self._shared.changed:
            if not self._shared.is_closing:
                self._unstarted.add(pipeline)
                return pipeline
        pipeline.close()
        raise NetworkError("Connecting to the coordinator was canceled: the group client is closing.")

    # -- connections of one request ----------------------------------------------------------------------------------

    async def acquire(self) -> tuple[Node, RequestPipeline]:
        """Returns the coordinator and a connection for one request, which the caller passes to `release`.

        Raises: BrokerError, NetworkError.
        """
        node, shared = await self.shared_connection()
        if len(self._shared.members) == 1:
            # a member sends its requests one after the other
            return node, shared
        while self._idle:
            _, its_node, pipeline = self._idle.pop()
            if its_node == node and not pipeline.is_closed and not pipeline.is_expired:
                break
            pipeline.close()
        else:
            try:
                pipeline = self._started(await self._calls.run(self._open_pipeline, node, self._open_ms()))
            except NetworkError as error:
                self.mark_unknown(node, str(error))
                raise
        self._used.add(pipeline)
        return node, pipeline

    def release(self, node: Node, pipeline: RequestPipeline) -> None:
        """Keeps an open connection for the next rebalance."""
        self._used.discard(pipeline)
        if pipeline.is_closed or pipeline is self._pipeline:
            return
        self._idle.append((self._cluster.clock.now_ms(), node, pipeline))
        if self._sweep is None:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(_MAX_IDLE_MS / 1000, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        oldest_ms = self._cluster.clock.now_ms() - _MAX_IDLE_MS
        while self._idle and (self._idle[0][0] <= oldest_ms or self._idle[0][2].is_closed):
            self._idle.popleft()[2].close()
        if self._idle:
            self._sweep_later()

    # -- the coordinator ---------------------------------------------------------------------------------------------

    async def group_state(self, node: Node, max_age_ms: int, timeout_ms: int) -> str:
        """Returns the state of the group, empty if the coordinator does not name it; members share the request.

        Raises: NetworkError if the node does not respond or is no longer the coordinator.
        """
        now_ms = self._cluster.clock.now_ms()
        if self._check is None or self._check[0] != node or self._check[1] < now_ms - max_age_ms:
            call = self._calls.run_now(self._describe, node, timeout_ms)
            check = asyncio.get_running_loop().create_task(call)
            check.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._check = node, now_ms, check
        return await asyncio.shield(self._check[2])

    def _describe(self, node: Node, timeout_ms: int) -> str:
        request = DescribeGroupsRequest(groups=[self._group_id], include_authorized_operations=False)
        try:
            (group,) = self._cluster.call_address(self._cluster.node_address(node), request, timeout_ms).groups
        except NetworkError:
            raise
        except GroupSourceError as error:
            _log.debug("%s The coordinator cannot be checked: %s", self._prefix, error)
            return ""
        if group.error_code in COORDINATOR_MOVED:
            raise NetworkError(f"{node} is no longer the coordinator: {error_name(group.error_code)}.")
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return "Dead"
        return "" if group.error_code else str(group.group_state)

    def mark_unknown(self, node: Node | None, reason: str) -> None:
        """Looks the coordinator up before the next request; the memberships are not reset.

        Args: `node`, the coordinator that failed; does nothing if another one has replaced it.
        """
        known = self._cluster.cached_coordinator(self._group_id)
        if node is None or (known != node and self._node != node):
            return
        _log.info("%s Coordinator is unavailable, rediscovering it: %s", self._prefix, reason)
        self._cluster.invalidate_coordinator(self._group_id, node)
        if self._node == node:
            pipeline, self._pipeline, self._node = self._pipeline, None, None
            if pipeline is not None:
                pipeline.close()
        self._restart_session_timers()
        now_ms = self._cluster.clock.now_ms()
        with self._shared.changed:
            for member in self._shared.members:
                if member.commits:
                    # what the coordinator has acknowledged may be lost with it
                    member.membership.repetition.start(now_ms)
        self._shared.wake()

    def _restart_session_timers(self) -> None:
        now_ms = self._cluster.clock.now_ms()
        with self._shared.changed:
            for member in self._shared.members:
                member.membership.restart_session_timer(now_ms)

    def close(self) -> None:
        """Closes all connections; requests without a response fail."""
        if self._sweep is not None:
            self._sweep.cancel()
        idle = [pipeline for _, _, pipeline in self._idle]
        shared = () if self._pipeline is None else (self._pipeline,)
        with self._shared.changed:
            unstarted = tuple(self._unstarted)
        for pipeline in (*idle, *self._used, *shared, *unstarted):
            pipeline.close()
        self._idle.clear()
        self._used.clear()
