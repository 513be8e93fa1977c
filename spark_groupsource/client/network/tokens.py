"""Tokens of OAUTHBEARER, requested again before they expire.

Source: Kafka `ExpiringCredentialRefreshingLogin` (when a token is requested again).
"""

from __future__ import annotations

import json
import logging
import random
import threading
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Protocol

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import AuthenticationError, NetworkError

_log = logging.getLogger(__name__)
_DEFAULT_LIFETIME_MS = 3_600_000


@dataclass(frozen=True)
class Token:
    """A bearer token. `expires_ms` is in milliseconds since 1970; `extensions` are SASL extensions (KIP-342)."""

    value: str = field(repr=False)
    expires_ms: int
    extensions: tuple[tuple[str, str], ...] = ()


class TokenSource(Protocol):
    """Requests tokens; hashable and picklable, because options travel to executors."""

    def request(self, now_ms: int) -> Token:
        """Returns a new token. Raises: AuthenticationError, NetworkError, ConfigurationError."""


class RefreshSettings(NamedTuple):
    """`sasl.login.refresh.*`: the part of the lifetime that is used, and the time before the end that is kept."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_s: int = 60
    buffer_s: int = 300


@dataclass
class _Kept:
    token: Token
    refresh_ms: int


class TokenCache:
    """The tokens of a process, by their source. Can be called from any thread."""

    def __init__(self, now_ms: Callable[[], int], jitter: Callable[[], float] = random.random) -> None:
        self._now_ms = now_ms
        self._jitter = jitter
        self._kept: dict[TokenSource, _Kept] = {}
        self._locks: dict[TokenSource, threading.Lock] = {}

    def get(self, source: TokenSource, refresh: RefreshSettings = RefreshSettings()) -> Token:
        """Returns a token that has not expired.

        A failure to replace a token that is still valid is logged.

        Raises: as `TokenSource.request`.
        """
        with self._locks.setdefault(source, threading.Lock()):
            now_ms, kept = self._now_ms(), self._kept.get(source)
            if kept is not None and now_ms < kept.refresh_ms:
                return kept.token
            try:
                token = source.request(now_ms)
            except (AuthenticationError, NetworkError) as error:
                if kept is None or now_ms >= kept.token.expires_ms:
                    raise
                _log.warning("[login] Requesting a new token failed, the previous one is still valid: %s", error)
                kept.refresh_ms = now_ms + min(10_000, kept.token.expires_ms - now_ms)
                return kept.token
            self._kept[source] = _Kept(token, self._refresh_ms(token, now_ms, refresh))
            return token

    def invalidate(self, source: TokenSource) -> None:
        """Forgets a token that a broker has rejected."""
        self._kept.pop(source, None)

    def _refresh_ms(self, token: Token, now_ms: int, refresh: RefreshSettings) -> int:
        lifetime_ms = token.expires_ms - now_ms
        part = refresh.window_factor + refresh.window_jitter * self._jitter()
        wanted_ms = now_ms + int(lifetime_ms * part)
        earliest_ms, latest_ms = now_ms + refresh.min_period_s * 1000, token.expires_ms - refresh.buffer_s * 1000
        if earliest_ms > latest_ms:
            # a short lifetime: both limits are ignored, as in Kafka
            return wanted_ms
        return max(earliest_ms, min(wanted_ms, latest_ms))


TOKENS = TokenCache(SystemClock().timestamp_ms)
"""The tokens of this process."""


def token_of(value: str, now_ms: int, expires_ms: int | None = None, extensions: Any = ()) -> Token:
    """Returns a token; its end is taken from the claim `exp` of a JWT if it is not given.

    Raises: AuthenticationError for a token that SASL cannot transport.
    """
    value = value.strip()
    if not value or not value.isascii() or any(character.isspace() or ord(character) < 32 for character in value):
        raise AuthenticationError(
            "The token for OAUTHBEARER is empty or has characters that are not allowed. Check its source."
        )
    if expires_ms is None:
        claim = claims_of(value).get("exp")
        expires_ms = int(claim * 1000) if isinstance(claim, (int, float)) else now_ms + _DEFAULT_LIFETIME_MS
    if expires_ms <= now_ms:
        raise AuthenticationError(
            f"The token for OAUTHBEARER has expired {(now_ms - expires_ms) // 1000} s ago. Renew it at its source, or "
            "correct the clock of this machine."
        )
    return Token(value, expires_ms, tuple(sorted(dict(extensions).items())))


def claims_of(value: str) -> dict[str, Any]:
    """Returns the claims of a JWT without verification, empty for another kind of token."""
    parts = value.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}
