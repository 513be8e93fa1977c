"""Client side of SASL PLAIN and SCRAM, with the mechanisms of kafka-python."""

from __future__ import annotations

import warnings
from typing import Any

from spark_groupsource.errors import AuthenticationError, ConfigurationError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl import get_sasl_mechanism

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The supported values of `sasl.mechanism`."""


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

    def next_token(self) -> bytes:
        """Returns the next token of the client."""
        return bytes(self._mechanism.auth_bytes())

    def evaluate_challenge(self, challenge: bytes) -> None:
        """Processes a token of the broker.

        Raises: AuthenticationError if the token is invalid or does not prove that the broker has the credential.
        """
        try:
            self._mechanism.receive(challenge)
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise AuthenticationError(
                f"{self._name} authentication failed: the challenge of the broker is invalid ({error})."
            ) from error

    @property
    def is_complete(self) -> bool:
        return bool(self._mechanism.is_done())
