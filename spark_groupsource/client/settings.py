"""Kafka client settings: names, defaults, bounds, parsing.

A setting in none of the tables of this module is rejected: a setting without effect would go unnoticed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any, Collection, Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX, SECURITY_KEYS, SecuritySettings
from spark_groupsource.client.rejected_settings import (
    ACCEPTED_VALUES,
    EQUAL_SETTINGS,
    REJECTED_SETTINGS,
    UNUSED_SETTINGS,
    is_accepted_value,
    is_unused,
)
from spark_groupsource.common.config_def import (
    INT32_MAX,
    INT64_MAX,
    NO_DEFAULT_VALUE,
    ConfigKey,
    ConfigType,
    closest,
    comma_list,
    config_keys,
    parse_given,
    parse_integer,
    setting,
    trim,
)
from spark_groupsource.common.name_patterns import check_pattern
from spark_groupsource.common.net import Address, parse_addresses
from spark_groupsource.errors import ConfigurationError

_JAVA_ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
_ASSIGNORS = tuple(_JAVA_ASSIGNORS.values())
# a rebalance waits so many times max.poll.interval.ms for a batch: an hour by default
_INTERVALS_OF_A_BATCH = 12
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
# Kafka checks instance ids by the character rule of topic names (JoinGroupRequest.validateGroupInstanceId)
_INSTANCE_ID = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def _parse_isolation_level(name: str, text: str) -> str:
    level = text.lower()
    if level not in _ISOLATION_LEVELS:
        raise ConfigurationError(f"Option {name} must be one of {', '.join(_ISOLATION_LEVELS)}, got {text!r}.")
    return level


def parse_transactional_id(name: str, text: str) -> str:
    """Returns a transactional id. Raises: ConfigurationError if it is empty."""
    if not text:
        raise ConfigurationError(f"Option {name} is empty. Give each query a name of its own, or remove the option.")
    return text


def _parse_assignors(name: str, text: str) -> tuple[str, ...]:
    names = tuple(_JAVA_ASSIGNORS.get(part, part) for part in comma_list(text))
    if not names:
        raise ConfigurationError(
            f"Option {name} is empty. Name at least one of {', '.join(_ASSIGNORS)}, or module:Class of an assignor."
        )
    for each in names:
        if each not in _ASSIGNORS and not all(each.partition(":")):
            raise ConfigurationError(
                f"Option {name} must list {', '.join(_ASSIGNORS)} or module:Class of an assignor, got {each!r}."
            )
    return names


def parse_group_id(name: str, text: str) -> str:
    """Rejects an empty name of a group, as Kafka does."""
    if not text:
        raise ConfigurationError(f"Option {name} is empty. Set it to the name of the consumer group.")
    return text


def _parse_check_crcs(name: str, text: str) -> bool:
    if text.lower() != "true":
        raise ConfigurationError(
            f"Option {name} must be true, got {text!r}: the checksum of every record batch is verified. "
            "Remove the option."
        )
    return True


def _int(name: str, default: int, doc: str, unit: str, low: int = 1, **more: Any) -> ConfigKey:
    return ConfigKey(name, ConfigType.INT, default, doc, unit=unit, low=low, high=INT32_MAX, **more)


def _long(name: str, default: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.LONG, default, doc, unit="ms", low=1, high=INT64_MAX)


_CLIENT_ID = ConfigKey(
    "client.id",
    ConfigType.STRING,
    "groupsource",
    "Name sent with every request; member n of a group sends it with the suffix -n. The default of a streaming query "
    "is the name of its Spark application, or of the Python file that started it, if their commands contain it.",
    kafka_default="",
)
_CLIENT_RACK = ConfigKey(
    "client.rack",
    ConfigType.STRING,
    "",
    "Rack of this client: brokers may direct fetches to a replica in it (KIP-392), assignors may prefer it (KIP-881).",
)


@dataclass(frozen=True)
class ClientSettings:
    """Settings of connections, metadata and fetches of one client; picklable.

    Defaults are those of Kafka's Java consumer unless the row has a `kafka_default`.
    """

    bootstrap: tuple[Address, ...] = setting(
        ConfigKey(
            "bootstrap.servers",
            ConfigType.LIST,
            NO_DEFAULT_VALUE,
            "Brokers to connect to first, as host:port separated by commas.",
            aliases=("metadata.broker.list",),
            parser=lambda name, text: parse_addresses(text, name),
        )
    )
    client_id: str = setting(_CLIENT_ID)
    client_rack: str = setting(_CLIENT_RACK)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    request_timeout_ms: int = setting(
        _int(
            "request.timeout.ms",
            30_000,
            "How long to wait for the response to one request. Bytes that arrive with 4 KiB/s at least extend it.",
            "ms",
            aliases=("socket.timeout.ms",),
        )
    )
    default_api_timeout_ms: int = setting(
        _int("default.api.timeout.ms", 60_000, "How long an operation with its retries may take.", "ms")
    )
    connect_timeout_ms: int = setting(
        _int(
            "socket.connection.setup.timeout.ms",
            10_000,
            "How long to wait until a TCP connection is established.",
            "ms",
        )
    )
    resolve_timeout_ms: int = setting(
        ConfigKey(
            "bootstrap.resolve.timeout.ms",
            ConfigType.LONG,
            0,
            "How long to retry while no address of bootstrap.servers has ever been reachable and a name among them is "
            "not resolved, within default.api.timeout.ms; at least 2 s (KIP-909).",
            "ms",
            low=0,
            high=INT64_MAX,
        )
    )
    checks_cluster: bool = setting(
        ConfigKey(
            "metadata.cluster.check.enable",
            ConfigType.BOOLEAN,
            True,
            "Name the cluster and the node that are expected to each broker of Kafka 4.4 or later, which rejects a "
            "connection that was routed to another one (KIP-1242).",
        )
    )
    connections_max_idle_ms: int = setting(
        _long("connections.max.idle.ms", 540_000, "Idle connections are closed after this time.")
    )
    retry_backoff_ms: int = setting(
        _int("retry.backoff.ms", 100, "Delay before the first retry; doubled for each further retry.", "ms", low=0)
    )
    retry_backoff_max_ms: int = setting(
        _int("retry.backoff.max.ms", 1_000, "Longest delay before a retry.", "ms", low=0)
    )
    metadata_max_age_ms: int = setting(
        _long("metadata.max.age.ms", 300_000, "Metadata older than this are requested again.")
    )
    fetch_min_bytes: int = setting(
        _int(
            "fetch.min.bytes",
            1,
            "A broker waits for this many bytes before it responds to a fetch; at most 1 is requested, because the "
            "records of a task exist.",
            "bytes",
            low=0,
        )
    )
    fetch_max_bytes: int = setting(
        _int(
            "fetch.max.bytes",
            52_428_800,
            "Largest size of one fetch response. A task requests at most 8 MiB, or max.partition.fetch.bytes if these "
            "are more.",
            "bytes",
        )
    )
    fetch_max_wait_ms: int = setting(
        _int(
            "fetch.max.wait.ms",
            500,
            "How long a broker waits for fetch.min.bytes.",
            "ms",
            low=0,
            aliases=("fetch.wait.max.ms",),
        )
    )
    max_partition_fetch_bytes: int = setting(
        _int(
            "max.partition.fetch.bytes",
            8_388_608,
            "Largest size of one partition in a fetch response; a planned range is read to its end, "
            "so larger responses save round trips.",
            "bytes",
            aliases=("fetch.message.max.bytes",),
            kafka_default=1_048_576,
        )
    )
    isolation_level: str = setting(
        ConfigKey(
            "isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            "read_committed delivers records of committed transactions only.",
            choices=_ISOLATION_LEVELS,
            parser=_parse_isolation_level,
        )
    )
    transactional_id: str | None = setting(
        ConfigKey(
            "transactional.id",
            ConfigType.STRING,
            None,
            "Of a stream that writes to topics exactly once: the value of its sink; every query has its own.",
            parser=parse_transactional_id,
        )
    )

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> ClientSettings:
        """Parses ``kafka.*`` options, given without the prefix.

        Raises: ConfigurationError for missing, malformed, unknown and rejected settings.
        """
        check_names(settings)
        values = parse_given(config_keys(cls), settings, OPTION_PREFIX)
        # those of members have no effect here, but the same values are rejected everywhere
        parse_given({**FIXED_KEYS, **config_keys(GroupSettings)}, settings, OPTION_PREFIX)
        if "bootstrap" not in values:
            raise ConfigurationError(
                "Option kafka.bootstrap.servers is not set. Set it to host:port of one or more brokers."
            )
        return cls(security=SecuritySettings.parse(settings), **values)

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"


@dataclass(frozen=True)
class GroupSettings:
    """Settings of the members that one application has in a group; they differ in their index only.

    Attributes:
        members: number of members, at least 1.
        topics, pattern: the subscription; exactly one is given. `pattern` is a regular expression of
            which the name of a topic contains a match, as in Spark's Kafka source.
    """

    group_id: str = setting(
        ConfigKey(
            "group.id",
            ConfigType.STRING,
            NO_DEFAULT_VALUE,
            "Name of the consumer group; as in Kafka, whitespace around it is no part of it.",
            parser=parse_group_id,
        )
    )
    members: int = 1
    client_id: str = setting(_CLIENT_ID)
    group_instance_id: str | None = setting(
        ConfigKey(
            "group.instance.id",
            ConfigType.STRING,
            None,
            "Makes the members static (KIP-345); member n joins with the suffix -n.",
        )
    )
    assignors: tuple[str, ...] = setting(
        ConfigKey(
            "partition.assignment.strategy",
            ConfigType.LIST,
            ("range", "cooperative-sticky"),
            "Assignors in order of preference: a name, a class name of Kafka's Java assignors, or module:Class of an "
            "assignor in Python.",
            parser=_parse_assignors,
        )
    )
    session_timeout_ms: int = setting(
        _int(
            "session.timeout.ms",
            45_000,
            "The coordinator removes a member that sends no heartbeat for this time.",
            "ms",
        )
    )
    heartbeat_interval_ms: int = setting(
        _int(
            "heartbeat.interval.ms",
            3_000,
            "Time between two heartbeats; must be below session.timeout.ms, recommended is a third of it.",
            "ms",
        )
    )
    max_poll_interval_ms: int = setting(
        _int(
            "max.poll.interval.ms",
            300_000,
            "A rebalance waits 12 times as long for a running batch, or twice the longest pause between two batches if "
            "that is longer.",
            "ms",
        )
    )
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    exclude_internal_topics: bool = setting(
        ConfigKey(
            "exclude.internal.topics",
            ConfigType.BOOLEAN,
            True,
            "Whether subscribePattern leaves out internal topics such as __consumer_offsets.",
        )
    )
    client_rack: str = setting(_CLIENT_RACK)

    def __post_init__(self) -> None:
        parse_group_id("kafka.group.id", self.group_id)
        if self.members < 1:
            raise ConfigurationError(f"Option members must be at least 1, got {self.members}.")
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigurationError("Set exactly one of the options subscribe and subscribePattern.")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"Option kafka.heartbeat.interval.ms must be below kafka.session.timeout.ms "
                f"({self.session_timeout_ms} ms), got {self.heartbeat_interval_ms} ms. Set it to a third."
            )
        self._check_instance_ids()
        if self.pattern is not None:
            check_pattern("subscribePattern", self.pattern)

    def _check_instance_ids(self) -> None:
        for index in range(self.members):
            instance_id = self.instance_id(index)
            if instance_id is not None and not _INSTANCE_ID.match(instance_id):
                raise ConfigurationError(
                    f"Option kafka.group.instance.id must be 1 to 249 letters, digits, '.', '_', '-', "
                    f"with its member suffix, got {instance_id!r}."
                )

    @classmethod
    def parse(cls, settings: Mapping[str, str], **more: Any) -> GroupSettings:
        """Parses ``kafka.*`` options, given without the prefix; `more` are fields without such an option.

        Raises: ConfigurationError for missing, malformed, unknown and rejected settings.
        """
        check_names(settings)
        values = {**parse_given(config_keys(cls), settings, OPTION_PREFIX), **more}
        if "group_id" not in values:
            raise ConfigurationError("Option kafka.group.id is not set. Set it to the name of the consumer group.")
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise TypeError(f"no such fields: {sorted(unknown)}")
        return cls(**values)

    def member_client_id(self, index: int) -> str:
        return f"{self.client_id}-{index}"

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for a member.

        Kafka's consumer is stuck if it does not poll for max.poll.interval.ms. A query is not: it may wait for its
        trigger, and the progress of a sink is not visible. It ends with its driver, which the reader process observes.
        """
        return min(_INTERVALS_OF_A_BATCH * self.max_poll_interval_ms, 2**31 - 1)

    def instance_id(self, index: int) -> str | None:
        """Group instance id of one member, None for dynamic members."""
        return None if self.group_instance_id is None else f"{self.group_instance_id}-{index}"


