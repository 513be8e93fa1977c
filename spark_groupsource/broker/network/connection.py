"""One client connection of the broker: framing, request order, backpressure.

A connection has at most one request in progress. Later requests wait in the buffer and, above a limit, in the client's
socket. This keeps responses in order and bounds the memory of one connection to a frame, a response and the read-ahead.

One request is handled when bytes arrive. Further complete requests take turns with those of other connections, so that
a client with many requests in flight does not delay the others.

Source: Kafka `Processor` and `KafkaChannel`, which mute a channel while its request is in progress.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Protocol

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.versions import unsupported_api_versions
from spark_groupsource.broker.network.authentication import SASL_APIS, SaslAuthenticator
from spark_groupsource.broker.network.scheduler import Scheduler, Task
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.frames import (
    RequestHeader,
    decode_request,
    encode_frame,
    encode_response,
    frame_length,
    read_request_header,
)
from spark_groupsource.wire.messages import ApiMessage, Request, SaslAuthenticateRequest, SaslHandshakeRequest

_PREFIX_BYTES = 4
_READ_AHEAD_BYTES = 1 << 20
_WRITE_BUFFER_BYTES = 1 << 20
_UNAUTHENTICATED_MAX_BYTES = 524_288  # Kafka's sasl.server.max.receive.size


class ConnectionOwner(Protocol):
    """The listener of a connection. `receive_buffer`: shared by all connections of the listener."""

    broker: Broker
    dispatcher: RequestDispatcher
    node_id: int
    receive_buffer: memoryview
    scheduler: Scheduler

    def on_open(self, connection: Connection) -> None: ...

    def on_close(self, connection: Connection) -> None: ...

    def new_token(self, connection: Connection) -> int: ...

    def cancel(self, token: int) -> None: ...

    def after_requests(self) -> None: ...

    def on_error(self, connection: Connection, error: Exception) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """The server side of one connection. `last_activity_ms`: when bytes were last received or sent.

    Bytes are received into the shared buffer of the listener; complete requests are decoded at once and only the rest
    is copied. The default protocols of asyncio allocate 256 KiB per read, which takes longer than a heartbeat.
    """

    def __init__(self, owner: ConnectionOwner, now_ms: Callable[[], int]) -> None:
        self._owner = owner
        self._now_ms = now_ms
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._token: int | None = None
        self._header = (0, 0)  # version and correlation id of the request in progress
        self._is_write_buffer_full = False
        self._is_reading_paused = False
        self._is_processing = False
        self._turn: Task | None = None  # of the requests in the buffer
        credentials = owner.broker.credentials
        self._authenticator = SaslAuthenticator(credentials) if credentials.mechanisms else None
        self.peer = "unknown"
        self.last_activity_ms = now_ms()

    @property
    def waits_for_client(self) -> bool:
        """Whether the next step is the client's: to send a request or to read a response."""
        return self._token is None or self._is_write_buffer_full

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that the client has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "unknown"
        self._owner.on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._buffer.clear()
        if self._token is not None:
            self._owner.broker.fetch_manager.cancel(self._token)
            self._owner.cancel(self._token)
        if self._turn is not None:
            self._turn.cancel()
        self._owner.on_close(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.last_activity_ms = self._now_ms()
        received = self._owner.receive_buffer[:nbytes]
        if self._buffer:
            self._buffer += received
            received = self._owner.receive_buffer[:0]
        if self._turn is None:
            self._handle_next(received)
        else:
            self._limit_reading()

    def pause_writing(self) -> None:
        self._is_write_buffer_full = True

    def resume_writing(self) -> None:
        self._is_write_buffer_full = False
        self.last_activity_ms = self._now_ms()
        self._wait_for_turn()
        self._limit_reading()

    # --- called by the server ---

    def send_response(self, response: ApiMessage | None) -> None:
        """Sends the response of the request in progress (None: no response) and continues with the next request."""
        version, correlation_id = self._header
        self._token = None
        if self._transport is None:
            return
        if response is not None:
            try:
                self._transport.write(encode_response(response, version, correlation_id))
            except Exception as error:  # a bug in a handler affects this connection only
                self._owner.on_error(self, error)
                self.close()
                return
            self.last_activity_ms = self._now_ms()
        if not self._is_processing:
            self._wait_for_turn()
            self._limit_reading()

    def fail(self, error: Exception) -> None:
        """Reports a bug in the handler of the request in progress, and closes the connection."""
        self._token = None
        self._owner.on_error(self, error)
        self.close()

    def close(self) -> None:
        """Closes the connection and discards unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    # --- frames ---

    def _handle_next(self, received: memoryview | None = None) -> None:
        """Handles the first request of the buffer, or of `received` while the buffer is empty; keeps the rest."""
        self._is_processing = True
        try:
            if received:
                self._buffer += received[self._handle_request(received) :]
            else:
                del self._buffer[: self._handle_request(self._buffer)]
            self._wait_for_turn()
        except RemoteProtocolError as error:
            self._owner.broker.report(f"[client={self.peer}] Closing the connection: {error}")
            self.close()
        except Exception as error:  # a bug affects this connection only
            self._owner.on_error(self, error)
            self.close()
        finally:
            self._is_processing = False
        self._limit_reading()
        self._owner.after_requests()

    def _wait_for_turn(self) -> None:
        """Handles the next request of the buffer, if there is one, after requests of other connections."""
        if self._turn is None and self._buffer and self._can_accept and self._frame_end(self._buffer):
            self._turn = Task(self._take_turn)
            self._owner.scheduler.submit(self._turn)

    def _take_turn(self) -> bool:
        self._turn = None
        self._handle_next()  # submits the next turn
        return False

    def _handle_request(self, data: bytearray | memoryview) -> int:
        """Handles the request at the start of `data`, if it is complete; returns the number of bytes consumed."""
        if not self._can_accept:
            return 0
        end = self._frame_end(data)
        if end:
            # copied, because the records of a request are views of its frame
            self._handle_frame(memoryview(bytes(memoryview(data)[_PREFIX_BYTES:end])))
        return end

    @property
    def _can_accept(self) -> bool:
        return (
            self._token is None
            and not self._is_write_buffer_full
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def _frame_end(self, data: bytearray | memoryview) -> int:
        """The end of the first frame, 0 while it is incomplete."""
        if len(data) < _PREFIX_BYTES:
            return 0
        limit = self._owner.broker.config.socket_request_max_bytes
        if self._authenticator is not None and not self._authenticator.is_complete:
            limit = min(limit, _UNAUTHENTICATED_MAX_BYTES)
        end = _PREFIX_BYTES + frame_length(data[:_PREFIX_BYTES], limit)
        return end if end <= len(data) else 0

    def _handle_frame(self, frame: memoryview) -> None:
        if self._authenticator is not None and self._authenticator.has_raw_tokens:
            self._authenticate_raw(self._authenticator, bytes(frame))
            return
        header, position = read_request_header(frame)
        dispatcher = self._owner.dispatcher
        api = dispatcher.served.get(header.api_key)
        if api is None or not api.min_version <= header.api_version <= api.max_version:
            if header.api_key != ApiKey.API_VERSIONS or self._transport is None:
                raise RemoteProtocolError(
                    f"API {header.api_key} version {header.api_version} is not supported. Use a client that sends "
                    "ApiVersions first."
                )
            self._transport.write(encode_response(unsupported_api_versions(), 0, header.correlation_id))
            return
        request = decode_request(frame, header, position)
        authenticator = self._authenticator
        if authenticator is not None and not authenticator.is_complete and header.api_key != ApiKey.API_VERSIONS:
            self._authenticate(authenticator, header, request)
            return
        self._header = (header.api_version, header.correlation_id)
        self._token = token = self._owner.new_token(self)
        context = ApiRequestContext(
            token, header.api_key, header.api_version, header.client_id or "", self.peer, self._owner.node_id
        )
        dispatcher.handle(context, request)

    def _authenticate(self, authenticator: SaslAuthenticator, header: RequestHeader, request: Request[Any]) -> None:
        if header.api_key not in SASL_APIS:
            raise RemoteProtocolError(
                f"API {header.api_key} requested before authentication. Set security.protocol=SASL_PLAINTEXT, "
                "sasl.mechanism, user name and password in the client."
            )
        assert self._transport is not None
        response: ApiMessage
        if isinstance(request, SaslHandshakeRequest):
            response = authenticator.handshake(request, header.api_version)
        else:
            assert isinstance(request, SaslAuthenticateRequest)
            response = authenticator.authenticate(request)
        self._transport.write(encode_response(response, header.api_version, header.correlation_id))
        self._close_after_failure(authenticator)

    def _authenticate_raw(self, authenticator: SaslAuthenticator, token: bytes) -> None:
        assert self._transport is not None
        challenge = authenticator.evaluate_raw_token(token)
        if not authenticator.failure:
            self._transport.write(encode_frame(challenge))
        self._close_after_failure(authenticator)

    def _close_after_failure(self, authenticator: SaslAuthenticator) -> None:
        if authenticator.failure and self._transport is not None:
            self._owner.broker.report(f"[client={self.peer}] Authentication failed: {authenticator.failure}")
            self._buffer.clear()
            self._transport.close()  # after the error response is sent

    def _limit_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        is_blocked = self._token is not None or self._is_write_buffer_full
        is_full = is_blocked and len(self._buffer) > _READ_AHEAD_BYTES
        if is_full and not self._is_reading_paused:
            self._transport.pause_reading()
        elif not is_full and self._is_reading_paused:
            self._transport.resume_reading()
        self._is_reading_paused = is_full
