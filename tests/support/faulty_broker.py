"""Proxy that loses Produce requests and responses, or answers with errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from support.clients import ConnectionLostError, FakeBroker, advertise, fake_broker

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import MetadataResponse, ProduceResponse

LOSE_REQUEST, LOSE_RESPONSE, NO_RESPONSE = "lose request", "lose response", "no response"
Fault = str | ErrorCode | None


@contextmanager
def faulty_broker(bootstrap_servers: str, fault: Callable[[], Fault]) -> Iterator[FakeBroker]:
    """Forwards requests to a broker; clients know the returned address only.

    Args:
        fault: what happens to the next Produce request: a connection is lost before or after the broker receives it,
            the response is dropped, or each partition has an error, and the broker does not receive it; None if it is
            forwarded.
    """
    (address,) = parse_addresses(bootstrap_servers)
    lock = threading.Lock()
    with ExitStack() as opened:
        proxy = opened.enter_context(fake_broker())
        connection: BrokerConnection = BrokerConnection(
            address, client_id="p", security=SecuritySettings(), clock=SystemClock()
        )
        opened.callback(connection.close)

        def forward(request: Any, version: int) -> Any:
            with lock:
                chosen = fault() if hasattr(request, "topic_data") else None
                if chosen == LOSE_REQUEST:
                    raise ConnectionLostError
                if isinstance(chosen, ErrorCode):
                    return failed(request, chosen)
                response: Any = connection.call(request, max_version=version, min_version=version)
                if chosen == LOSE_RESPONSE:
                    raise ConnectionLostError
                if chosen == NO_RESPONSE:
                    return None
            if isinstance(response, MetadataResponse):
                for node in response.brokers:
                    node.host, node.port = proxy.address
            return response

        served = {"Metadata": (4, 12), "Produce": (3, 12), "InitProducerId": (0, 5)}
        proxy.responses.update(dict.fromkeys(served, forward))
        proxy.responses["ApiVersions"] = lambda request, version: advertise(ApiVersions=(0, 3), **served)
        yield proxy


def failed(request: Any, code: ErrorCode) -> ProduceResponse:
    """Returns a response with one error for all partitions."""
    row = ProduceResponse.TopicProduceResponse
    return ProduceResponse(
        responses=[
            row(
                name=topic.name,
                partition_responses=[
                    row.PartitionProduceResponse(index=p.index, error_code=int(code), base_offset=-1)
                    for p in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
