"""Blocking connection to one broker: version negotiation, authentication, requests.

One thread uses a connection at a time; it is not shared across a fork. After any error the connection is closed, and
its owner opens another one.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Callable,
    ContextManager,
    Generic,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    TypeVar,
)

from spark_groupsource.client.network.availability import BrokerAvailability
from spark_groupsource.client.network.sasl_options import OAUTHBEARER
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.client.network.tokens import TOKENS
from spark_groupsource.common import net
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.deadlines import TransferDeadline
from spark_groupsource.common.net import Address
from spark_groupsource.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    NetworkError,
    RemoteProtocolError,
    UnsupportedVersionError,
    error_name,
)
from spark_groupsource.version import __version__
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS, api_of
from spark_groupsource.wire.frames import decode_response, encode_request_parts, frame_length
from spark_groupsource.wire.messages import (
    ApiMessage,
    ApiVersionsRequest,
    Request,
    Response,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from spark_groupsource.wire.versions import VersionRanges, broker_ranges_of, fallback_version, negotiate

if TYPE_CHECKING:
    from spark_groupsource.wire.sasl_client import BearerClient, SaslClient

_log = logging.getLogger(__name__)
R = TypeVar("R", bound="Response")

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_GROWTH_BYTES = 1 << 24
# requests without a response while the next one is sent: their responses, which are smaller, fit into socket buffers
_WINDOW_BYTES = 1 << 16
# an unauthenticated peer cannot make this client reserve more
_MAX_HANDSHAKE_BYTES = 1024 * 1024
_SOFTWARE = "spark-groupsource"
# part of the lifetime of a login that is used, as in Kafka's SaslClientAuthenticator
_USED_LIFETIME = 0.85
# served by KRaft controllers only (KIP-631)
_BROKER_REGISTRATION = 62
# first bytes from a TLS listener to a client without TLS: record type alert, version 3.x
_TLS_ALERT = b"\x15\x03"

# a broker may delay the response
DELAYED_APIS = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})

VERSION_CAPS: Mapping[ApiKey, int] = {
    # later versions identify topics by id, this client by name unless a call requires them
    ApiKey.PRODUCE: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.DELETE_TOPICS: 5,
    # later versions add nothing that this client uses where it expects no certain broker
    ApiKey.FETCH: 13,
    ApiKey.API_VERSIONS: 3,
    # later versions are those of brokers, of two-phase commits, and of the second protocol of transactions
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.END_TXN: 4,
}
"""API -> highest version that this client uses where a call does not require a later one."""


CHECKS_BROKER_SINCE = 5
"""First version of ApiVersions whose broker compares the cluster and node that a client expects (KIP-1242)."""


class ExpectedBroker(NamedTuple):
    """The broker that the metadata has at an address; `misrouted` is called when another one responds there."""

    cluster_id: str
    node_id: int
    misrouted: Callable[[], None]


@dataclass(frozen=True)
class InFlight(Generic[R]):
    """A request that was sent and has no response yet."""

    request: Request[R]
    version: int
    correlation_id: int
    timeout_ms: int
    size: int = 0


class BrokerConnection:
    """A connection that opens with its first request."""

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
        availability: BrokerAvailability | None = None,
        expected: ExpectedBroker | None = None,
    ) -> None:
        self.address = address
        self._expected = expected
        self._availability = availability
        self.last_used_ms = clock.now_ms()
        self._client_id = client_id
        self._security = security
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._max_response_bytes = max_response_bytes
        self._socket: net.Socket | None = None
        self._closed = False
        self._is_open = False
        self._open_deadline_ms: int | None = None
        self._expires_ms: int | None = None
        self._has_response = False
        self._correlation_id = 0
        self._waiting: deque[int] = deque()
        self._versions: VersionRanges = {}
        self._buffer = bytearray(64 * 1024)
        self._prefix = memoryview(bytearray(4))

    @property
    def is_closed(self) -> bool:
        """True after `close` and after any error; the connection cannot be opened again."""
        return self._closed

    @property
    def max_response_bytes(self) -> int:
        return self._max_response_bytes

    @property
    def api_versions(self) -> VersionRanges:
        """The API versions of the broker; empty before `open`."""
        return self._versions

    @property
    def is_expired(self) -> bool:
        """True when the broker's limit for a login has almost passed; its owner must open another connection.

        After connections.max.reauth.ms the broker closes the connection at the next request (KIP-368).
        """
        return self._expires_ms is not None and self._clock.now_ms() >= self._expires_ms

    def open(self, timeout_ms: int | None = None) -> None:
        """Connects, negotiates versions and authenticates; does nothing on an open connection.

        Args:
            timeout_ms: how long all of it may take; None for socket.connection.setup.timeout.ms to connect and
                request.timeout.ms for each request.
        Raises: NetworkError, AuthenticationError, RemoteProtocolError, UnsupportedVersionError.
        """
        if self._socket is not None:
            return
        if self._closed:
            raise NetworkError(f"Request to {self.address} failed: the connection is closed.")
        self._open_deadline_ms = None if timeout_ms is None else self._clock.now_ms() + timeout_ms
        with self._watch():
            self._connect()

    def _connect(self) -> None:
        self._socket = net.dial(self.address, self._open_left_ms(self._connect_timeout_ms), self._security.tls)
        try:
            self._negotiate()
            if self._security.sasl_mechanism is not None:
                self._authenticate()
        except BaseException:
            self.close()
            raise
        self._is_open = True

    def _watch(self) -> ContextManager[None]:
        if self._availability is None:
            return nullcontext()
        return self._availability.watch(self.address, is_connected=self._is_open)

    def _open_left_ms(self, limit_ms: int) -> int:
        """Time left for a step of `open`, at most `limit_ms`."""
        if self._open_deadline_ms is None:
            return limit_ms
        return min(limit_ms, max(self._open_deadline_ms - self._clock.now_ms(), 1))

    def call(
        self,
        request: Request[R],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> R:
        """Sends a request and waits for its response.

        Args:
            timeout_ms: how long to connect, send and wait for the response; None for request.timeout.ms for each.
            max_version, min_version: bounds of the negotiated version; see `negotiate`.
        Raises: as `open`; RequestTimeoutError, after which the connection is closed.
        """
        (response,) = self.call_each([request], timeout_ms, max_version=max_version, min_version=min_version)
        return response

    def call_each(
        self,
        requests: Iterable[Request[R]],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> Iterator[R]:
        """Yields the responses to small requests, which are sent before the responses to earlier ones are received.

        Args: as `call`; every further response restarts the timeout.
        Raises: as `call`.
        """
        started_ms = self._clock.now_ms()
        waiting: deque[InFlight[R]] = deque()
        size, is_first = 0, True

        def receive() -> R:
            nonlocal size, is_first
            sent = waiting.popleft()
            size -= sent.size
            if is_first and timeout_ms is not None:
                sent = replace(sent, timeout_ms=max(started_ms + timeout_ms - self._clock.now_ms(), 1))
            is_first = False
            return self.receive(sent)

        try:
            for request in requests:
                waiting.append(self.send(request, timeout_ms, max_version=max_version, min_version=min_version))
                size += waiting[-1].size
                while size > _WINDOW_BYTES:
                    yield receive()
            while waiting:
                yield receive()
        finally:
            if waiting:
                # the responses that follow are of no other request
                self.close()

    def send(
        self,
        request: Request[R],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> InFlight[R]:
        """Sends a request; the caller must `receive` the responses in the order of the requests."""
        self.open(timeout_ms)
        version = self.version_for(request, max_version=max_version, min_version=min_version)
        return self._send(request, version, timeout_ms)

    def version_for(self, request: ApiMessage, *, max_version: int | None = None, min_version: int = 0) -> int:
        """Returns the negotiated version of `request` on this connection.

        Raises: UnsupportedVersionError; the connection stays open.
        """
        self.open()
        api = api_of(request)
        cap = VERSION_CAPS.get(api.key)
        caps = [limit for limit in (max_version, cap and max(cap, min_version)) if limit is not None]
        try:
            return negotiate(api, self._versions, cap=min(caps, default=None), floor=min_version)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"Broker {self.address}: {error}") from None

    def receive(self, sent: InFlight[R]) -> R:
        """Returns the response to the oldest request without one.

        The timeout of the request begins now, not when it was sent: the caller may have been busy with an earlier
        response. The bytes of the response that arrive extend it (`TransferDeadline`). Record sets in the response are
        views that are valid until the next response is received.
        """
        if self._is_open and api_of(sent.request).key not in DELAYED_APIS:
            with self._watch():
                frame = self._receive_frame(sent)
        else:
            frame = self._receive_frame(sent)
        try:
            response: R = decode_response(frame, sent.request, sent.version, sent.correlation_id)
            return response
        except RemoteProtocolError as error:
            self.close()
            raise RemoteProtocolError(f"Broker {self.address}: {error}") from error

    def has_response(self, timeout_ms: int) -> bool:
        """Waits for the next response; returns True if `receive` will not wait for its first byte, or will fail.

        Raises: NetworkError on a closed connection.
        """
        return net.is_readable(self._connected(), timeout_ms)

    def without_blocking(self) -> net.Socket:
        """Returns the socket of an open connection for a caller that sends and receives itself, without blocking."""
        connection = self._connected()
        connection.setblocking(False)
        self._buffer = bytearray()
        return connection

    def close(self) -> None:
        self._closed = True
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _close_after(self, error: NetworkError | RemoteProtocolError) -> None:
        """Raises AuthenticationError if the peer has rejected the certificate of this client."""
        connection = self._socket
        self._socket, self._closed = None, True
        if connection is None:
            return
        # a connection that is open was accepted
        rejection = None
        if isinstance(error, NetworkError) and not self._is_open:
            rejection = net.certificate_rejection(connection, error)
        connection.close()
        if rejection is not None:
            raise AuthenticationError(f"TLS handshake with {self.address} failed: {rejection}") from error

    def _send(self, request: Request[R], version: int, timeout_ms: int | None) -> InFlight[R]:
        connection = self._connected()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        parts = encode_request_parts(request, version, self._correlation_id, self._client_id)
        sent = InFlight(request, version, self._correlation_id, timeout_ms, sum(map(len, parts)))
        try:
            for part in parts:
                net.send_all(connection, part, timeout_ms)
        except NetworkError as error:
            self._close_after(error)
            raise type(error)(f"{api_of(request).name} request to {self.address}: {error}") from error
        except BaseException:
            self.close()
            raise
        self._waiting.append(sent.correlation_id)
        if _log.isEnabledFor(logging.DEBUG):
            prefix = f"[broker={self.address} client={self._client_id}]"
            _log.debug("%s Sent %s: version %d, id %d.", prefix, api_of(request).name, version, sent.correlation_id)
        return sent

    def _receive_frame(self, sent: InFlight[R]) -> memoryview:
        connection = self._connected()
        if not self._waiting or self._waiting[0] != sent.correlation_id:
            raise RuntimeError("responses must be received in the order of the requests")
        try:
            deadline = net.transfer_deadline(sent.timeout_ms)
            net.receive_into(connection, self._prefix, deadline)
            if bytes(self._prefix[:2]) == _TLS_ALERT:
                raise RemoteProtocolError("The listener uses TLS. Set kafka.security.protocol to SSL or SASL_SSL.")
            length = frame_length(self._prefix, self._max_response_bytes if self._is_open else _MAX_HANDSHAKE_BYTES)
            frame = self._receive_body(connection, length, deadline)
        except (NetworkError, RemoteProtocolError) as error:
            self._close_after(error)
            # a listener that requires authentication closes the connection at the first request without credentials
            protocol = self._security.protocol
            is_handshake = isinstance(error, NetworkError) and not self._has_response
            hint = "" if not is_handshake else f" Check that the listener uses kafka.security.protocol={protocol}."
            raise type(error)(f"{api_of(sent.request).name} request to {self.address}: {error}{hint}") from error
        except BaseException:
            # after an interrupted read the position in the stream is unknown
            self.close()
            raise
        self._waiting.popleft()
        self._has_response = self._has_response or api_of(sent.request).key != ApiVersionsRequest.API_KEY
        self.last_used_ms = self._clock.now_ms()
        return frame

    def _receive_body(self, connection: net.Socket, length: int, deadline: TransferDeadline) -> memoryview:
        """Receives `length` bytes; the buffer grows with the bytes that arrive, not with the announced length."""
        filled = 0
        while filled < length:
            size = min(length, max(len(self._buffer), min(2 * filled, filled + _GROWTH_BYTES)))
            if size > len(self._buffer):
                self._grow_buffer(filled, size)
            with memoryview(self._buffer) as view, view[filled:size] as chunk:
                net.receive_into(connection, chunk, deadline, len(self._prefix) + length)
            filled = size
        return memoryview(self._buffer)[:length]

    def _grow_buffer(self, filled: int, size: int) -> None:
        try:
            # in place: two buffers of a large response would exceed the memory of a read task
            self._buffer += bytes(size - len(self._buffer))
        except BufferError:  # the previous response is in use
            received, self._buffer = self._buffer, bytearray(size)
            self._buffer[:filled] = memoryview(received)[:filled]

    def _connected(self) -> net.Socket:
        if self._socket is None or self._closed:
            raise NetworkError(f"Request to {self.address} failed: the connection is closed.")
        return self._socket

    def _negotiate(self) -> None:
        api = APIS[ApiVersionsRequest.API_KEY]
        expected = self._expected
        version: int | None = VERSION_CAPS[api.key] if expected is None else CHECKS_BROKER_SINCE
        request = ApiVersionsRequest(
            client_software_name=_SOFTWARE,
            client_software_version=__version__,
            cluster_id=None if expected is None else expected.cluster_id,
            node_id=-1 if expected is None else expected.node_id,
        )
        while version is not None:
            response = self.receive(self._send(request, version, self._open_left_ms(self._request_timeout_ms)))
            fallback = fallback_version(api, response)
            version = None if fallback is None or fallback >= version else fallback
        if expected is not None and response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            expected.misrouted()
            raise NetworkError(
                f"Connecting to {self.address} failed: the peer is not broker {expected.node_id} of cluster "
                f"{expected.cluster_id}. Check the name server, proxy or load balancer in between; "
                "kafka.bootstrap.servers are tried next."
            )
        self._versions = broker_ranges_of(response)
        if ApiKey.METADATA not in self._versions and _BROKER_REGISTRATION in self._versions:
            raise RemoteProtocolError(
                f"Connecting to {self.address} failed: it is a listener of a KRaft controller, which serves brokers "
                "only. Set kafka.bootstrap.servers to the listeners of brokers (listeners without "
                "controller.listener.names)."
            )

    def _authenticate(self) -> None:
        security = self._security
        # brokers of MSK accept a token of AWS with OAUTHBEARER beside their own mechanism
        mechanism = security.sasl_mechanism if security.token_source is None else OAUTHBEARER
        mechanism = mechanism or ""
        handshake = self._call_open(SaslHandshakeRequest(mechanism=mechanism), min_version=1)
        if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationError(
                f"Authentication at {self.address} failed: the broker does not offer SASL mechanism {mechanism}. "
                f"Set kafka.sasl.mechanism to one of: {', '.join(handshake.mechanisms) or 'none'}."
            )
        if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"Authentication at {self.address} failed: the listener does not use SASL. "
                "Set kafka.security.protocol to PLAINTEXT or SSL."
            )
        if handshake.error_code:
            raise BrokerError(handshake.error_code, f"SaslHandshake request to {self.address}")
        exchange = self._new_exchange(mechanism)
        while not exchange.is_complete:
            response = self._call_open(SaslAuthenticateRequest(auth_bytes=exchange.next_token()))
            if response.error_code:
                reason = (response.error_message or error_name(response.error_code)).rstrip(".")
                if security.token_source is not None:
                    TOKENS.invalidate(security.token_source)
                    raise AuthenticationError(
                        f"Authentication with a token at {self.address} failed: {reason} ({mechanism}). Check the "
                        "issuer, audience, scope and user of the token, and that its user may connect."
                    )
                raise AuthenticationError(
                    f"Authentication of user {security.username!r} at {self.address} failed: {reason} ({mechanism}). "
                    "Check user name and password."
                )
            if response.session_lifetime_ms:
                self._expires_ms = self._clock.now_ms() + int(response.session_lifetime_ms * _USED_LIFETIME)
            exchange.evaluate_challenge(response.auth_bytes or b"")

    def _new_exchange(self, mechanism: str) -> SaslClient | BearerClient:
        # imported here because only authenticated connections need it
        from spark_groupsource.wire.sasl_client import BearerClient, SaslClient

        security = self._security
        if security.token_source is None:
            return SaslClient(mechanism, security.username or "", security.password or "")
        token = TOKENS.get(security.token_source, security.refresh)
        return BearerClient(token.value, token.extensions)

    def _call_open(self, request: Request[R], *, min_version: int = 0) -> R:
        version, timeout_ms = self.version_for(request, min_version=min_version), self._request_timeout_ms
        return self.receive(self._send(request, version, self._open_left_ms(timeout_ms)))
