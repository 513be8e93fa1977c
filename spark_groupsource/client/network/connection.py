"""One blocking connection to one broker: versions negotiated, credentials shown, requests and answers matched.

Knows sockets only through `net` and bytes only through `wire`. A connection is used by one thread at a time, is never
shared over a fork, and after any error it is closed for good: the owner opens another.
"""

from __future__ import annotations

from collections import deque
from typing import Mapping, NamedTuple

from spark_groupsource import net
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.clock import Clock
from spark_groupsource.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    NetworkError,
    RemoteProtocolError,
    UnsupportedVersionError,
    error_name,
)
from spark_groupsource.net import Address
from spark_groupsource.version import __version__
from spark_groupsource.wire.apis import APIS, api_of
from spark_groupsource.wire.frames import decode_response, encode_request, frame_length
from spark_groupsource.wire.messages import ApiVersionsRequest, Message, SaslAuthenticateRequest, SaslHandshakeRequest
from spark_groupsource.wire.versions import VersionRanges, broker_ranges_of, fallback_version, negotiate

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_SOFTWARE = "spark-groupsource"
# how a TLS server greets who does not begin a handshake: record type alert, version 3.x
_TLS_ALERT = b"\x15\x03"

VERSION_CAPS: Mapping[int, int] = {
    # later versions name topics by id; these calls come from people and from plans, which know names
    0: 12,  # Produce
    1: 11,  # Fetch, the last whose answer needs no tagged fields: cheap to cut into partitions
    8: 9,  # OffsetCommit
    9: 9,  # OffsetFetch
    20: 5,  # DeleteTopics
    18: 3,  # ApiVersions
}
"""api key -> highest version this client asks for."""


class InFlight(NamedTuple):
    """A request that was sent and not answered yet."""

    request: Message
    version: int
    correlation_id: int
    timeout_ms: int


