"""The broker's side of SASL: what a client must prove with PLAIN and SCRAM. Tokens in, tokens out.

Knows bytes and credentials; nonces and salts are handed in, sockets and files are others' affair.

Source: RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM); Kafka `PlainSaslServer`, `ScramSaslServer`, `ScramFormatter`.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Callable, Mapping, NamedTuple, Protocol

from spark_groupsource.errors import AuthenticationError

PLAIN = "PLAIN"
SCRAM_HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> name of its hash."""
MECHANISMS = (PLAIN, *SCRAM_HASHES)
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_NO_CHANNEL_BINDING = ("n", "y")
_MAX_TOKEN_BYTES = 65_536
_OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"


class ScramCredential(NamedTuple):
    """What the broker keeps of a password for one mechanism; neither it nor the keys let anybody log in."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def scram_credential(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a password that was salted and hashed `iterations` times."""
    name = SCRAM_HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return ScramCredential(salt, iterations, stored_key, hmac.digest(salted_password, b"Server Key", name))


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """A password, salted and hashed."""
    return hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password.encode(), salt, iterations)


class SaslServer(Protocol):
    """One authentication. `user` is who it is, once `done`."""

    user: str
    done: bool

    def receive(self, token: bytes) -> bytes:
        """Takes what the client says; returns what to answer.

        Raises: AuthenticationError, with a text that may be told to the client.
        """


class PlainSaslServer:
    """PLAIN: name and password in one token. `password_of` gives a user's password, None for nobody."""

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        self._password_of = password_of
        self.user = ""
        self.done = False

    def receive(self, token: bytes) -> bytes:
        try:
            authorize_as, user, password = token.decode().split("\0")
        except ValueError as error:
            text = "Authentication failed: the PLAIN token is not ID NUL USER NUL PASSWORD"
            raise AuthenticationError(text) from error
        expected = self._password_of(user)
        # compared in any case, so that the time it takes does not tell which names exist
        same = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not same or not user:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorize_as not in ("", user):
            raise AuthenticationError(_OTHER_ID)
        self.user, self.done = user, True
        return b""


class ScramSaslServer:
    """SCRAM: the client proves that it knows the password, and the broker that it knows the credential."""

    def __init__(self, mechanism: str, credential_of: Callable[[str], ScramCredential | None], nonce: str) -> None:
        self._mechanism = mechanism
        self._hash = SCRAM_HASHES[mechanism]
        self._credential_of = credential_of
        self._nonce = nonce
        self._first: tuple[str, str, str] | None = None  # the client's header and first message, and our answer
        self._credential = ScramCredential(b"", 0, b"", b"")
        self.user = ""
        self.done = False

    def receive(self, token: bytes) -> bytes:
        if len(token) > _MAX_TOKEN_BYTES or self.done:
            raise self._failed()
        try:
            text = token.decode()
            return (self._receive_first(text) if self._first is None else self._receive_final(text)).encode()
        except ValueError as error:  # of the decoding of UTF-8, base64 or the message
            raise self._failed() from error

    def _receive_first(self, text: str) -> str:
        binding, authorize_as, bare = text.split(",", 2)
        attributes = _attributes(bare)
        user = attributes["n"].replace("=2C", ",").replace("=3D", "=")
        if binding not in _NO_CHANNEL_BINDING or "m" in attributes:
            raise ValueError("an extension that must be known, and is not")
        if authorize_as not in ("", f"a={attributes['n']}"):
            raise AuthenticationError(_OTHER_ID)
        credential = self._credential_of(user)
        if credential is None:
            raise self._failed()
        self.user, self._credential = user, credential
        self._nonce = attributes["r"] + self._nonce
        answer = f"r={self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        self._first = f"{binding},{authorize_as},", bare, answer
        return answer

    def _receive_final(self, text: str) -> str:
        assert self._first is not None
        header, bare, answer = self._first
        without_proof, _, proof = text.rpartition(",p=")
        attributes = _attributes(without_proof)
        if attributes["r"] != self._nonce or b64decode(attributes["c"], validate=True) != header.encode():
            raise ValueError("it answers something else")
        said = f"{bare},{answer},{without_proof}".encode()
        signature = hmac.digest(self._credential.stored_key, said, self._hash)
        proved = b64decode(proof, validate=True)
        client_key = bytes(a ^ b for a, b in zip(signature, proved))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if len(proved) != len(signature) or not hmac.compare_digest(stored_key, self._credential.stored_key):
            raise self._failed()
        self.done = True
        return f"v={b64encode(hmac.digest(self._credential.server_key, said, self._hash)).decode()}"

    def _failed(self) -> AuthenticationError:
        text = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        return AuthenticationError(f"{text} {self._mechanism}")


def _attributes(text: str) -> dict[str, str]:
    """Attributes by their letter.

    Raises: ValueError where they are not LETTER=VALUE with commas between, or name and nonce are missing.
    """
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1:
            raise ValueError(f"{part!r} is no attribute")
        found[name] = value
    if not found.get("r") or not (found.get("n") or found.get("c")):
        raise ValueError("an attribute is missing")
    return found
