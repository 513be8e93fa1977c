"""Subjects of a schema registry: names and versions of readers' schemas.

Source: Confluent `TopicNameStrategy`, `RecordNameStrategy`, `TopicRecordNameStrategy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from spark_groupsource.errors import ConfigurationError

TOPIC, RECORD, TOPIC_RECORD = STRATEGIES = ("topic", "record", "topic-record")
_CLASSES = {"TopicNameStrategy": TOPIC, "RecordNameStrategy": RECORD, "TopicRecordNameStrategy": TOPIC_RECORD}
IGNORE, FAIL, RESTART = REACTIONS = ("ignore", "fail", "restart")
"""Reactions to a version of the subject that is newer than the reader's schema (option onSchemaChange)."""
# a longer text would be written with each batch; the registry keeps the schema under its id
_MAX_KEPT_CHARS = 64 * 1024


@dataclass(frozen=True)
class SubjectOptions:
    """Which version of which subject is the reader's schema; `version` is None for the latest one."""

    strategy: str = TOPIC
    record: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class WrittenSubject(SubjectOptions):
    """Which subject has the schema of values that are written.

    Attributes:
        has_version: whether the schema is `version` of the subject; else it is that of the column.
        registers: whether the schema of the column becomes a version of the subject if it is none.
        text: the schema as it is registered, if it is the text of a `.proto` file.
    """

    has_version: bool = False
    registers: bool = True
    text: str | None = None

    def name(self, column: str, topic: str, record: str) -> str:
        """Returns the subject, given the topic and the name of the schema's record."""
        return {TOPIC: f"{topic}-{column}", RECORD: record, TOPIC_RECORD: f"{topic}-{record}"}[self.strategy]


@dataclass(frozen=True)
class ReaderSchema:
    """The version of a subject that is the schema of a column, as it is stored in the checkpoint.

    Attributes:
        text: the schema; None if it is too long for the checkpoint.
    """

    subject: str
    version: int
    schema_id: int
    text: str | None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON of the checkpoint."""
        found: dict[str, Any] = {"id": self.schema_id, "subject": self.subject, "version": self.version}
        return found | ({} if self.text is None or len(self.text) > _MAX_KEPT_CHARS else {"schema": self.text})

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ReaderSchema:
        """Parses the JSON of a checkpoint. Raises: KeyError, TypeError, ValueError."""
        return cls(str(found["subject"]), int(found["version"]), int(found["id"]), found.get("schema"))


def parse_strategy(name: str, text: str) -> str:
    """Parses one of `STRATEGIES`, or the name of Confluent's class for it."""
    given = text.strip()
    found = _CLASSES.get(given.rpartition(".")[2], given.lower())
    if found not in STRATEGIES:
        raise ConfigurationError(
            f"Option {name} must be one of {', '.join(STRATEGIES)}, or the name of Confluent's class, got {text!r}."
        )
    return found


def parse_version(name: str, text: str) -> int | None:
    """Parses the number of a version; ``latest`` is None."""
    given = text.strip().lower()
    if given == "latest":
        return None
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) < 2**31:
        raise ConfigurationError(f"Option {name} must be latest or the number of a version, got {text!r}.")
    return int(given)


def subject_name(column: str, options: SubjectOptions, topics: tuple[str, ...] | None) -> str:
    """Returns the subject of a column.

    Args:
        topics: the topics of the query; None if they are not known before it starts.
    Raises: ConfigurationError if the options do not determine one subject.
    """
    if options.strategy != TOPIC and options.record is None:
        raise ConfigurationError(
            f"Option {column}.record.name is missing: {column}.subject.name.strategy is {options.strategy}. Give the "
            "full name of the record."
        )
    if options.strategy == RECORD:
        return str(options.record)
    if topics is None or len(topics) != 1:
        got = "subscribePattern" if topics is None else f"{len(topics)} topics"
        raise ConfigurationError(
            f"Option {column}.schema is missing: {column}.subject.name.strategy is {options.strategy}, which has a "
            f"subject for each topic, and the query has {got}. Subscribe to one topic, set the strategy to record, or "
            f"give {column}.schema."
        )
    return f"{topics[0]}-{column}" if options.strategy == TOPIC else f"{topics[0]}-{options.record}"
