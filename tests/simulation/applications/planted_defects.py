"""Defects that the simulation of applications must find.

Each one replaces a part of the product.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, Mapping, NamedTuple
from unittest import mock

from spark_groupsource.client.cluster import cluster_client
from spark_groupsource.client.cluster.error_rules import Action, ErrorRules
from spark_groupsource.client.cluster.routing import Router
from spark_groupsource.client.membership.commit_repetition import CommitRepetition
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.membership.member_task import MemberTask
from spark_groupsource.client.membership.membership_values import MemberState
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.client.network.outage import Outage
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.deadlines import TransferDeadline
from spark_groupsource.errors import GenerationMismatchError
from spark_groupsource.source import session
from spark_groupsource.source.group import start_positions
from spark_groupsource.source.group.batch_replay import BatchReplay
from spark_groupsource.source.group.ownership import GroupSnapshot
from spark_groupsource.source.group.replay_wait import ReplayStep, ReplayWait
from spark_groupsource.source.group.start_positions import StartPositions
from spark_groupsource.source.positions.offset_lookup import OffsetLookup
from spark_groupsource.source.positions.position_epochs import PositionEpochs
from spark_groupsource.source.positions.published_progress import digest
from spark_groupsource.source.positions.stream_positions import StreamPositions
from spark_groupsource.source.session import FollowResult, StreamSession
from spark_groupsource.source.sink import publisher

# class or module, and attribute
Replacements = Mapping[tuple[Any, str], Any]


class PlantedDefect(NamedTuple):
    """A defect.

    Attributes:
        replacements: class or module, and attribute -> what replaces it.
        faults: the kinds of faults that show it; None for any.
        is_rare: fewer than one of twelve schedules finds it.
        features: dimensions of extended schedules.
    """

    name: str
    replacements: Replacements
    faults: tuple[str, ...] | None = None
    is_rare: bool = False
    features: tuple[str, ...] = ()

    @property
    def seeds(self) -> range:
        """The schedules of which one must find the defect."""
        return range(3_000 if self.is_rare else 150)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Replaces the parts of the product while the block runs."""
        with ExitStack() as stack:
            for (owner, name), replacement in self.replacements.items():
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield


def _timed_poll(self: GroupClient, timeout_ms: int) -> Any:
    for member in self.shared.members:
        member.membership.polled_ms = self._clock.now_ms()  # type: ignore[attr-defined]
    return _poll(self, timeout_ms)


def _leave_after_max_poll_interval(self: MemberTask, now_ms: int) -> Any:
    membership = self.membership
    polled_ms = getattr(membership, "polled_ms", None)
    is_late = polled_ms is not None and now_ms - polled_ms > 30_000
    if is_late and membership.state is MemberState.STABLE and not self._shared.is_closing:
        request = membership.leave_request("consumer poll timeout has expired.")
        if request is not None:
            self._cluster.call_coordinator(membership.config.group_id, request, 5_000, min_version=3)
            membership.on_leave("consumer poll timeout has expired.")
    return _next_action(self, now_ms)


def _replay_without_membership(self: BatchReplay, logged: Any, topic_ids: Any) -> Any:
    return GroupSnapshot(), self._ownership.committed(sorted(logged), topic_ids)


def _left_of_whole_transfer(self: TransferDeadline, now_ms: int) -> int:
    return self._started_ms + self.timeout_ms - now_ms


def _over_limit_after_a_minute(self: Outage, error: Any) -> bool:
    self.begin()
    return self._clock.now_ms() - (self._began_ms or 0) >= (self.limit_ms or 60_000)


def _to_commit_once(self: StreamPositions, start: Any, owners: Any, *, repeated: bool = False) -> Any:
    return _to_commit(self, start, owners)


def _follow_with_uncommitted(self: StreamSession, start: Any) -> Any:
    uncommitted, self._positions = self._positions.uncommitted, self._positions.commit_dropped()
    result = _follow_group(self, start)
    if not self._positions.uncommitted and result is FollowResult.SETTLED:
        kept = {p: offset for p, offset in uncommitted.items() if p in self._positions.owned}
        self._positions = self._positions.commit_failed(kept) if kept else self._positions
    return result


