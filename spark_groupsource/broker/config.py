"""The broker's settings and the topics' as two tables: Kafka's names, defaults, units and bounds.

A setting of the broker stands here when it means something in it, a setting of topics also when Kafka's clients may
give it and nothing is lost by it; any other name is refused. Knows text and numbers only.

Source: https://kafka.apache.org/documentation (Broker Configs, Topic Configs).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Iterable, Mapping, NamedTuple

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.group.config import GroupConfig, setting_name
from spark_groupsource.records.compression import CODECS

_BOOLEANS = ("true", "false")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


def _setting(
    default: Any,
    name: str,
    doc: str,
    *,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    is_list: bool = False,
    broker_name: str = "",
) -> Any:
    metadata = {
        "name": name, "doc": doc, "low": low, "high": high, "choices": choices, "is_list": is_list,
        "broker_name": broker_name,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TopicConfig:
    """Settings of one topic; `broker_name` in the metadata is the broker setting that gives the default."""

    cleanup_policy: str = _setting(
        "delete",
        "cleanup.policy",
        "delete, compact, both or, where everything is to stay, neither",
        choices=("delete", "compact"),
        is_list=True,
        broker_name="log.cleanup.policy",
    )
    compression_type: str = _setting(
        "producer", "compression.type", "the codec batches are stored in; producer: the one they came in",
        choices=("producer", "uncompressed", *CODECS[1:]), broker_name="compression.type",
    )
    compression_gzip_level: int = _setting(
        -1, "compression.gzip.level", "where compression.type is gzip, -1 zlib's own", low=-1, high=9,
        broker_name="compression.gzip.level",
    )
    compression_lz4_level: int = _setting(
        9, "compression.lz4.level", "where compression.type is lz4", low=1, high=17,
        broker_name="compression.lz4.level",
    )
    compression_zstd_level: int = _setting(
        3, "compression.zstd.level", "where compression.type is zstd", low=-131_072, high=22,
        broker_name="compression.zstd.level",
    )
    max_message_bytes: int = _setting(
        1_048_588, "max.message.bytes", "largest record batch", low=0, high=_INT32_MAX, broker_name="message.max.bytes"
    )
    message_timestamp_type: str = _setting(
        "CreateTime",
        "message.timestamp.type",
        "whose clock stamps records",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = _setting(
        _INT64_MAX, "message.timestamp.before.max.ms", "how far behind the broker's clock a record may be stamped",
        low=0, high=_INT64_MAX, broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = _setting(
        3_600_000, "message.timestamp.after.max.ms", "how far ahead of the broker's clock a record may be stamped",
        low=0, high=_INT64_MAX, broker_name="log.message.timestamp.after.max.ms",
    )
    min_insync_replicas: int = _setting(
        1, "min.insync.replicas", "there is one replica", low=1, high=1, broker_name="min.insync.replicas"
    )
    segment_bytes: int = _setting(
        1_073_741_824, "segment.bytes", "a segment file rolls at this size", low=1024, high=_INT32_MAX,
        broker_name="log.segment.bytes",
    )
    index_interval_bytes: int = _setting(
        4096, "index.interval.bytes", "log bytes between two index entries", low=0, high=_INT32_MAX,
        broker_name="log.index.interval.bytes",
    )
    flush_messages: int = _setting(
        _INT64_MAX, "flush.messages", "fsync after this many batches; 1 survives a power loss", low=1, high=_INT64_MAX,
        broker_name="log.flush.interval.messages",
    )
    retention_ms: int = _setting(
        604_800_000, "retention.ms", "age at which segments are deleted, -1 never", low=-1, high=_INT64_MAX,
        broker_name="log.retention.ms",
    )
    retention_bytes: int = _setting(
        -1, "retention.bytes", "size above which the oldest segments are deleted, -1 never", low=-1, high=_INT64_MAX,
        broker_name="log.retention.bytes",
    )
    segment_ms: int = _setting(
        604_800_000, "segment.ms", "a segment rolls when it spans this time", low=1, high=_INT64_MAX,
        broker_name="log.roll.ms",
    )
    min_cleanable_dirty_ratio: float = _setting(
        0.5, "min.cleanable.dirty.ratio", "part of a compacted log that is new before it is cleaned", low=0, high=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = _setting(
        0, "min.compaction.lag.ms", "age that a record reaches before it is compacted", low=0, high=_INT64_MAX,
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = _setting(
        _INT64_MAX, "max.compaction.lag.ms", "age at which a record is compacted, however few are new", low=1,
        high=_INT64_MAX, broker_name="log.cleaner.max.compaction.lag.ms",
    )
    delete_retention_ms: int = _setting(
        86_400_000, "delete.retention.ms", "how long a tombstone stays after it was compacted", low=0, high=_INT64_MAX,
        broker_name="log.cleaner.delete.retention.ms",
    )

    # Kafka's, which clients may set and see; here they change nothing, so a value that should is refused
    file_delete_delay_ms: int = _setting(
        60_000, "file.delete.delay.ms", "files are deleted at once", low=0, high=_INT64_MAX,
        broker_name="log.segment.delete.delay.ms",
    )
    # Kafka looks at it every log.flush.scheduler.interval.ms, by default never
    flush_ms: int = _setting(
        _INT64_MAX, "flush.ms", "see flush.messages; logs are not looked at by the clock", low=0, high=_INT64_MAX
    )
    follower_throttled: str = _setting(
        "", "follower.replication.throttled.replicas", "there is one replica"
    )
    leader_throttled: str = _setting("", "leader.replication.throttled.replicas", "there is one replica")
    local_retention_bytes: int = _setting(
        -2, "local.retention.bytes", "there is no tiered storage", low=-2, high=_INT64_MAX,
        broker_name="log.local.retention.bytes",
    )
    local_retention_ms: int = _setting(
        -2, "local.retention.ms", "there is no tiered storage", low=-2, high=_INT64_MAX,
        broker_name="log.local.retention.ms",
    )
    preallocate: bool = _setting(
        False, "preallocate", "files grow with what is written", broker_name="log.preallocate"
    )
    remote_storage_enable: bool = _setting(
        False, "remote.storage.enable", "there is no tiered storage", choices=("false",)
    )
    segment_index_bytes: int = _setting(
        10_485_760, "segment.index.bytes", "indexes grow with what is written", low=4, high=_INT32_MAX,
        broker_name="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = _setting(
        0, "segment.jitter.ms", "segments roll when segment.ms says", low=0, high=_INT64_MAX
    )
    unclean_leader_election_enable: bool = _setting(
        False, "unclean.leader.election.enable", "there is one replica"
    )

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def codec(self) -> int | None:
        """Number of the codec that batches are stored in, None where they keep the one they came in."""
        if self.compression_type == "producer":
            return None
        return 0 if self.compression_type == "uncompressed" else CODECS.index(self.compression_type)

    @property
    def codec_level(self) -> int | None:
        """What `codec` is told to do, on its own scale; None is its usual one."""
        levels = {"lz4": self.compression_lz4_level, "zstd": self.compression_zstd_level}
        gzip = None if self.compression_gzip_level == -1 else self.compression_gzip_level
        return gzip if self.compression_type == "gzip" else levels.get(self.compression_type)

    @property
    def roll_ms(self) -> int:
        """The time that one segment spans at most."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacted else self.segment_ms


