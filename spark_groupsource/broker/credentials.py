"""SASL credentials of the broker.

PLAIN users are in the configuration, SCRAM users in the data directory.
Kafka stores SCRAM credentials in its cluster metadata; this broker stores them as salted hashes in
``scram-credentials.json``. AlterUserScramCredentials changes them, and ``--add-scram`` adds the first user, as
``kafka-storage format --add-scram`` does.

Source: KIP-554 (requests), KIP-900 (``--add-scram``).
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Callable, Iterable, Mapping, Sequence

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.security_config import SecurityConfig, listener_specs
from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.broker.token_validation import TokenValidator
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError, StorageError
from spark_groupsource.wire.sasl_server import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_HASHES,
    BearerSaslServer,
    PlainSaslServer,
    SaslServer,
    ScramCredential,
    ScramSaslServer,
    salted_password,
    scram_credential,
)

MAX_USERS = 1_000
"""SCRAM users that clients can add, because the file is replaced with each change. Kafka has no such limit."""
_FILE = "scram-credentials.json"
_JAAS = "listener.name.{}.plain.sasl.jaas.config"
_JAAS_USER = re.compile(r'user_([^\s=]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)')
_ADD_SCRAM = re.compile(r"([A-Z0-9-]+)=\[(.*)\]")


class CredentialStore:
    """The users of one broker. `mechanisms`: enabled SASL mechanisms.

    Args: `now_ms`, milliseconds since 1970.

    Raises: ConfigurationError.
    """

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        security = config.security
        self.mechanisms = _mechanisms(security.sasl_enabled_mechanisms)
        self._passwords = _passwords(security) if PLAIN in self.mechanisms else {}
        self._tokens = TokenValidator(security, now_ms) if OAUTHBEARER in self.mechanisms else None
        self._scram: dict[str, dict[str, ScramCredential]] = {}
        self._path: Path | None = None
        self._lock = threading.Lock()

    def open(self, directory: Path, added: Iterable[str] = ()) -> None:
        """Reads the credentials of `directory`; adds the users `added`, in the format of ``--add-scram``.

        Raises: StorageError; ConfigurationError.
        """
        self._path = directory / _FILE
        if self._path.exists():
            self._read(self._path)
        for text in added:
            user, mechanism, credential = _parse_added(text)
            self.put(user, mechanism, credential)

    def new_exchange(self, mechanism: str, listener: str) -> SaslServer:
        """Creates the server side of one SASL exchange on a listener, which has its own users of PLAIN."""
        if mechanism == PLAIN:
            return PlainSaslServer(self._passwords.get(listener, {}).get)
        if mechanism == OAUTHBEARER:
            assert self._tokens is not None
            return BearerSaslServer(self._tokens.validate)
        nonce = secrets.token_urlsafe(24)
        return ScramSaslServer(mechanism, lambda user: self._scram.get(user, {}).get(mechanism), nonce)

    # --- SCRAM users: changes may run in any thread ---

    @property
    def scram_users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """Credential by user and mechanism."""
        return self._scram

    def put(self, user: str, mechanism: str, credential: ScramCredential) -> None:
        """Stores a user's credential; replaces the previous one. Raises: StorageError."""
        self.change({(user, mechanism): credential})

    def change(self, changes: Mapping[tuple[str, str], ScramCredential | None]) -> None:
        """Stores credentials by user and mechanism, None removes one; durable on return.

        Raises: StorageError; nothing is then changed.
        """
        with self._lock:
            users = dict(self._scram)
            for (user, mechanism), credential in changes.items():
                changed = {name: value for name, value in users.pop(user, {}).items() if name != mechanism}
                if credential is not None:
                    changed[mechanism] = credential
                if changed:
                    users[user] = changed
            self._write(users)

    def _read(self, path: Path) -> None:
        try:
            for user, stored in json.loads(path.read_bytes())["users"].items():
                self._scram[user] = {
                    mechanism: ScramCredential(
                        b64decode(each["salt"]), int(each["iterations"]),
                        b64decode(each["stored_key"]), b64decode(each["server_key"]),
                    )
                    for mechanism, each in stored.items()
                }  # fmt: skip
        except OSError as error:
            raise StorageError(f"Reading {path} failed: {error.strerror}. Check its permissions.") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"File {path} is corrupt: {error!r}. Restore it from a backup or remove it.") from error

    def _write(self, users: dict[str, dict[str, ScramCredential]]) -> None:
        assert self._path is not None, "open must be called first"
        stored = {
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
        replace_file(self._path, json.dumps({"version": 1, "users": stored}).encode(), private=True)
        self._scram = users


def _mechanisms(setting: Sequence[str]) -> tuple[str, ...]:
    mechanisms = tuple(each for each in setting if each)
    for each in mechanisms:
        if each not in MECHANISMS:
            supported = ", ".join(MECHANISMS)
            text = f"Option sasl.enabled.mechanisms must list mechanisms of {supported}, got {each!r}."
            raise ConfigurationError(text)
    return mechanisms


def _passwords(security: SecurityConfig) -> dict[str, dict[str, str]]:
    """Returns the passwords of PLAIN by listener and user. Raises: ConfigurationError for a listener without users."""
    protocols = [each.protocol for each in listener_specs(security, Address("", 0)) if each.has_sasl]
    jaas = {"SASL_PLAINTEXT": security.sasl_plaintext_jaas_config, "SASL_SSL": security.sasl_ssl_jaas_config}
    return {each: _plain_users(jaas[each], _JAAS.format(each.lower())) for each in protocols}


def _plain_users(jaas: str, option: str) -> dict[str, str]:
    """Parses ``... required user_alice="..." user_bob="...";`` into passwords by user."""
    users = {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        for name, value in _JAAS_USER.findall(jaas)
    }
    if not users:
        raise ConfigurationError(
            f"Option sasl.enabled.mechanisms contains PLAIN, but {option} defines no user. Set it to "
            '\'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";\'.'
        )
    return users


def _parse_added(text: str) -> tuple[str, str, ScramCredential]:
    """Parses ``SCRAM-SHA-256=[name=alice,password=...,iterations=4096]`` (iterations are optional)."""
    found = _ADD_SCRAM.fullmatch(text.strip())
    values = dict(part.partition("=")[::2] for part in found[2].split(",")) if found else {}
    mechanism = found[1] if found else ""
    iterations = values.get("iterations", str(MIN_ITERATIONS))
    known = mechanism in SCRAM_HASHES and set(values) <= {"name", "password", "iterations"}
    if not known or not values.get("name") or not values.get("password") or not iterations.isdigit():
        mechanisms = " or ".join(SCRAM_HASHES)
        raise ConfigurationError(
            f"Option --add-scram must be MECHANISM=[name=USER,password=PASSWORD] or the same with iterations=N, where "
            f"MECHANISM is {mechanisms}."
        )
    if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ConfigurationError(
            f"Option --add-scram must have iterations from {MIN_ITERATIONS} to {MAX_ITERATIONS}, got {iterations}."
        )
    salt = secrets.token_bytes(24)
    salted = salted_password(mechanism, values["password"], salt, int(iterations))
    return values["name"], mechanism, scram_credential(mechanism, salted, salt, int(iterations))
