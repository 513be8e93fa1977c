"""Definition of one option of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from spark_groupsource.config_def import ConfigKey

QueryKind = Literal["stream", "batch"]

STREAM: frozenset[QueryKind] = frozenset({"stream"})
BATCH: frozenset[QueryKind] = frozenset({"batch"})
BOTH = STREAM | BATCH


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
