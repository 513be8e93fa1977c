"""Client of a schema registry: schemas by id, and versions of subjects.

Source: REST interface of Confluent Schema Registry, which Karapace and Apicurio serve, too.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import TYPE_CHECKING, Callable, Mapping, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.tls import is_lost_in_handshake
from spark_groupsource.common.tls_contexts import tls_context
from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError
from spark_groupsource.values.registry.avro_references import with_references
from spark_groupsource.values.registry.registry_address import RegistryAddress
from spark_groupsource.values.registry.registry_requests import error_body, send
from spark_groupsource.values.registry.registry_responses import (
    SchemaResponse,
    parse_error_code,
    parse_error_message,
    parse_schema_id,
    parse_schema_response,
)

if TYPE_CHECKING:
    import ssl

_Parsed = TypeVar("_Parsed")
_log = logging.getLogger(__name__)
_CLOCK = SystemClock()
_TIMEOUT_MS = 10_000
_BACKOFF_MS, _MAX_BACKOFF_MS = 100, 5_000
# how long an unknown id is not requested again: a follower of the registry may not have it yet
_UNKNOWN_MS = 30_000
# how long tasks write the latest version of a subject before they ask again
_LATEST_MS = 60_000
_MAX_REFERENCES = 1_000
_MAX_REFERENCE_DEPTH = 100
_NOT_FOUND = 404
_UNAUTHORIZED = (401, 403)
# codes of requests that are not repeated; 408 and 429 are repeated
_INVALID = (400, 405, 406, 409, 410, 422)
# a schema that is incompatible with the subject, or invalid
_REJECTED = (409, 422)
# codes in the body of the responses: subject, version, schema not found; a proxy's 404 has none
_UNKNOWN_CODES = (40401, 40402, 40403)


class UnreadableSchemaError(ConfigurationError):
    """A schema of the registry refers to others that it does not have. Values that name it are malformed."""


class RegisteredSchema(NamedTuple):
    """A schema of the registry.

    Attributes:
        kind: AVRO, JSON or PROTOBUF.
        references: name by which the schema refers to another one -> text of that one. A schema comes after those to
            which it refers.
    """

    text: str
    kind: str
    references: Mapping[str, str]

    @property
    def avro(self) -> str:
        """The schema with the definitions of the types of others."""
        return with_references(self.text, list(self.references.values())) if self.references else self.text

    def descriptor_set(self, owner: str) -> str:
        """Returns the descriptor set of a Protobuf schema, in base64.

        Args:
            owner: what has the schema, for messages.
        Raises: ConfigurationError for a schema that does not compile.
        """
        from spark_groupsource.values.registry.proto_files import descriptor_set

        return descriptor_set(owner, self.text, tuple(self.references.items()))


class SubjectVersion(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    schema_id: int
    schema: RegisteredSchema


class SchemaRegistry:
    """Schemas of a registry; each is requested once per process.

    A request is sent to each address in turn and repeated for `RegistryAddress.wait_ms`.

    Args:
        option: the option with the addresses, for messages.
    """

    def __init__(self, address: RegistryAddress, option: str) -> None:
        self._address = address
        self._option = option
        self._schemas: dict[int | str, RegisteredSchema] = {}
        self._unknown_until_ms: dict[int | str, int] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._versions: dict[tuple[str, int | None], tuple[int, SubjectVersion]] = {}

    def schema(self, schema_id: int | str) -> str | None:
        """Returns the text of an Avro schema, with the types of others to which it refers.

        Args:
            schema_id: number, or text of a UUID.
        Returns: None if the registry has no Avro schema with this id.
        Raises: UnreadableSchemaError; NetworkError if no address responds as a registry in time; AuthenticationError;
            ConfigurationError.
        """
        found = self.registered(schema_id)
        return found.avro if found is not None and found.kind == "AVRO" else None

    def registered(self, schema_id: int | str) -> RegisteredSchema | None:
        """Returns a schema of any kind; None if the registry has no schema with this id.

        Raises: as `schema`.
        """
        if schema_id not in self._schemas:
            if self._unknown_until_ms.get(schema_id, 0) > _CLOCK.now_ms():
                return None
            kind = "guids" if isinstance(schema_id, str) else "ids"
            found = self._get(f"/schemas/{kind}/{schema_id}", is_version=False)
            if found is None:
                self._unknown_until_ms[schema_id] = _CLOCK.now_ms() + _UNKNOWN_MS
                return None
            self._schemas[schema_id] = self._with_references(found)
        return self._schemas[schema_id]

    def version(self, subject: str, version: int | None = None) -> SubjectVersion | None:
        """Returns a version of a subject, None for the latest one; None if there is none.

        Raises: as `schema`.
        """
        found = self._get(_path(subject, version))
        if found is None:
            return None
        return SubjectVersion(subject, found.version, found.schema_id, self._with_references(found))

    def latest_version(self, subject: str) -> int | None:
        """Returns the number of the latest version of a subject, without its references; None if there is none."""
        found = self._get(_path(subject, None))
        return None if found is None else found.version

    def schema_id(self, subject: str, text: str, kind: str, registers: bool) -> int | None:
        """Returns the id of a schema in a subject.

        Args:
            kind: AVRO, JSON or PROTOBUF.
            registers: whether the schema becomes a version of the subject if it is none.
        Returns: None if it is none.
        Raises: as `schema`; ConfigurationError for a schema that the registry rejects.
        """
        found = self._ids.get((subject, text))
        if found is None:
            given = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
            path = f"/subjects/{quote(subject, safe='', errors='replace')}{'/versions' if registers else ''}"
            found = self._send(path, parse_schema_id, json.dumps(given).encode())
            if found is not None:
                self._ids[subject, text] = found
        return found

    def recent_version(self, subject: str, version: int | None = None) -> SubjectVersion | None:
        """As `version`; a version that was read is not requested again, and the latest one not for a minute."""
        kept = self._versions.get((subject, version))
        if kept is None or version is None and kept[0] < _CLOCK.now_ms():
            found = self.version(subject, version)
            if found is None:
                return None
            kept = self._versions[subject, version] = _CLOCK.now_ms() + _LATEST_MS, found
        return kept[1]

    def _with_references(self, found: SchemaResponse) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._add_references(found, references, set(), 1)
        return RegisteredSchema(found.schema, found.kind, references)

    def _add_references(
        self, found: SchemaResponse, references: dict[str, str], visited: set[str], depth: int
    ) -> None:
        for each in found.references:
            # a deleted version remains readable for the schemas that refer to it
            path = f"{_path(each.subject, each.version)}?deleted=true"
            if path in visited:
                continue
            visited.add(path)
            other = self._get(path)
            if other is None or len(visited) > _MAX_REFERENCES or depth > _MAX_REFERENCE_DEPTH:
                reason = f"is nested deeper than {_MAX_REFERENCE_DEPTH}"
                if other is None:
                    reason = "does not exist"
                elif len(visited) > _MAX_REFERENCES:
                    reason = f"is one of more than {_MAX_REFERENCES}"
                raise UnreadableSchemaError(
                    f"Reading a schema failed: its reference to version {each.version} of subject {each.subject} "
                    f"{reason}. Correct the schema in the registry."
                )
            self._add_references(other, references, visited, depth + 1)
            references[each.name] = other.schema

    def _get(self, path: str, is_version: bool = True) -> SchemaResponse | None:
        """Returns a response; None if the registry does not have the schema or version."""
        return self._send(path, lambda body: parse_schema_response(body, is_version))

    def _send(self, path: str, parse: Callable[[bytes], _Parsed], sent: bytes | None = None) -> _Parsed | None:
        """Returns a parsed response; None if the registry does not have the schema, version or subject."""
        context = self._context()
        deadline_ms = _CLOCK.now_ms() + self._address.wait_ms
        backoff_ms, is_first = _BACKOFF_MS, True
        while True:
            for url in self._address.urls:
                remaining_ms = max(deadline_ms - _CLOCK.now_ms(), 1)
                try:
                    timeout_ms = min(_TIMEOUT_MS, remaining_ms)
                    return parse(send(url + path, self._address, context, timeout_ms, _CLOCK, sent))
                except HTTPError as error:
                    with error:
                        body = error_body(error)
                        if error.code == _NOT_FOUND and parse_error_code(body) in _UNKNOWN_CODES:
                            return None
                        if error.code in _REJECTED and sent is not None and parse_error_code(body) is not None:
                            raise ConfigurationError(
                                f"Sending a schema to {url + path} failed: {parse_error_message(body)[:300]} "
                                f"({error.code}). Correct the types of the columns, or the schema."
                            ) from None
                    self._check_retriable(error, url + path)
                    failure = f"{url} responded {error.code}"
                except (OSError, ValueError) as error:
                    self._check_certificate(error, url)
                    failure = f"{url}: {str(error)[:200]}"
            if _CLOCK.now_ms() + backoff_ms >= deadline_ms:
                raise NetworkError(
                    f"{'Reading' if sent is None else 'Sending a schema to'} {path} of the schema registry failed for "
                    f"{self._address.wait_ms} ms: {failure}. Check "
                    f"option {self._option} and the registry."
                )
            if is_first:
                _log.warning("[registry] %s; retrying for up to %d ms.", failure, deadline_ms - _CLOCK.now_ms())
            _CLOCK.sleep_ms(backoff_ms)
            backoff_ms, is_first = min(2 * backoff_ms, _MAX_BACKOFF_MS), False

    def _context(self) -> ssl.SSLContext | None:
        """Raises: ConfigurationError that names the option of the registry."""
        try:
            return None if self._address.tls is None else tls_context(self._address.tls)
        except ConfigurationError as error:
            prefix = f"{self._option.removesuffix('url')}ssl."
            raise ConfigurationError(str(error).replace("kafka.ssl.", prefix)) from error

    def _check_retriable(self, error: HTTPError, url: str) -> None:
        code = error.code
        if error.url and error.url != url:
            url = f"{url} (redirected to {_server(error.url)})"
        if code in _UNAUTHORIZED:
            column = self._option.partition(".")[0]
            verdict = "the registry rejected the credentials" if code == _UNAUTHORIZED[0] else "permission is missing"
            raise AuthenticationError(
                f"Reading {url} failed: {verdict} ({code}). Set {column}.basic.auth.user.info or "
                f"{column}.bearer.auth.token to credentials that may read the subject."
            )
        if code == _NOT_FOUND or code in _INVALID:
            raise ConfigurationError(
                f"Reading {url} failed: the address responded {code}, as no schema registry does. Correct option "
                f"{self._option}."
            )

    def _check_certificate(self, error: Exception, url: str) -> None:
        reason = error.reason if isinstance(error, URLError) else error
        if url.lower().startswith("https:") and not isinstance(reason, str):
            import ssl

            if isinstance(reason, ssl.SSLError) and not is_lost_in_handshake(reason):
                prefix = self._option.removesuffix(".url")
                raise AuthenticationError(
                    f"TLS handshake with {url} failed: {reason}. Set {prefix}.ssl.ca.location to the certificate "
                    "authority of the registry, or renew the certificate."
                ) from None


def _path(subject: str, version: int | None) -> str:
    # a surrogate that an escape has alone has no encoding
    return f"/subjects/{quote(subject, safe='', errors='replace')}/versions/{version or 'latest'}"


def _server(url: str) -> str:
    """Returns the server of an address, without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@cache
def shared_registry(address: RegistryAddress, column: str) -> SchemaRegistry:
    """Returns the client of this process for a column, with the schemas that it has read."""
    return SchemaRegistry(address, f"{column}.schema.registry.url")