def _stay_in_group(self: ReplayWait, commits: Any, now_ms: int) -> ReplayStep:
    step = _next_step(self, commits, now_ms)
    return ReplayStep.WAIT if step is ReplayStep.STEP_BACK else step


def _wait_for_session_timeout(self: ReplayWait, session_timeout_ms: int, limit_ms: int, rng: Any) -> None:
    _create_wait(self, session_timeout_ms, session_timeout_ms, rng)


def _commit_end(self: StreamSession, start: Any, limits: Any) -> Any:
    end = _plan(self, start, limits)
    if end is not None:
        owned = self._existing(self._ownership.snapshot())
        positions = {p: offset for p, offset in end.positions.items() if p in owned}
        self._commit_positions(positions)
    return end


def _missing_in_one_response(self: OffsetLookup, partitions: Any, *, attempts: int = 1, refresh: bool = True) -> Any:
    return _missing(self, partitions, refresh=refresh)


def _fenced_is_accepted(self: TaskHeartbeat) -> None:
    try:
        _check_now(self)
    except GenerationMismatchError:
        return


def _assigned_without_delivered(
    self: StreamPositions, owned: Any, acquired: Any, commits: Any, delivered: Any
) -> StreamPositions:
    return _assigned(self, owned, acquired, commits, {})


def _missing_or_raise(self: OffsetLookup, error: Any, partitions: Any) -> Any:
    deleted = self.missing(partitions)
    if not deleted:
        raise error
    return deleted


def _drain_ends_the_wait(self: StreamSession, proof: Any) -> bool:
    self._closing.set()
    return _request_drain(self, proof)


_poll, _next_action, _to_commit = GroupClient.poll, MemberTask.next_action, StreamPositions.to_commit
_follow_group, _next_step, _create_wait = StreamSession._follow_group, ReplayWait.next_step, ReplayWait.__init__
_plan, _check_now, _assigned = StreamSession._plan, TaskHeartbeat.check_now, StreamPositions.assigned
_missing, _request_drain = OffsetLookup.missing, StreamSession.request_drain
_nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731

