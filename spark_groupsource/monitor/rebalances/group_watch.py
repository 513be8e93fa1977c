"""Follows the rebalances of one group while they happen."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, TypeVar

from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import without_prefix
from spark_groupsource.errors import GroupSourceError, NetworkError, RequestTimeoutError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.monitor.rebalances.event_sources import GroupEventReader
from spark_groupsource.monitor.rebalances.group_history import GroupLog, GroupLogReader
from spark_groupsource.monitor.rebalances.group_steps import GroupRecord
from spark_groupsource.monitor.rebalances.rebalance import Rebalance
from spark_groupsource.monitor.rebalances.rebalance_sources import GroupHistory, history_of_group
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.wire.group_events import EventKind, GroupEvent

T = TypeVar("T")

CALL_TIMEOUT_MS = 5_000
"""Limit of a call while a cluster responds within half of it."""
_SAME_MS = 1_000
_REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance"})


class BoundedReads:
    """Bounds the calls of all reads but the first, so that an outage is reported while it lasts.

    The limit follows the responses: it doubles after a read without one, up to default.api.timeout.ms, and is twice
    the time of a read that succeeded. A cluster that responds slowly is shown slowly.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    def read(self, function: Callable[[], T]) -> T:
        """Returns the result of `function`, which reads from the cluster. Raises: as `function`."""
        cluster = self._cluster
        started_ms = cluster.clock.now_ms()
        try:
            result = function()
        except RequestTimeoutError:
            if cluster.call_timeout_ms is not None:
                self._limit(2 * cluster.call_timeout_ms)
            raise
        self._limit(max(CALL_TIMEOUT_MS, 2 * (cluster.clock.now_ms() - started_ms)))
        return result

    def _limit(self, timeout_ms: int) -> None:
        self._cluster.call_timeout_ms = min(timeout_ms, self._cluster.settings.default_api_timeout_ms)


def condition_of(error: GroupSourceError) -> str:
    """Returns in words what an error of a read means for the group."""
    if isinstance(error, RequestTimeoutError):
        return "Waiting for a response"
    return "Unreachable" if isinstance(error, NetworkError) else "Not updated"


def failure_text(error: GroupSourceError, read_at: str) -> str:
    """Returns why a group could not be read, with the time of its last read."""
    return f"{condition_of(error)} since {read_at}: {shortened(escaped(without_prefix(str(error))), 200)}"


class WatchUpdate(NamedTuple):
    """What changed: completed rebalances with their history, and the text of a rebalance in progress, if it is new.

    Attributes:
        description: the group now.
    """

    history: GroupHistory
    completed: list[Rebalance]
    progress: str | None
    description: GroupDescription


class GroupCondition(NamedTuple):
    """State, number of members and lag of a group; the lag is None where no offset is committed."""

    state: str
    members: int
    lags: Mapping[TopicPartition, int | None]

    @property
    def lag(self) -> int:
        """Sum of the known lags."""
        return sum(lag for lag in self.lags.values() if lag is not None)


def condition_text(now: GroupCondition, before: GroupCondition | None) -> str:
    """Returns state, members and lag in one line, with the partitions whose lag has changed, or all at first.

    The partitions with the largest lag are named.
    """
    if now.state == "Dead":
        return "The group does not exist."
    members, partitions = (
        f"{count:,} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((now.members, "member"), (len(now.lags), "partition"))
    )
    text = f"{now.state}, {members}, {partitions}, lag {now.lag:,}"
    known = {} if before is None else before.lags
    changed = [tp for tp, lag in now.lags.items() if tp not in known or known[tp] != lag]
    if before is not None and before.state != "Dead" and now.lag != before.lag:
        text += f" ({now.lag - before.lag:+,})"
    ordered = sorted(changed, key=lambda tp: (-(now.lags[tp] or 0), tp))
    shown = (f"{tp} {'unknown' if now.lags[tp] is None else f'{now.lags[tp]:,}'}" for tp in ordered)
    return f"{text}: {bounded_names(shown, count=len(ordered))}." if ordered else f"{text}."


