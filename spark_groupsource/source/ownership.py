"""Which partitions a stream reads: what its members of the group own, or what ``assign`` lists.

Both offer the same to the session, which need not know whether there is a group.
"""

from __future__ import annotations

import json
import logging
import os
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Mapping, Protocol, Sequence

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.clock import Clock, format_timestamp_ms
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.offset_lookup import OffsetLookup
from spark_groupsource.source.options import SourceOptions
from spark_groupsource.source.rebalance_listener import load_rebalance_listener
from spark_groupsource.source.task_reader import TaskMembership

if TYPE_CHECKING:
    from spark_groupsource.client.membership.group_client import MemberView, RebalanceEvent

_log = logging.getLogger(__name__)

Commits = dict[TopicPartition, OffsetAndMetadata | None]


class Ownership(Protocol):
    """What the session asks; one thread at a time."""

    @property
    def generation_id(self) -> int:
        """The group's generation as of the last `refresh`, -1 without a group."""

    @property
    def is_moving(self) -> bool:
        """True when `refresh` would hand partitions over: everything read must have been committed before."""

    @property
    def keeps(self) -> bool:
        """True when what is owned stays owned until the next `refresh`, settled or not: it may be read meanwhile."""

    def refresh(self, timeout_ms: int) -> bool:
        """Joins or rejoins where needed; True once what is owned is settled."""

    def owners(self) -> dict[TopicPartition, int]:
        """Partition owned -> index of the member that owns it, -1 without a group."""

    def members(self) -> dict[int, TaskMembership]:
        """Index -> member as tasks need to know it."""

    def committed(self, partitions: Sequence[TopicPartition]) -> Commits:
        """The group's commits; None where there is none."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], patience_ms: int | None = None) -> None:
        """Commits for the owners, waiting at most `patience_ms` for a group that is between two assignments.

        Raises: GenerationMismatchError, BrokerError, NetworkError.
        """

    def leave(self, reason: str) -> None:
        """Leaves the group; nothing is owned afterwards."""


class AssignedPartitions:
    """The partitions ``assign`` lists: no membership, commits as a simple consumer where a group is named."""

    generation_id = -1
    is_moving = False
    keeps = True

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._group_id = options.group_id
        self._partitions = OffsetLookup(cluster, options).partitions()

    def refresh(self, timeout_ms: int) -> bool:
        return True

    def owners(self) -> dict[TopicPartition, int]:
        return dict.fromkeys(self._partitions, -1)

    def members(self) -> dict[int, TaskMembership]:
        return {}

    def committed(self, partitions: Sequence[TopicPartition]) -> Commits:
        if self._group_id is None:
            return dict.fromkeys(partitions)
        return self._cluster.fetch_committed(self._group_id, partitions)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], patience_ms: int | None = None) -> None:
        if self._group_id is None:
            return
        try:
            self._cluster.commit(self._group_id, offsets)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            _log.warning("%s; offsets of assign are not committed while it has", error)

    def leave(self, reason: str) -> None:
        self._partitions = []


class GroupPartitions:
    """What the query's members own."""

    def __init__(self, cluster: Cluster, options: SourceOptions, clock: Clock, members: int) -> None:
        from spark_groupsource.client.membership.group_client import GroupClient

        self._settings = options.group_settings(members)
        named = options["rebalanceListener"]
        self._group = GroupClient(cluster, self._settings, clock, load_rebalance_listener(named) if named else None)
        self._last_event: RebalanceEvent | None = None
        self._rebalance_log: str | None = options["rebalanceLog"]
        self._left = False

    @property
    def generation_id(self) -> int:
        return max((member.generation_id for member in self._views()), default=-1)

    @property
    def is_moving(self) -> bool:
        return self._group.rejoin_needed

    @property
    def keeps(self) -> bool:
        return not self._left and self._group.view.retains_partitions

    def refresh(self, timeout_ms: int) -> bool:
        view = self._group.poll(timeout_ms)
        self._report_events()
        return view.is_stable

    def owners(self) -> dict[TopicPartition, int]:
        return {p: member.index for member in self._views() for p in member.partitions}

    def members(self) -> dict[int, TaskMembership]:
        return {
            member.index: TaskMembership(
                group_id=self._settings.group_id,
                member_id=member.member_id,
                generation_id=member.generation_id,
                group_instance_id=member.group_instance_id,
                heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
                claiming=member.retains_partitions,
            )
            for member in self._views()
        }

    def committed(self, partitions: Sequence[TopicPartition]) -> Commits:
        return dict(self._group.committed(list(partitions)))

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], patience_ms: int | None = None) -> None:
        self._group.commit(offsets, patience_ms)

    def leave(self, reason: str) -> None:
        if not self._left:
            self._left = True
            try:
                self._group.leave(reason)
            except ConfigurationError as error:
                # the members have left all the same, and there is no query any more that could fail
                _log.error("%s", error)
            self._report_events()

    def _views(self) -> Sequence[MemberView]:
        return () if self._left else self._group.view.members

    def _report_events(self) -> None:
        events = self._group.events
        news = list(takewhile(lambda event: event is not self._last_event, reversed(events)))
        for event in reversed(news):
            _log.info("%s", describe_event(self._settings.group_id, event))
            if self._rebalance_log:
                append_event(self._rebalance_log, self._settings.group_id, event)
        self._last_event = events[-1] if events else None


def _event_fields(event: RebalanceEvent) -> dict[str, Any]:
    return {
        "timestamp": format_timestamp_ms(event.started_ms),
        "cause": event.cause,
        "duration_ms": event.ended_ms - event.started_ms,
        "join_ms": event.join_ms,
        "sync_ms": event.sync_ms,
        "generation": event.generation_id,
        "gained": [str(p) for p in event.gained],
        "lost": [str(p) for p in event.lost],
        "members": event.members,
    }


def describe_event(group_id: str, event: RebalanceEvent) -> str:
    """One line about one rebalance."""
    told = _event_fields(event)
    moved = ", ".join(f"{word} {' '.join(told[word])}" for word in ("gained", "lost") if told[word]) or "nothing moved"
    return (
        f"group {group_id} rebalanced to generation {event.generation_id} in {told['duration_ms']} ms "
        f"(join {event.join_ms} ms, sync {event.sync_ms} ms), {event.members} members: {event.cause}; {moved}"
    )


def append_event(path: str, group_id: str, event: RebalanceEvent) -> None:
    """Adds one JSON line to a file; one write, so that the lines of several queries do not mix."""
    line = json.dumps({"group": group_id, **_event_fields(event), "text": describe_event(group_id, event)}) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
