"""SASL exchanges as kafka-python's mechanisms drive them: bytes out, bytes in, no socket."""

from __future__ import annotations

import warnings
from typing import Any

from spark_groupsource.errors import AuthenticationError, ConfigurationError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl import get_sasl_mechanism

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Mechanisms proved here; the name is what `sasl.mechanism` takes."""


class SaslClient:
    """One authentication: send `next_bytes()`, hand the answer to `receive()`, until `done`."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        if mechanism not in MECHANISMS:
            raise ConfigurationError(f"sasl.mechanism: {mechanism!r} is not one of {', '.join(MECHANISMS)}")
        if mechanism != "PLAIN":
            # RFC 5802 section 5.1: these two would end the attribute; kafka-python sends the name as it is
            username = username.replace("=", "=3D").replace(",", "=2C")
        self._mechanism: Any = get_sasl_mechanism(mechanism)(
            sasl_mechanism=mechanism, sasl_plain_username=username, sasl_plain_password=password
        )
        self._name = mechanism

    def next_bytes(self) -> bytes:
        """What the client says next."""
        return bytes(self._mechanism.auth_bytes())

    def receive(self, answer: bytes) -> None:
        """Takes the broker's answer.

        Raises: AuthenticationError when the answer does not prove that the broker knows the password too.
        """
        try:
            self._mechanism.receive(answer)
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise AuthenticationError(f"the broker's {self._name} answer is not valid: {error}") from error

    @property
    def done(self) -> bool:
        return bool(self._mechanism.is_done())
