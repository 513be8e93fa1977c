"""The coordinator's settings: Kafka's names in snake_case, Kafka's defaults. Knows nothing of where they come from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from spark_groupsource.errors import ConfigurationError


@dataclass(frozen=True)
class GroupConfig:
    """Settings of one coordinator; a field `group_max_size` is Kafka's `group.max.size`.

    `group_new_member_join_timeout_ms` is a constant in Kafka: a client cannot heartbeat before its first join is
    answered, so this bounds how long a vanished one stays.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    group_new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000

    def __post_init__(self) -> None:
        for field in fields(self):
            lowest = 1 if field.name in _POSITIVE else 0
            if getattr(self, field.name) < lowest:
                raise ConfigurationError(f"{setting_name(field.name)} must be at least {lowest}")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigurationError(
                "group.min.session.timeout.ms is larger than group.max.session.timeout.ms: no member could ever join"
            )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


_POSITIVE = frozenset(
    {
        "group_max_session_timeout_ms",
        "group_max_size",
        "group_new_member_join_timeout_ms",
        "offsets_retention_minutes",
        "offsets_retention_check_interval_ms",
    }
)


def setting_name(field_name: str) -> str:
    """Kafka's spelling of a field of `GroupConfig`."""
    return field_name.replace("_", ".")