@dataclass(frozen=True)
class BrokerConfig:
    """Settings of the broker; those of the group coordinator are in `group`, those of new topics in `topic`."""

    node_id: int = _setting(1, "node.id", "id of this broker in the metadata", low=0, high=_INT32_MAX)
    advertised_listeners: str = _setting(
        "", "advertised.listeners", "host:port told to clients, empty for the real one"
    )
    auto_create_topics_enable: bool = _setting(True, "auto.create.topics.enable", "asking for a topic creates it")
    num_partitions: int = _setting(1, "num.partitions", "partitions of a topic that does not say", low=1, high=100_000)
    delete_topic_enable: bool = _setting(True, "delete.topic.enable", "topics may be deleted")
    socket_request_max_bytes: int = _setting(
        104_857_600, "socket.request.max.bytes", "largest request frame", low=1024, high=_INT32_MAX
    )
    connections_max_idle_ms: int = _setting(
        600_000, "connections.max.idle.ms", "a silent or stuck connection is closed", low=1, high=_INT64_MAX
    )
    fetch_max_bytes: int = _setting(57_671_680, "fetch.max.bytes", "largest fetch answer", low=1024, high=_INT32_MAX)
    max_incremental_fetch_session_cache_slots: int = _setting(
        1000, "max.incremental.fetch.session.cache.slots", "fetch sessions a node keeps, 0 none", low=0, high=_INT32_MAX
    )
    offsets_topic_num_partitions: int = _setting(
        50, "offsets.topic.num.partitions", "partitions of __consumer_offsets; fixed once it exists", low=1, high=10_000
    )
    offsets_topic_segment_bytes: int = _setting(
        104_857_600, "offsets.topic.segment.bytes", "segment size of __consumer_offsets", low=1024, high=_INT32_MAX
    )
    transaction_state_log_num_partitions: int = _setting(
        50, "transaction.state.log.num.partitions", "partitions of __transaction_state; fixed once it exists", low=1,
        high=10_000,
    )
    transaction_state_log_segment_bytes: int = _setting(
        104_857_600, "transaction.state.log.segment.bytes", "segment size of __transaction_state", low=1024,
        high=_INT32_MAX,
    )
    transaction_max_timeout_ms: int = _setting(
        900_000, "transaction.max.timeout.ms", "longest transaction.timeout.ms a producer may ask for", low=1,
        high=_INT32_MAX,
    )
    transactional_id_expiration_ms: int = _setting(
        604_800_000, "transactional.id.expiration.ms", "an unused transactional id is forgotten", low=1,
        high=_INT32_MAX,
    )
    log_retention_check_interval_ms: int = _setting(
        300_000, "log.retention.check.interval.ms", "how often old segments are looked for", low=1, high=_INT64_MAX
    )
    producer_id_expiration_ms: int = _setting(
        86_400_000, "producer.id.expiration.ms", "a partition forgets a producer that wrote nothing for so long", low=1,
        high=_INT32_MAX,
    )
    producer_id_expiration_check_interval_ms: int = _setting(
        600_000, "producer.id.expiration.check.interval.ms", "how often such producers are looked for", low=1,
        high=_INT32_MAX,
    )
    log_cleaner_enable: bool = _setting(True, "log.cleaner.enable", "compacted topics are cleaned")
    log_cleaner_backoff_ms: int = _setting(
        15_000, "log.cleaner.backoff.ms", "how often logs to compact are looked for", low=0, high=_INT64_MAX
    )
    sasl_enabled_mechanisms: str = _setting(
        "", "sasl.enabled.mechanisms", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 in a list; empty: nobody is asked"
    )
    sasl_plain_jaas_config: str = _setting(
        "", "listener.name.sasl_plaintext.plain.sasl.jaas.config", "PlainLoginModule with a user_NAME for each user"
    )
    group: GroupConfig = field(default_factory=GroupConfig)
    topic: TopicConfig = field(default_factory=TopicConfig)


