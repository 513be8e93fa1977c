"""Simulated connections that delay, lose and slow down messages.

Messages are objects: the encoding has its own tests. The deadlines of a response are those of the client's sockets.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

from simulation.applications.virtual_kernel import Process, VirtualThread

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.broker_connection import VERSION_CAPS, InFlight
from spark_groupsource.common.deadlines import TransferDeadline
from spark_groupsource.common.net import Address
from spark_groupsource.errors import NetworkError, RequestTimeoutError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS, api_of
from spark_groupsource.wire.versions import negotiate

if TYPE_CHECKING:
    from simulation.applications.simulated_cluster import SimulatedCluster

Respond = Callable[[Any], None]
_RANGES: dict[int, tuple[int, int]] = {api.key: (api.min_version, api.max_version) for api in APIS.values()}
# a byte of a response on a slow link is a part of a large response
_PART_BYTES = 64 * 1024
_PART_MS = 3_000


@lru_cache(maxsize=None)
def _version(key: ApiKey, max_version: int | None, min_version: int) -> int:
    cap = VERSION_CAPS.get(key)
    caps = [limit for limit in (max_version, cap and max(cap, min_version)) if limit is not None]
    return negotiate(APIS[key], _RANGES, cap=min(caps, default=None), floor=min_version)


class Link:
    """Path between one application and one broker, with its faults."""

    def __init__(self) -> None:
        self.cut_until_ms = 0
        # duration of the response to a Fetch request, 0 for a fast link
        self.slow_ms = 0
        self._late: list[int] = []

    def delay_next_commit(self, delay_ms: int) -> None:
        """Delivers the next OffsetCommit so late; the client gets no response."""
        self._late.append(delay_ms)

    def repair(self) -> None:
        self.cut_until_ms = 0
        self._late.clear()

    def take_delay(self, key: ApiKey) -> int | None:
        return self._late.pop() if self._late and key == ApiKey.OFFSET_COMMIT else None


class Connection:
    """`BrokerConnection` without sockets."""

    availability = None
    is_expired = False
    # brokers before Kafka 4.4, which do not check who is meant
    api_versions: dict[int, tuple[int, int]] = {}

    def __init__(
        self, cluster: SimulatedCluster, process: Process, address: Address, client_id: str, settings: Any
    ) -> None:
        self.address = address
        self.last_used_ms = process.kernel.now_ms
        self.is_closed = False
        self._cluster = cluster
        self._process = process
        self._kernel = process.kernel
        self._client_id = client_id
        self._settings = settings
        self._is_open = False
        self._is_broken = False
        # the path no longer delivers, and the client has not noticed
        self._is_dead = False
        self._parts: deque[tuple[int, Any]] = deque()
        self._waiting: deque[VirtualThread] = deque()
        self._sent = 0
        self._arrives_ms = 0

    @property
    def _link(self) -> Link:
        return self._cluster.link(self._process, self.address)

    def open(self, timeout_ms: int | None = None) -> None:
        if self._is_open:
            return
        if self.is_closed:
            raise NetworkError(f"Request to {self.address} failed: the connection is closed.")
        kernel = self._kernel
        limit_ms = self._settings.connect_timeout_ms if timeout_ms is None else timeout_ms
        if self._is_cut():
            kernel.sleep_ms(min(limit_ms, self._settings.connect_timeout_ms))
            self.is_closed = True
            raise NetworkError(f"Connecting to {self.address} failed: no response.")
        kernel.sleep_ms(kernel.random.randrange(1, 4))
        if self.is_closed:
            raise NetworkError(f"Connecting to {self.address} was aborted.")
        self._cluster.connected(self)
        self._is_open = True

    def _is_cut(self) -> bool:
        return self._kernel.now_ms < self._link.cut_until_ms

    def call(
        self, request: Any, timeout_ms: int | None = None, *, max_version: int | None = None, min_version: int = 0
    ) -> Any:
        (response,) = self.call_each([request], timeout_ms, max_version=max_version, min_version=min_version)
        return response

    def call_each(
        self,
        requests: Sequence[Any],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> Iterator[Any]:
        sent = [self.send(each, timeout_ms, max_version=max_version, min_version=min_version) for each in requests]
        return map(self.receive, sent)

    def send(
        self, request: Any, timeout_ms: int | None = None, *, max_version: int | None = None, min_version: int = 0
    ) -> InFlight[Any]:
        self.open(timeout_ms)
        kernel = self._kernel
        kernel.check()
        if self.is_closed or self._is_broken:
            self.close()
            raise NetworkError(f"Request to {self.address} failed: the connection was lost.")
        key = api_of(request).key
        version = _version(key, max_version, min_version)
        self._sent += 1
        number = self._sent
        timeout_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        sent = InFlight(request, version, number, timeout_ms)
        if self._is_dead or self._is_cut():
            self._is_dead = True
            return sent
        delay_ms = kernel.random.randrange(1, 6)
        late_ms = self._link.take_delay(key)
        if late_ms is not None:
            kernel.call_in(late_ms, self._cluster.receive, self, request, version, self._client_id, _drop)
            self._is_dead = True
            return sent
        self._arrives_ms = max(self._arrives_ms, kernel.now_ms + delay_ms)
        kernel.call_at(self._arrives_ms, self._arrive, request, version)
        return sent

    def _arrive(self, request: Any, version: int) -> None:
        if self._is_cut():
            self._is_dead = True
            return
        self._cluster.receive(self, request, version, self._client_id, partial(self._respond, request))

    def _respond(self, request: Any, response: Any) -> None:
        kernel, link = self._kernel, self._link
        if self._is_dead or self._is_cut():
            self._is_dead = True
            return
        if link.slow_ms and api_of(request).key == ApiKey.FETCH:
            for at_ms in range(_PART_MS, link.slow_ms, _PART_MS):
                kernel.call_in(at_ms, self._deliver, _PART_BYTES, None)
            kernel.call_in(link.slow_ms, self._deliver, _PART_BYTES, response)
        else:
            kernel.call_in(kernel.random.randrange(1, 6), self._deliver, 100, response)

    def _deliver(self, count: int, response: Any) -> None:
        if self.is_closed or self._is_dead:
            return
        if self._is_cut():
            self._is_dead = True
            return
        self._parts.append((count, response))
        self._kernel.notify(self._waiting)

    def break_off(self) -> None:
        """The broker closes the connection."""
        self._is_broken = True
        self._kernel.notify(self._waiting)

    def receive(self, sent: InFlight[Any]) -> Any:
        kernel = self._kernel
        deadline = TransferDeadline(sent.timeout_ms, kernel.now_ms)
        while True:
            kernel.check()
            if self._parts:
                count, response = self._parts.popleft()
                deadline.moved(count, kernel.now_ms)
                if response is not None:
                    self.last_used_ms = kernel.now_ms
                    return response
                continue
            if self.is_closed or self._is_broken:
                self.close()
                raise NetworkError(f"{type(sent.request).__name__} to {self.address}: the connection was lost.")
            left_ms = deadline.left_ms(kernel.now_ms)
            if left_ms <= 0:
                self.close()
                raise RequestTimeoutError(
                    f"{type(sent.request).__name__} to {self.address}: {deadline.count} bytes within "
                    f"{deadline.elapsed_ms(kernel.now_ms)} ms."
                )
            kernel.wait(self._waiting, left_ms)

    def has_response(self, timeout_ms: int) -> bool:
        end_ms = self._kernel.now_ms + timeout_ms
        while not (self._parts or self._is_broken or self.is_closed):
            left_ms = end_ms - self._kernel.now_ms
            if left_ms <= 0:
                return False
            self._kernel.wait(self._waiting, left_ms)
        return True

    def abort(self) -> None:
        self.is_closed = True
        self._kernel.notify(self._waiting)

    def close(self) -> None:
        self.is_closed = True
        self._cluster.closed(self)


def _drop(response: Any) -> None:
    """Drops the response of a connection that the client has closed."""


class NetworkClient(ClusterClient):
    """`ClusterClient` with connections of the simulation."""

    simulated: SimulatedCluster
    process: Process

    def connect(self, address: Address, *, client_id: str | None = None) -> Any:
        client_id = self.settings.client_id if client_id is None else client_id
        return Connection(self.simulated, self.process, address, client_id, self.settings)
