"""Options of the data source: the table, parsed into a `SourceOptions`.

``kafka.*`` settings are in `client.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

from spark_groupsource.client.settings import ClientSettings, GroupSettings, parse_group_id
from spark_groupsource.common.config_def import INT64_MAX, ConfigType, config_keys, setting
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition, topic_matches
from spark_groupsource.source.options.cluster_options import ClusterOptions
from spark_groupsource.source.options.option_row import (
    BATCH,
    BOTH,
    STREAM,
    UNSUPPORTED_OPTIONS,
    WRITING_HINT,
    QueryKind,
    SourceOption,
)
from spark_groupsource.source.options.option_values import (
    parse_bytes,
    parse_class_path,
    parse_duration_ms,
    parse_members,
    parse_partitions,
    parse_pattern,
    parse_text,
    parse_topics,
)
from spark_groupsource.source.options.position_spec import (
    EARLIEST,
    LATEST,
    PositionSpec,
    parse_ending_offsets,
    parse_starting_offsets,
    parse_timestamps,
)
from spark_groupsource.source.options.value_options import VALUE_OPTIONS
from spark_groupsource.values.format_options import ValueOptions


def _positive(name: str, doc: str, unit: str, **more: Any) -> Any:
    return setting(SourceOption(name, ConfigType.LONG, None, doc, unit, low=1, high=INT64_MAX, **more))


def _parsed(name: str, doc: str, parser: Any, unit: str = "", **more: Any) -> Any:
    return setting(SourceOption(name, ConfigType.STRING, None, doc, unit, parser=parser, **more))


@dataclass(frozen=True)
class SourceOptions(ClusterOptions):
    """The options of one query, parsed.

    `group` holds the ``kafka.*`` settings of the members (None unless the query is a consumer group).
    `creates_topics` is False where kafka.allow.auto.create.topics is: the embedded broker then gets no topics.
    `ignored` names the options that were given and have no effect in this kind of query.
    """

    subscribe: tuple[str, ...] | None = _parsed("subscribe", "Topics to read, separated by commas.", parse_topics)
    subscribe_pattern: str | None = _parsed(
        "subscribePattern",
        "Regular expression (Python's re): topics whose names contain a match are read.",
        parse_pattern,
    )
    assign: tuple[TopicPartition, ...] | None = _parsed(
        "assign", 'Partitions to read without group membership, for example {"topic":[0,1]}.', parse_partitions
    )
    starting_offsets: PositionSpec | None = _parsed(
        "startingOffsets",
        "Start of a batch read; in a stream, of a partition that has neither a checkpoint nor a committed offset: "
        "earliest, latest, group, group-or-earliest, group-or-latest, -100 (offsets back), -10m (time back; the end "
        "where no record is that new) or JSON. Default: group-or-latest for a stream, earliest for a batch read. A "
        "stream resolves it when it first starts.",
        parse_starting_offsets,
    )
    starting_timestamp: int | None = setting(
        SourceOption(
            "startingTimestamp",
            ConfigType.LONG,
            None,
            "Start at the first record with this timestamp or a later one.",
            "epoch ms",
            low=0,
            high=INT64_MAX,
        )
    )
    starting_offsets_by_timestamp: PositionSpec | None = _parsed(
        "startingOffsetsByTimestamp",
        'The same per partition, for example {"topic":{"0":1577836800000}}.',
        parse_timestamps,
        "epoch ms",
    )
    starting_offsets_by_timestamp_strategy: str = setting(
        SourceOption(
            "startingOffsetsByTimestampStrategy",
            ConfigType.STRING,
            "error",
            "Reaction when a partition has no such record: fail, or start at the log end offset.",
            choices=("error", "latest"),
        )
    )
    ending_offsets: PositionSpec | None = _parsed(
        "endingOffsets", "End of a batch read: latest (the default) or JSON.", parse_ending_offsets, queries=BATCH
    )
    ending_timestamp: int | None = setting(
        SourceOption(
            "endingTimestamp",
            ConfigType.LONG,
            None,
            "End before the first record with this timestamp or a later one.",
            "epoch ms",
            low=0,
            high=INT64_MAX,
            queries=BATCH,
        )
    )
    ending_offsets_by_timestamp: PositionSpec | None = _parsed(
        "endingOffsetsByTimestamp",
        "The same per partition, as JSON.",
        parse_timestamps,
        "epoch ms",
        queries=BATCH,
    )
    max_offsets_per_trigger: int | None = _positive(
        "maxOffsetsPerTrigger",
        "Maximum number of offsets per micro-batch.",
        "offsets",
        queries=STREAM,
        elsewhere="ignored",
    )
    min_offsets_per_trigger: int | None = _positive(
        "minOffsetsPerTrigger",
        "Minimum number of offsets per micro-batch, unless maxTriggerDelay has passed.",
        "offsets",
        queries=STREAM,
        elsewhere="ignored",
    )
    max_bytes_per_trigger: int | None = _parsed(
        "maxBytesPerTrigger",
        "Approximate maximum of stored (compressed) bytes per micro-batch, for example 65536, 512k or 64m.",
        parse_bytes,
        "bytes",
        queries=STREAM,
        elsewhere="ignored",
    )
    max_trigger_delay_ms: int = setting(
        SourceOption(
            "maxTriggerDelay",
            ConfigType.STRING,
            900_000,
            "Longest wait for minOffsetsPerTrigger: milliseconds, or a duration such as 90s or 15m.",
            "ms",
            parser=parse_duration_ms,
            queries=STREAM,
            elsewhere="ignored",
        )
    )
    max_outage_ms: int | None = _parsed(
        "maxOutage",
        "How long a running query waits for its cluster before it fails: milliseconds, or a duration such as 90s or "
        "15m; without bound if absent. The start of a query waits for kafka.default.api.timeout.ms.",
        parse_duration_ms,
        "ms",
        queries=STREAM,
        elsewhere="ignored",
    )
    min_partitions: int | None = _positive(
        "minPartitions", "Desired minimum number of read tasks; ranges are split to reach it.", "tasks"
    )
    max_records_per_partition: int | None = _positive(
        "maxRecordsPerPartition", "Maximum number of offsets per read task.", "offsets"
    )
    fail_on_data_loss: bool = setting(
        SourceOption(
            "failOnDataLoss",
            ConfigType.BOOLEAN,
            True,
            "Fail the query when records it should read no longer exist; if false, log a warning and continue.",
        )
    )
    include_headers: bool = setting(
        SourceOption("includeHeaders", ConfigType.BOOLEAN, False, "Add the column headers to the schema.")
    )
    poll_timeout_ms: int | None = _positive(
        "kafkaConsumer.pollTimeoutMs",
        "Longest wait of a read task for records; kafka.default.api.timeout.ms if absent.",
        "ms",
    )
    fetch_offset_num_retries: int = setting(
        SourceOption(
            "fetchOffset.numRetries",
            ConfigType.LONG,
            3,
            "Number of retries of an offset lookup.",
            low=0,
            high=INT64_MAX,
        )
    )
    fetch_offset_retry_interval_ms: int = setting(
        SourceOption(
            "fetchOffset.retryIntervalMs",
            ConfigType.LONG,
            1000,
            "Pause between retries of an offset lookup.",
            "ms",
            low=0,
            high=INT64_MAX,
        )
    )
    group_id_prefix: str | None = _parsed(
        "groupIdPrefix", "Has no effect: kafka.group.id names the group.", parse_text
    )
    group_id: str | None = _parsed("group.id", "Another name of kafka.group.id.", parse_group_id)
    members: int | None = _parsed(
        "members",
        "Number of group members of this query, at most one per partition; auto (the default) is the number of tasks "
        "that Spark runs in parallel, by its settings.",
        parse_members,
        "members",
        queries=STREAM,
        elsewhere="ignored",
    )
    split_between_queries: bool = setting(
        SourceOption(
            "splitBetweenQueries",
            ConfigType.BOOLEAN,
            False,
            "Whether several queries of one application, or several loads in a query, may share a group and a topic; "
            "each record is then delivered to one of them. If false in one of them, the later one is rejected. A Spark "
            "Connect server is one application, also with several users.",
            queries=STREAM,
            elsewhere="ignored",
        )
    )
    on_group_reset: str = setting(
        SourceOption(
            "onGroupReset",
            ConfigType.STRING,
            "follow",
            "Reaction at a restart when an operator has reset the group to before the last commit of the query.",
            choices=("follow", "fail", "ignore"),
            queries=STREAM,
            elsewhere="ignored",
        )
    )
    on_group_ahead: str = setting(
        SourceOption(
            "onGroupAhead",
            ConfigType.STRING,
            "follow",
            "Reaction at a restart when committed offsets are ahead of the checkpoint: follow them, fail, or (ignore) "
            "read again from the checkpoint, as a stateful query needs it whose checkpoint was restored.",
            choices=("follow", "fail", "ignore"),
            queries=STREAM,
            elsewhere="ignored",
        )
    )
    rebalance_listener: str | None = _parsed(
        "rebalanceListener",
        "Class as module:Class whose methods on_partitions_revoked, on_partitions_assigned and on_partitions_lost are "
        "called in the reader process, as those of Kafka's ConsumerRebalanceListener.",
        parse_class_path,
        queries=STREAM,
        elsewhere="ignored",
    )
    rebalance_log: str | None = _parsed(
        "rebalanceLog",
        "File to which each rebalance is appended as a line of JSON, with its events; `timeline(file)` draws them.",
        parse_text,
        queries=STREAM,
        elsewhere="ignored",
    )
    values: ValueOptions = ValueOptions()
    group: GroupSettings | None = None
    creates_topics: bool = True
    ignored: tuple[str, ...] = ()

    def task_settings(self, settings: ClientSettings) -> ClientSettings:
        """Returns the settings of read tasks: kafkaConsumer.pollTimeoutMs replaces default.api.timeout.ms."""
        wait_ms = self.poll_timeout_ms
        return settings if wait_ms is None else replace(settings, default_api_timeout_ms=wait_ms)

    def group_settings(self, members: int) -> GroupSettings:
        """Returns the settings of the group's members.

        Raises: ConfigurationError where the query is no consumer group.
        """
        if self.group is None:
            raise ConfigurationError("Option kafka.group.id is missing. Name the consumer group of the query.")
        return replace(self.group, members=members)

    def subscribes(self, topic: str) -> bool:
        """Returns whether the members of the query subscribe to a topic if it exists."""
        pattern = self.subscribe_pattern
        return topic in (self.subscribe or ()) or (pattern is not None and topic_matches(pattern, topic))

    def with_client_id(self, client_id: str) -> SourceOptions:
        """Returns the options with the client id of connections and members."""
        group = None if self.group is None else replace(self.group, client_id=client_id)
        return replace(self, client=replace(self.client, client_id=client_id), group=group)

    @property
    def starting(self) -> PositionSpec | None:
        """Start of a partition that has neither checkpoint nor commit; None for the default of the kind of query."""
        # precedence of Spark's source: one timestamp for all, timestamps per partition, offsets
        if self.starting_timestamp is not None:
            return PositionSpec("startingTimestamp", timestamp_ms=self.starting_timestamp)
        return self.starting_offsets_by_timestamp or self.starting_offsets

    @property
    def ending(self) -> PositionSpec:
        """End of a batch read."""
        if self.ending_timestamp is not None:
            return PositionSpec("endingTimestamp", timestamp_ms=self.ending_timestamp)
        default = PositionSpec("endingOffsets", default=LATEST)
        return self.ending_offsets_by_timestamp or self.ending_offsets or default


FIELDS = {key.name.lower(): name for name, key in config_keys(SourceOptions).items()}
"""Lower-case name -> field of `SourceOptions`, of the options that are parsed into one."""

OPTIONS: Mapping[str, SourceOption] = {
    **{key.name.lower(): key for key in config_keys(SourceOptions).values()},
    **VALUE_OPTIONS,
}
"""Lower-case name -> option, every option of the source except ``kafka.*``."""


__all__ = [
    "BATCH",
    "BOTH",
    "STREAM",
    "QueryKind",
    "EARLIEST",
    "LATEST",
    "OPTIONS",
    "UNSUPPORTED_OPTIONS",
    "WRITING_HINT",
    "SourceOption",
    "SourceOptions",
]