class BrokerConnection:
    """A connection that opens itself at its first request."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        security: SecuritySettings,
        clock: Clock,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.address = address
        self.last_used_ms = clock.now_ms()
        self._client_id = client_id
        self._security = security
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._max_response_bytes = max_response_bytes
        self._socket: net.Socket | None = None
        self._closed = False
        self._served = False
        self._correlation_id = 0
        self._waiting: deque[int] = deque()
        self._versions: VersionRanges = {}
        self._buffer = bytearray(64 * 1024)
        self._prefix = memoryview(bytearray(4))

    @property
    def closed(self) -> bool:
        """True after `close` and after any error; such a connection is of no more use."""
        return self._closed

    def open(self) -> None:
        """Connects, negotiates versions and authenticates; does nothing on an open connection.

        Raises: NetworkError, AuthenticationError, RemoteProtocolError or UnsupportedVersionError, naming the address.
        """
        if self._socket is not None:
            return
        if self._closed:
            raise NetworkError(f"the connection to {self.address} is closed")
        self._socket = net.dial(self.address, self._connect_timeout_ms, self._security.tls)
        try:
            self._negotiate()
            if self._security.sasl_mechanism is not None:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def call(
        self, request: Message, timeout_ms: int | None = None, *, cap: int | None = None, floor: int = 0
    ) -> Message:
        """Sends a request and waits for its answer.

        Args:
            timeout_ms: how long to wait for the answer; None means request.timeout.ms.
            cap, floor: highest and lowest version that will do; see `negotiate`.
        Raises: as `open`; RequestTimeoutError when the answer does not come. The connection is then closed.
        """
        return self.receive(self.send(request, timeout_ms, cap=cap, floor=floor))

    def send(
        self, request: Message, timeout_ms: int | None = None, *, cap: int | None = None, floor: int = 0
    ) -> InFlight:
        """Sends a request; its answer must be taken with `receive`, in the order of sending."""
        self.open()
        return self._send(request, self.version_for(request, cap=cap, floor=floor), timeout_ms)

    def version_for(self, request: Message, *, cap: int | None = None, floor: int = 0) -> int:
        """The version at which `request` goes out here.

        Raises: UnsupportedVersionError; the connection stays open.
        """
        self.open()
        api = api_of(request)
        caps = [limit for limit in (cap, VERSION_CAPS.get(api.key)) if limit is not None]
        try:
            return negotiate(api, self._versions, cap=min(caps, default=None), floor=floor)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{self.address}: {error}") from None

    def receive(self, sent: InFlight) -> Message:
        """The answer to the request that was sent first of those unanswered.

        Waiting is bounded by the request's time-out from now on, not from its sending: who sends ahead may be busy
        with the answer before. Record sets in the answer are views that stay valid until the next answer is received.
        """
        frame = self._receive_frame(sent)
        try:
            return decode_response(frame, sent.request, sent.version, sent.correlation_id)
        except RemoteProtocolError as error:
            self.close()
            raise RemoteProtocolError(f"{self.address}: {error}") from error

    def abort(self) -> None:
        """Ends whatever another thread waits for on this connection; the only call that another thread may make."""
        self._closed = True
        connection = self._socket
        if connection is not None:
            net.abort(connection)

    def close(self) -> None:
        self._closed = True
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _send(self, request: Message, version: int, timeout_ms: int | None) -> InFlight:
        connection = self._connected()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        sent = InFlight(request, version, self._correlation_id, timeout_ms)
        frame = encode_request(request, version, sent.correlation_id, self._client_id)
        try:
            net.send_all(connection, frame, timeout_ms)
        except NetworkError as error:
            self.close()
            raise type(error)(f"{self.address}, {api_of(request).name}: {error}") from error
        except BaseException:
            self.close()
            raise
        self._waiting.append(sent.correlation_id)
        return sent

    def _receive_frame(self, sent: InFlight) -> memoryview:
        connection = self._connected()
        if not self._waiting or self._waiting[0] != sent.correlation_id:
            raise RuntimeError("answers must be taken in the order of sending")
        try:
            deadline_ms = self._clock.now_ms() + sent.timeout_ms
            net.receive_into(connection, self._prefix, sent.timeout_ms)
            if bytes(self._prefix[:2]) == _TLS_ALERT:
                raise RemoteProtocolError("the listener speaks TLS; set security.protocol to SSL or SASL_SSL")
            length = frame_length(self._prefix, self._max_response_bytes)
            if length > len(self._buffer):
                self._buffer = bytearray(max(length, min(2 * len(self._buffer), self._max_response_bytes)))
            frame = memoryview(self._buffer)[:length]
            net.receive_into(connection, frame, deadline_ms - self._clock.now_ms())
        except (NetworkError, RemoteProtocolError) as error:
            self.close()
            # brokers say nothing before credentials: a listener that wants some hangs up at the first real request
            hint = "" if self._served else f"; is security.protocol ({self._security.protocol}) the listener's?"
            raise type(error)(f"{self.address}, {api_of(sent.request).name}: {error}{hint}") from error
        except BaseException:
            # an interrupted read leaves the stream in the middle of an answer
            self.close()
            raise
        self._waiting.popleft()
        self._served = self._served or api_of(sent.request).key != ApiVersionsRequest.API_KEY
        self.last_used_ms = self._clock.now_ms()
        return frame

    def _connected(self) -> net.Socket:
        if self._socket is None or self._closed:
            raise NetworkError(f"the connection to {self.address} is closed")
        return self._socket

    def _negotiate(self) -> None:
        api = APIS[ApiVersionsRequest.API_KEY]
        version: int | None = min(VERSION_CAPS[api.key], api.max_version)
        while version is not None:
            request = ApiVersionsRequest(
                client_software_name=_SOFTWARE, client_software_version=__version__
            )
            answer = self.receive(self._send(request, version, self._request_timeout_ms))
            fallback = fallback_version(api, answer)
            version = None if fallback is None or fallback >= version else fallback
        self._versions = broker_ranges_of(answer)

    def _authenticate(self) -> None:
        # imported here: only those who authenticate pay for it
        from spark_groupsource.wire.sasl_client import SaslClient

        security = self._security
        mechanism = security.sasl_mechanism or ""
        handshake = self._call_open(SaslHandshakeRequest(mechanism=mechanism), floor=1)
        if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationError(
                f"{self.address} does not offer {mechanism}; it offers {', '.join(handshake.mechanisms) or 'none'}: "
                "set sasl.mechanism to one of them"
            )
        if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(f"{self.address} does not authenticate on this listener; set security.protocol")
        if handshake.error_code:
            raise BrokerError(handshake.error_code, f"{self.address}, SaslHandshake")
        exchange = SaslClient(mechanism, security.username or "", security.password or "")
        while not exchange.is_complete:
            answer = self._call_open(SaslAuthenticateRequest(auth_bytes=exchange.next_token()))
            if answer.error_code:
                told = answer.error_message or error_name(answer.error_code)
                raise AuthenticationError(
                    f"{self.address} refused user {security.username} ({mechanism}): {told}; "
                    "check user name and password"
                )
            exchange.evaluate_challenge(answer.auth_bytes or b"")

    def _call_open(self, request: Message, *, floor: int = 0) -> Message:
        return self.receive(self._send(request, self.version_for(request, floor=floor), None))
