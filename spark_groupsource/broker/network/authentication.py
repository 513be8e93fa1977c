"""Who may connect: users with passwords from the settings (PLAIN), and users kept in the data directory (SCRAM).

Kafka keeps SCRAM credentials in its cluster metadata and changes them by request; here they are in
``scram-credentials.json``, as salted hashes, and change by the same request. A first user comes from ``--add-scram``,
as from Kafka's ``kafka-storage format --add-scram``.

Source: KIP-554 (the requests), KIP-900 (``--add-scram``).
"""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Iterable, Mapping, Sequence

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.errors import AuthenticationError, ConfigurationError, ErrorCode, StorageError
from spark_groupsource.storage.files import replace_file
from spark_groupsource.wire.messages import (
    Message,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_groupsource.wire.sasl_server import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    PLAIN,
    SCRAM_HASHES,
    PlainSaslServer,
    SaslServer,
    ScramCredential,
    ScramSaslServer,
    salted_password,
    scram_credential,
)

_FILE = "scram-credentials.json"
_JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
_JAAS_USER = re.compile(r'user_([^\s=]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)')
_ADD_SCRAM = re.compile(r"([A-Z0-9-]+)=\[(.*)\]")
LOGIN_APIS = frozenset({SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY})


class Accounts:
    """The users of one broker. `mechanisms` are those it offers; with none, nobody is asked who he is.

    Raises: ConfigurationError naming the setting and the mend.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.mechanisms = _mechanisms(config.sasl_enabled_mechanisms)
        self._passwords = _plain_users(config.sasl_plain_jaas_config) if PLAIN in self.mechanisms else {}
        self._scram: dict[str, dict[str, ScramCredential]] = {}
        self._path: Path | None = None

    def open(self, directory: Path, added: Iterable[str] = ()) -> None:
        """Reads the credentials of `directory`; `added` are users to be kept there, each as ``--add-scram`` takes it.

        Raises: StorageError; ConfigurationError.
        """
        self._path = directory / _FILE
        if self._path.exists():
            self._read(self._path)
        for text in added:
            user, mechanism, credential = _parse_added(text)
            self.put(user, mechanism, credential)

    def login(self) -> Login | None:
        """What a new connection must pass, None when anybody may come in."""
        return Login(self) if self.mechanisms else None

    def exchange(self, mechanism: str) -> SaslServer:
        """The broker's side of one authentication."""
        if mechanism == PLAIN:
            return PlainSaslServer(self._passwords.get)
        nonce = secrets.token_urlsafe(24)
        return ScramSaslServer(mechanism, lambda user: self._scram.get(user, {}).get(mechanism), nonce)

    # --- users kept in the data directory ---

    @property
    def scram_users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """User -> mechanism -> credential."""
        return self._scram

    def put(self, user: str, mechanism: str, credential: ScramCredential) -> None:
        """Keeps a user's credential, in the place of an older one. Raises: StorageError."""
        self._write({**self._scram, user: {**self._scram.get(user, {}), mechanism: credential}})

    def remove(self, user: str, mechanism: str) -> None:
        """Forgets a credential that is there. Raises: StorageError."""
        kept = {name: value for name, value in self._scram[user].items() if name != mechanism}
        rest = {name: value for name, value in self._scram.items() if name != user}
        self._write({**rest, user: kept} if kept else rest)

    def _read(self, path: Path) -> None:
        try:
            for user, kept in json.loads(path.read_bytes())["users"].items():
                self._scram[user] = {
                    mechanism: ScramCredential(
                        b64decode(each["salt"]), int(each["iterations"]),
                        b64decode(each["stored_key"]), b64decode(each["server_key"]),
                    )
                    for mechanism, each in kept.items()
                }  # fmt: skip
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}; check permissions") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"{path} is damaged ({error!r}); restore it from a copy or remove it") from error

    def _write(self, users: dict[str, dict[str, ScramCredential]]) -> None:
        assert self._path is not None, "open comes first"
        kept = {
            user: {
                mechanism: {
                    "iterations": each.iterations,
                    "salt": b64encode(each.salt).decode(),
                    "stored_key": b64encode(each.stored_key).decode(),
                    "server_key": b64encode(each.server_key).decode(),
                }
                for mechanism, each in credentials.items()
            }
            for user, credentials in users.items()
        }
        replace_file(self._path, json.dumps({"version": 1, "users": kept}).encode())
        self._path.chmod(0o600)
        self._scram = users


