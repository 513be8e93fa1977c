"""State that the members of one process share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spark_groupsource.client.membership.assignment import Snapshot
from spark_groupsource.client.membership.rebalance_log import RebalanceRecorder
from spark_groupsource.client.settings import GroupSettings

if TYPE_CHECKING:
    from spark_groupsource.client.membership.member_thread import MemberThread


class SharedMembership:
    """What the members of one process share; guarded by `changed`."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.changed = threading.Condition()
        self.topics: tuple[str, ...] = settings.topics
        self.members: list[MemberThread] = []
        self.recorder = RebalanceRecorder()
        # of the member that leads, if one of ours does: topics of the whole group, and what it assigned upon
        self.group_topics: frozenset[str] = frozenset()
        self.snapshot: Snapshot = {}
        self.closing = False

    def awaits_member_ids(self) -> bool:
        """True while a joining member of ours has no member id yet."""
        return any(
            not member.membership.generation.member_id
            and member.membership.rejoin_needed
            and not member.membership.prepare_needed
            and member.failure is None
            for member in self.members
        )
