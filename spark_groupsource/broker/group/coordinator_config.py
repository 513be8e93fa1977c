"""Group coordinator settings, with Kafka's names, defaults and bounds.

Source: https://kafka.apache.org/documentation (Broker Configs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_groupsource.common.config_def import INT32_MAX, INT64_MAX, ConfigType, broker_setting, config_keys
from spark_groupsource.errors import ConfigurationError

MAX_MEMBERS = 2_000


def _group_setting(
    name: str, default: int, doc: str, *, low: int, unit: str = "", type_: ConfigType = ConfigType.INT
) -> Any:
    high = INT32_MAX if type_ is ConfigType.INT else INT64_MAX
    return broker_setting(name, type_, default, doc, unit=unit, low=low, high=high)


@dataclass(frozen=True)
class GroupConfig:
    """Settings of one group coordinator.

    Raises: ConfigurationError for a value out of bounds.
    """

    group_min_session_timeout_ms: int = _group_setting(
        "group.min.session.timeout.ms", 6_000,
        "Smallest session.timeout.ms that a member may request, in milliseconds.",
        low=0, unit="ms",
    )
    group_max_session_timeout_ms: int = _group_setting(
        "group.max.session.timeout.ms", 1_800_000,
        "Largest session.timeout.ms that a member may request, in milliseconds.",
        low=1, unit="ms",
    )
    group_initial_rebalance_delay_ms: int = _group_setting(
        "group.initial.rebalance.delay.ms", 3_000,
        "Time that the first rebalance of an empty group waits for more members, in milliseconds.",
        low=0, unit="ms",
    )
    group_max_size: int = _group_setting(
        "group.max.size", INT32_MAX, "Largest number of members of one group; 2,000 unless it is set.",
        low=1, unit="members",
    )
    # A constant in Kafka (`ClassicGroup.NEW_MEMBER_JOIN_TIMEOUT_MS`): a member cannot send heartbeats before its first
    # JoinGroup response, so this limits how long the group keeps a disconnected new member.
    group_new_member_join_timeout_ms: int = _group_setting(
        "group.new.member.join.timeout.ms", 300_000,
        "Time after which a new member is removed that has not received its first JoinGroup response, in milliseconds.",
        low=1, unit="ms",
    )
    group_coordinator_max_state_bytes: int = _group_setting(
        "group.coordinator.max.state.bytes", 62_914_560,
        "Approximate memory of all groups, members and offsets above which no group, member, offset or metadata is "
        "added; not a setting of Kafka.",
        low=1, unit="bytes", type_=ConfigType.LONG,
    )
    offset_metadata_max_bytes: int = _group_setting(
        "offset.metadata.max.bytes", 4_096, "Largest metadata string of a committed offset, in bytes.",
        low=0, unit="bytes",
    )
    offsets_retention_minutes: int = _group_setting(
        "offsets.retention.minutes", 10_080, "Time that committed offsets of an empty group are kept, in minutes.",
        low=1, unit="minutes",
    )
    offsets_retention_check_interval_ms: int = _group_setting(
        "offsets.retention.check.interval.ms", 600_000, "Time between two checks for expired offsets, in milliseconds.",
        low=1, unit="ms", type_=ConfigType.LONG,
    )

    def __post_init__(self) -> None:
        for field, key in config_keys(GroupConfig).items():
            key.check(getattr(self, field))
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigurationError(
                f"Option group.min.session.timeout.ms must not exceed group.max.session.timeout.ms="
                f"{self.group_max_session_timeout_ms}, got {self.group_min_session_timeout_ms}."
            )

    @property
    def max_members(self) -> int:
        """The limit of a group; without group.max.size, a size whose rebalance takes one step of some milliseconds."""
        return MAX_MEMBERS if self.group_max_size == INT32_MAX else self.group_max_size

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