class Login:
    """The authentication of one connection: a handshake, then tokens, until `done` or `failed`."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._exchange: SaslServer | None = None
        self._mechanism = ""
        self.failed = ""

    @property
    def done(self) -> bool:
        return self._exchange is not None and self._exchange.done

    def answer(self, request: Message) -> Message:
        """The answer to a SaslHandshake or SaslAuthenticate; once `failed` says why, the connection ends with it."""
        if request.API_KEY == SaslHandshakeRequest.API_KEY:
            return self._handshake(request)
        if self._exchange is None:
            self.failed = "SaslAuthenticate came before SaslHandshake"
            return _answer(ErrorCode.ILLEGAL_SASL_STATE, self.failed)
        try:
            return _answer(ErrorCode.NONE, None, self._exchange.receive(bytes(request.auth_bytes)))
        except AuthenticationError as error:
            self.failed = f"{self._mechanism}: {error}"
            return _answer(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))

    def _handshake(self, request: Message) -> Message:
        code, offered = ErrorCode.NONE, list(self._accounts.mechanisms)
        if self._exchange is not None:
            code, self.failed = ErrorCode.ILLEGAL_SASL_STATE, "a second SaslHandshake"
        elif request.mechanism not in offered:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self.failed = f"mechanism {request.mechanism} is not among sasl.enabled.mechanisms ({', '.join(offered)})"
        else:
            self._mechanism = request.mechanism
            self._exchange = self._accounts.exchange(request.mechanism)
        return SaslHandshakeResponse(error_code=code, mechanisms=offered)


def _answer(code: ErrorCode, message: str | None, token: bytes = b"") -> Message:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=token, session_lifetime_ms=0)


def _mechanisms(setting: Sequence[str]) -> tuple[str, ...]:
    named = tuple(each for each in setting if each)
    for each in named:
        if each not in MECHANISMS:
            raise ConfigurationError(f"sasl.enabled.mechanisms: {each!r} is not one of {', '.join(MECHANISMS)}")
    return named


def _plain_users(jaas: str) -> dict[str, str]:
    """Passwords by user, of ``... required user_alice="..." user_bob="...";``."""
    users = {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        for name, value in _JAAS_USER.findall(jaas)
    }
    if not users:
        raise ConfigurationError(
            f"sasl.enabled.mechanisms has PLAIN, but {_JAAS} names no user; write "
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
        )
    return users


def _parse_added(text: str) -> tuple[str, str, ScramCredential]:
    """User, mechanism and credential of ``SCRAM-SHA-256=[name=alice,password=...]``, iterations being optional."""
    found = _ADD_SCRAM.fullmatch(text.strip())
    values = dict(part.partition("=")[::2] for part in found[2].split(",")) if found else {}
    mechanism = found[1] if found else ""
    iterations = values.get("iterations", str(MIN_ITERATIONS))
    known = mechanism in SCRAM_HASHES and set(values) <= {"name", "password", "iterations"}
    if not known or not values.get("name") or not values.get("password") or not iterations.isdigit():
        mechanisms = " or ".join(SCRAM_HASHES)
        raise ConfigurationError(
            f"--add-scram: write MECHANISM=[name=USER,password=PASSWORD] with {mechanisms}, and iterations=N if need be"
        )
    if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ConfigurationError(f"--add-scram: iterations must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    salt = secrets.token_bytes(24)
    salted = salted_password(mechanism, values["password"], salt, int(iterations))
    return values["name"], mechanism, scram_credential(mechanism, salted, salt, int(iterations))
