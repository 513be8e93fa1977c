"""Connection of one member to its group coordinator.

Source: AbstractCoordinator.ensureCoordinatorReady, markCoordinatorUnknown.
"""

from __future__ import annotations

import logging
from typing import Collection, TypeVar

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.routing import COORDINATOR_MOVED
from spark_groupsource.client.membership.shared_membership import LocalMember, SharedMembership
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.errors import (
    FENCING_ERRORS,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    RequestTimeoutError,
    error_name,
)
from spark_groupsource.model import Node
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.messages import DescribeGroupsRequest, Request, Response

_log = logging.getLogger(__name__)
R = TypeVar("R", bound="Response")

_LOOKUP_MS = 5_000
# the check of a coordinator ends within session.timeout.ms, so that the member can join at the next one in time
_CHECKS_PER_SESSION = 3


class CoordinatorConnection:
    """Belongs to the thread of the member; another thread may call `abort` only."""

    def __init__(self, member: LocalMember, cluster: ClusterClient, shared: SharedMembership) -> None:
        self._member = member
        self._cluster = cluster
        self._shared = shared
        self._connection: BrokerConnection | None = None
        self._node: Node | None = None
        # the coordinators that have rejected this member since one accepted it
        self._rejected_by: set[Node] = set()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def call(self, request: Request[R], timeout_ms: int, min_version: int) -> R:
        """Sends one request to the coordinator, which becomes unknown if the connection is lost.

        Raises: NetworkError also if the coordinator has rejected the member and another one has the group since.
        """
        connection = self.connected(timeout_ms)
        try:
            return self._checked(connection.call(request, timeout_ms, min_version=min_version))
        except NetworkError as error:
            self.mark_unknown(str(error))
            raise

    def call_delayed(self, request: Request[R], timeout_ms: int, min_version: int, answered_in: Collection[str]) -> R:
        """Sends a request whose response waits for other members; the coordinator is checked meanwhile.

        A coordinator that stops without closing the connection, for example a frozen process, never responds. Kafka's
        client waits for `timeout_ms` in any case.

        Args:
            answered_in: states of the group in which the coordinator has responded to the request.
        Raises: NetworkError, as soon as the coordinator does not respond to the check, or is another node, or has twice
            been found to have responded on a connection that was lost; RequestTimeoutError after `timeout_ms`.
        """
        api, clock = api_of(request).name, self._cluster.clock
        connection = self.connected(timeout_ms)
        request_timeout_ms = self._cluster.settings.request_timeout_ms
        session_ms = self._member.membership.config.session_timeout_ms
        interval_ms = min(request_timeout_ms, session_ms // _CHECKS_PER_SESSION)
        try:
            sent = connection.send(request, request_timeout_ms, min_version=min_version)
            deadline_ms, lost = clock.now_ms() + timeout_ms, 0
            is_reported = False
            while not connection.has_response(min(interval_ms, max(deadline_ms - clock.now_ms(), 1))):
                if clock.now_ms() >= deadline_ms:
                    raise RequestTimeoutError(f"{api} request: no response within {timeout_ms} ms.")
                # the response may be on its way during the first check
                lost = lost + 1 if self._group_state(interval_ms) in answered_in else 0
                if not lost and not is_reported:
                    is_reported = True
                    _log.info("%s Waiting for other members in %s: %d ms.", self._member.log_prefix, api, interval_ms)
                if lost > 1:
                    raise NetworkError(f"{api} request: the coordinator has responded, but nothing was received.")
            return self._checked(connection.receive(sent))
        except NetworkError as error:
            self.mark_unknown(str(error))
            raise

    def _checked(self, response: R) -> R:
        """Returns a response unless it is from a coordinator that does not know that it is no longer one.

        A broker that is cut off from its controller rejects members whose group has moved.

        Raises: NetworkError if the other brokers name another coordinator, which the next request is sent to.
        """
        code, node = getattr(response, "error_code", 0), self._node
        if code not in FENCING_ERRORS or node is None:
            self._rejected_by.clear()
            return response
        self._rejected_by.add(node)
        config = self._member.membership.config
        lookup_ms = min(_LOOKUP_MS, config.session_timeout_ms // _CHECKS_PER_SESSION)
        if self._cluster.find_other_coordinator(config.group_id, self._rejected_by, lookup_ms):
            raise NetworkError(f"{node} responded {error_name(code)}, but is no longer the coordinator.")
        return response

    def _group_state(self, timeout_ms: int) -> str:
        """Returns the state of the group, empty if the coordinator does not name it.

        Raises: NetworkError if the node does not respond or is no longer the coordinator.
        """
        node, group_id = self._node, self._member.membership.config.group_id
        if node is None:
            raise NetworkError("The connection to the coordinator is closed.")
        request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
        try:
            (group,) = self._cluster.call_address(self._cluster.node_address(node), request, timeout_ms).groups
        except NetworkError:
            raise
        except GroupSourceError as error:
            _log.debug("%s The coordinator cannot be checked: %s", self._member.log_prefix, error)
            return ""
        if group.error_code in COORDINATOR_MOVED:
            raise NetworkError(f"{node} is no longer the coordinator: {error_name(group.error_code)}.")
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return "Dead"
        return "" if group.error_code else group.group_state

    def connected(self, timeout_ms: int) -> BrokerConnection:
        """Returns the open connection; looks the coordinator up and connects if there is none.

        Raises: BrokerError, NetworkError.
        """
        if self._connection is not None and not self._connection.is_closed:
            if not self._connection.is_expired:
                return self._connection
            self.disconnect()
        membership = self._member.membership
        lookup_ms = min(_LOOKUP_MS, membership.config.session_timeout_ms)
        node = self._cluster.find_coordinator(membership.config.group_id, lookup_ms)
        connection = self._cluster.connect(self._cluster.node_address(node), client_id=self._member.client_id)
        self._connection, self._node = connection, node
        with self._shared.changed:
            if self._shared.is_closing:
                raise NetworkError("Connecting to the coordinator was canceled: the group client is closing.")
            # as Kafka's client (KIP-601), twice as long after each failure
            open_ms = self._cluster.settings.connect_timeout_ms << min(membership.attempts, 20)
        try:
            connection.open(min(timeout_ms, open_ms))
        except NetworkError as error:
            self.mark_unknown(str(error))
            raise
        _log.info("%s Connected to coordinator %s.", self._member.log_prefix, node)
        self._restart_session_timer()
        return connection

    def mark_unknown(self, reason: str) -> None:
        """Disconnects, so that the next request looks the coordinator up; the membership itself is not reset."""
        _log.info("%s Coordinator is unavailable, rediscovering it: %s", self._member.log_prefix, reason)
        if self._node is not None:
            self._cluster.invalidate_coordinator(self._member.membership.config.group_id, self._node)
        self.disconnect()
        self._restart_session_timer()
        with self._shared.changed:
            if self._member.commits:
                # what the coordinator has acknowledged may be lost with it
                self._member.membership.repetition.request_lost(self._cluster.clock.now_ms())

    def disconnect(self) -> None:
        """Closes the connection; the next call opens another one."""
        connection, self._connection, self._node = self._connection, None, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """Ends a pending read or write; for other threads."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def _restart_session_timer(self) -> None:
        with self._shared.changed:
            self._member.membership.restart_session_timer(self._cluster.clock.now_ms())
