"""Access control lists, and decisions of the authorizer.

Source: Kafka `StandardAuthorizerData` (deny before allow, wildcards, prefixes, implied operations), `AclControlManager`
(validation), `ResourcePatternFilter`, `AccessControlEntryFilter`.
"""

from __future__ import annotations

import json
import threading
from enum import IntEnum
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

from spark_groupsource.broker.security_config import SecurityConfig
from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.errors import ApiError, ErrorCode, StorageError

MAX_ACLS = 10_000
"""ACLs that clients can add, because the file is replaced with each change. Kafka has no such limit."""
CLUSTER_NAME = "kafka-cluster"
_FILE = "acls.json"
_WILDCARD, _ANYONE = "*", "User:*"
_MAX_TEXT = 1_000
_MAX_TEXT_BYTES = 2_000_000
"""Names, principals and addresses of all ACLs: room for 10,000 of 200 bytes each."""
# longer names are decided each time, so that the decisions of a client with many names need at most 10 MB
_MAX_DECISIONS, _MAX_DECISION_NAME = 20_000, 249
_ANY_NAME = "hardcode"  # as in Kafka


class Operation(IntEnum):
    """Operations, with Kafka's codes (`AclOperation`)."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Types of resources, with Kafka's codes."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Types of patterns, with Kafka's codes; ANY and MATCH in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Whether an ACL denies or allows; ANY in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLIED = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Operation -> operations that allow it too."""