PLANTED: tuple[PlantedDefect, ...] = (
    PlantedDefect(
        "a timer between two polls removes an idle member",
        {(GroupClient, "poll"): _timed_poll, (MemberTask, "next_action"): _leave_after_max_poll_interval},
    ),
    PlantedDefect(
        "a rebalance waits for max.poll.interval.ms only",
        {
            (GroupSettings, "rebalance_timeout_ms"): property(lambda self: self.max_poll_interval_ms),
            (Membership, "expect_pause"): _nothing,
        },
    ),
    PlantedDefect(
        "a whole response must arrive in one timeout",
        {(TransferDeadline, "left_ms"): _left_of_whole_transfer},
        ("slow",),
    ),
    PlantedDefect(
        "a replay without membership",
        {(BatchReplay, "_join"): _replay_without_membership},
        ("kill_one",),
    ),
    PlantedDefect(
        "a lost commit is not repeated in time",
        {(CommitRepetition, "start"): _nothing},
        ("late_commit", "late_commit", "kill_one"),
        is_rare=True,
    ),
    PlantedDefect(
        "commits are not repeated before a rebalance and at a drain",
        {(StreamPositions, "to_commit"): _to_commit_once},
        ("crash", "kill_one"),
        is_rare=True,
    ),
    PlantedDefect(
        "an outage of a minute ends the query", {(Outage, "is_over_limit"): _over_limit_after_a_minute}, ("outage",)
    ),
    PlantedDefect(
        "onGroupAhead leaves records out silently",
        {(StartPositions, "_react_to_commits_ahead"): lambda *_: {}},
        ("kill_one", "restore"),
    ),
    PlantedDefect(
        "one node decides that a topic was deleted",
        {
            (Router, "_confirmed"): lambda self, view, names, retry: view,
            (OffsetLookup, "missing"): _missing_in_one_response,
        },
        ("isolate",),
    ),
    PlantedDefect(
        "a fence is believed without another lookup",
        {(Router, "find_other_coordinator"): lambda self, group_id, rejected_by, timeout_ms: False},
        ("isolate",),
    ),
    PlantedDefect(
        "an assigned partition that does not exist is read",
        {(StartPositions, "_find_absent"): lambda self, candidates, positions: frozenset()},
    ),
    PlantedDefect(
        "an idle poll with uncommitted positions",
        {(StreamSession, "_poll_between_batches"): lambda self, timeout_ms: self._ownership.poll(timeout_ms)},
        ("crash", "kill_one"),
        is_rare=True,
    ),
    PlantedDefect(
        "a poll with uncommitted positions",
        {(StreamSession, "_follow_group"): _follow_with_uncommitted},
        ("late_commit", "cut", "kill_one"),
        is_rare=True,
    ),
    PlantedDefect(
        "no repetition before a rebalance",
        {(StreamSession, "_is_before_rebalance"): lambda self: False},
        ("late_commit", "crash", "kill_one"),
        is_rare=True,
    ),
    PlantedDefect(
        "queries that wait for each other stay in the group",
        {(ReplayWait, "next_step"): _stay_in_group},
        ("kill_together",),
        is_rare=True,
    ),
    PlantedDefect(
        "a replay waits for session.timeout.ms only",
        {(ReplayWait, "next_step"): _stay_in_group, (ReplayWait, "__init__"): _wait_for_session_timeout},
        ("kill_together", "slow"),
    ),
    PlantedDefect("a batch is committed before it is delivered", {(StreamSession, "_plan"): _commit_end}),
    PlantedDefect(
        "a fenced task ends successfully",
        {(TaskHeartbeat, "check_now"): _fenced_is_accepted, (TaskHeartbeat, "check"): _nothing},
        ("cut",),
    ),
    PlantedDefect(
        "a lost partition keeps no position",
        {(StreamPositions, "assigned"): _assigned_without_delivered},
        ("cut", "pause"),
        is_rare=True,
    ),
    PlantedDefect(
        "members of one application have one group instance id",
        {(GroupSettings, "instance_id"): lambda self, index: self.group_instance_id},
        features=("static",),
    ),
    PlantedDefect(
        "a recreated topic is read from the position in the former one",
        {(start_positions, "_recreated_topics"): lambda positions, start: set()},
        features=("recreate",),
    ),
    PlantedDefect(
        "a recreated topic is read from its start although other members have read it",
        {(start_positions, "committed_topic_id"): lambda metadata: ""},
        features=("recreate",),
    ),
    PlantedDefect(
        "a topic that exists again during a lookup ends the query",
        {(OffsetLookup, "missing_after"): _missing_or_raise},
        is_rare=True,
        features=("recreate",),
    ),
    PlantedDefect(
        "leader epochs of a recreated topic are those of the former one",
        {(PositionEpochs, "use_topics"): _nothing},
        is_rare=True,
        features=("recreate", "leaders"),
    ),
    PlantedDefect(
        "an error of a former leader is taken for a log without records",
        {(cluster_client, "LIST_OFFSETS"): ErrorRules({}, others=Action.NO_RESULT)},
        features=("leaders",),
    ),
    PlantedDefect(
        "a transaction has the output without the offsets",
        {(StreamSession, "_planned_ends"): lambda self, *_: {}},
        features=("transactions",),
    ),
    PlantedDefect(
        "a published batch is published again",
        {(publisher, "_is_published"): lambda known, batch, sources: False},
        ("kill_one",),
        features=("transactions",),
    ),
    PlantedDefect(
        "a batch that was published without its records is taken for one with them",
        {(session, "digest"): lambda end, is_left_out=False: digest(end)},
        ("kill_one",),
        features=("transactions",),
        is_rare=True,
    ),
    PlantedDefect(
        "progress of a former coordinator is believed",
        {(publisher, "_check_progress"): _nothing},
        ("isolate", "kill_one"),
        features=("transactions",),
        is_rare=True,
    ),
    PlantedDefect(
        "a drain ends the wait of a replay",
        {(StreamSession, "request_drain"): _drain_ends_the_wait},
        ("kill_one",),
        is_rare=True,
        features=("drain",),
    ),
)
