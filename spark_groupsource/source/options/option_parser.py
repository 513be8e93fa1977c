"""Parses the options of one query into `SourceOptions`.

Options that depend on each other are checked. Names are case-insensitive. An unknown option is rejected with the
closest known name, an option of other sources that this one does not serve with the reason. ``kafka.*`` settings are
parsed by `client.settings`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX
from spark_groupsource.client.rejected_settings import is_accepted_value
from spark_groupsource.client.settings import ACCEPTED_SETTINGS, GroupSettings
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import topic_matches
from spark_groupsource.source.options.cluster_options import parse_cluster
from spark_groupsource.source.options.option_row import (
    UNSUPPORTED_OPTIONS,
    WRITING_HINT,
    QueryKind,
    SourceOption,
    by_lower_name,
    kafka_settings,
    unknown_option,
)
from spark_groupsource.source.options.position_spec import LATEST, PositionSpec
from spark_groupsource.source.options.secret_options import resolve_references
from spark_groupsource.source.options.source_options import FIELDS, OPTIONS, SourceOptions
from spark_groupsource.source.options.value_options import parse_given_options, value_options


def parse_options(options: Mapping[str, str], query: QueryKind | None = None) -> SourceOptions:
    """Parses the options of one query.

    Args:
        options: name in any case -> text.
        query: the kind of query; None checks only what does not depend on it.

    Raises: ConfigurationError that names the option.
    """
    given = by_lower_name(resolve_references(options))
    kafka = kafka_settings(given)
    values, formats, registry_tls, ignored = parse_given_options(given, _find_option, FIELDS, query)
    values["group_id"] = _group_id(values, kafka)
    parsed = SourceOptions(
        creates_topics=not is_accepted_value("allow.auto.create.topics", kafka.get("allow.auto.create.topics", "")),
        ignored=tuple(ignored),
        **values,
    )
    _check_subscription(parsed)
    address, client = parse_cluster(kafka)
    parsed = replace(parsed, bootstrap_servers=address, client=client)
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
    named: str | None = values.get("group_id")
    key = ACCEPTED_SETTINGS["group.id"]
    given = key.parse(kafka[key.name], OPTION_PREFIX + key.name) if key.name in kafka else None
    if None not in (named, given) and named != given:
        raise ConfigurationError("Options group.id and kafka.group.id differ. Give one of them.")
    found = given or named
    if found is not None:
        kafka["group.id"] = found
    return found


def _find_option(name: str) -> SourceOption:
    key = name.lower()
    if key in OPTIONS:
        return OPTIONS[key]
    if key in UNSUPPORTED_OPTIONS:
        raise ConfigurationError(f"Option {name} is not supported. {UNSUPPORTED_OPTIONS[key]}")
    raise unknown_option(name, OPTIONS, ACCEPTED_SETTINGS)


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
        is_read = topic_matches(options.subscribe_pattern, topic)
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
