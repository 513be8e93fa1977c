"""Where reading starts and ends: the forms a user may write, and what each of them needs to be resolved.

Knows texts and numbers; the answers of a cluster are put in by `resolve` of the module `lookup`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition

# the numbers Kafka's protocol and Spark's JSON use for the two ends of a log
LATEST = -1
EARLIEST = -2
LONGEST = 2**63 - 1
"""The largest number the protocol has room for."""

_EXAMPLE = '{"topic":{"0":23,"1":50}}'
_WORDS = {"latest": LATEST, "earliest": EARLIEST}
_GROUP_WORDS: dict[str, int | None] = {"group": None, "group-or-earliest": EARLIEST, "group-or-latest": LATEST}
_RELATIVE_TIME = re.compile(r"-(\d+)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class PositionSpec:
    """A wish where to start or end, per partition, per topic or for all.

    Offsets may be `EARLIEST` or `LATEST`. `by_time` tells that `partitions` holds epoch ms in place of offsets.
    `uses_group` asks for the group's committed offset first; `default` is what then remains, `None` an error.
    `back_count` and `back_ms` count back from the end of the log and from now.
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

    @property
    def needs_group(self) -> bool:
        return self.uses_group

    @property
    def is_listed(self) -> bool:
        """True where the user listed partitions or topics, so that each one read must be among them."""
        return bool(self.topics or self.partitions)

    def listed(self, topic_partition: TopicPartition) -> int | None:
        """What was listed for this partition, or for its topic, or None."""
        value = self.partitions.get(topic_partition)
        return self.topics.get(topic_partition.topic) if value is None else value


def parse_starting_offsets(option: str, text: str) -> PositionSpec:
    """Reads ``startingOffsets``: a word, ``-100`` (records), ``-10m`` (time) or JSON.

    Raises: ConfigurationError listing the forms.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return PositionSpec(option, default=_WORDS[word])
    if word in _GROUP_WORDS:
        return PositionSpec(option, default=_GROUP_WORDS[word], uses_group=True)
    if re.fullmatch(r"-\d+", word):
        return PositionSpec(option, back_count=int(word[1:]))
    relative = _RELATIVE_TIME.fullmatch(word)
    if relative:
        return PositionSpec(option, back_ms=int(relative[1]) * _UNITS_MS[relative[2]])
    if word.startswith("{"):
        topics, partitions = _parse_json(option, text, words=True)
        return PositionSpec(option, topics=topics, partitions=partitions)
    raise ConfigurationError(
        f"option {option} is {text!r}; it must be earliest, latest, group, group-or-earliest, group-or-latest, "
        f"-<n> (records back), -<n>m (time back: ms, s, m, h, d) or JSON such as {_EXAMPLE}"
    )


def parse_ending_offsets(option: str, text: str) -> PositionSpec:
    """Reads ``endingOffsets``: ``latest`` or JSON in which -1 is latest and -2 is refused.

    Raises: ConfigurationError.
    """
    if text.strip().lower() == "latest":
        return PositionSpec(option, default=LATEST)
    if not text.strip().startswith("{"):
        raise ConfigurationError(f"option {option} is {text!r}; it must be latest or JSON such as {_EXAMPLE}")
    topics, partitions = _parse_json(option, text, words=True)
    if EARLIEST in partitions.values() or EARLIEST in topics.values():
        raise ConfigurationError(f"option {option} ends at earliest (-2), which reads nothing; use an offset or -1")
    return PositionSpec(option, topics=topics, partitions=partitions)


def parse_timestamps(option: str, text: str) -> PositionSpec:
    """Reads ``{"topic":{"0":<epoch ms>}}``.

    Raises: ConfigurationError.
    """
    topics, partitions = _parse_json(option, text, words=False)
    if topics or any(value < 0 for value in partitions.values()):
        raise ConfigurationError(f"option {option} is {text!r}; it must be JSON of epoch ms such as {_EXAMPLE}")
    return PositionSpec(option, partitions=partitions, by_time=True)


def _parse_json(option: str, text: str, words: bool) -> tuple[dict[str, int], dict[TopicPartition, int]]:
    topics: dict[str, int] = {}
    partitions: dict[TopicPartition, int] = {}
    try:
        for topic, value in json.loads(text).items():
            if isinstance(value, str) and words:
                topics[topic] = _WORDS[value.lower()]
                continue
            for partition, offset in value.items():
                partitions[TopicPartition(topic, _partition(partition))] = _offset(offset)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"option {option} is {text!r}; it must be JSON such as {_EXAMPLE}") from error
    if not topics and not partitions:
        raise ConfigurationError(f"option {option} lists no partition")
    return topics, partitions


def _partition(text: Any) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"partition {number}")
    return number


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST <= value <= LONGEST:
        raise ValueError(f"offset {value!r}")
    return value
