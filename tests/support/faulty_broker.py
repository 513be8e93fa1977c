"""Proxy that loses requests of one API, or answers with errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from support.clients import ConnectionLostError, FakeBroker, advertise, fake_broker

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire import messages
from spark_groupsource.wire.messages import FindCoordinatorResponse, MetadataResponse

LOSE_REQUEST, LOSE_RESPONSE, NO_RESPONSE = "lose request", "lose response", "no response"
Fault = str | ErrorCode | None


@contextmanager
def faulty_broker(bootstrap_servers: str, fault: Callable[[], Fault], api: str = "Produce") -> Iterator[FakeBroker]:
    """Forwards requests of producers to a broker; clients know the returned address only.

    Args:
        fault: what happens to the next request of the API: a connection is lost before or after the broker receives it,
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
                chosen = fault() if isinstance(request, getattr(messages, f"{api}Request")) else None
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
            if isinstance(response, FindCoordinatorResponse):
                for coordinator in response.coordinators:
                    coordinator.host, coordinator.port = proxy.address
            return response

        served = {
            "Metadata": (4, 12), "Produce": (3, 12), "InitProducerId": (0, 5), "FindCoordinator": (4, 4),
            "AddPartitionsToTxn": (0, 3), "AddOffsetsToTxn": (0, 4), "TxnOffsetCommit": (0, 4), "EndTxn": (0, 4),
            "OffsetFetch": (0, 8), "ListOffsets": (0, 7),
        }  # fmt: skip
        proxy.responses.update(dict.fromkeys(served, forward))
        proxy.responses["ApiVersions"] = lambda request, version: advertise(ApiVersions=(0, 3), **served)
        yield proxy


def fail_metadata(proxy: FakeBroker, codes: Iterable[ErrorCode]) -> None:
    """Gives each topic in the next responses to Metadata an error, one response after the other."""
    forward, coming = proxy.responses["Metadata"], iter(codes)

    def respond(request: Any, version: int) -> Any:
        response = forward(request, version)
        code = next(coming, ErrorCode.NONE) if response.topics else ErrorCode.NONE
        for topic in response.topics if code else ():
            topic.error_code, topic.partitions = int(code), []
        return response

    proxy.responses["Metadata"] = respond


def failed(request: Any, code: ErrorCode) -> Any:
    """Returns a response with one error, for all partitions if they have errors of their own."""
    if isinstance(request, messages.ProduceRequest):
        produced = messages.ProduceResponse.TopicProduceResponse
        return messages.ProduceResponse(
            responses=[
                produced(
                    name=topic.name,
                    partition_responses=[
                        produced.PartitionProduceResponse(index=p.index, error_code=int(code), base_offset=-1)
                        for p in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )
    if isinstance(request, messages.AddPartitionsToTxnRequest):
        added = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        row = added.AddPartitionsToTxnPartitionResult
        return messages.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                added(
                    name=topic.name,
                    results_by_partition=[
                        row(partition_index=number, partition_error_code=int(code)) for number in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )
    if isinstance(request, messages.TxnOffsetCommitRequest):
        committed = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        return messages.TxnOffsetCommitResponse(
            topics=[
                committed(
                    name=topic.name,
                    partitions=[
                        committed.TxnOffsetCommitResponsePartition(
                            partition_index=p.partition_index, error_code=int(code)
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    response: Any = getattr(messages, type(request).__name__.replace("Request", "Response"))
    return response(error_code=int(code))
