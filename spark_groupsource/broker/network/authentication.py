"""SASL authentication of one connection: SaslHandshake, then tokens.

After SaslHandshake version 1 each token is a SaslAuthenticate request (KIP-152). After version 0, which librdkafka
before 2.16 requires and clients before 1.0 use, a token is a frame without request header; a failure has no response.

Source: Kafka `SaslServerAuthenticator`; KIP-43, KIP-152.
"""

from __future__ import annotations

from spark_groupsource.broker.credentials import CredentialStore
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
SASL_APIS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class SaslAuthenticator:
    """The authentication state of one connection.

    Attributes: `failure`, the cause after a failed request, else empty; `has_raw_tokens`, whether the next frames are
    tokens without request header.
    """

    def __init__(self, credentials: CredentialStore) -> None:
        self._credentials = credentials
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

    def handshake(self, request: SaslHandshakeRequest, api_version: int) -> SaslHandshakeResponse:
        """Selects the mechanism."""
        code, enabled = ErrorCode.NONE, list(self._credentials.mechanisms)
        if self._exchange is not None:
            code, self.failure = ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake received twice."
        elif request.mechanism not in enabled:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self.failure = f"mechanism {request.mechanism} is not in sasl.enabled.mechanisms={','.join(enabled)}."
        else:
            self._mechanism = request.mechanism
            self._exchange = self._credentials.new_exchange(request.mechanism)
            self._has_raw_tokens = api_version < _AUTHENTICATE_SINCE
        return SaslHandshakeResponse(error_code=code, mechanisms=enabled)

    def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Processes one token of the client."""
        if self._exchange is None:
            self.failure = "SaslAuthenticate received before SaslHandshake."
            return _response(ErrorCode.ILLEGAL_SASL_STATE, self.failure)
        try:
            return _response(ErrorCode.NONE, None, self._exchange.evaluate_response(bytes(request.auth_bytes)))
        except AuthenticationError as error:
            self.failure = f"{self._mechanism}: {error}"
            return _response(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))

    def evaluate_raw_token(self, token: bytes) -> bytes:
        """Processes a token without request header and returns the challenge; it has no meaning after a failure."""
        assert self._exchange is not None
        try:
            return self._exchange.evaluate_response(token)
        except AuthenticationError as error:
            self.failure = f"{self._mechanism}: {error}"
            return b""


def _response(code: ErrorCode, message: str | None, token: bytes = b"") -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=token, session_lifetime_ms=0)
