"""Connection of one member to its group coordinator.

Source: AbstractCoordinator.ensureCoordinatorReady, markCoordinatorUnknown.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.membership.shared_membership import LocalMember, SharedMembership
from spark_groupsource.client.network.connection import BrokerConnection
from spark_groupsource.errors import NetworkError
from spark_groupsource.model import Node
from spark_groupsource.wire.messages import Request, Response

_log = logging.getLogger(__name__)
R = TypeVar("R", bound="Response")

_LOOKUP_MS = 5_000


class CoordinatorConnection:
    """Belongs to the thread of the member; another thread may call `abort` only."""

    def __init__(self, member: LocalMember, cluster: Cluster, shared: SharedMembership) -> None:
        self._member = member
        self._cluster = cluster
        self._shared = shared
        self._connection: BrokerConnection | None = None
        self._node: Node | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def call(self, request: Request[R], timeout_ms: int, min_version: int) -> R:
        """Sends one request to the coordinator, which becomes unknown if the connection is lost."""
        connection = self.connected(timeout_ms)
        try:
            return connection.call(request, timeout_ms, min_version=min_version)
        except NetworkError as error:
            self.mark_unknown(str(error))
            raise

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
        try:
            connection.open(timeout_ms)
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
