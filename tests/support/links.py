"""Links to a broker: slow ones, and ones that change responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from support.clients import FakeBroker, advertise, fake_broker

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.wire.messages import FetchResponse, MetadataResponse

_PIECE_BYTES = 8 * 1024


class TokenBucket:
    """Bytes of one link: `take` returns once the link has sent them."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    def take(self, count: int) -> None:
        self._free_at = max(self._free_at, time.monotonic()) + count / self._bytes_per_s
        time.sleep(max(self._free_at - time.monotonic(), 0))


def send_slowly(broker: FakeBroker, bytes_per_s: int) -> None:
    """Sends every response of a broker at this rate from now on."""
    bucket = TokenBucket(bytes_per_s)

    def send(peer: Any, data: bytes) -> None:
        view = memoryview(data)
        for begin in range(0, len(view), _PIECE_BYTES):
            piece = view[begin : begin + _PIECE_BYTES]
            bucket.take(len(piece))
            peer.sendall(piece)

    broker.send = send


@contextmanager
def forwarding(bootstrap_servers: str, on_fetched: Callable[[Any, Any], None]) -> Iterator[FakeBroker]:
    """Forwards requests to a broker; clients know the returned address only.

    Args:
        on_fetched: receives each Fetch request and its response, which it may change.
    """
    (address,) = parse_addresses(bootstrap_servers)
    with ExitStack() as opened:
        proxy = opened.enter_context(fake_broker())

        def forward(request: Any, version: int) -> Any:
            connection = BrokerConnection(address, client_id="p", security=SecuritySettings(), clock=SystemClock())
            opened.callback(connection.close)
            response: Any = connection.call(request, max_version=version, min_version=version)
            if isinstance(response, MetadataResponse):
                for node in response.brokers:
                    node.host, node.port = proxy.address
            elif isinstance(response, FetchResponse):
                on_fetched(request, response)
            return response

        served = {"Metadata": (4, 12), "Fetch": (4, 13), "ListOffsets": (1, 7), "DescribeConfigs": (1, 4)}
        proxy.responses.update(dict.fromkeys(served, forward))
        proxy.responses["ApiVersions"] = lambda request, version: advertise(ApiVersions=(0, 3), **served)
        yield proxy