class Acl(NamedTuple):
    """One entry: a permission of a principal for an operation on the resources of a pattern."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Selects entries; None and ANY select all values."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Whether an entry is selected."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        name, pattern = self.resource_name, self.pattern_type
        if pattern not in (PatternType.ANY, PatternType.MATCH) and pattern != acl.pattern_type:
            return False
        if name is None:
            return True
        if pattern != PatternType.MATCH or acl.resource_name == name:
            return acl.resource_name == name
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name == _WILDCARD
        return name.startswith(acl.resource_name)


def check_acl(acl: Acl) -> None:
    """Raises: ApiError for an entry that cannot be created."""
    problem = ""
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        problem = f"Invalid patternType {acl.pattern_type}"
    elif acl.resource_type not in ResourceType.__members__.values() or acl.resource_type == ResourceType.ANY:
        problem = f"Invalid resourceType {acl.resource_type}"
    elif acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        problem = "Invalid empty resource name"
    elif acl.operation not in Operation.__members__.values() or acl.operation == Operation.ANY:
        problem = f"Invalid operation {acl.operation}"
    elif acl.permission not in (Permission.ALLOW, Permission.DENY):
        problem = f"Invalid permissionType {acl.permission}"
    elif not all(acl.principal.partition(":")):
        problem = f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type"
        problem += " from the principal name)"
    elif not acl.host:
        problem = "Invalid empty host"
    elif max(map(len, (acl.resource_name, acl.principal, acl.host))) > _MAX_TEXT:
        problem = f"The ACL has a text of more than {_MAX_TEXT} characters"
    if problem:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)


_Index = dict[tuple[int, int, str], dict[tuple[str, str], list[Acl]]]
"""Resource type, pattern type and name -> principal and address -> entries: a decision takes few lookups."""


class Authorizer:
    """The ACLs of one broker and its super users. Changes may run in any thread."""

    def __init__(self, config: SecurityConfig) -> None:
        self._super_users = frozenset(filter(None, (each.strip() for each in config.super_users.split(";"))))
        self._allows_by_default = config.allow_everyone_if_no_acl_found
        self._path: Path | None = None
        self._lock = threading.Lock()
        self._acls: tuple[Acl, ...] = ()
        self._index: _Index = {}
        self._prefix_lengths: dict[int, set[int]] = {}  # by type of resource
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}

    def open(self, directory: Path) -> None:
        """Reads the ACLs of `directory`. Raises: StorageError."""
        self._path = directory / _FILE
        try:
            if self._path.exists():
                self._set(Acl(*fields) for fields in json.loads(self._path.read_bytes())["acls"])
        except OSError as error:
            raise StorageError(f"Reading {self._path} failed: {error.strerror}. Check its permissions.") from error
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"File {self._path} is corrupt: {error!r}. Restore it from a backup or remove it."
            ) from error

    def matching(self, wanted: AclFilter) -> list[Acl]:
        """Returns the entries that a filter selects, in order: up to `MAX_ACLS` are visited."""
        return [acl for acl in self._acls if wanted.matches(acl)]

    def change(self, added: Sequence[Acl] = (), removed: Iterable[Acl] = ()) -> None:
        """Adds and removes entries; durable on return. Raises: StorageError, ApiError above the limits."""
        with self._lock:
            acls = sorted((frozenset(self._acls) - frozenset(removed)) | frozenset(added))
            if added and len(acls) > MAX_ACLS:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"The broker has at most {MAX_ACLS:,} ACLs.")
            if added and sum(map(_text_bytes, acls)) > _MAX_TEXT_BYTES:
                text = f"The texts of all ACLs have at most {_MAX_TEXT_BYTES:,} bytes."
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            assert self._path is not None, "open must be called first"
            data = json.dumps({"version": 1, "acls": acls}).encode()
            replace_file(self._path, data, private=True)
            self._set(acls)

    def _set(self, acls: Iterable[Acl]) -> None:
        self._acls = tuple(sorted(acls))
        index: _Index = {}
        lengths: dict[int, set[int]] = {}
        for acl in self._acls:
            of_pattern = index.setdefault((acl.resource_type, acl.pattern_type, acl.resource_name), {})
            of_pattern.setdefault((acl.principal, acl.host), []).append(acl)
            if acl.pattern_type == PatternType.PREFIXED and acl.resource_name:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.resource_name))
        # the decisions last: another thread that has read the new ones decides by the new entries
        self._index, self._prefix_lengths, self._decisions = index, lengths, {}

    def authorize(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Returns whether a principal at an address may perform an operation on a resource."""
        if principal in self._super_users:
            return True
        key = (principal, host, operation, resource_type, name)
        decisions = self._decisions
        known = decisions.get(key)
        if known is None:
            known = self._decide(*key)
            if len(name) > _MAX_DECISION_NAME:
                return known
            if len(decisions) >= _MAX_DECISIONS:
                decisions.clear()
            decisions[key] = known
        return known

    def authorize_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Returns whether a principal may perform an operation on at least one resource of a type.

        Source: Kafka `Authorizer.authorizeByResourceType`: an ALLOW of a pattern counts unless a DENY names the same
        resource, a prefix of the pattern, or all resources.
        """
        if self.authorize(principal, host, operation, resource_type, _ANY_NAME):
            return True
        allowed: set[tuple[int, str]] = set()
        denied: set[tuple[int, str]] = set()
        for acl in self._acls:
            if acl.resource_type == resource_type and acl.operation in (Operation.ALL, operation):
                if acl.principal in (principal, _ANYONE) and acl.host in (host, _WILDCARD):
                    found = allowed if acl.permission == Permission.ALLOW else denied
                    found.add((acl.pattern_type, acl.resource_name))
        if (PatternType.LITERAL, _WILDCARD) in denied:
            return False
        if (PatternType.LITERAL, _WILDCARD) in allowed:
            return True
        lengths = self._prefix_lengths.get(resource_type, ())
        return any(
            not (pattern == PatternType.LITERAL and (pattern, name) in denied)
            and not any((PatternType.PREFIXED, name[:end]) in denied for end in lengths if end <= len(name))
            for pattern, name in allowed
        )

    def _decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        patterns = [(resource_type, PatternType.LITERAL, each) for each in {name, _WILDCARD}]
        patterns += [
            (resource_type, PatternType.PREFIXED, name[:end])
            for end in self._prefix_lengths.get(resource_type, ())
            if end <= len(name)
        ]
        applicable = [entries for pattern in patterns if (entries := self._index.get(pattern))]
        callers = [(each, address) for each in {principal, _ANYONE} for address in {host, _WILDCARD}]
        results = {
            acl.permission
            for entries in applicable
            for caller in callers
            for acl in entries.get(caller, ())
            if _applies(acl, operation)
        }
        if Permission.DENY in results:
            return False
        return Permission.ALLOW in results or (not applicable and self._allows_by_default)


def _text_bytes(acl: Acl) -> int:
    texts = acl.resource_name, acl.principal, acl.host
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _applies(acl: Acl, operation: int) -> bool:
    """Returns whether an entry of the principal and the address applies to an operation."""
    if acl.operation in (Operation.ALL, operation):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in _IMPLIED.get(Operation(operation), ())
