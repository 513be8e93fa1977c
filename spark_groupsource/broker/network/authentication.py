"""SASL authentication of one connection: SaslHandshake, then tokens.

After SaslHandshake version 1 each token is a SaslAuthenticate request (KIP-152). After version 0, which librdkafka
before 2.16 requires and clients before 1.0 use, a token is a frame without request header; a failure has no response.

Source: Kafka `SaslServerAuthenticator`; KIP-43, KIP-152.
"""

from __future__ import annotations

from spark_groupsource.broker.credentials import CredentialStore
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ANONYMOUS
from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import AuthenticationError, ErrorCode
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_groupsource.wire.sasl_server import SaslServer

_AUTHENTICATE_SINCE = 1
_MIN_REAUTHENTICATION_MS = 1_000
SASL_APIS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class SaslAuthenticator:
    """The authentication state of one connection.

    Attributes: `failure`, the cause after a failed request, else empty; `has_raw_tokens`, whether the next frames are
    tokens without request header.
    """

    def __init__(self, credentials: CredentialStore, listener: str, clock: Clock, max_reauth_ms: int) -> None:
        self._credentials = credentials
        self._listener = listener
        self._clock = clock
        self._max_reauth_ms = max_reauth_ms
        self._session_end_ms: int | None = None
        self._authenticated_ms = 0
        self._previous: tuple[str, str] | None = None  # mechanism and principal, during re-authentication
        self._exchange: SaslServer | None = None
        self._mechanism = ""
        self.failure = ""
        self._has_raw_tokens = False

    @property
    def has_raw_tokens(self) -> bool:
        return self._has_raw_tokens and not self.is_complete

    @property
    def is_complete(self) -> bool:
        return self._exchange is not None and self._exchange.is_complete

    @property
    def principal(self) -> str:
        """``User:NAME`` after `is_complete`."""
        return f"User:{self._exchange.user}" if self._exchange is not None and self.is_complete else ANONYMOUS

    @property
    def is_expired(self) -> bool:
        """Whether the client must authenticate again before any other request (KIP-368)."""
        return self._session_end_ms is not None and self._clock.now_ms() >= self._session_end_ms

    def may_begin(self, api_key: int) -> bool:
        """Whether a request of an authenticated client begins a re-authentication.

        As in Kafka, only if its session ends, and at the earliest a second after the last authentication.
        """
        return (
            api_key == ApiKey.SASL_HANDSHAKE
            and self._session_end_ms is not None
            and self._clock.now_ms() - self._authenticated_ms >= _MIN_REAUTHENTICATION_MS
        )

    def handshake(self, request: SaslHandshakeRequest, api_version: int) -> SaslHandshakeResponse:
        """Selects the mechanism."""
        code, enabled = ErrorCode.NONE, list(self._credentials.mechanisms)
        if self.is_complete:
            self._previous, self._exchange = (self._mechanism, self.principal), None
        if self._previous is not None and request.mechanism != self._previous[0]:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self.failure = f"re-authentication with {request.mechanism} instead of {self._previous[0]}."
        elif self._exchange is not None:
            code, self.failure = ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake received twice."
        elif request.mechanism not in enabled:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self.failure = f"mechanism {request.mechanism} is not in sasl.enabled.mechanisms={','.join(enabled)}."
        else:
            self._mechanism = request.mechanism
            self._exchange = self._credentials.new_exchange(request.mechanism, self._listener)
            self._has_raw_tokens = api_version < _AUTHENTICATE_SINCE
        return SaslHandshakeResponse(error_code=code, mechanisms=enabled)

    def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Processes one token of the client."""
        if self._exchange is None:
            self.failure = "SaslAuthenticate received before SaslHandshake."
            return _response(ErrorCode.ILLEGAL_SASL_STATE, self.failure)
        try:
            challenge = self._exchange.evaluate_response(bytes(request.auth_bytes))
            return _response(ErrorCode.NONE, None, challenge, self._complete(self._exchange))
        except AuthenticationError as error:
            self.failure = f"{self._mechanism}: {error}"
            return _response(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))

    def _complete(self, exchange: SaslServer) -> int:
        """Returns the lifetime of the session of a completed exchange in milliseconds, 0 if it has no end.

        Source: Kafka `SaslServerAuthenticator.ReauthInfo`.

        Raises: AuthenticationError if the principal has changed.
        """
        if not exchange.is_complete:
            return 0
        if self._previous is not None and self._previous[1] != self.principal:
            exchange.is_complete = False
            raise AuthenticationError(
                f"Cannot change principals during re-authentication from {self._previous[1]}: User:{exchange.user}"
            )
        self._previous = None
        limits = [self._max_reauth_ms] if self._max_reauth_ms else []
        if exchange.expires_ms is not None:
            limits.append(max(exchange.expires_ms - self._clock.timestamp_ms(), 0))
        self._authenticated_ms = self._clock.now_ms()
        self._session_end_ms = self._authenticated_ms + min(limits) if limits else None
        return min(limits, default=0)

    def evaluate_raw_token(self, token: bytes) -> bytes:
        """Processes a token without request header and returns the challenge; it has no meaning after a failure."""
        assert self._exchange is not None
        try:
            challenge = self._exchange.evaluate_response(token)
            self._complete(self._exchange)
            return challenge
        except AuthenticationError as error:
            self.failure = f"{self._mechanism}: {error}"
            return b""


def new_authenticator(broker: Broker, listener: str) -> SaslAuthenticator | None:
    """Returns the authentication state of a new connection, None on a listener without SASL."""
    if not listener.startswith("SASL"):
        return None
    return SaslAuthenticator(
        broker.credentials, listener, broker.clock, broker.config.security.connections_max_reauth_ms
    )


def _response(
    code: ErrorCode, message: str | None, token: bytes = b"", session_lifetime_ms: int = 0
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=code, error_message=message, auth_bytes=token, session_lifetime_ms=session_lifetime_ms
    )
