"""Start and end positions as users write them: parsing and meaning.

`OffsetLookup.resolve` turns a `PositionSpec` into offsets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping

from spark_groupsource.common.config_def import INT32_MAX, INT64_MAX, parse_duration_ms, parse_integer
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition

# the numbers that Kafka's ListOffsets and Spark's JSON use
LATEST = -1
EARLIEST = -2

_EXAMPLE = '{"topic":{"0":23,"1":50}}'
_WORDS = {"latest": LATEST, "earliest": EARLIEST}
_GROUP_WORDS: dict[str, int | None] = {"group": None, "group-or-earliest": EARLIEST, "group-or-latest": LATEST}


@dataclass(frozen=True)
class PositionSpec:
    """The requested start or end position of each partition.

    Attributes:
        option: the option that was given, for messages.
        default: `EARLIEST` or `LATEST` for every partition; with `uses_group`, for partitions without a commit. None
            where the other attributes decide, and with `uses_group` where a missing commit is an error.
        topics, partitions: offsets by topic and by partition, possibly `EARLIEST` or `LATEST`.
        by_time: `partitions` holds epoch ms instead of offsets.
        timestamp_ms: one epoch ms for every partition.
        uses_group: the group's committed offset has precedence.
        back_count: number of offsets before the log end offset.
        back_ms: number of ms before now.
    """

    option: str
    default: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)
    by_time: bool = False
    timestamp_ms: int | None = None
    uses_group: bool = False
    back_count: int | None = None
    back_ms: int | None = None

    def listed(self, topic_partition: TopicPartition) -> int | None:
        """Returns the value listed for this partition, else for its topic, else None."""
        value = self.partitions.get(topic_partition)
        return self.topics.get(topic_partition.topic) if value is None else value


def parse_starting_offsets(option: str, text: str) -> PositionSpec:
    """Parses ``startingOffsets``: a word, ``-100`` (offsets back), ``-10m`` (time back) or JSON.

    Raises: ConfigurationError that lists the allowed forms.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return PositionSpec(option, default=_WORDS[word])
    if word in _GROUP_WORDS:
        return PositionSpec(option, default=_GROUP_WORDS[word], uses_group=True)
    back_count = parse_integer(word) if word.startswith("-") else None
    if back_count is not None and -INT64_MAX <= back_count:
        return PositionSpec(option, back_count=-back_count)
    back_ms = parse_duration_ms(word[1:]) if word.startswith("-") else None
    if back_ms is not None:
        return PositionSpec(option, back_ms=back_ms)
    if word.startswith("{"):
        topics, partitions = _parse_json(option, text, has_words=True)
        return PositionSpec(option, topics=topics, partitions=partitions)
    raise ConfigurationError(
        f"Option {option} must be earliest, latest, group, group-or-earliest, group-or-latest, -<n> (offsets back), "
        f"-<n>m (time back in ms, s, m, h or d) or JSON such as {_EXAMPLE}, got {text!r}."
    )


def parse_ending_offsets(option: str, text: str) -> PositionSpec:
    """Parses ``endingOffsets``: ``latest``, or JSON in which -1 is latest and -2 is rejected.

    Raises: ConfigurationError.
    """
    if text.strip().lower() == "latest":
        return PositionSpec(option, default=LATEST)
    if not text.strip().startswith("{"):
        raise ConfigurationError(f"Option {option} must be latest or JSON such as {_EXAMPLE}, got {text!r}.")
    topics, partitions = _parse_json(option, text, has_words=True)
    if EARLIEST in partitions.values() or EARLIEST in topics.values():
        raise ConfigurationError(
            f"Option {option} must not be earliest (-2): the read would be empty. Give an offset or -1 (latest)."
        )
    return PositionSpec(option, topics=topics, partitions=partitions)


def parse_timestamps(option: str, text: str) -> PositionSpec:
    """Parses ``{"topic":{"0":<epoch ms>}}``.

    Raises: ConfigurationError.
    """
    topics, partitions = _parse_json(option, text, has_words=False)
    if topics or any(value < 0 for value in partitions.values()):
        raise ConfigurationError(f"Option {option} must be JSON of epoch ms such as {_EXAMPLE}, got {text!r}.")
    return PositionSpec(option, partitions=partitions, by_time=True)


def _parse_json(option: str, text: str, has_words: bool) -> tuple[dict[str, int], dict[TopicPartition, int]]:
    topics: dict[str, int] = {}
    partitions: dict[TopicPartition, int] = {}
    try:
        for topic, value in json.loads(text).items():
            if isinstance(value, str) and has_words:
                topics[topic] = _WORDS[value.lower()]
                continue
            for partition, offset in value.items():
                partitions[TopicPartition(topic, _partition(partition))] = _offset(offset)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"Option {option} must be JSON such as {_EXAMPLE}, got {text!r}.") from error
    if not topics and not partitions:
        raise ConfigurationError(f"Option {option} must list at least one partition, got {text!r}.")
    return topics, partitions


def _partition(text: Any) -> int:
    number = parse_integer(text)
    if number is None or not 0 <= number <= INT32_MAX:
        raise ValueError(f"partition {text}")
    return number


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST <= value <= INT64_MAX:
        raise ValueError(f"offset {value!r}")
    return value
