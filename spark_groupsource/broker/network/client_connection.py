"""One client connection of the broker: framing, request order, backpressure.

A connection has at most one request in progress. Later requests wait in the buffer and, above a limit, in the client's
socket. This keeps responses in order and bounds the memory of one connection to a frame, a response and the read-ahead.

One request is handled when bytes arrive. Further complete requests run round robin with those of other connections,
so that a client with many requests in flight does not delay the others.

Source: Kafka `Processor` and `KafkaChannel`, which mute a channel while its request is in progress.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from functools import partial
from itertools import count
from typing import Any, Callable, Protocol

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.request_limits import INLINE_ELEMENTS, SLICE_ELEMENTS, SMALLEST_LIMIT, request_limit
from spark_groupsource.broker.api.served_versions import unsupported_api_versions
from spark_groupsource.broker.api.small_responses import LARGE_RESPONSES, PREDICTABLE_RESPONSES
from spark_groupsource.broker.network.authentication import SASL_APIS, SaslAuthenticator, new_authenticator
from spark_groupsource.broker.network.event_loop import deferred_reads
from spark_groupsource.broker.network.limits import RequestMemory, ResponseMemory
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ANONYMOUS, ApiRequestContext
from spark_groupsource.common.coroutines import call_in_turn
from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import new_tuple
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.element_count import has_more_elements
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
_LENGTH_AND_API = struct.Struct(">ih")
_READ_AHEAD_BYTES = 16_384
_SMALL_FRAME_BYTES, _LARGE_FRAME_BYTES = 1_024, 65_536
_WRITE_BUFFER_BYTES = 262_144
_WRITE_RESUME_BYTES = 16_384
_UNAUTHENTICATED_APIS = SASL_APIS | {ApiKey.API_VERSIONS}
# a response is not larger than a request of another API, and that to Produce is much smaller
_SMALL_REQUEST_BYTES = 4_096
_ids = count(1)


class ConnectionOwner(Protocol):
    """The listener of a connection. `receive_buffer`: shared by all its connections; `protocol`: its name."""

    broker: Broker
    dispatcher: RequestDispatcher
    node_id: int
    protocol: str
    receive_buffer: memoryview
    requests: RequestMemory
    responses: ResponseMemory

    def on_open(self, connection: Connection) -> None: ...

    def on_close(self, connection: Connection) -> None: ...

    def new_token(self, connection: Connection) -> int: ...

    def cancel(self, token: int) -> None: ...

    def after_requests(self) -> None: ...

    def on_error(self, connection: Connection, error: Exception) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """The server side of one connection. `last_activity_ms`: when bytes were last received or sent.

    `principal` is ``User:NAME`` of the client; `is_in_handshake`, whether the handshake of TLS is not complete.

    Bytes are received into the shared buffer of the listener; complete requests are decoded at once and only the rest
    is copied. The default protocols of asyncio allocate 256 KiB per read, which takes longer than a heartbeat.
    """

    def __init__(self, owner: ConnectionOwner, now_ms: Callable[[], int]) -> None:
        self._owner = owner
        self._now_ms = now_ms
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._frame_bytes = 0  # of the request in progress, unless it is small
        self._encrypted_bytes = 0  # received, not decrypted
        self._token: int | None = None
        self._id = next(_ids)
        self._header = (0, 0)  # version and correlation id of the request in progress
        self._is_write_buffer_full = self._is_reading_paused = self._is_processing = False
        self._is_ending = False  # no further request is handled
        self._is_ended_by_client = False
        self._waits_for_memory = self._is_counted = False  # the second one: in `requests`
        self._is_next_scheduled = False  # the first request of the buffer
        self._descriptor = -1
        # until its first request, and while a request is incomplete or waits, it is read after the others
        self._deferred_reads: set[int] = set()
        self._authenticator = new_authenticator(owner.broker, owner.protocol)
        self.principal = ANONYMOUS
        self.is_in_handshake = False  # of TLS
        self.peer = "unknown"
        self.opened_ms = self.last_activity_ms = now_ms()

    @property
    def waits_for_client(self) -> bool:
        """Whether the next step is the client's: to send a request or to read a response."""
        return self._token is None or self._is_write_buffer_full

    @property
    def announced_bytes(self) -> int:
        """Length of the first request that is not complete."""
        return int.from_bytes(self._buffer[:_PREFIX_BYTES], "big")

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that the client has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=_WRITE_RESUME_BYTES)
        socket = transport.get_extra_info("socket")
        if socket is not None:
            self._descriptor, self._deferred_reads = socket.fileno(), deferred_reads()
            self._deferred_reads.add(self._descriptor)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "unknown"
        self._owner.on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # asyncio's transport refers to itself by a bound method: a cycle, which only a full collection would find. The
        # attribute is private; where it does not exist, nothing is removed
        vars(self._transport).pop("_read_ready_cb", None)
        self._deferred_reads.discard(self._descriptor)
        self._transport = None
        self._buffer.clear()
        if self._token is not None:
            self._owner.broker.fetch_manager.cancel(self._token)
            self._owner.cancel(self._token)
        self._owner.requests.set_size(self, 0)
        self._owner.responses.remove(self)
        self._owner.on_close(self)

    def eof_received(self) -> bool:
        """Keeps the connection until the requests that the client sent before its end are handled, as Kafka does."""
        self._is_ended_by_client = True
        return self._has_complete_request

    def get_buffer(self, sizehint: int) -> memoryview:
        size = self._owner.requests.read_bytes
        return self._owner.receive_buffer[: min(size, _READ_AHEAD_BYTES) if self._is_blocked else size]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_activity_ms = self._now_ms()
        received = self._owner.receive_buffer[:nbytes]
        if self._is_next_scheduled or not self._can_accept:  # `_is_blocked`, with one call less
            self._buffer += received
            self._limit_reading()
        elif self._buffer:
            self._buffer += received
            self._handle_next()
        else:
            self._handle_next(received)
        if self._buffer:
            self._deferred_reads.add(self._descriptor)
        else:
            self._deferred_reads.discard(self._descriptor)

    def set_encrypted_bytes(self, size: int) -> None:
        if size or self._encrypted_bytes:
            self._encrypted_bytes = size
            self._limit_reading()

    def pause_writing(self) -> None:
        self._is_write_buffer_full = True

    def resume_writing(self) -> None:
        self._is_write_buffer_full = False
        self.last_activity_ms = self._now_ms()
        self._owner.responses.set_size(self, self.unsent_bytes)
        self._schedule_next()
        self._limit_reading()

    # --- called by the server ---

    def send_response(self, response: ApiMessage | None) -> None:
        """Sends the response of the request in progress (None: no response) and continues with the next request."""
        version, correlation_id = self._header
        if self._transport is None:
            self._token = None
        elif response is None:
            self._send_frame(None)
        elif has_more_elements(response, SLICE_ELEMENTS):
            self._owner.responses.reserve(self)
            encode = partial(self._encode_large, response, version, correlation_id)
            asyncio.get_running_loop().run_in_executor(None, encode).add_done_callback(self._send_encoded)
        else:
            try:
                frame = encode_response(response, version, correlation_id)
            except Exception as error:  # a bug in a handler affects this connection only
                self.fail(error)
            else:
                self._send_frame(frame)

    def _encode_large(self, response: ApiMessage, version: int, correlation_id: int) -> bytearray:
        """Is called in the worker thread."""
        if self._transport is None:
            return bytearray()  # closed while other responses were encoded
        return encode_response(response, version, correlation_id)

    def _send_encoded(self, encoded: asyncio.Future[bytearray]) -> None:
        if encoded.cancelled():  # the broker stops
            return
        error = encoded.exception()
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self._send_frame(encoded.result())
        self._owner.responses.set_size(self, self.unsent_bytes)  # replaces the reservation

    def _send_frame(self, frame: bytearray | None) -> None:
        self._token = None
        self._frame_bytes = 0
        if self._transport is None:
            return
        if frame is not None:
            self._write(frame)
        if not self._is_processing:
            self._schedule_next()
            self._limit_reading()

    def _write(self, frame: bytearray | bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)
        self.last_activity_ms = self._now_ms()
        unsent = self._transport.get_write_buffer_size()
        if unsent or len(frame) > _WRITE_BUFFER_BYTES:
            self._owner.responses.set_size(self, unsent)

    def resume(self) -> None:
        self._waits_for_memory = False
        self._schedule_next()
        self._limit_reading()

    def reject(self, reason: str) -> None:
        self._owner.broker.report(f"[client={self.peer}] Closing the connection: {reason}", logging.INFO)
        self.close()

    def fail(self, error: Exception) -> None:
        """Closes the connection because of the request in progress; reports any other error as a bug."""
        self._token = None
        if isinstance(error, RemoteProtocolError):
            self._owner.broker.report(f"[client={self.peer}] Closing the connection: {error}")
        else:
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
            if received is not None:
                end = self._frame_end(received)
                # copied, because the records of a request are views of its frame
                frame = memoryview(bytes(received[_PREFIX_BYTES:end]))
                self._buffer += received[end:]
            else:
                end = self._frame_end(self._buffer)
                frame = self._take_frame(end)
            if end:
                self._handle_frame(frame)
            self._schedule_next()
        except RemoteProtocolError as error:
            self.reject(str(error))
        except Exception as error:  # a bug affects this connection only
            self._owner.on_error(self, error)
            self.close()
        finally:
            self._is_processing = False
        self._limit_reading()
        self._owner.after_requests()

    def _take_frame(self, end: int) -> memoryview:
        """Removes the first frame from the buffer; a large one is not copied."""
        if end <= _LARGE_FRAME_BYTES:
            frame = bytes(memoryview(self._buffer)[_PREFIX_BYTES:end])
            del self._buffer[:end]
            return memoryview(frame)
        whole, self._buffer = self._buffer, self._buffer[end:]
        return memoryview(whole)[_PREFIX_BYTES:end]

    def _schedule_next(self) -> None:
        """Handles the next request of the buffer, if there is one, after requests of other connections."""
        if not self._buffer and not self._is_ended_by_client:
            return  # usually
        if self._is_next_scheduled or not self._can_accept:
            return
        if self._has_complete_request:
            self._is_next_scheduled = True
            call_in_turn(self._run_next)
        elif self._is_ended_by_client and self._transport is not None:
            self._transport.close()

    @property
    def _has_complete_request(self) -> bool:
        prefix = self._buffer[:_PREFIX_BYTES]
        return len(prefix) == _PREFIX_BYTES and len(self._buffer) >= _PREFIX_BYTES + int.from_bytes(
            prefix, "big", signed=True
        )

    def _run_next(self) -> None:
        self._is_next_scheduled = False
        if self._can_accept:
            self._handle_next()  # schedules the following request

    @property
    def is_unauthenticated(self) -> bool:
        return self.is_in_handshake or (self._authenticator is not None and not self._authenticator.is_complete)

    @property
    def _can_accept(self) -> bool:
        return (
            self._token is None
            and not self._is_write_buffer_full
            and not self._waits_for_memory
            and not self._is_ending
            and self._transport is not None
            and not self._transport.is_closing()
        )

    @property
    def _is_blocked(self) -> bool:
        """Whether received bytes wait for an event other than the arrival of more bytes."""
        return self._is_next_scheduled or not self._can_accept

    def _frame_end(self, data: bytearray | memoryview) -> int:
        """Returns the end of the first frame, 0 while it is incomplete.

        Raises: RemoteProtocolError for an API that is not allowed, or a frame above its limit, before its body arrives.
        """
        size = len(data)
        if size < _PREFIX_BYTES:
            return 0
        config, authenticator = self._owner.broker.config, self._authenticator
        length = int.from_bytes(data[:_PREFIX_BYTES], "big", signed=True)
        if not 0 <= length <= config.socket_request_max_bytes:
            frame_length(data[:_PREFIX_BYTES], config.socket_request_max_bytes)  # raises
        if authenticator is not None and authenticator.has_raw_tokens:
            frame_length(data[:_PREFIX_BYTES], config.sasl_server_max_receive_size)
        elif size >= _LENGTH_AND_API.size:
            _, api_key = _LENGTH_AND_API.unpack_from(data)
            if length > SMALLEST_LIMIT or authenticator is not None or self.is_in_handshake:
                self._check_size(api_key, length)
            if self._owner.responses.is_full and not self._is_read_while_full(api_key, data, length):
                self._waits_for_memory = True
                self._owner.responses.wait(self)
                return 0
        return _PREFIX_BYTES + length if _PREFIX_BYTES + length <= size else 0

    def _is_read_while_full(self, api_key: int, data: bytearray | memoryview, length: int) -> bool:
        """Whether the first request is handled, or received, while clients have not read their responses."""
        if self.unsent_bytes:
            return False
        if api_key == ApiKey.PRODUCE:
            return True
        if length > _SMALL_REQUEST_BYTES:
            return False
        if api_key not in LARGE_RESPONSES:
            return True
        if not self._owner.responses.has_reserve:
            return False
        if api_key not in PREDICTABLE_RESPONSES:
            return api_key == ApiKey.FETCH  # which reads no more records than the memory permits
        end = _PREFIX_BYTES + length
        return len(data) < end or self._owner.dispatcher.has_small_response(memoryview(bytes(data[_PREFIX_BYTES:end])))

    def _check_size(self, api_key: int, length: int) -> None:
        limit = request_limit(api_key).max_bytes or length
        if self.is_unauthenticated:
            if api_key not in _UNAUTHENTICATED_APIS:
                raise RemoteProtocolError(
                    f"API {api_key} requested before authentication. Set security.protocol={self._owner.protocol}, "
                    "sasl.mechanism, user name and password in the client."
                )
            limit = self._owner.broker.config.sasl_server_max_receive_size
        if length > limit:
            raise RemoteProtocolError(f"A request of API {api_key} has {length:,} bytes, the limit is {limit:,}.")

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
            self._write(encode_response(unsupported_api_versions(), 0, header.correlation_id))
            return
        if self._authenticator is not None and self._is_login(self._authenticator, header.api_key):
            self._authenticate(header, decode_request(frame, header, position, INLINE_ELEMENTS))
            return
        self._frame_bytes = len(frame) if len(frame) > _SMALL_FRAME_BYTES else 0
        self._header = (header.api_version, header.correlation_id)
        self._token = token = self._owner.new_token(self)
        context = new_tuple(ApiRequestContext, (
            token, header.api_key, header.api_version, header.client_id or "", self.peer, self._owner.node_id, self._id,
            self._owner.protocol, self.principal,
        ))  # fmt: skip
        dispatcher.handle_frame(context, frame, header, position)

    def _is_login(self, authenticator: SaslAuthenticator, api_key: int) -> bool:
        """Returns whether a request belongs to a login. Raises: RemoteProtocolError after the end of the session."""
        if not authenticator.is_complete:
            return api_key in SASL_APIS
        if authenticator.may_begin(api_key):
            self.opened_ms = self._now_ms()  # the time for a login begins again
            return True
        if authenticator.is_expired:
            raise RemoteProtocolError("The session has expired, and the client has not authenticated again (KIP-368).")
        return False

    def _authenticate(self, header: RequestHeader, request: Request[Any]) -> None:
        authenticator = self._authenticator
        assert authenticator is not None
        response: ApiMessage
        if isinstance(request, SaslHandshakeRequest):
            response = authenticator.handshake(request, header.api_version)
        else:
            assert isinstance(request, SaslAuthenticateRequest)
            response = authenticator.authenticate(request)
        self._send_authentication(authenticator, encode_response(response, header.api_version, header.correlation_id))

    def _authenticate_raw(self, authenticator: SaslAuthenticator, token: bytes) -> None:
        challenge = authenticator.evaluate_raw_token(token)
        self._send_authentication(authenticator, b"" if authenticator.failure else encode_frame(challenge))

    def _send_authentication(self, authenticator: SaslAuthenticator, frame: bytearray | bytes) -> None:
        """Sends a response; after a failure, later, as the last one."""
        if not authenticator.failure:
            self.principal = authenticator.principal
            self._write(frame)
            return
        text = f"[client={self.peer}] Authentication failed: {authenticator.failure}"
        self._owner.broker.report(text, logging.INFO)
        self._is_ending = True
        self._buffer.clear()
        delay_ms = self._owner.broker.config.connection_failed_authentication_delay_ms
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._end_with, frame)

    def _end_with(self, frame: bytearray | bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)
            self._transport.close()

    def _limit_reading(self) -> None:
        """Stops reading while bytes wait, above the read-ahead, or the memory of all requests is used."""
        size, may_read = len(self._buffer) + self._frame_bytes + self._encrypted_bytes, True
        if not (size or self._is_counted or self._is_reading_paused):
            return  # usually
        if self._transport is None or self._transport.is_closing():
            return
        if size or self._is_counted:
            self._is_counted = size > 0
            may_read = self._owner.requests.set_size(self, size)
        should_pause = not may_read or (self._is_blocked and len(self._buffer) > _READ_AHEAD_BYTES)
        if should_pause and not self._is_reading_paused:
            self._transport.pause_reading()
        elif not should_pause and self._is_reading_paused:
            self._transport.resume_reading()
        self._is_reading_paused = should_pause
