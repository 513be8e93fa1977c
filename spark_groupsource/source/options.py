"""Options of the data source: one table, parsed once into `SourceOptions`.

Names are case-insensitive. An unknown option is rejected with the closest known name, an option of other sources that
this one does not serve with the reason. ``kafka.*`` settings are parsed by `client.settings`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from spark_groupsource.client.settings import ACCEPTED_SETTINGS, ClientSettings, GroupSettings, check_names
from spark_groupsource.config_def import INT64_MAX, ConfigType, closest, config_keys, setting
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.net import parse_addresses
from spark_groupsource.source.option_values import (
    parse_bytes,
    parse_class_path,
    parse_duration_ms,
    parse_members,
    parse_partitions,
    parse_pattern,
    parse_text,
    parse_topics,
)
from spark_groupsource.source.position_spec import (
    EARLIEST,
    LATEST,
    PositionSpec,
    parse_ending_offsets,
    parse_starting_offsets,
    parse_timestamps,
)
from spark_groupsource.source.secret_options import resolve_references
from spark_groupsource.source.source_option import (
    BATCH,
    BOTH,
    STREAM,
    UNSUPPORTED_OPTIONS,
    WRITING_HINT,
    QueryKind,
    SourceOption,
)
from spark_groupsource.source.value_options import TLS_PREFIXES, VALUE_OPTIONS, value_options
from spark_groupsource.values.options import ValueOptions

# placeholder for the address of an embedded broker that is not started yet
UNRESOLVED = "localhost:9092"


def _positive(name: str, doc: str, unit: str, **more: Any) -> Any:
    return setting(SourceOption(name, ConfigType.LONG, None, doc, unit, low=1, high=INT64_MAX, **more))


def _parsed(name: str, doc: str, parser: Any, unit: str = "", **more: Any) -> Any:
    return setting(SourceOption(name, ConfigType.STRING, None, doc, unit, parser=parser, **more))


@dataclass(frozen=True)
class SourceOptions:
    """The options of one query, parsed.

    `bootstrap_servers` is the address as given, possibly ``embedded`` or ``embedded:DIR``. `client` holds the
    ``kafka.*`` settings of connections, `group` those of the members (None unless the query is a consumer group).
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
        "Start of a partition that has neither a checkpoint nor a committed offset: earliest, latest, group, "
        "group-or-earliest, group-or-latest, -100 (offsets back), -10m (time back) or JSON. Default: group-or-latest "
        "for a stream, earliest for a batch read. A stream resolves it when it first starts.",
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
    group_id: str | None = _parsed("group.id", "Another name of kafka.group.id.", parse_text)
    members: int | None = _parsed(
        "members",
        "Number of group members of this query; auto (the default) is the number of tasks that Spark runs in parallel.",
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
    rebalance_listener: str | None = _parsed(
        "rebalanceListener",
        "Class as module:Class whose revoked, assigned and lost methods are called in the reader process.",
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
    bootstrap_servers: str = ""
    client: ClientSettings = field(default=ClientSettings(parse_addresses(UNRESOLVED)), repr=False)
    group: GroupSettings | None = None
    ignored: tuple[str, ...] = ()

    @property
    def is_embedded(self) -> bool:
        return is_embedded(self.bootstrap_servers)

    def client_settings(self, bootstrap_servers: str) -> ClientSettings:
        """Returns the client's settings with the address that `bootstrap_servers` was resolved to."""
        return replace(self.client, bootstrap=parse_addresses(bootstrap_servers))

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


_FIELDS = {key.name.lower(): name for name, key in config_keys(SourceOptions).items()}

OPTIONS: Mapping[str, SourceOption] = {
    **{key.name.lower(): key for key in config_keys(SourceOptions).values()},
    **VALUE_OPTIONS,
}
"""Lower-case name -> option, every option of the source except ``kafka.*``."""


def is_embedded(bootstrap_servers: str) -> bool:
    """Returns True for ``embedded`` and ``embedded:DIR``."""
    return bootstrap_servers.strip().split(":", 1)[0].lower() == "embedded"


def parse_options(options: Mapping[str, str], query: QueryKind | None = None) -> SourceOptions:
    """Parses the options of one query.

    Args:
        options: name in any case -> text.
        query: the kind of query; None checks only what does not depend on it.

    Raises: ConfigurationError that names the option.
    """
    values: dict[str, Any] = {}
    formats: dict[str, Any] = {}
    kafka, registry_tls = dict[str, str](), dict[str, str]()
    ignored = []
    # of names that differ in case only, the last one counts
    given = {name.lower(): (name, text) for name, text in resolve_references(options).items()}
    for key, (name, text) in given.items():
        if key.startswith("kafka."):
            kafka[key.removeprefix("kafka.")] = str(text)
            continue
        if key.startswith(TLS_PREFIXES):
            registry_tls[key] = str(text)
            continue
        option = _find_option(name)
        if query is None or query in option.queries:
            if key in VALUE_OPTIONS:
                formats[key] = option.parse(str(text))
            else:
                values[_FIELDS[key]] = option.parse(str(text))
        elif option.elsewhere == "ignored":
            ignored.append(option.name)
        else:
            raise ConfigurationError(f"Option {option.name} is not allowed in a {query} query. Leave it out.")
    values["group_id"] = _group_id(values, kafka)
    parsed = SourceOptions(
        bootstrap_servers=kafka.get("bootstrap.servers") or kafka.get("metadata.broker.list", ""),
        ignored=tuple(ignored),
        **values,
    )
    _check_subscription(parsed)
    _check_address(parsed, kafka)
    parsed = replace(parsed, client=_parse_client(parsed, kafka))
    wait_ms = parsed.task_settings(parsed.client).default_api_timeout_ms
    parsed = replace(parsed, values=value_options(formats, registry_tls, wait_ms))
    _check_limits(parsed)
    if query == "stream" and parsed.assign is None:
        parsed = replace(parsed, group=_parse_group(parsed, kafka))
    if query is not None and parsed.starting is not None:
        _check_starting(parsed, parsed.starting, query)
    return parsed


def _group_id(values: Mapping[str, Any], kafka: dict[str, str]) -> str | None:
    """Returns the group, and sets it among the settings of the client."""
    if values.get("group_id") and kafka.setdefault("group.id", values["group_id"]) != values["group_id"]:
        raise ConfigurationError("Options group.id and kafka.group.id differ. Give one of them.")
    return kafka.get("group.id")


def _find_option(name: str) -> SourceOption:
    key = name.lower()
    if key in OPTIONS:
        return OPTIONS[key]
    if key in UNSUPPORTED_OPTIONS:
        raise ConfigurationError(f"Option {name} is not supported. {UNSUPPORTED_OPTIONS[key]}")
    known = {key: option.name for key, option in OPTIONS.items()}
    known |= {key: f"kafka.{key}" for key in ACCEPTED_SETTINGS if key not in known}
    near = closest(key, known)
    hint = f"Did you mean {known[near]}?" if near else "Settings of the Kafka client need the prefix kafka."
    raise ConfigurationError(f"Option {name} is unknown. {hint}")


def _check_subscription(options: SourceOptions) -> None:
    given = {
        "subscribe": options.subscribe,
        "subscribePattern": options.subscribe_pattern,
        "assign": options.assign,
    }
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        got = " and ".join(chosen) or "none"
        hint = "" if chosen else f" Option table reads tables of groups and lag. {WRITING_HINT}"
        raise ConfigurationError(
            f"Exactly one of options subscribe, subscribePattern, assign is needed, got {got}.{hint}"
        )


def _check_address(options: SourceOptions, kafka: Mapping[str, str]) -> None:
    if not options.bootstrap_servers.strip():
        # a misspelled name is the cause
        check_names(kafka)
        raise ConfigurationError(
            "Option kafka.bootstrap.servers is missing. Give host:port of a broker, or embedded for an embedded broker."
        )


def _parse_client(options: SourceOptions, kafka: Mapping[str, str]) -> ClientSettings:
    address = UNRESOLVED if options.is_embedded else options.bootstrap_servers
    settings = {name: text for name, text in kafka.items() if name != "metadata.broker.list"}
    return ClientSettings.parse({**settings, "bootstrap.servers": address})


def _parse_group(options: SourceOptions, kafka: Mapping[str, str]) -> GroupSettings:
    if not options.group_id:
        raise ConfigurationError(
            "Option kafka.group.id is missing: a streaming query is a consumer group. Name the group; only assign "
            "reads without one."
        )
    # not at the top: load() imports this module and needs no assignor
    from spark_groupsource.assign import load_assignor

    settings = GroupSettings.parse(kafka, topics=options.subscribe or (), pattern=options.subscribe_pattern)
    for assignor in settings.assignors:
        load_assignor(assignor)
    return settings


def _check_limits(options: SourceOptions) -> None:
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low and high and low > high:
        raise ConfigurationError(
            f"Option minOffsetsPerTrigger ({low}) must not exceed maxOffsetsPerTrigger ({high})."
        )
    _check_dead_letters(options)


def _check_dead_letters(options: SourceOptions) -> None:
    topic, assigned = options.values.dead_letter_topic, options.assign or ()
    is_read = topic in (options.subscribe or ()) or topic in {each.topic for each in assigned}
    if topic is not None and options.subscribe_pattern is not None:
        is_read = re.search(options.subscribe_pattern, topic) is not None
    if is_read:
        raise ConfigurationError(
            f"Option deadLetterTopic={topic} must not be a topic that the query reads. Choose another topic."
        )


def _check_starting(options: SourceOptions, starting: PositionSpec, query: QueryKind) -> None:
    if starting.uses_group and not options.group_id:
        raise ConfigurationError("Option kafka.group.id is missing: startingOffsets refers to it. Name the group.")
    if query != "batch":
        return
    if starting.default == LATEST and not starting.partitions:
        raise ConfigurationError(
            "Option startingOffsets must not be latest in a batch query: the read would be empty. Use earliest or "
            "offsets."
        )
    if LATEST in starting.partitions.values():
        raise ConfigurationError(
            "Option startingOffsets must not contain -1 (latest) in a batch query: the read would be empty. Use an "
            "offset or -2 (earliest)."
        )
    ending = options.ending
    if starting.by_time != ending.by_time:
        return
    for p, start in sorted(starting.partitions.items()):
        end = ending.partitions.get(p, LATEST)
        if start > end >= 0:
            raise ConfigurationError(
                f"[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] Partition {p} would start after its end: "
                f"{starting.option} is {start}, {ending.option} is {end}. Correct one of them."
            )


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
    "is_embedded",
    "parse_options",
]