class SettingInfo(NamedTuple):
    """One line of a table: `owner` is the dataclass, `attribute` its field, `name` Kafka's name.

    `choices` are the values it may have, or with `is_list` those that its list may hold.
    """

    owner: type
    attribute: str
    name: str
    default: Any
    doc: str
    low: int | None
    high: int | None
    choices: tuple[str, ...]
    is_list: bool = False


def _infos(owner: type, name_key: str = "name") -> Iterable[SettingInfo]:
    for item in fields(owner):
        about = item.metadata
        if owner is GroupConfig:
            # its attributes are Kafka's names with underscores; it checks its own bounds
            yield SettingInfo(owner, item.name, setting_name(item.name), item.default, "", None, None, ())
        elif about.get(name_key):
            low, high, choices = about["low"], about["high"], about["choices"]
            name, doc, is_list = about[name_key], about["doc"], about["is_list"]
            yield SettingInfo(owner, item.name, name, item.default, doc, low, high, choices, is_list)


BROKER_SETTINGS: Mapping[str, SettingInfo] = {
    info.name: info
    for infos in (_infos(GroupConfig), _infos(TopicConfig, "broker_name"), _infos(BrokerConfig))
    for info in infos
}
"""Kafka's broker setting name -> where its value is kept."""

BROKER_NAMES: Mapping[str, str] = {
    item.metadata["name"]: item.metadata["broker_name"] for item in fields(TopicConfig) if item.metadata["broker_name"]
}
"""A topic's setting -> the broker's that gives its default."""

