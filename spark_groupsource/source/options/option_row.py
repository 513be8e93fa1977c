"""Definition of one option of the source; options that are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Literal, Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX
from spark_groupsource.common.config_def import ConfigKey, closest
from spark_groupsource.errors import ConfigurationError

QueryKind = Literal["stream", "batch"]

STREAM: frozenset[QueryKind] = frozenset({"stream"})
BATCH: frozenset[QueryKind] = frozenset({"batch"})
BOTH = STREAM | BATCH

WRITING_HINT = "To write, name the topic with option topic."

_UNITY_CATALOG = "Databricks passes credentials of Unity Catalog to its own Kafka source only."

UNSUPPORTED_OPTIONS: Mapping[str, str] = {
    "path": "The source reads topics, not paths: use subscribe, subscribePattern or assign.",
    "topic": "It is for writes and tables (option table). To read topics, use subscribe; to write, remove subscribe.",
    "group": "It selects rows of a table (option table). Use kafka.group.id for the group of a query.",
    "grouppattern": "It selects rows of a table (option table). Use kafka.group.id for the group of a query.",
    "databricks.servicecredential": (
        f"{_UNITY_CATALOG} Set kafka.security.protocol, kafka.sasl.mechanism and kafka.sasl.jaas.config of the "
        "provider instead."
    ),
    "databricks.servicecredential.scope": f"{_UNITY_CATALOG} Remove it.",
}
"""Lower-case names of options that are rejected, each with the reason."""


@dataclass(frozen=True)
class SourceOption(ConfigKey):
    """One option of the source.

    Attributes:
        queries: the kinds of query that use the option.
        elsewhere: what happens in the other kind: ``"ignored"`` (with a warning, as in Spark's Kafka source) or
            ``"rejected"``.
    """

    queries: frozenset[QueryKind] = BOTH
    elsewhere: Literal["ignored", "rejected"] = "rejected"

    def parse(self, text: str, name: str | None = None) -> Any:
        """As `ConfigKey.parse`, with choices in any case."""
        return super().parse(text.lower() if self.choices else text, name)


def by_lower_name(options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns lower-case name -> name as given, and text; of names that differ in case only, the last one counts."""
    return {name.lower(): (name, str(text)) for name, text in options.items()}


def unknown_option(name: str, options: Mapping[str, SourceOption], settings: Iterable[str]) -> ConfigurationError:
    """Returns the error of an unknown option, with the closest of the options and of the settings ``kafka.*``."""
    known = {key: option.name for key, option in options.items()}
    known |= {key: f"{OPTION_PREFIX}{key}" for key in settings if key not in known}
    near = closest(name.lower(), known)
    hint = f"Did you mean {known[near]}?" if near else "Settings of the Kafka client need the prefix kafka."
    return ConfigurationError(f"Option {name} is unknown. {hint}")


def kafka_settings(given: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Returns the ``kafka.*`` settings among the options of `by_lower_name`, without the prefix."""
    return {
        key.removeprefix(OPTION_PREFIX): text for key, (_, text) in given.items() if key.startswith(OPTION_PREFIX)
    }
