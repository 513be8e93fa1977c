"""The options of the data source: one table of names, defaults, units, parsers and the queries they belong to.

Names are case-insensitive. An option that is not in the table is refused with the nearest name that is, and one that
Spark's own Kafka source knows and this one does not serve is refused with the reason. ``kafka.*`` settings are not
listed here: the client checks them by name.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, NamedTuple

from spark_groupsource.client.settings import ACCEPTED_SETTINGS, ClientSettings, GroupSettings
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.position_spec import (
    EARLIEST,
    LATEST,
    LONGEST,
    PositionSpec,
    parse_ending_offsets,
    parse_starting_offsets,
    parse_timestamps,
)

STREAM = frozenset({"stream"})
BATCH = frozenset({"batch"})
BOTH = STREAM | BATCH


class Option(NamedTuple):
    """One row of the table.

    `queries` is where the option acts; `elsewhere` is what happens in the other kind of query: ``"ignored"`` (with a
    warning, as Spark's source does) or ``"refused"``. `default` is the parsed value.
    """

    name: str
    default: Any
    unit: str
    parse: Callable[[str, str], Any]
    queries: frozenset[str]
    meaning: str
    elsewhere: str = "refused"


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise ConfigurationError(f"option {name} is empty; give it a value or leave it out")
    return text.strip()


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name} is {text!r}; it must be true or false")
    return text.strip().lower() == "true"


def _whole(name: str, text: str, least: int) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = least - 1
    if not least <= number <= LONGEST:
        raise ConfigurationError(f"option {name} is {text!r}; it must be a whole number from {least} to {LONGEST}")
    return number


def _positive(name: str, text: str) -> int:
    return _whole(name, text, 1)


def _non_negative(name: str, text: str) -> int:
    return _whole(name, text, 0)


_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def _bytes(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in _BYTE_UNITS or not int(match[1]):
        raise ConfigurationError(f"option {name} is {text!r}; it must be a number of bytes such as 65536, 512k or 64m")
    return int(match[1]) * _BYTE_UNITS[match[2]]


_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(name: str, text: str) -> int:
    """Reads Spark's time strings (``500ms``, ``90s``, ``15m``, ``2h``, ``1d``); a bare number is milliseconds.

    Raises: ConfigurationError naming the option.
    """
    match = re.fullmatch(r"(\d+)\s*(ms|s|min|m|h|d)?", text.strip().lower())
    if not match:
        raise ConfigurationError(f"option {name} is {text!r}; it must be a duration such as 500ms, 90s, 15m or 2h")
    return int(match[1]) * _DURATION_UNITS_MS[match[2] or "ms"]


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not topics:
        raise ConfigurationError(f"option {name} names no topic; give a comma-separated list")
    return topics


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(_text(name, text))
    except re.error as error:
        raise ConfigurationError(
            f"option {name} is not a regular expression of Python's re module: {error} in {text!r}"
        ) from error
    return text.strip()


def _assigned(name: str, text: str) -> tuple[TopicPartition, ...]:
    try:
        chosen = json.loads(text)
        pairs = sorted({TopicPartition(topic, int(p)) for topic, numbers in chosen.items() for p in numbers})
        if any(p < 0 for _, p in pairs):
            raise ValueError("negative partition number")
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f'option {name} is {text!r}; it must be JSON such as {{"topic":[0,1]}}') from error
    if not pairs:
        raise ConfigurationError(f"option {name} names no partition")
    return tuple(pairs)


def _members(name: str, text: str) -> int | None:
    return None if text.strip().lower() == "auto" else _positive(name, text)


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ConfigurationError(f"option {name} is {text!r}; it must be one of {', '.join(allowed)}")
        return text.strip().lower()

    return parse


def _class_path(name: str, text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text.strip()):
        raise ConfigurationError(f"option {name} is {text!r}; it must be module:Class")
    return text.strip()


def _timestamp(name: str, text: str) -> int:
    return _non_negative(name, text)


OPTIONS: dict[str, Option] = {
    option.name.lower(): option
    for option in (
        Option("subscribe", None, "", _topics, BOTH, "topics, comma-separated"),
        Option("subscribePattern", None, "", _pattern, BOTH, "regular expression (Python's re, full match) on topics"),
        Option("assign", None, "", _assigned, BOTH, 'partitions without group membership: {"topic":[0,1]}'),
        Option("startingOffsets", None, "", parse_starting_offsets, BOTH, "where a partition without position starts"),
        Option("startingTimestamp", None, "epoch ms", _timestamp, BOTH, "start at the first record from this time"),
        Option("startingOffsetsByTimestamp", None, "epoch ms", parse_timestamps, BOTH, "the same per partition"),
        Option(
            "startingOffsetsByTimestampStrategy", "error", "", _one_of("error", "latest"), BOTH, "when none is found"
        ),
        Option("endingOffsets", None, "", parse_ending_offsets, BATCH, "where a batch read ends"),
        Option("endingTimestamp", None, "epoch ms", _timestamp, BATCH, "end before the first record from this time"),
        Option("endingOffsetsByTimestamp", None, "epoch ms", parse_timestamps, BATCH, "the same per partition"),
        Option("maxOffsetsPerTrigger", None, "offsets", _positive, STREAM, "most offsets per batch", "ignored"),
        Option("minOffsetsPerTrigger", None, "offsets", _positive, STREAM, "wait for this many offsets", "ignored"),
        Option("maxBytesPerTrigger", None, "bytes", _bytes, STREAM, "about so many stored bytes per batch", "ignored"),
        Option("maxTriggerDelay", 900_000, "ms", parse_duration_ms, STREAM, "longest such wait", "ignored"),
        Option("minPartitions", None, "tasks", _positive, BOTH, "split ranges so that about as many tasks run"),
        Option("maxRecordsPerPartition", None, "offsets", _positive, BOTH, "most offsets per task"),
        Option("failOnDataLoss", True, "", _boolean, BOTH, "fail when promised records are gone, else warn"),
        Option("includeHeaders", False, "", _boolean, BOTH, "adds the column headers"),
        Option("kafkaConsumer.pollTimeoutMs", None, "ms", _positive, BOTH, "longest wait of a task for records"),
        Option("fetchOffset.numRetries", 3, "", _non_negative, BOTH, "retries of offset look-ups"),
        Option("fetchOffset.retryIntervalMs", 1000, "ms", _non_negative, BOTH, "pause between them"),
        Option("groupIdPrefix", None, "", _text, BOTH, "no effect: the group is named by kafka.group.id"),
        Option("group.id", None, "", _text, BOTH, "the same as kafka.group.id"),
        Option("members", None, "members", _members, STREAM, "members of the group this query is; auto", "ignored"),
        Option("onGroupReset", "follow", "", _one_of("follow", "fail", "ignore"), STREAM, "reset by hand", "ignored"),
        Option("rebalanceListener", None, "module:Class", _class_path, STREAM, "told of moves", "ignored"),
        Option("rebalanceLog", None, "path", _text, STREAM, "file that gets one JSON line per rebalance", "ignored"),
    )
}
"""lower-case name -> `Option`, every option of the source beside ``kafka.*``."""

_NOT_SERVED = {
    "path": "the source reads topics, not paths; use subscribe, subscribePattern or assign",
    "table": "tables of the cluster are not served yet",
    "topic": "this is an option of Kafka's sink; to read, use subscribe",
}


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of one query.

    `kafka` holds the ``kafka.*`` settings without their prefix, `bootstrap.servers` and `group.id` among them.
    """

    values: Mapping[str, Any]
    kafka: Mapping[str, str]
    ignored: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def bootstrap_servers(self) -> str:
        """The address as given, possibly ``embedded`` or ``embedded:DIR``."""
        return self.kafka.get("bootstrap.servers") or self.kafka.get("metadata.broker.list", "")

    @property
    def is_embedded(self) -> bool:
        return is_embedded(self.bootstrap_servers)

    def client_settings(self, bootstrap_servers: str) -> ClientSettings:
        """What the client goes by, with an ``embedded`` address resolved to `bootstrap_servers`.

        Raises: ConfigurationError naming the setting, also for unknown and unsupported ``kafka.*`` settings.
        """
        plain = {name: text for name, text in self.kafka.items() if name != "metadata.broker.list"}
        return ClientSettings.parse({**plain, "bootstrap.servers": bootstrap_servers})

    def task_settings(self, settings: ClientSettings) -> ClientSettings:
        """What tasks go by: ``kafkaConsumer.pollTimeoutMs`` bounds their wait, else default.api.timeout.ms does."""
        wait_ms = self["kafkaConsumer.pollTimeoutMs"]
        return settings if wait_ms is None else replace(settings, default_api_timeout_ms=wait_ms)

    def group_settings(self, members: int) -> GroupSettings:
        """What the group's members go by.

        Raises: ConfigurationError naming the setting.
        """
        topics, pattern = self["subscribe"] or (), self["subscribePattern"]
        return GroupSettings.parse(self.kafka, members=members, topics=topics, pattern=pattern)

    @property
    def group_id(self) -> str | None:
        return self.kafka.get("group.id")

    @property
    def subscription(self) -> str:
        """Which of subscribe, subscribePattern and assign was given, with its value; for messages."""
        name = _subscription_name(self.values)
        return f"{name}={self.values[name]}"

    @property
    def starting(self) -> PositionSpec | None:
        """Where a partition without a position starts; `None` leaves it to the kind of query."""
        return _position(self.values, "starting", "Timestamp", "OffsetsByTimestamp", "Offsets")

    @property
    def ending(self) -> PositionSpec:
        """Where a batch read ends."""
        return _position(self.values, "ending", "Timestamp", "OffsetsByTimestamp", "Offsets") or PositionSpec(
            "endingOffsets", default=LATEST
        )


def is_embedded(bootstrap_servers: str) -> bool:
    """True for ``embedded`` and ``embedded:DIR``."""
    return bootstrap_servers.strip().split(":", 1)[0].lower() == "embedded"


def _position(values: Mapping[str, Any], prefix: str, *suffixes: str) -> PositionSpec | None:
    # precedence as in Spark's source: one timestamp for all, timestamps per partition, offsets
    for suffix in suffixes:
        value = values[prefix + suffix]
        if suffix == "Timestamp" and value is not None:
            return PositionSpec(f"{prefix}Timestamp", timestamp_ms=value)
        if value is not None:
            spec: PositionSpec = value
            return spec
    return None


def _subscription_name(values: Mapping[str, Any]) -> str:
    return next(name for name in ("subscribe", "subscribePattern", "assign") if values[name] is not None)


def parse_options(options: Mapping[str, str], query: str | None = None) -> SourceOptions:
    """Reads the options of one query.

    Args:
        options: names (any case) and texts, as the user gave them.
        query: ``"stream"`` or ``"batch"``; None checks only what does not depend on it.

    Raises: ConfigurationError naming the option and the mend.
    """
    given = {name.lower(): text for name, text in options.items()}
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS.values()}
    kafka: dict[str, str] = {}
    ignored = []
    for name, text in given.items():
        if name.startswith("kafka."):
            kafka[name.removeprefix("kafka.")] = str(text)
            continue
        option = _lookup(name)
        if query and query not in option.queries:
            if option.elsewhere == "refused":
                raise ConfigurationError(f"option {option.name} has no meaning in a {query} query; leave it out")
            ignored.append(option.name)
            continue
        values[option.name] = option.parse(option.name, str(text))
    if values["group.id"]:
        if kafka.setdefault("group.id", values["group.id"]) != values["group.id"]:
            raise ConfigurationError("group.id and kafka.group.id differ; give one of them")
    parsed = SourceOptions(values, kafka, tuple(ignored))
    _check(parsed, query)
    return parsed


