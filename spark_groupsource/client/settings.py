"""Kafka client settings under Kafka's own names, as one table: what each means here, its default, its check.

Knows text and numbers. A name that stands in no table is refused, because a setting that silently does nothing is worse
than an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Mapping, NamedTuple

from spark_groupsource.client.network.security import SETTINGS as SECURITY_SETTINGS
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.net import Address, parse_addresses

_JAVA_ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
# the character rule of topic names holds for instance ids too
_INSTANCE_ID = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class _Setting(NamedTuple):
    """One row: the field it fills, and how its text is read."""

    field: str
    read: Callable[[str, str], Any]


def _whole(low: int, high: int = 2**31 - 1) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            value = int(text.strip())
        except ValueError:
            raise ConfigurationError(f"{name}: {text!r} is not a whole number") from None
        if not low <= value <= high:
            raise ConfigurationError(f"{name}: {value} is not between {low} and {high}")
        return value

    return read


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ConfigurationError(f"{name}: {text!r} is not one of {', '.join(allowed)}")
        return value

    return read


def _switch(name: str, text: str) -> bool:
    return _choice("true", "false")(name, text) == "true"


def _text(name: str, text: str) -> str:
    return text.strip()


def _assignors(name: str, text: str) -> tuple[str, ...]:
    names = tuple(_JAVA_ASSIGNORS.get(part, part) for part in (part.strip() for part in text.split(",")) if part)
    if not names:
        raise ConfigurationError(f"{name} is empty; name at least one of range, roundrobin, sticky, cooperative-sticky")
    return names


CLIENT_SETTINGS: dict[str, _Setting] = {
    "bootstrap.servers": _Setting("bootstrap", lambda name, text: parse_addresses(text)),
    "metadata.broker.list": _Setting("bootstrap", lambda name, text: parse_addresses(text)),
    "client.id": _Setting("client_id", _text),
    "client.rack": _Setting("client_rack", _text),
    "request.timeout.ms": _Setting("request_timeout_ms", _whole(1)),
    "socket.timeout.ms": _Setting("request_timeout_ms", _whole(1)),
    "default.api.timeout.ms": _Setting("default_api_timeout_ms", _whole(1)),
    "socket.connection.setup.timeout.ms": _Setting("connect_timeout_ms", _whole(1)),
    "connections.max.idle.ms": _Setting("connections_max_idle_ms", _whole(1)),
    "retry.backoff.ms": _Setting("retry_backoff_ms", _whole(0)),
    "retry.backoff.max.ms": _Setting("retry_backoff_max_ms", _whole(0)),
    "metadata.max.age.ms": _Setting("metadata_max_age_ms", _whole(1)),
    "fetch.min.bytes": _Setting("fetch_min_bytes", _whole(0)),
    "fetch.max.bytes": _Setting("fetch_max_bytes", _whole(1)),
    "fetch.max.wait.ms": _Setting("fetch_max_wait_ms", _whole(0)),
    "fetch.wait.max.ms": _Setting("fetch_max_wait_ms", _whole(0)),
    "max.partition.fetch.bytes": _Setting("max_partition_fetch_bytes", _whole(1)),
    "fetch.message.max.bytes": _Setting("max_partition_fetch_bytes", _whole(1)),
    "isolation.level": _Setting("isolation_level", _choice("read_uncommitted", "read_committed")),
    "check.crcs": _Setting("check_crcs", _switch),
}
"""Setting -> field of `ClientSettings`; where two names share a field the second is librdkafka's."""

GROUP_SETTINGS: dict[str, _Setting] = {
    "group.id": _Setting("group_id", _text),
    "group.instance.id": _Setting("group_instance_id", _text),
    "partition.assignment.strategy": _Setting("assignors", _assignors),
    "session.timeout.ms": _Setting("session_timeout_ms", _whole(1)),
    "heartbeat.interval.ms": _Setting("heartbeat_interval_ms", _whole(1)),
    "max.poll.interval.ms": _Setting("max_poll_interval_ms", _whole(1)),
    "exclude.internal.topics": _Setting("exclude_internal_topics", _switch),
}
"""Setting -> field of `GroupSettings`."""

HARMLESS: dict[str, str] = {
    "max.poll.records": "a batch is bounded by maxOffsetsPerTrigger or maxBytesPerTrigger",
    "receive.buffer.bytes": "the operating system sizes socket buffers",
    "send.buffer.bytes": "the operating system sizes socket buffers",
    "socket.receive.buffer.bytes": "the operating system sizes socket buffers",
    "socket.send.buffer.bytes": "the operating system sizes socket buffers",
    "api.version.request": "versions are always negotiated",
    "client.dns.lookup": "every resolved address is tried",
    "reconnect.backoff.ms": "retry.backoff.ms governs",
    "reconnect.backoff.max.ms": "retry.backoff.max.ms governs",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms governs",
    "allow.auto.create.topics": "this client never creates topics by asking for them",
    "socket.keepalive.enable": "connections are made anew when one is lost",
}
"""Settings that are accepted and change nothing, each with the reason; they tune how, not what."""