TOPIC_SETTINGS: Mapping[str, SettingInfo] = {info.name: info for info in _infos(TopicConfig)}
"""Kafka's topic setting name -> where its value is kept."""


def broker_config(settings: Mapping[str, str]) -> BrokerConfig:
    """Reads Kafka's setting names and values.

    Raises: ConfigurationError naming the setting and the mend, for an unknown name and for a value out of bounds.
    """
    values: dict[type, dict[str, Any]] = {BrokerConfig: {}, GroupConfig: {}, TopicConfig: {}}
    for name, text in settings.items():
        info = _lookup(BROKER_SETTINGS, name, "broker")
        values[info.owner][info.attribute] = _parse(info, text)
    group = GroupConfig(**values[GroupConfig])
    return BrokerConfig(group=group, topic=TopicConfig(**values[TopicConfig]), **values[BrokerConfig])


def changed_config(settings: Mapping[str, str], base: BrokerConfig) -> BrokerConfig:
    """`base` with other values for settings of topics and of the broker, by the broker's names.

    Raises: ConfigurationError naming the setting and the mend.
    """
    values: dict[type, dict[str, Any]] = {BrokerConfig: {}, TopicConfig: {}}
    for name, text in settings.items():
        info = _lookup(BROKER_SETTINGS, name, "broker")
        values[info.owner][info.attribute] = _parse(info, text)
    return replace(base, topic=replace(base.topic, **values[TopicConfig]), **values[BrokerConfig])


def topic_config(settings: Mapping[str, str | None], defaults: TopicConfig) -> TopicConfig:
    """A topic's settings over the broker's defaults; a null value keeps the default.

    Raises: ConfigurationError naming the setting and the mend.
    """
    values = {}
    for name, text in settings.items():
        info = _lookup(TOPIC_SETTINGS, name, "topic")
        if text is not None:
            values[info.attribute] = _parse(info, text)
    return replace(defaults, **values)


def setting_text(value: Any) -> str:
    """A value as Kafka's tools print it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lookup(table: Mapping[str, SettingInfo], name: str, kind: str) -> SettingInfo:
    info = table.get(name)
    if info is None:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(table))}"
        raise ConfigurationError(f"{name} is not a {kind} setting this broker has{hint}")
    return info


def _parse(info: SettingInfo, text: str) -> Any:
    text = str(text).strip()
    if isinstance(info.default, bool):
        if text.lower() not in (info.choices or _BOOLEANS):
            raise ConfigurationError(f"{info.name} must be {' or '.join(info.choices or _BOOLEANS)}, not {text!r}")
        return text.lower() == "true"
    if isinstance(info.default, (int, float)):
        kind, said = (int, "a whole number") if isinstance(info.default, int) else (float, "a number")
        try:
            number = kind(text)
        except ValueError:
            raise ConfigurationError(f"{info.name} must be {said}, not {text!r}") from None
        # told by what it is not: no bound holds for nan
        if not (info.low is None or number >= info.low) or not (info.high is None or number <= info.high):
            raise ConfigurationError(f"{info.name} must be from {info.low} to {info.high}, not {number}")
        return number
    if info.is_list:
        return _parse_list(info, text)
    if info.choices and text not in info.choices:
        raise ConfigurationError(f"{info.name} must be one of {', '.join(info.choices)}, not {text!r}")
    return text


def _parse_list(info: SettingInfo, text: str) -> str:
    """Each entry once, in the order given; of nothing a list without entries."""
    entries = [entry.strip() for entry in text.split(",")] if text else []
    for entry in entries:
        if entry not in info.choices:
            raise ConfigurationError(f"{info.name} must be a list of {', '.join(info.choices)}, not of {entry!r}")
    return ",".join(dict.fromkeys(entries))
