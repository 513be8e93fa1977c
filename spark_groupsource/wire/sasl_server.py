"""Server side of SASL PLAIN and SCRAM.

Nonces and salts are arguments.

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
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, *SCRAM_HASHES, OAUTHBEARER)
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_NO_CHANNEL_BINDING = ("n", "y")
_MAX_TOKEN_BYTES = 65_536
_INVALID_TOKEN = '{"status":"invalid_token"}'
_OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"


class InvalidTokenError(Exception):
    """A token that is not valid; the text is the cause."""


class ScramCredential(NamedTuple):
    """The stored form of a password for one mechanism. It is not sufficient to authenticate."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def scram_credential(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Returns the credential of a password that was salted and hashed `iterations` times."""
    name = SCRAM_HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return ScramCredential(salt, iterations, stored_key, hmac.digest(salted_password, b"Server Key", name))


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns the salted and hashed password."""
    return hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password.encode(), salt, iterations)


class SaslServer(Protocol):
    """One authentication. `user` is valid if `is_complete`.

    `expires_ms` is the end of the credential in milliseconds since 1970, None if it has none.
    """

    user: str
    is_complete: bool
    expires_ms: int | None

    def evaluate_response(self, token: bytes) -> bytes:
        """Processes a token of the client and returns the challenge.

        Raises: AuthenticationError with a message for the client.
        """


class PlainSaslServer:
    """PLAIN: user and password in one token. `password_of` returns None for an unknown user."""

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        self._password_of = password_of
        self.expires_ms: int | None = None
        self.user = ""
        self.is_complete = False

    def evaluate_response(self, token: bytes) -> bytes:
        try:
            authorize_as, user, password = token.decode().split("\0")
        except ValueError as error:
            text = "Authentication failed: the PLAIN token is not ID NUL USER NUL PASSWORD"
            raise AuthenticationError(text) from error
        expected = self._password_of(user)
        # compared for unknown users too, so that the response time does not reveal user names
        is_equal = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not is_equal or not user:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorize_as not in ("", user):
            raise AuthenticationError(_OTHER_ID)
        self.user, self.is_complete = user, True
        return b""


class ScramSaslServer:
    """SCRAM: the client proves that it has the password, and the broker that it has the credential."""

    def __init__(self, mechanism: str, credential_of: Callable[[str], ScramCredential | None], nonce: str) -> None:
        self._mechanism = mechanism
        self._hash = SCRAM_HASHES[mechanism]
        self._credential_of = credential_of
        self._nonce = nonce
        self._first: tuple[str, str, str] | None = None  # header and first message of the client, and the challenge
        self._credential = ScramCredential(b"", 0, b"", b"")
        self.expires_ms: int | None = None
        self.user = ""
        self.is_complete = False

    def evaluate_response(self, token: bytes) -> bytes:
        if len(token) > _MAX_TOKEN_BYTES or self.is_complete:
            raise self._failed()
        try:
            text = token.decode()
            return (self._receive_first(text) if self._first is None else self._receive_final(text)).encode()
        except ValueError as error:  # invalid UTF-8, base64 or message
            raise self._failed() from error

    def _receive_first(self, text: str) -> str:
        binding, authorize_as, bare = text.split(",", 2)
        attributes = _attributes(bare)
        user = attributes["n"].replace("=2C", ",").replace("=3D", "=")
        if binding not in _NO_CHANNEL_BINDING or "m" in attributes:
            raise ValueError("unsupported mandatory extension")
        if authorize_as not in ("", f"a={attributes['n']}"):
            raise AuthenticationError(_OTHER_ID)
        credential = self._credential_of(user)
        if credential is None:
            raise self._failed()
        self.user, self._credential = user, credential
        self._nonce = attributes["r"] + self._nonce
        challenge = f"r={self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        self._first = f"{binding},{authorize_as},", bare, challenge
        return challenge

    def _receive_final(self, text: str) -> str:
        assert self._first is not None
        header, bare, challenge = self._first
        without_proof, _, proof = text.rpartition(",p=")
        attributes = _attributes(without_proof)
        # librdkafka before 2.6.1 repeats its own nonce before that of the challenge, which Kafka accepts
        is_of_challenge = attributes["r"].endswith(self._nonce)
        if not is_of_challenge or b64decode(attributes["c"], validate=True) != header.encode():
            raise ValueError("nonce or channel binding differ")
        auth_message = f"{bare},{challenge},{without_proof}".encode()
        signature = hmac.digest(self._credential.stored_key, auth_message, self._hash)
        proof_bytes = b64decode(proof, validate=True)
        client_key = bytes(a ^ b for a, b in zip(signature, proof_bytes))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if len(proof_bytes) != len(signature) or not hmac.compare_digest(stored_key, self._credential.stored_key):
            raise self._failed()
        self.is_complete = True
        return f"v={b64encode(hmac.digest(self._credential.server_key, auth_message, self._hash)).decode()}"

    def _failed(self) -> AuthenticationError:
        text = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        return AuthenticationError(f"{text} {self._mechanism}")


class BearerSaslServer:
    """OAUTHBEARER: a token that names its user.

    An invalid token has a challenge with the error, and the failure follows the client's next byte (RFC 7628).

    Args: `validate`, returns user and end of a token, or raises InvalidTokenError.
    """

    def __init__(self, validate: Callable[[str], tuple[str, int]]) -> None:
        self._validate = validate
        self._error = ""
        self.expires_ms: int | None = None
        self.user = ""
        self.is_complete = False

    def evaluate_response(self, token: bytes) -> bytes:
        if self._error:
            raise AuthenticationError(f"Authentication failed: {_INVALID_TOKEN}: {self._error}")
        authorize_as, bearer = _bearer_token(token)
        try:
            user, expires_ms = self._validate(bearer)
        except InvalidTokenError as error:
            self._error = str(error)
            return _INVALID_TOKEN.encode()
        if authorize_as not in ("", user):
            raise AuthenticationError(_OTHER_ID)
        self.user, self.expires_ms, self.is_complete = user, expires_ms, True
        return b""


def _bearer_token(message: bytes) -> tuple[str, str]:
    """Returns authorization id and token of the first message of a client; ignores extensions (KIP-342).

    Source: RFC 7628 section 3.1; Kafka `OAuthBearerClientInitialResponse`.
    """
    try:
        header, *pairs, last, end = message.decode("ascii").split("\x01")
        binding, authorize_as, rest = header.split(",")
        (token,) = (pair[5:].strip() for pair in pairs if pair.lower().startswith("auth="))
        scheme, _, value = token.partition(" ")
        is_valid = binding == "n" and not rest and not last and not end and scheme.lower() == "bearer" and value.strip()
        if not is_valid or authorize_as[:2] not in ("", "a="):
            raise ValueError
    except ValueError:
        raise AuthenticationError("Authentication failed: the first OAUTHBEARER message is invalid.") from None
    return authorize_as[2:], value.strip()


def _attributes(text: str) -> dict[str, str]:
    """Returns the attributes of a message by letter.

    Raises: ValueError unless the message is a comma-separated list of LETTER=VALUE with the required attributes.
    """
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1:
            raise ValueError(f"{part!r} is not an attribute")
        found[name] = value
    if not found.get("r") or not (found.get("n") or found.get("c")):
        raise ValueError("a required attribute is missing")
    return found
