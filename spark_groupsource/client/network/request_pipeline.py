"""Requests of an event loop over one broker connection.

A broker processes the requests of a connection one after the other, so the responses arrive in the order of the
requests, and one that is delayed delays all after it (Kafka's SocketServer, which mutes the channel).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, ContextManager

from spark_groupsource.client.network.availability import BrokerAvailability
from spark_groupsource.client.network.broker_connection import DELAYED_APIS, BrokerConnection, R
from spark_groupsource.common import net
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.deadlines import TransferDeadline
from spark_groupsource.errors import GroupSourceError, NetworkError, RemoteProtocolError, RequestTimeoutError
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.frames import decode_response, encode_request, frame_length
from spark_groupsource.wire.messages import Request

_log = logging.getLogger(__name__)
_PREFIX_BYTES = 4


@dataclass
class _Waiting:
    """A request without a response."""

    request: Request[Any]
    version: int
    correlation_id: int
    timeout_ms: int
    response: asyncio.Future[Any]
    watch: ContextManager[None] | None


class RequestPipeline:
    """Belongs to the event loop that calls `start`; no other thread may use it."""

    def __init__(
        self,
        connection: BrokerConnection,
        clock: Clock,
        request_timeout_ms: int,
        availability: BrokerAvailability | None = None,
    ) -> None:
        """`connection`: an open one, which nothing else uses."""
        self.address = connection.address
        self._connection = connection
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._availability = availability
        self._loop: asyncio.AbstractEventLoop | None = None
        self._correlation_id = 1 << 16
        self._waiting: deque[_Waiting] = deque()
        self._deadline = TransferDeadline(0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = bytearray()
        self._is_flushing = False
        self._is_retired = False
        self._received = bytearray()

    @property
    def is_closed(self) -> bool:
        """True after `close`, after any error, and when the broker has closed the connection."""
        return self._connection.is_closed

    @property
    def is_expired(self) -> bool:
        """As `BrokerConnection.is_expired`."""
        return self._connection.is_expired

    @property
    def is_receiving(self) -> bool:
        """True while a response has arrived in part."""
        return bool(self._received)

    def start(self) -> None:
        """Receives from now on, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._socket = self._connection.without_blocking()
        self._loop.add_reader(self._socket, self._receive)

    def version_for(self, request: Request[R]) -> int:
        """As `BrokerConnection.version_for`."""
        return self._connection.version_for(request)

    def call(
        self, request: Request[R], timeout_ms: int, *, min_version: int = 0, client_id: str
    ) -> asyncio.Future[R]:
        """Sends a request after the earlier ones; returns a future of its response.

        The future has a NetworkError or RemoteProtocolError if the connection ends before.

        Args:
            timeout_ms: how long no bytes may move after the response before it; every byte is progress.
            client_id: of the request; the requests of several clients may share a connection.
        Raises: UnsupportedVersionError; NetworkError if the connection is closed.
        """
        loop = self._loop
        if loop is None or self.is_closed:
            raise NetworkError(f"{api_of(request).name} request to {self.address}: the connection is closed.")
        version = self._connection.version_for(request, min_version=min_version)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = encode_request(request, version, self._correlation_id, client_id)
        response: asyncio.Future[R] = loop.create_future()
        waiting = _Waiting(request, version, self._correlation_id, timeout_ms, response, self._watch(request))
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self._set_deadline(timeout_ms)
        self._unsent += frame
        if not self._is_flushing:
            # what else this iteration of the loop sends goes out together
            self._is_flushing = True
            loop.call_soon(self._flush)
        return response

    def retire(self) -> None:
        """Closes the connection when the requests so far have their responses."""
        self._is_retired = True
        if not self._waiting:
            self.close()

    def close(self, error: GroupSourceError | None = None) -> None:
        """Closes the connection; requests without a response fail."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
        self._connection.close()
        self._unsent.clear()
        self._received.clear()
        failure = error or NetworkError("The connection was closed.")
        while self._waiting:
            waiting = self._waiting.popleft()
            name = api_of(waiting.request).name
            each = type(failure)(f"{name} request to {self.address}: {failure}")
            if waiting.watch is not None:
                waiting.watch.__exit__(type(each), each, None)
            if not waiting.response.done():
                waiting.response.set_exception(each)

    def _watch(self, request: Request[Any]) -> ContextManager[None] | None:
        if self._availability is None or api_of(request).key in DELAYED_APIS:
            return None
        watch = self._availability.watch(self.address, is_connected=True)
        watch.__enter__()
        return watch

    # -- deadline of the oldest request ------------------------------------------------------------------------------

    def _set_deadline(self, timeout_ms: int) -> None:
        """Starts the deadline of the oldest request; a running timer that fires before is left as it is."""
        self._deadline = TransferDeadline(timeout_ms, self._clock.now_ms())
        loop = self._loop
        if loop is None:
            return
        due_s = loop.time() + timeout_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._waiting or self._loop is None:
            return
        now_ms = self._clock.now_ms()
        left_ms = self._deadline.left_ms(now_ms)
        if left_ms > 0:
            self._timer = self._loop.call_later(left_ms / 1000, self._check_deadline)
            return
        deadline = self._deadline
        if not deadline.count:
            self.close(RequestTimeoutError(f"No response within {deadline.timeout_ms} ms."))
        else:
            elapsed_ms = deadline.elapsed_ms(now_ms)
            self.close(RequestTimeoutError(f"{deadline.count} bytes within {elapsed_ms} ms."))

    # -- bytes -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            while self._unsent:
                count = net.send_some(self._socket, self._unsent)
                if not count:
                    break
                del self._unsent[:count]
                if self._unsent:
                    self._deadline.moved(count, self._clock.now_ms())
        except NetworkError as error:
            self.close(error)
            return
        if self._unsent:
            loop.add_writer(self._socket, self._flush)
        else:
            loop.remove_writer(self._socket)
            self._is_flushing = False

    def _receive(self) -> None:
        try:
            # one call returns what one TLS record or one buffer has
            while self._loop is not None:
                data = net.receive_some(self._socket)
                if data is None:
                    return
                if not self._received and self._waiting:
                    # the response may have been delayed, its bytes may not
                    timeout_ms = min(self._waiting[0].timeout_ms, self._request_timeout_ms)
                    self._set_deadline(timeout_ms)
                self._received += data
                self._deadline.moved(len(data), self._clock.now_ms())
                self._take_responses()
        except (NetworkError, RemoteProtocolError) as error:
            self.close(error)

    def _take_responses(self) -> None:
        received, position = self._received, 0
        while len(received) - position >= _PREFIX_BYTES:
            prefix = received[position : position + _PREFIX_BYTES]
            end = position + _PREFIX_BYTES + frame_length(prefix, self._connection.max_response_bytes)
            if len(received) < end:
                break
            self._take_response(bytes(received[position + _PREFIX_BYTES : end]))
            position = end
        # `close` may have cleared it
        del received[: min(position, len(received))]
        if self._is_retired and not self._waiting:
            self.close()

    def _take_response(self, frame: bytes) -> None:
        if not self._waiting:
            raise RemoteProtocolError("A response without a request was received.")
        waiting = self._waiting[0]
        response = decode_response(memoryview(frame), waiting.request, waiting.version, waiting.correlation_id)
        self._waiting.popleft()
        if waiting.watch is not None:
            waiting.watch.__exit__(None, None, None)
        if not waiting.response.done():
            waiting.response.set_result(response)
        if self._waiting:
            self._set_deadline(self._waiting[0].timeout_ms)
