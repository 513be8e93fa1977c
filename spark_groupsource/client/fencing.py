"""What it means when the coordinator no longer takes a member for one of the group's."""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.errors import ErrorCode

FENCING: Mapping[int, str] = {
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced since (ILLEGAL_GENERATION)",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "the member was removed: its session or poll time-out passed, it left, or an operator removed it "
        "(UNKNOWN_MEMBER_ID)"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another process joined under the same group.instance.id (FENCED_INSTANCE_ID)",
}
"""Error code -> cause, for every answer that says: stop, your partitions are not yours any more."""


def fencing_cause(code: int) -> str:
    """The cause behind a fencing error code."""
    return FENCING[code]
