"""Proxy that advertises several nodes of one broker and injects faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from support.clients import ConnectionLostError, FakeBroker, advertise, fake_broker

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.messages import ApiVersionsRequest, FindCoordinatorResponse, MetadataResponse

# node ids of the proxy, none of which is one of the broker
_FIRST_NODE = 100
_CALL_MS = 60_000
_NOT_FORWARDED = frozenset({"ApiVersions", "DescribeCluster", "SaslHandshake", "SaslAuthenticate"})


class ProxiedCluster:
    """Nodes that forward every request to one broker.

    Attributes:
        nodes: one listener for each advertised node; node 0 leads and coordinates everything.
        is_cut: whether all connections are closed at their next request.
        respond: returns the response to a request; called with the number of the node, the name of the API, the
            request, and a function that forwards it. It may change the response, or raise `ConnectionLostError`.
        coordinators: number of the node that each node names as the coordinator.
    """

    def __init__(self, nodes: list[FakeBroker]) -> None:
        self.nodes = nodes
        self.is_cut = False
        self.coordinators = [0] * len(nodes)
        self.respond: Callable[[int, str, Any, Callable[[], Any]], Any] = lambda node, api, request, forward: forward()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(node.address) for node in self.nodes)

    def sent(self, node: int, api: str) -> list[Any]:
        """Returns the requests of one API that a node has received."""
        return [request for name, _, request in self.nodes[node].requests if name == api]

    def advertised(self, node: int, response: Any) -> Any:
        """Replaces the nodes in the response of the broker by those of the proxy."""
        if isinstance(response, MetadataResponse):
            row = MetadataResponse.MetadataResponseBroker
            response.brokers = [
                row(node_id=_FIRST_NODE + number, host=each.address.host, port=each.address.port, rack=None)
                for number, each in enumerate(self.nodes)
            ]
            response.controller_id = _FIRST_NODE
            for topic in response.topics:
                for p in topic.partitions:
                    p.leader_id = _FIRST_NODE
                    p.replica_nodes = p.isr_nodes = [_FIRST_NODE]
        elif isinstance(response, FindCoordinatorResponse):
            named = self.coordinators[node]
            rows: list[Any] = list(response.coordinators) or [response]
            for found in rows:
                if not found.error_code:
                    found.node_id, (found.host, found.port) = _FIRST_NODE + named, self.nodes[named].address
        return response


@contextmanager
def proxied_cluster(bootstrap_servers: str, nodes: int = 1) -> Iterator[ProxiedCluster]:
    """Starts the nodes; clients with their addresses know no other ones."""
    address = parse_addresses(bootstrap_servers)[0]
    with ExitStack() as opened:
        cluster = ProxiedCluster([opened.enter_context(fake_broker()) for _ in range(nodes)])

        def connect() -> BrokerConnection:
            connection: BrokerConnection = BrokerConnection(
                address, client_id="p", security=SecuritySettings(), clock=SystemClock()
            )
            opened.callback(connection.close)
            return connection

        versions = ApiVersionsRequest(client_software_name="p", client_software_version="1")
        served = {
            api.name: (max(row.min_version, api.min_version), min(row.max_version, api.max_version))
            for row in connect().call(versions).api_keys
            for api in APIS.values()
            if api.key == row.api_key and api.name not in _NOT_FORWARDED
        }

        def handle(node: int, api: str, request: Any, version: int) -> Any:
            if cluster.is_cut:
                raise ConnectionLostError

            def forward() -> Any:
                # JoinGroup delays the requests that follow on its connection
                connection = connect()
                try:
                    response = connection.call(request, _CALL_MS, max_version=version, min_version=version)
                finally:
                    connection.close()
                return cluster.advertised(node, response)

            return cluster.respond(node, api, request, forward)

        for number, node in enumerate(cluster.nodes):
            node.responses.update({api: partial(handle, number, api) for api in served})
            node.responses["ApiVersions"] = lambda request, version: advertise(ApiVersions=(0, 3), **served)
        yield cluster
