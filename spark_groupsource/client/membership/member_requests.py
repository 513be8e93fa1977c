"""Requests of one member to its group coordinator.

Source: AbstractCoordinator.ensureCoordinatorReady, markCoordinatorUnknown.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Collection, TypeVar

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.blocking_calls import BlockingCalls
from spark_groupsource.client.membership.group_connections import LOOKUP_MS, GroupConnections
from spark_groupsource.client.membership.membership_values import lowest_version
from spark_groupsource.client.membership.shared_membership import LocalMember
from spark_groupsource.client.network.request_pipeline import RequestPipeline
from spark_groupsource.errors import FENCING_ERRORS, NetworkError, RequestTimeoutError, error_name
from spark_groupsource.model import Node
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.messages import JoinGroupRequest, Request, Response

_log = logging.getLogger(__name__)
R = TypeVar("R", bound="Response")

# the check of a coordinator ends within session.timeout.ms, so that the member can join at the next one in time
_CHECKS_PER_SESSION = 3
# KIP-394: a JoinGroup without a member id gets one at once
_MEMBER_ID_REQUIRED_SINCE = 4


class MemberRequests:
    """Belongs to the event loop of the members."""

    def __init__(
        self, member: LocalMember, cluster: ClusterClient, connections: GroupConnections, calls: BlockingCalls
    ) -> None:
        self._member = member
        self._cluster = cluster
        self._connections = connections
        self._calls = calls
        # the coordinator that the last request was sent to
        self._node: Node | None = None
        # the coordinators that have rejected this member since one accepted it
        self._rejected_by: set[Node] = set()

    async def call(self, request: Request[R], timeout_ms: int) -> R:
        """Sends one request to the coordinator, which becomes unknown if the connection is lost.

        Raises: NetworkError also if the coordinator has rejected the member and another one has the group since.
        """
        self._node, pipeline = await self._connections.shared_connection()
        return await self._call(pipeline, self._node, request, timeout_ms)

    async def _call(self, pipeline: RequestPipeline, node: Node, request: Request[R], timeout_ms: int) -> R:
        client_id, min_version = self._member.client_id, lowest_version(request)
        try:
            response = await pipeline.call(request, timeout_ms, min_version=min_version, client_id=client_id)
        except NetworkError as error:
            self._connections.mark_unknown(node, str(error))
            raise
        return await self._checked(response, node)

    async def call_delayed(self, request: Request[R], timeout_ms: int, answered_in: Collection[str]) -> R:
        """Sends a request whose response waits for other members; the coordinator is checked meanwhile.

        A coordinator that stops without closing the connection, for example a frozen process, never responds. Kafka's
        client waits for `timeout_ms` in any case.

        Args:
            answered_in: states of the group in which the coordinator has responded to the request.
        Raises: NetworkError, as soon as the coordinator does not respond to the check, or is another node, or has twice
            been found to have responded on a connection that was lost; RequestTimeoutError after `timeout_ms`.
        """
        self._node, shared = await self._connections.shared_connection()
        if self._is_answered_at_once(request, shared):
            # as long as the check of a coordinator that delays its response takes
            return await self._call(shared, self._node, request, 2 * self._interval_ms)
        self._node, pipeline = node, _ = await self._connections.acquire()
        try:
            client_id, min_version = self._member.client_id, lowest_version(request)
            waiting = pipeline.call(request, timeout_ms, min_version=min_version, client_id=client_id)
            # a failed check ends the connection, and with it this future
            waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await self._check_until(waiting, pipeline, node, api_of(request).name, timeout_ms, answered_in)
            response = await waiting
        except NetworkError as error:
            pipeline.close()
            self._connections.release(node, pipeline)
            self._connections.mark_unknown(node, str(error))
            raise
        self._connections.release(node, pipeline)
        return await self._checked(response, node)

    @property
    def _interval_ms(self) -> int:
        """How long the coordinator is waited for before it is checked."""
        session_ms = self._member.membership.config.session_timeout_ms
        return min(self._cluster.settings.request_timeout_ms, session_ms // _CHECKS_PER_SESSION)

    @staticmethod
    def _is_answered_at_once(request: Request[Any], pipeline: RequestPipeline) -> bool:
        if not isinstance(request, JoinGroupRequest) or request.member_id or request.group_instance_id is not None:
            return False
        return pipeline.version_for(request) >= _MEMBER_ID_REQUIRED_SINCE

    async def _check_until(
        self,
        waiting: asyncio.Future[Any],
        pipeline: RequestPipeline,
        node: Node,
        api: str,
        timeout_ms: int,
        answered_in: Collection[str],
    ) -> None:
        """Checks the coordinator until the response arrives."""
        clock = self._cluster.clock
        interval_ms = self._interval_ms
        deadline_ms, lost, is_reported = clock.now_ms() + timeout_ms, 0, False
        while True:
            await asyncio.wait([waiting], timeout=min(interval_ms, max(deadline_ms - clock.now_ms(), 1)) / 1000)
            if waiting.done() or pipeline.is_receiving:
                return
            if clock.now_ms() >= deadline_ms:
                raise RequestTimeoutError(f"{api} request: no response within {timeout_ms} ms.")
            # the response may be on its way during the first check
            state = await self._connections.group_state(node, interval_ms // 2, interval_ms)
            lost = lost + 1 if state in answered_in else 0
            if waiting.done():
                return
            if not lost and not is_reported:
                is_reported = True
                _log.info("%s Waiting for other members in %s: %d ms.", self._member.log_prefix, api, interval_ms)
            if lost > 1:
                raise NetworkError(f"{api} request: the coordinator has responded, but nothing was received.")

    async def _checked(self, response: R, node: Node) -> R:
        """Returns a response unless it is from a coordinator that does not know that it is no longer one.

        A broker that is cut off from its controller rejects members whose group has moved.

        Raises: NetworkError if the other brokers name another coordinator, which the next request is sent to.
        """
        code = getattr(response, "error_code", 0)
        if code not in FENCING_ERRORS:
            self._rejected_by.clear()
            return response
        self._rejected_by.add(node)
        config = self._member.membership.config
        lookup_ms = min(LOOKUP_MS, config.session_timeout_ms // _CHECKS_PER_SESSION)
        find = self._cluster.find_other_coordinator
        if await self._calls.run(find, config.group_id, frozenset(self._rejected_by), lookup_ms):
            reason = f"{node} responded {error_name(code)}, but is no longer the coordinator."
            self._connections.mark_unknown(node, reason)
            raise NetworkError(reason)
        return response

    def mark_unknown(self, reason: str) -> None:
        """Looks the coordinator up before the next request, unless another one has replaced it since the last one."""
        self._connections.mark_unknown(self._node, reason)