FIXED_KEYS: Mapping[str, ConfigKey] = {
    "check_crcs": ConfigKey(
        "check.crcs",
        ConfigType.BOOLEAN,
        True,
        "Only true is accepted: the checksum of every record batch is verified.",
        parser=_parse_check_crcs,
    ),
    "rebootstrap_trigger_ms": ConfigKey(
        "metadata.recovery.rebootstrap.trigger.ms",
        ConfigType.LONG,
        300_000,
        "Accepted without effect: bootstrap.servers are tried as soon as no known broker responds, not only after this "
        "time.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
}
"""Settings that are checked only; keys as in a dataclass, but no field holds the value."""

ACCEPTED_SETTINGS: Mapping[str, ConfigKey] = {
    key.name: key
    for keys in (config_keys(ClientSettings), config_keys(GroupSettings), FIXED_KEYS, SECURITY_KEYS)
    for key in keys.values()
}
"""Every setting that has an effect, by Kafka's name."""

_KNOWN_NAMES = frozenset(
    {*ACCEPTED_SETTINGS, *(alias for key in ACCEPTED_SETTINGS.values() for alias in key.aliases)}
)


_PREFIXED = re.compile(
    rf"(?:(?<=Option )|(?<=Did you mean ))kafka\.|"
    rf"\bkafka\.(?=(?:{'|'.join(map(re.escape, sorted(_KNOWN_NAMES, reverse=True)))})\b)"
)


def check_names(
    settings: Mapping[str, str],
    known: Collection[str] = _KNOWN_NAMES,
    rejected: Mapping[str, str] = REJECTED_SETTINGS,
) -> None:
    """Rejects settings that are unknown or not supported.

    Args:
        known, rejected: names that have an effect, and those that have none, with the reason.
    Raises: ConfigurationError naming the setting and, where there is one, the alternative.
    """
    for name in settings:
        if name in rejected:
            _check_rejected(name, settings, rejected[name])
        elif name not in known and name not in UNUSED_SETTINGS:
            near = closest(name, known)
            remedy = "Remove it." if near is None else f"Did you mean {OPTION_PREFIX}{near}?"
            raise ConfigurationError(f"Option {OPTION_PREFIX}{name} is unknown. {remedy}")


def _check_rejected(name: str, settings: Mapping[str, str], reason: str) -> None:
    value = settings[name]
    if is_accepted_value(name, value) or is_unused(name, settings) or _equals_other(name, settings):
        return
    values = [repr(each) if each == "" else each for each in ACCEPTED_VALUES.get(name, ())]
    if name in EQUAL_SETTINGS:
        values = [f"the value of {OPTION_PREFIX}{EQUAL_SETTINGS[name]}"]
    accepted = f" Accepted is {' or '.join(values)}, got {trim(value)!r}." if values else ""
    raise ConfigurationError(f"Option {OPTION_PREFIX}{name} is not supported: {reason}{accepted}")


def _equals_other(name: str, settings: Mapping[str, str]) -> bool:
    other = ACCEPTED_SETTINGS.get(EQUAL_SETTINGS.get(name, ""))
    if other is None:
        return False
    given = [settings[each] for each in (other.name, *other.aliases) if each in settings]
    return parse_integer(trim(settings[name])) == parse_integer(trim(given[0] if given else str(other.default)))


def without_prefix(text: str) -> str:
    """Returns a message with settings named as in a properties file, without the prefix of the data source."""
    return _PREFIXED.sub("", text)
