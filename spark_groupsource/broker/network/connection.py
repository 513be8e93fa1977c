"""One client's connection: bytes to frames to requests, one at a time, and the answers back in order.

A connection has one request in progress; what comes behind it waits in the buffer and, past a limit, in the client's
own socket. So answers are in order, and one client cannot fill the memory: its cost is a frame, an answer, and the
read-ahead.

Source: Kafka `Processor` and `KafkaChannel`, which mute a channel while its request is in progress.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Protocol

from spark_groupsource.broker.api.versions import API_VERSIONS_KEY, unsupported_api_versions
from spark_groupsource.broker.network.authentication import LOGIN_APIS, Login
from spark_groupsource.broker.node import Broker, Call
from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.frames import (
    RequestHeader,
    decode_request,
    encode_response,
    frame_length,
    read_request_header,
)
from spark_groupsource.wire.messages import Message

_PREFIX_BYTES = 4
_READ_AHEAD_BYTES = 1 << 20
_WRITE_BUFFER_BYTES = 1 << 20
_LOGIN_MAX_BYTES = 524_288  # of who has not said yet who he is, as Kafka's sasl.server.max.receive.size


class Host(Protocol):
    """What a connection needs of its server."""

    broker: Broker
    node_id: int
    inbox: memoryview

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def new_token(self, connection: Connection) -> int: ...

    def after_work(self) -> None: ...

    def failed(self, connection: Connection, error: Exception) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """The server's half of one connection. `last_activity_ms` moves when bytes move.

    What arrives is received into its host's `inbox`, whole requests are taken out at once, and only what is left over
    is kept here: asyncio's other protocols get new memory of 256 KiB for whatever comes, which takes longer than a
    heartbeat.
    """

    def __init__(self, host: Host, now_ms: Callable[[], int]) -> None:
        self._host = host
        self._now_ms = now_ms
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._token: int | None = None
        self._header = (0, 0)  # version and correlation id of the request in progress
        self._write_full = False
        self._reading_paused = False
        self._working = False
        self._login = host.broker.accounts.login()
        self.peer = "unknown"
        self.last_activity_ms = now_ms()

    @property
    def waits_for_client(self) -> bool:
        """True when it is the client's turn: to send a request, or to take an answer."""
        return self._token is None or self._write_full

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "unknown"
        self._host.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._buffer.clear()
        if self._token is not None:
            self._host.broker.forget(self._token)
        self._host.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._host.inbox

    def buffer_updated(self, nbytes: int) -> None:
        self.last_activity_ms = self._now_ms()
        arrived = self._host.inbox[:nbytes]
        if self._buffer:
            self._buffer += arrived
            self._work()
        else:
            self._work(arrived)

    def pause_writing(self) -> None:
        self._write_full = True

    def resume_writing(self) -> None:
        self._write_full = False
        self.last_activity_ms = self._now_ms()
        self._work()

    # --- called by the server ---

    def answer(self, response: Message | None) -> None:
        """Sends the answer to the request in progress, None where none is expected, and goes on to the next."""
        version, correlation_id = self._header
        self._token = None
        if self._transport is None:
            return
        if response is not None:
            try:
                self._transport.write(encode_response(response, version, correlation_id))
            except Exception as error:  # a bug in what was answered: nobody else's answer must suffer
                self._host.failed(self, error)
                self.close()
                return
            self.last_activity_ms = self._now_ms()
        if self._buffer and not self._working:
            # not at once: this may be called from the work of another connection, and that from a third's
            asyncio.get_running_loop().call_soon(self._work)

    def close(self) -> None:
        """Drops the connection, and what is still to be written."""
        if self._transport is not None:
            self._transport.abort()

    # --- frames ---

    def _work(self, arrived: memoryview | None = None) -> None:
        """Takes requests out of what has just arrived, else of what was kept, as long as none is in progress."""
        self._working = True
        try:
            if arrived is None:
                taken = self._take_requests(self._buffer)
                del self._buffer[:taken]
            else:
                self._buffer += arrived[self._take_requests(arrived) :]
        except RemoteProtocolError as error:
            self._host.broker.report(f"connection from {self.peer} is closed: {error}")
            self.close()
        except Exception as error:  # a bug: this client is dropped, the others are served on
            self._host.failed(self, error)
            self.close()
        finally:
            self._working = False
        self._limit_reading()
        self._host.after_work()

    def _take_requests(self, data: bytearray | memoryview) -> int:
        """How many bytes of `data` were taken."""
        position = 0
        while (end := self._frame_end(data, position)) and self._is_free:
            # a copy of its own: records in the request are views of it
            frame = bytes(memoryview(data)[position + _PREFIX_BYTES : end])
            position = end
            self._take(memoryview(frame))
        return position

    @property
    def _is_free(self) -> bool:
        return (
            self._token is None
            and not self._write_full
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def _frame_end(self, data: bytearray | memoryview, position: int) -> int:
        """Where the frame at `position` ends, 0 when it has not come whole."""
        start = position + _PREFIX_BYTES
        if len(data) < start:
            return 0
        limit = self._host.broker.config.socket_request_max_bytes
        if self._login is not None and not self._login.done:
            limit = min(limit, _LOGIN_MAX_BYTES)
        end = start + frame_length(data[position:start], limit)
        return end if end <= len(data) else 0

    def _take(self, frame: memoryview) -> None:
        header, position = read_request_header(frame)
        served = self._host.broker.served
        api = served.get(header.api_key)
        if api is None or not api.min_version <= header.api_version <= api.max_version:
            if header.api_key != API_VERSIONS_KEY or self._transport is None:
                raise RemoteProtocolError(
                    f"request of API {header.api_key} version {header.api_version} is not served here; "
                    "the client should ask ApiVersions first"
                )
            self._transport.write(encode_response(unsupported_api_versions(served), 0, header.correlation_id))
            return
        request = decode_request(frame, header, position)
        if self._login is not None and not self._login.done and header.api_key != API_VERSIONS_KEY:
            self._log_in(self._login, header, request)
            return
        self._header = (header.api_version, header.correlation_id)
        self._token = token = self._host.new_token(self)
        call = Call(token, header.api_key, header.api_version, header.client_id or "", self.peer, self._host.node_id)
        self._host.broker.handle(call, request)

    def _log_in(self, login: Login, header: RequestHeader, request: Message) -> None:
        if header.api_key not in LOGIN_APIS:
            raise RemoteProtocolError(
                f"request of API {header.api_key} comes before the client has said who it is; set "
                "security.protocol=SASL_PLAINTEXT, sasl.mechanism, user name and password there"
            )
        assert self._transport is not None
        self._transport.write(encode_response(login.answer(request), header.api_version, header.correlation_id))
        if login.failed:
            self._host.broker.report(f"connection from {self.peer} is refused: {login.failed}")
            self._buffer.clear()
            self._transport.close()  # once the client was told why

    def _limit_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        held_up = self._token is not None or self._write_full
        full = held_up and len(self._buffer) > _READ_AHEAD_BYTES
        if full and not self._reading_paused:
            self._transport.pause_reading()
        elif not full and self._reading_paused:
            self._transport.resume_reading()
        self._reading_paused = full
