"""Simulated connections that delay, lose and slow down messages.

Messages are objects: the encoding has its own tests. The deadlines of a response are those of the client's sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

from simulation.applications.virtual_kernel import Kernel, Process, VirtualThread

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.broker_connection import VERSION_CAPS, InFlight
from spark_groupsource.common.deadlines import TransferDeadline
from spark_groupsource.common.net import UNACKNOWLEDGED_MS, Address
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
        # of the next OffsetCommit
        self._late_ms: int | None = None

    def delay_next_commit(self, delay_ms: int) -> None:
        """Delivers the next OffsetCommit so late; the client gets no response."""
        self._late_ms = delay_ms

    def repair(self) -> None:
        self.cut_until_ms = 0
        self._late_ms = None

    def take_delay(self, key: ApiKey) -> int | None:
        if key != ApiKey.OFFSET_COMMIT:
            return None
        late_ms, self._late_ms = self._late_ms, None
        return late_ms


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
        self._link = cluster.link(process, address)
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
        self._arrives_ms = self._delivers_ms = 0
        # the broker processes the next request when it has sent the response to the one before
        self._queued: deque[tuple[Any, int, str]] = deque()
        self._is_muted = False
        self.on_arrival: Callable[[], object] = lambda: None

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
        self,
        request: Any,
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
        client_id: str | None = None,
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
            self._lose_request()
            return sent
        delay_ms = kernel.random.randrange(1, 6)
        late_ms = self._link.take_delay(key)
        if late_ms is not None:
            kernel.call_in(late_ms, self._cluster.receive, self, request, version, self._client_id, _drop)
            self._is_dead = True
            return sent
        self._arrives_ms = max(self._arrives_ms, kernel.now_ms + delay_ms)
        kernel.call_at(self._arrives_ms, self._arrive, request, version, client_id or self._client_id)
        return sent

    def _arrive(self, request: Any, version: int, client_id: str) -> None:
        if self._is_cut():
            self._lose_request()
            return
        if self._is_muted:
            self._queued.append((request, version, client_id))
            return
        self._is_muted = True
        self._cluster.receive(self, request, version, client_id, partial(self._respond, request))

    def _lose_request(self) -> None:
        """The path no longer delivers, and TCP gives up the bytes that are not acknowledged (TCP_USER_TIMEOUT)."""
        self._is_dead = True
        self._kernel.call_in(UNACKNOWLEDGED_MS, self.break_off)

    def _respond(self, request: Any, response: Any) -> None:
        kernel, link = self._kernel, self._link
        self._is_muted = False
        if self._queued:
            kernel.call_in(0, self._arrive, *self._queued.popleft())
        if self._is_dead or self._is_cut():
            self._is_dead = True
            return
        if link.slow_ms and api_of(request).key == ApiKey.FETCH:
            for at_ms in range(_PART_MS, link.slow_ms, _PART_MS):
                kernel.call_in(at_ms, self._deliver, _PART_BYTES, None)
            kernel.call_in(link.slow_ms, self._deliver, _PART_BYTES, response)
        else:
            self._delivers_ms = max(self._delivers_ms, kernel.now_ms + kernel.random.randrange(1, 6))
            kernel.call_at(self._delivers_ms, self._deliver, 100, response)

    def _deliver(self, count: int, response: Any) -> None:
        if self.is_closed or self._is_dead:
            return
        if self._is_cut():
            self._is_dead = True
            return
        self._parts.append((count, response))
        self._kernel.notify(self._waiting)
        self.on_arrival()

    def break_off(self) -> None:
        """The broker closes the connection."""
        self._is_broken = True
        self._kernel.notify(self._waiting)
        self.on_arrival()

    def take_arrived(self) -> list[tuple[int, Any]]:
        """Returns what has arrived, without blocking; see `receive`. Raises: NetworkError."""
        arrived = list(self._parts)
        self._parts.clear()
        if not arrived and (self.is_closed or self._is_broken):
            raise NetworkError(f"Receiving from {self.address}: the connection was lost.")
        return arrived

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

    def close(self) -> None:
        self.is_closed = True
        self._cluster.closed(self)


def _drop(response: Any) -> None:
    """Drops the response of a connection that the client has closed."""


class VirtualPipeline:
    """`RequestPipeline` over a connection of the simulation."""

    is_expired = is_receiving = False

    def __init__(self, connection: Connection, kernel: Kernel) -> None:
        self._connection = connection
        self._kernel = kernel
        self._waiting: deque[tuple[InFlight[Any], asyncio.Future[Any]]] = deque()
        self._deadline = TransferDeadline(0, 0)
        self._is_retired = False

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._connection.on_arrival = lambda: loop.is_closed() or loop.call_soon_threadsafe(self._receive)

    def version_for(self, request: Any) -> int:
        return _version(api_of(request).key, None, 0)

    def call(self, request: Any, timeout_ms: int, *, min_version: int = 0, client_id: str) -> asyncio.Future[Any]:
        sent = self._connection.send(request, timeout_ms, min_version=min_version, client_id=client_id)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((sent, future))
        if len(self._waiting) == 1:
            self._set_deadline(sent)
        return future

    def _set_deadline(self, sent: InFlight[Any]) -> None:
        self._deadline = TransferDeadline(sent.timeout_ms, self._kernel.now_ms)
        self._loop.call_later(sent.timeout_ms / 1000, self._check_deadline, self._deadline)

    def _check_deadline(self, deadline: TransferDeadline) -> None:
        if deadline is not self._deadline or not self._waiting or self.is_closed:
            return
        left_ms = deadline.left_ms(self._kernel.now_ms)
        if left_ms > 0:
            self._loop.call_later(left_ms / 1000, self._check_deadline, deadline)
        else:
            self._fail(RequestTimeoutError(f"No response within {deadline.timeout_ms} ms."))

    def _receive(self) -> None:
        try:
            arrived = self._connection.take_arrived()
        except NetworkError as error:
            self._fail(error)
            return
        for count, response in arrived:
            self._deadline.moved(count, self._kernel.now_ms)
            if response is None:
                continue
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(response)
            if self._waiting:
                self._set_deadline(self._waiting[0][0])
        if self._is_retired and not self._waiting:
            self.close()

    def retire(self) -> None:
        self._is_retired = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        self._fail(NetworkError("The connection was closed."))

    def _fail(self, error: NetworkError) -> None:
        self._connection.close()
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(type(error)(str(error)))


class NetworkClient(ClusterClient):
    """`ClusterClient` with connections of the simulation."""

    simulated: SimulatedCluster
    process: Process

    def connect(self, address: Address, *, client_id: str | None = None) -> Any:
        client_id = self.settings.client_id if client_id is None else client_id
        return Connection(self.simulated, self.process, address, client_id, self.settings)

    def open_pipeline(self, address: Address, timeout_ms: int) -> Any:
        connection = self.connect(address)
        connection.open(timeout_ms)
        return VirtualPipeline(connection, self.process.kernel)