REFUSED: dict[str, str] = {
    "auto.offset.reset": "set the option startingOffsets instead",
    "enable.auto.commit": "offsets are committed when Spark has checkpointed a batch",
    "auto.commit.interval.ms": "offsets are committed when Spark has checkpointed a batch",
    "enable.auto.offset.store": "offsets are committed when Spark has checkpointed a batch",
    "key.deserializer": "key is always binary; decode it with DataFrame functions",
    "value.deserializer": "value is always binary; decode it with DataFrame functions",
    "interceptor.classes": "Java interceptors cannot run here",
    "group.protocol": "only the classic group protocol is supported",
    "group.remote.assignor": "only the classic group protocol is supported",
    "enable.ssl.certificate.verification": "certificates are always verified; give the authority in ssl.ca.location",
}
"""Settings refused with their own mend."""


def check_names(settings: Mapping[str, str]) -> None:
    """Refuses what is in no table.

    Raises: ConfigurationError naming the setting and, where there is one, what to do instead.
    """
    for name in settings:
        if name in REFUSED:
            raise ConfigurationError(f"kafka.{name} is not supported: {REFUSED[name]}")
        if not any(name in table for table in (CLIENT_SETTINGS, GROUP_SETTINGS, HARMLESS, SECURITY_SETTINGS)):
            raise ConfigurationError(f"kafka.{name} is not known here; remove it (nothing would act on it)")


def _read(table: Mapping[str, _Setting], settings: Mapping[str, str]) -> dict[str, Any]:
    return {row.field: row.read(f"kafka.{name}", settings[name]) for name, row in table.items() if name in settings}


@dataclass(frozen=True)
class ClientSettings:
    """What every connection, look-up and fetch of one client goes by; can be pickled.

    Defaults are Kafka's, but for `max_partition_fetch_bytes` (Kafka: 1 MiB): a planned range is read to its end, so
    larger answers save round trips and do not starve anyone.
    """

    bootstrap: tuple[Address, ...]
    client_id: str = "groupsource"
    client_rack: str = ""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    connect_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 4_194_304
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> ClientSettings:
        """Reads ``kafka.*`` options, given without the prefix.

        Raises: ConfigurationError naming the setting and the mend, also for unknown and unsupported ones.
        """
        check_names(settings)
        values = _read(CLIENT_SETTINGS, settings)
        if "bootstrap" not in values:
            raise ConfigurationError("kafka.bootstrap.servers is not set; give it as host:port,host:port")
        return cls(security=SecuritySettings.parse(settings), **values)

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"


@dataclass(frozen=True)
class GroupSettings:
    """One application's part of a group: `members` members that share everything but their index.

    `topics` or `pattern` (a regular expression that must match the whole name) says what is read.
    """

    group_id: str
    members: int = 1
    client_id: str = "groupsource"
    group_instance_id: str | None = None
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    exclude_internal_topics: bool = True
    client_rack: str = ""

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ConfigurationError("kafka.group.id is empty; name the consumer group")
        if self.members < 1:
            raise ConfigurationError(f"members: {self.members} is not 1 or more")
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigurationError("exactly one of subscribe and subscribePattern must be given")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"kafka.heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be below kafka.session.timeout.ms "
                f"({self.session_timeout_ms}), best a third of it"
            )
        if self.group_instance_id is not None:
            for instance_id in (self.instance_id(index) or "" for index in range(self.members)):
                if not _INSTANCE_ID.match(instance_id):
                    raise ConfigurationError(
                        f"kafka.group.instance.id: {instance_id!r} must be 1 to 249 letters, digits, '.', '_', '-'"
                    )
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"subscribePattern: {self.pattern!r} is not a regular expression: {error}"
                ) from error

    @classmethod
    def parse(cls, settings: Mapping[str, str], **more: Any) -> GroupSettings:
        """Reads ``kafka.*`` options, given without the prefix; `more` are fields that have no such option.

        Raises: ConfigurationError naming the setting and the mend.
        """
        check_names(settings)
        values = _read(GROUP_SETTINGS, settings)
        for shared in ("client_id", "client_rack"):
            values.update(_read({n: row for n, row in CLIENT_SETTINGS.items() if row.field == shared}, settings))
        values.update(more)
        if "group_id" not in values:
            raise ConfigurationError("kafka.group.id is not set; name the consumer group")
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise TypeError(f"no such fields: {sorted(unknown)}")
        return cls(**values)

    def member_client_id(self, index: int) -> str:
        return f"{self.client_id}-{index}"

    def instance_id(self, index: int) -> str | None:
        """Instance id of one member, or None for dynamic members."""
        return None if self.group_instance_id is None else f"{self.group_instance_id}-{index}"
