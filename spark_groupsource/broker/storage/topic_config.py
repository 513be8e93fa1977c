"""Topic settings: one row per setting, with Kafka's name, default and bounds.

The table has the settings that this broker implements, and settings of Kafka without effect here.
Every other name is rejected.

Source: https://kafka.apache.org/documentation (Topic Configs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from spark_groupsource.common.config_def import (
    INT32_MAX,
    INT64_MAX,
    BrokerConfigKey,
    ConfigType,
    broker_setting,
    closest,
    config_keys,
)
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import bounded_names
from spark_groupsource.records.compression import CODECS

_THROTTLED_REPLICA = re.compile(r"([0-9]+:[0-9]+)?")


def _topic_setting(name: str, type_: ConfigType, default: Any, doc: str, **attributes: Any) -> Any:
    return broker_setting(name, type_, default, doc, dynamic=True, **attributes)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic; a topic that does not set a value has the broker's."""

    cleanup_policy: tuple[str, ...] = _topic_setting(
        "cleanup.policy", ConfigType.LIST, ("delete",),
        "Treatment of old segments: delete removes them, compact keeps the last record of each key, an empty list "
        "keeps everything.",
        choices=("delete", "compact"), broker_name="log.cleanup.policy",
    )
    compression_type: str = _topic_setting(
        "compression.type", ConfigType.STRING, "producer",
        "Codec of stored batches; producer keeps the codec the producer chose.",
        choices=("producer", "uncompressed", *CODECS[1:]), broker_name="compression.type",
    )
    compression_gzip_level: int = _topic_setting(
        "compression.gzip.level", ConfigType.INT, -1,
        "Compression level if compression.type is gzip; -1 is the default level of zlib.",
        low=-1, high=9, broker_name="compression.gzip.level",
    )
    compression_lz4_level: int = _topic_setting(
        "compression.lz4.level", ConfigType.INT, 9, "Compression level if compression.type is lz4.",
        low=1, high=17, broker_name="compression.lz4.level",
    )
    compression_zstd_level: int = _topic_setting(
        "compression.zstd.level", ConfigType.INT, 3, "Compression level if compression.type is zstd.",
        low=-131_072, high=22, broker_name="compression.zstd.level",
    )
    max_message_bytes: int = _topic_setting(
        "max.message.bytes", ConfigType.INT, 1_048_588, "Largest record batch that is accepted, in bytes.",
        unit="bytes", low=0, high=INT32_MAX, broker_name="message.max.bytes",
    )
    message_timestamp_type: str = _topic_setting(
        "message.timestamp.type", ConfigType.STRING, "CreateTime",
        "Timestamp of a record: the producer's (CreateTime) or the broker's at append (LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"), broker_name="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = _topic_setting(
        "message.timestamp.before.max.ms", ConfigType.LONG, INT64_MAX,
        "How far a record timestamp may be before the broker's clock, in milliseconds.",
        unit="ms", low=0, high=INT64_MAX, broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = _topic_setting(
        "message.timestamp.after.max.ms", ConfigType.LONG, 3_600_000,
        "How far a record timestamp may be after the broker's clock, in milliseconds.",
        unit="ms", low=0, high=INT64_MAX, broker_name="log.message.timestamp.after.max.ms",
    )
    min_insync_replicas: int = _topic_setting(
        "min.insync.replicas", ConfigType.INT, 1,
        "Nodes that must run for a write with acks=all, at most all nodes; each of them is a replica in sync.",
        unit="replicas", low=1, high=INT32_MAX, broker_name="min.insync.replicas",
    )
    segment_bytes: int = _topic_setting(
        "segment.bytes", ConfigType.INT, 1_073_741_824, "Size at which a segment is rolled, in bytes.",
        unit="bytes", low=1024, high=INT32_MAX, broker_name="log.segment.bytes",
    )
    index_interval_bytes: int = _topic_setting(
        "index.interval.bytes", ConfigType.INT, 4096, "Log bytes between two entries of the offset index.",
        unit="bytes", low=0, high=INT32_MAX, broker_name="log.index.interval.bytes",
    )
    flush_messages: int = _topic_setting(
        "flush.messages", ConfigType.LONG, INT64_MAX,
        "Batches after which the log is flushed to disk; with 1 an acknowledged batch survives a power loss.",
        unit="batches", low=1, high=INT64_MAX, broker_name="log.flush.interval.messages",
    )
    retention_ms: int = _topic_setting(
        "retention.ms", ConfigType.LONG, 604_800_000,
        "Age at which segments are deleted, in milliseconds; -1 means no limit.",
        unit="ms", low=-1, high=INT64_MAX, broker_name="log.retention.ms", hours_name="log.retention.hours",
    )
    retention_bytes: int = _topic_setting(
        "retention.bytes", ConfigType.LONG, -1,
        "Size of a partition above which its oldest segments are deleted, in bytes; -1 means no limit.",
        unit="bytes", low=-INT64_MAX - 1, high=INT64_MAX, broker_name="log.retention.bytes",
    )
    segment_ms: int = _topic_setting(
        "segment.ms", ConfigType.LONG, 604_800_000,
        "Time between the first and the last timestamp of a segment at which it is rolled, in milliseconds.",
        unit="ms", low=1, high=INT64_MAX, broker_name="log.roll.ms", hours_name="log.roll.hours",
    )
    min_cleanable_dirty_ratio: float = _topic_setting(
        "min.cleanable.dirty.ratio", ConfigType.DOUBLE, 0.5,
        "Ratio of uncompacted bytes to all bytes of a log at which it is compacted.",
        low=0, high=1, broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = _topic_setting(
        "min.compaction.lag.ms", ConfigType.LONG, 0,
        "Minimum age of a record that is compacted, in milliseconds.",
        unit="ms", low=0, high=INT64_MAX, broker_name="log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = _topic_setting(
        "max.compaction.lag.ms", ConfigType.LONG, INT64_MAX,
        "Age of an uncompacted record at which its log is compacted at any dirty ratio, in milliseconds.",
        unit="ms", low=1, high=INT64_MAX, broker_name="log.cleaner.max.compaction.lag.ms",
    )
    delete_retention_ms: int = _topic_setting(
        "delete.retention.ms", ConfigType.LONG, 86_400_000,
        "Time that tombstones are kept after compaction, in milliseconds.",
        unit="ms", low=0, high=INT64_MAX, broker_name="log.cleaner.delete.retention.ms",
    )

    # Settings of Kafka without effect here; a value that would need an effect is rejected.
    file_delete_delay_ms: int = _topic_setting(
        "file.delete.delay.ms", ConfigType.LONG, 60_000,
        "No effect: files are deleted immediately (milliseconds in Kafka).",
        unit="ms", low=0, high=INT64_MAX, broker_name="log.segment.delete.delay.ms",
    )
    # Kafka checks it every log.flush.scheduler.interval.ms, which is never by default.
    flush_ms: int = _topic_setting(
        "flush.ms", ConfigType.LONG, INT64_MAX, "No effect: flushes depend on flush.messages (milliseconds in Kafka).",
        unit="ms", low=0, high=INT64_MAX,
    )
    follower_throttled: tuple[str, ...] = _topic_setting(
        "follower.replication.throttled.replicas", ConfigType.LIST, (), "No effect: each partition has one replica.",
    )
    leader_throttled: tuple[str, ...] = _topic_setting(
        "leader.replication.throttled.replicas", ConfigType.LIST, (), "No effect: each partition has one replica.",
    )
    local_retention_bytes: int = _topic_setting(
        "local.retention.bytes", ConfigType.LONG, -2, "No effect: there is no tiered storage (bytes in Kafka).",
        unit="bytes", low=-2, high=INT64_MAX, broker_name="log.local.retention.bytes",
    )
    local_retention_ms: int = _topic_setting(
        "local.retention.ms", ConfigType.LONG, -2, "No effect: there is no tiered storage (milliseconds in Kafka).",
        unit="ms", low=-2, high=INT64_MAX, broker_name="log.local.retention.ms",
    )
    preallocate: bool = _topic_setting(
        "preallocate", ConfigType.BOOLEAN, False, "No effect: segment files grow as records are appended.",
        broker_name="log.preallocate",
    )
    remote_log_copy_disable: bool = _topic_setting(
        "remote.log.copy.disable", ConfigType.BOOLEAN, False, "No effect: there is no tiered storage.",
    )
    remote_log_delete_on_disable: bool = _topic_setting(
        "remote.log.delete.on.disable", ConfigType.BOOLEAN, False, "No effect: there is no tiered storage.",
    )
    remote_storage_enable: bool = _topic_setting(
        "remote.storage.enable", ConfigType.BOOLEAN, False, "Must be false: there is no tiered storage.",
        choices=("false",),
    )
    segment_index_bytes: int = _topic_setting(
        "segment.index.bytes", ConfigType.INT, 10_485_760,
        "No effect: index files grow as entries are added (bytes in Kafka).",
        unit="bytes", low=4, high=INT32_MAX, broker_name="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = _topic_setting(
        "segment.jitter.ms", ConfigType.LONG, 0,
        "No effect: segments are rolled by segment.ms exactly (milliseconds in Kafka).",
        unit="ms", low=0, high=INT64_MAX,
    )
    unclean_leader_election_enable: bool = _topic_setting(
        "unclean.leader.election.enable", ConfigType.BOOLEAN, False, "No effect: each partition has one replica.",
        broker_name="unclean.leader.election.enable", is_broker_setting=False,
    )

    # computed once, because every append needs them
    is_compacted: bool = field(init=False, repr=False, compare=False)
    roll_ms: int = field(init=False, repr=False, compare=False)
    """Largest difference between the timestamps of one segment."""

    def __post_init__(self) -> None:
        is_compacted = "compact" in self.cleanup_policy
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        object.__setattr__(self, "is_compacted", is_compacted)
        object.__setattr__(self, "roll_ms", roll_ms)

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def codec(self) -> int | None:
        """Codec number of stored batches; None keeps the codec of the producer."""
        if self.compression_type == "producer":
            return None
        return 0 if self.compression_type == "uncompressed" else CODECS.index(self.compression_type)

    @property
    def codec_level(self) -> int | None:
        """Compression level of `codec`; None is the codec's default."""
        levels = {"lz4": self.compression_lz4_level, "zstd": self.compression_zstd_level}
        gzip = None if self.compression_gzip_level == -1 else self.compression_gzip_level
        return gzip if self.compression_type == "gzip" else levels.get(self.compression_type)


TOPIC_FIELDS: Mapping[str, str] = {key.name: field for field, key in config_keys(TopicConfig).items()}
"""Topic setting -> the field of `TopicConfig`."""

TOPIC_SETTINGS: Mapping[str, BrokerConfigKey] = {key.name: key for key in config_keys(TopicConfig).values()}
"""Topic setting -> its row."""


def topic_config(settings: Mapping[str, str | None], defaults: TopicConfig) -> TopicConfig:
    """Returns the configuration of a topic: its settings over the broker's defaults; None keeps the default.

    Raises: ConfigurationError for an unknown name and for a value out of bounds.
    """
    values = {}
    for name, text in settings.items():
        key = TOPIC_SETTINGS.get(name)
        if key is None:
            raise unknown_setting(name, TOPIC_SETTINGS, "topic")
        if text is not None:
            values[TOPIC_FIELDS[name]] = key.parse(str(text))
    return replace(defaults, **values) if values else defaults  # one object for most topics


def check_topic_config(config: TopicConfig) -> None:
    """Raises: ConfigurationError for values that Kafka rejects when a topic is created or altered."""
    if config.compression_gzip_level == 0:
        raise ConfigurationError("Option compression.gzip.level must be -1 or between 1 and 9, got 0.")
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigurationError(
            f"Option min.compaction.lag.ms must be at most max.compaction.lag.ms={config.max_compaction_lag_ms}, "
            f"got {config.min_compaction_lag_ms}."
        )
    for name, replicas in (("follower", config.follower_throttled), ("leader", config.leader_throttled)):
        if replicas[:1] != ("*",) and not all(_THROTTLED_REPLICA.fullmatch(each) for each in replicas):
            raise ConfigurationError(
                f"Option {name}.replication.throttled.replicas must be '*' or a list of partition:broker, "
                f"got {','.join(replicas)!r}."
            )


def unknown_setting(name: str, known: Mapping[str, BrokerConfigKey], kind: str) -> ConfigurationError:
    """Returns the error for a name that is in no table; `kind` is topic or broker."""
    near = closest(name, known)
    hint = f"The closest name is {near}." if near else f"Known names: {bounded_names(sorted(known))}."
    return ConfigurationError(f"Option {name} is not a {kind} setting of this broker. {hint}")