class GroupWatch:
    """Reads what is new of one group at each call.

    Args: `keeps_commits`, whether `log` has the committed offsets.
    """

    def __init__(self, cluster: ClusterClient, group: str, keeps_commits: bool = False) -> None:
        self._cluster = cluster
        self._group = group
        selection = NameSelection((group,))
        self._reader = GroupLogReader(cluster, selection, keeps_commits)
        self._events = GroupEventReader(cluster, selection)
        self.log = GroupLog()
        self._history: GroupHistory | None = None
        self._size = -1
        self._is_pending = False
        self._shown: dict[int, int] = {}
        self._seen: set[int] = set()
        self._progress: str | None = None

    def update(self) -> WatchUpdate:
        """Returns what is new; the first call returns all rebalances.

        A new rebalance is returned by the second call that reads it: its events follow its record.

        Raises: BrokerError, NetworkError.
        """
        description = describe_groups(self._cluster, [self._group])[self._group]
        self.log = log = self._reader.read().get(self._group) or GroupLog()
        # a failure before the end of the reads loses nothing of the next call
        progress = self._progress_now(description, log)
        size = len(log.records) + len(log.epochs)
        is_first = self._history is None
        if self._history is None or self._is_pending or size != self._size:
            self._history = history_of_group(self._group, log, self.coordinator_events())
            self._size = size
        # the times of the same rebalance differ by milliseconds between its record and its events
        new = [
            r
            for r in self._history.rebalances
            if r.generation not in self._shown or r.completed_ms - self._shown[r.generation] > _SAME_MS
        ]
        completed = [r for r in new if is_first or r.generation in self._seen]
        self._shown.update((r.generation, r.completed_ms) for r in completed)
        self._seen = {r.generation for r in new} - {r.generation for r in completed}
        self._is_pending = bool(self._seen)
        text, self._progress = progress if progress != self._progress else None, progress
        return WatchUpdate(self._history, completed, text, description)

    def _progress_now(self, description: GroupDescription, log: GroupLog) -> str | None:
        if description.state not in _REBALANCING:
            return None
        return progress_text(description, log.records, log.tracker.committing, self.coordinator_events())

    def coordinator_events(self) -> list[GroupEvent]:
        """Returns the events of the group that the embedded coordinator has recorded until now.

        Raises: BrokerError, NetworkError.
        """
        return self._events.read().get(self._group, [])


def progress_text(
    group: GroupDescription, records: list[GroupRecord], committing: frozenset[str], events: list[GroupEvent]
) -> str:
    """Returns for which members a rebalance in progress waits.

    The events of the embedded coordinator show which members have joined. Other brokers do not report it: there, a
    member that has committed meanwhile in the eager protocol has probably not joined.
    """
    value = next((r.value for r in reversed(records) if r.value is not None), None)
    before = {} if value is None else {m.member_id: m.group_instance_id or m.client_id for m in value.members}
    now = {m.member_id: m.group_instance_id or m.client_id for m in group.members}
    text = f"Rebalance in progress ({group.state}): {len(now)} {'member' if len(now) == 1 else 'members'}"
    new = [name for member_id, name in now.items() if member_id not in before]
    if new:
        text += f", new: {bounded_names(sorted(new))}"
    if group.state == "CompletingRebalance":
        return f"{text}; waiting for the assignment of the leader."
    last = {event.kind: at for at, event in enumerate(events)}
    started = last.get(EventKind.REBALANCE_STARTED)
    if started is not None and last.get(EventKind.ASSIGNED, -1) > started:
        # the start of this rebalance is not recorded yet
        started = None
    candidates = [member_id for member_id in now if member_id in before]
    if started is not None:
        joined = {e.member_id for e in events[max(0, started - 1) :] if e.kind is EventKind.MEMBER_JOINING}
        waiting = sorted(name for member_id, name in now.items() if member_id not in joined)
        return f"{text}; waiting for {bounded_names(waiting)}." if waiting else f"{text}; all have joined."
    late = sorted(now[member_id] for member_id in candidates if {member_id, now[member_id]} & committing)
    if late:
        text += f"; still reading: {bounded_names(late)}"
    waiting = sorted(now[member_id] for member_id in candidates)
    return f"{text}; waiting for one or more of {bounded_names(waiting)}." if waiting else f"{text}."
