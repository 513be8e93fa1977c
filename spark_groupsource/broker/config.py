"""Broker settings: one row per setting, with Kafka's name, default and bounds.

Settings of the group coordinator are in `group/coordinator_config.py`, settings of topics in `storage/topic_config.py`;
`BROKER_SETTINGS` lists all of them under the broker's names. Every other name is rejected, except `FIXED_SETTINGS`.

Source: https://kafka.apache.org/documentation (Broker Configs).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping, NamedTuple

from spark_groupsource.broker.group.coordinator_config import GroupConfig
from spark_groupsource.broker.security_config import SecurityConfig
from spark_groupsource.broker.storage.topic_config import TopicConfig, unknown_setting
from spark_groupsource.common.config_def import (
    INT32_MAX,
    INT64_MAX,
    BrokerConfigKey,
    ConfigType,
    broker_setting,
    config_keys,
)
from spark_groupsource.common.config_providers import resolve
from spark_groupsource.errors import ConfigurationError


def _partition_count(name: str, topic: str) -> Any:
    doc = f"Partitions of {topic}; without effect once the topic exists."
    return broker_setting(name, ConfigType.INT, 50, doc, unit="partitions", low=1, high=10_000)


def _segment_bytes(name: str, topic: str) -> Any:
    doc = f"Size at which a segment of {topic} is rolled, in bytes."
    return broker_setting(name, ConfigType.INT, 104_857_600, doc, unit="bytes", low=1024, high=INT32_MAX)


@dataclass(frozen=True)
class BrokerConfig:
    """Settings of the broker; `group` has those of its group coordinator, `topic` the defaults of its topics.

    `security` has those of its listeners.
    """

    node_id: int = broker_setting(
        "node.id", ConfigType.INT, 1, "Id of this broker in the metadata.", low=0, high=INT32_MAX, is_per_node=True
    )
    advertised_listeners: tuple[str, ...] = broker_setting(
        "advertised.listeners", ConfigType.LIST, (),
        "Addresses (host:port) that clients connect to, one per node, or PROTOCOL://host:port for each listener; by "
        "default the addresses listened on.",
        is_per_node=True,
    )
    auto_create_topics_enable: bool = broker_setting(
        "auto.create.topics.enable", ConfigType.BOOLEAN, True,
        "Whether a metadata request for an unknown topic creates the topic.",
    )
    num_partitions: int = broker_setting(
        "num.partitions", ConfigType.INT, 1, "Partitions of a topic that is created without a partition count.",
        unit="partitions", low=1, high=100_000,
    )
    delete_topic_enable: bool = broker_setting(
        "delete.topic.enable", ConfigType.BOOLEAN, True, "Whether clients may delete topics."
    )
    socket_request_max_bytes: int = broker_setting(
        "socket.request.max.bytes", ConfigType.INT, 104_857_600, "Largest request that is accepted, in bytes.",
        unit="bytes", low=1024, high=INT32_MAX,
    )
    connections_max_idle_ms: int = broker_setting(
        "connections.max.idle.ms", ConfigType.LONG, 600_000,
        "Time after which an idle connection is closed, in milliseconds.", unit="ms", low=1, high=INT64_MAX,
    )
    queued_max_request_bytes: int = broker_setting(
        "queued.max.request.bytes", ConfigType.LONG, 8_388_608,
        "Bytes of incomplete and waiting requests of all clients, above which further large requests are not read.",
        unit="bytes", low=1_048_576, high=INT64_MAX, kafka_default=-1,
    )
    max_connections: int = broker_setting(
        "max.connections", ConfigType.INT, 5_000,
        "Connections of all clients; further ones are closed. Limited to three quarters of the file descriptors. With "
        "TLS 2,000, or two fifths of this setting if that is more.",
        unit="connections", low=0, high=INT32_MAX, kafka_default=INT32_MAX,
    )
    max_connections_per_ip: int = broker_setting(
        "max.connections.per.ip", ConfigType.INT, INT32_MAX,
        "Connections of one client address; further ones are closed.", unit="connections", low=0, high=INT32_MAX,
    )
    connection_failed_authentication_delay_ms: int = broker_setting(
        "connection.failed.authentication.delay.ms", ConfigType.INT, 100,
        "Delay of the response to a failed authentication and of the close of its connection, in milliseconds.",
        unit="ms", low=0, high=INT32_MAX,
    )
    authentication_timeout_ms: int = broker_setting(
        "authentication.timeout.ms", ConfigType.INT, 30_000,
        "Time after which a connection without authentication is closed, in milliseconds; not a setting of Kafka.",
        unit="ms", low=1, high=INT32_MAX,
    )
    sasl_server_max_receive_size: int = broker_setting(
        "sasl.server.max.receive.size", ConfigType.INT, 524_288,
        "Largest request before authentication, in bytes.", unit="bytes", low=1024, high=INT32_MAX,
    )
    fetch_max_bytes: int = broker_setting(
        "fetch.max.bytes", ConfigType.INT, 57_671_680, "Largest Fetch response, in bytes.",
        unit="bytes", low=1024, high=INT32_MAX,
    )
    max_broker_partitions: int = broker_setting(
        "max.broker.partitions", ConfigType.INT, 12_000,
        "Partitions of all topics above which none are created for clients; not a setting of Kafka (KIP-578).",
        unit="partitions", low=1, high=INT32_MAX,
    )
    max_incremental_fetch_session_cache_slots: int = broker_setting(
        "max.incremental.fetch.session.cache.slots", ConfigType.INT, 1000,
        "Fetch sessions that one node caches; 0 disables fetch sessions.", unit="sessions", low=0, high=INT32_MAX,
    )
    offsets_topic_num_partitions: int = _partition_count("offsets.topic.num.partitions", "__consumer_offsets")
    offsets_topic_segment_bytes: int = _segment_bytes("offsets.topic.segment.bytes", "__consumer_offsets")
    transaction_state_log_num_partitions: int = _partition_count(
        "transaction.state.log.num.partitions", "__transaction_state"
    )
    transaction_state_log_segment_bytes: int = _segment_bytes(
        "transaction.state.log.segment.bytes", "__transaction_state"
    )
    transaction_max_timeout_ms: int = broker_setting(
        "transaction.max.timeout.ms", ConfigType.INT, 900_000,
        "Largest transaction.timeout.ms that a producer may request, in milliseconds.",
        unit="ms", low=1, high=INT32_MAX,
    )
    transactional_id_expiration_ms: int = broker_setting(
        "transactional.id.expiration.ms", ConfigType.INT, 604_800_000,
        "Time after which an unused transactional id expires, in milliseconds.", unit="ms", low=1, high=INT32_MAX,
    )
    log_retention_check_interval_ms: int = broker_setting(
        "log.retention.check.interval.ms", ConfigType.LONG, 300_000,
        "Time between two checks for segments to delete, in milliseconds.", unit="ms", low=1, high=INT64_MAX,
    )
    producer_id_expiration_ms: int = broker_setting(
        "producer.id.expiration.ms", ConfigType.INT, 86_400_000,
        "Time after its last batch at which a partition removes the state of a producer, in milliseconds.",
        unit="ms", low=1, high=INT32_MAX, dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = broker_setting(
        "producer.id.expiration.check.interval.ms", ConfigType.INT, 600_000,
        "Time between two checks for expired producers, in milliseconds.", unit="ms", low=1, high=INT32_MAX,
    )
    log_flush_offset_checkpoint_interval_ms: int = broker_setting(
        "log.flush.offset.checkpoint.interval.ms", ConfigType.INT, 60_000,
        "Time between two checkpoints of the offsets from which logs are recovered after an unclean shutdown, in "
        "milliseconds.",
        unit="ms", low=1, high=INT32_MAX,
    )
    log_cleaner_enable: bool = broker_setting(
        "log.cleaner.enable", ConfigType.BOOLEAN, True, "Whether the log cleaner compacts topics."
    )
    log_cleaner_backoff_ms: int = broker_setting(
        "log.cleaner.backoff.ms", ConfigType.LONG, 15_000,
        "Time between two checks for logs to compact, in milliseconds.", unit="ms", low=0, high=INT64_MAX, dynamic=True,
    )
    group: GroupConfig = field(default_factory=GroupConfig)
    topic: TopicConfig = field(default_factory=TopicConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)

    def value(self, name: str) -> Any:
        """Returns the value of the setting `name` of `BROKER_SETTINGS`."""
        section, attribute = _PLACES[name]
        owner = getattr(self, section) if section else self
        return getattr(owner, attribute)


class _Place(NamedTuple):
    """Field of a setting in `BrokerConfig`: `attribute` of the field `section`, or of the object if it is empty."""

    section: str
    attribute: str


def _rows() -> Iterator[tuple[_Place, BrokerConfigKey]]:
    for attribute, key in config_keys(GroupConfig).items():
        yield _Place("group", attribute), key
    for attribute, key in config_keys(TopicConfig).items():
        if key.broker_name and key.is_broker_setting:
            yield _Place("topic", attribute), replace(key, name=key.broker_name)
    for attribute, key in config_keys(BrokerConfig).items():
        yield _Place("", attribute), key
    for attribute, key in config_keys(SecurityConfig).items():
        yield _Place("security", attribute), key


_PLACES: Mapping[str, _Place] = {key.name: place for place, key in _rows()}

BROKER_SETTINGS: Mapping[str, BrokerConfigKey] = {key.name: key for _, key in _rows()}
"""Broker setting -> its row; a topic's setting is listed under the broker setting that supplies its default."""