def _lookup(name: str) -> Option:
    if name in OPTIONS:
        return OPTIONS[name]
    if name in _NOT_SERVED:
        raise ConfigurationError(f"option {name} is not supported: {_NOT_SERVED[name]}")
    known = {key: option.name for key, option in OPTIONS.items()}
    known |= {key: f"kafka.{key}" for key in ACCEPTED_SETTINGS if key not in known}
    near = difflib.get_close_matches(name, known, n=1)
    mend = f"did you mean {known[near[0]]}?" if near else "settings of the Kafka client need the prefix kafka."
    raise ConfigurationError(f"option {name} is unknown; {mend}")


def _check(options: SourceOptions, query: str | None) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if options[name] is not None]
    if len(chosen) != 1:
        got = " and ".join(chosen) or "none"
        raise ConfigurationError(f"exactly one of the options subscribe, subscribePattern, assign is needed, got {got}")
    if not options.bootstrap_servers.strip():
        raise ConfigurationError(
            "option kafka.bootstrap.servers is missing; give host:port of a broker, or embedded for one of our own"
        )
    options.client_settings("localhost:9092" if options.is_embedded else options.bootstrap_servers)
    low, high = options["minOffsetsPerTrigger"], options["maxOffsetsPerTrigger"]
    if low and high and low > high:
        raise ConfigurationError(f"minOffsetsPerTrigger ({low}) is above maxOffsetsPerTrigger ({high})")
    if query == "stream" and options["assign"] is None:
        if not options.group_id:
            raise ConfigurationError(
                "option kafka.group.id is missing: a streaming query is a consumer group, so name it; "
                "only assign reads without a group"
            )
        from spark_groupsource.assign import load_assignor

        for assignor in options.group_settings(1).assignors:
            load_assignor(assignor)
    _check_starting(options, query)


def _check_starting(options: SourceOptions, query: str | None) -> None:
    starting = options.starting
    if starting is None or query is None:
        return
    if starting.needs_group and not options.group_id:
        raise ConfigurationError("startingOffsets names the group, so the option kafka.group.id is needed")
    if query == "batch" and starting.default == LATEST and not starting.partitions:
        raise ConfigurationError("startingOffsets=latest reads nothing in a batch query; use earliest or offsets")
    if query == "batch" and LATEST in starting.partitions.values():
        raise ConfigurationError("startingOffsets: -1 (latest) reads nothing in a batch query; use an offset or -2")
    ending = options.ending
    if query == "batch" and starting.by_time == ending.by_time:
        for p, start in sorted(starting.partitions.items()):
            end = ending.partitions.get(p, LATEST)
            if start > end >= 0:
                raise ConfigurationError(
                    f"[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {p}: {starting.option} is {start}, "
                    f"{ending.option} is {end}; correct one of them"
                )


__all__ = ["EARLIEST", "LATEST", "OPTIONS", "Option", "SourceOptions", "is_embedded", "parse_options"]
