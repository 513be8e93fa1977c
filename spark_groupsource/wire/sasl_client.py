"""Client side of SASL PLAIN, SCRAM and OAUTHBEARER.

PLAIN and SCRAM are the mechanisms of kafka-python.

Source: Kafka `ScramSaslClient` (minimum of iterations).
"""

from __future__ import annotations

import warnings
from typing import Any, Iterable

from spark_groupsource.errors import AuthenticationError, ConfigurationError
from spark_groupsource.wire.sasl_server import MIN_ITERATIONS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl import get_sasl_mechanism

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms with user name and password."""


class SaslClient:
    """One authentication: send `next_token()` and pass the response to `evaluate_challenge()` until `is_complete`."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        if mechanism not in MECHANISMS:
            raise ConfigurationError(
                f"Option kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}."
            )
        if mechanism != "PLAIN":
            # RFC 5802 section 5.1: both characters end an attribute; kafka-python does not escape them
            username = username.replace("=", "=3D").replace(",", "=2C")
        self._mechanism: Any = get_sasl_mechanism(mechanism)(
            sasl_mechanism=mechanism, sasl_plain_username=username, sasl_plain_password=password
        )
        self._name = mechanism
        self._expects_iterations = mechanism != "PLAIN"

    def next_token(self) -> bytes:
        """Returns the next token of the client."""
        return bytes(self._mechanism.auth_bytes())

    def evaluate_challenge(self, challenge: bytes) -> None:
        """Processes a token of the broker.

        Raises: AuthenticationError if the token is invalid, requests fewer than 4,096 iterations, or does not prove
            that the broker has the credential.
        """
        try:
            if self._expects_iterations:
                self._check_iterations(challenge)
            self._mechanism.receive(challenge)
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise AuthenticationError(
                f"{self._name} authentication failed: the challenge of the broker is invalid ({error})."
            ) from error

    def _check_iterations(self, challenge: bytes) -> None:
        # the proof of few iterations lets a false broker find the password by trial
        iterations = int(dict(part.split("=", 1) for part in challenge.decode().split(","))["i"])
        if iterations < MIN_ITERATIONS:
            raise AuthenticationError(
                f"{self._name} authentication failed: the broker requests {iterations} iterations, the minimum is "
                f"{MIN_ITERATIONS}. Check that the address is that of your broker, and set the user's password again "
                f"with iterations={MIN_ITERATIONS} or more."
            )
        self._expects_iterations = False

    @property
    def is_complete(self) -> bool:
        return bool(self._mechanism.is_done())


class BearerClient:
    """OAUTHBEARER with one token (RFC 7628, KIP-255); the interface of `SaslClient`."""

    def __init__(self, token: str, extensions: Iterable[tuple[str, str]] = ()) -> None:
        pairs = "".join(f"\x01{name}={value}" for name, value in extensions)
        self._next = f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()
        self.is_complete = False

    def next_token(self) -> bytes:
        return self._next

    def evaluate_challenge(self, challenge: bytes) -> None:
        """Completes, or continues with the byte after which the broker sends the error of a rejected token."""
        self.is_complete = not challenge
        self._next = b"\x01"