_ONE_REPLICA = "records are stored once, in the data directory that all nodes share"
FIXED_SETTINGS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "default.replication.factor": (("1",), _ONE_REPLICA),
    "offsets.topic.replication.factor": (("1",), _ONE_REPLICA),
    "transaction.state.log.replication.factor": (("1",), _ONE_REPLICA),
    "transaction.state.log.min.isr": (("1",), _ONE_REPLICA),
    "share.coordinator.state.topic.replication.factor": (("1",), _ONE_REPLICA),
    "share.coordinator.state.topic.min.isr": (("1",), _ONE_REPLICA),
    "unclean.leader.election.enable": (("false",), _ONE_REPLICA),
    "process.roles": (("broker,controller", "controller,broker"), "a node has both roles"),
    "group.coordinator.rebalance.protocols": (("classic",), "only the classic group protocol is supported"),
    "offsets.topic.compression.codec": (("0",), "the records of __consumer_offsets are not compressed"),
    "log.cleaner.threads": (("1",), "one thread compacts topics"),
    "remote.log.storage.system.enable": (("false",), "segments are stored locally"),
    "transaction.two.phase.commit.enable": (("false",), "transactions have a timeout"),
}
"""Broker settings that are accepted with the values that say what is the case: name -> values, reason."""


def broker_config(settings: Mapping[str, str]) -> BrokerConfig:
    """Parses broker settings; a number or boolean is accepted in place of its text.

    Raises: ConfigurationError for an unknown name and for a value out of bounds.
    """
    return changed_config(settings, BrokerConfig())


def changed_config(settings: Mapping[str, str], base: BrokerConfig) -> BrokerConfig:
    """`base` with other values.

    Raises: ConfigurationError for an unknown name and for a value out of bounds.
    """
    values: dict[str, dict[str, Any]] = {"": {}, "group": {}, "topic": {}, "security": {}}
    for name, text in resolve(settings).items():
        key = BROKER_SETTINGS.get(name)
        if key is None and name in FIXED_SETTINGS:
            _check_fixed(name, str(text))
            continue
        if key is None:
            raise unknown_setting(name, BROKER_SETTINGS, "broker")
        section, attribute = _PLACES[name]
        values[section][attribute] = key.parse(str(text))
    group, topic = replace(base.group, **values["group"]), replace(base.topic, **values["topic"])
    security = replace(base.security, **values["security"])
    return replace(base, group=group, topic=topic, security=security, **values[""])


def _check_fixed(name: str, text: str) -> None:
    values, reason = FIXED_SETTINGS[name]
    if "".join(text.split()).lower() not in values:
        raise ConfigurationError(f"Option {name} must be {values[0]}, got {text!r}: {reason}. Remove the option.")
