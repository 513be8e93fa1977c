"""Deterministic simulation of queries that share one group, interleaved at every request.

Each query runs on a thread of its own, and exactly one thread runs at a time: every request to the cluster or the
coordinator, and every sleep, passes control to a query that the seeded `Random` chooses. A query can be killed there.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from random import Random
from typing import Any, Callable, Mapping, Sequence, cast

from support.session_fakes import NO_LIMITS, FakeCluster

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import NO_IDS
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    RequestTimeoutError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.group.ownership import GroupSnapshot
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.positions.offset_json import decode_offset
from spark_groupsource.source.session import StreamSession
from spark_groupsource.source.tasks.task_partition import TaskMembership

Record = tuple[TopicPartition, int]
_MAX_SWITCHES = 60_000


class Killed(BaseException):
    """The process of a query was killed."""


class Stalled(AssertionError):
    """The queries make no progress."""


class Scheduler:
    """Runs one thread at a time; the thread that runs chooses its successor."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.switches = 0
        self.describe: Callable[[], object] = str
        self.failure: BaseException | None = None
        self._turns: dict[Any, threading.Semaphore] = {}
        self._done = threading.Semaphore(0)
        self._stopped = False

    def run(self, programs: Mapping[Any, Callable[[], None]]) -> None:
        """Runs all programs to their end; raises the first error of one."""
        self._turns = {key: threading.Semaphore(0) for key in programs}
        threads = [threading.Thread(target=self._main, args=item, daemon=True) for item in programs.items()]
        for thread in threads:
            thread.start()
        self._next().release()
        self._done.acquire()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def switch(self, key: Any) -> None:
        """Passes control to another program, or keeps it."""
        if key not in self._turns:
            return
        self.switches += 1
        if self.switches > _MAX_SWITCHES and not self._stopped:
            raise Stalled(f"no end after {self.switches:,} steps {self.describe()}")
        chosen = self._next()
        if chosen is not self._turns[key]:
            chosen.release()
            self._turns[key].acquire()
        if self._stopped:
            raise Killed

    def _next(self) -> threading.Semaphore:
        return self.random.choice(list(self._turns.values()))

    def _main(self, key: Any, program: Callable[[], None]) -> None:
        self._turns[key].acquire()
        try:
            if not self._stopped:
                program()
        except Killed:
            pass
        except BaseException as error:
            self.failure, self._stopped = self.failure or error, True
        turns = self._turns
        del turns[key]
        if turns:
            self._next().release()
        else:
            self._done.release()


class Coordinator:
    """Group coordinator with the offsets of the group and the facts that the invariants need."""

    def __init__(self, random: Random, partitions: Sequence[TopicPartition], *, is_cooperative: bool) -> None:
        self.random = random
        self.partitions = list(partitions)
        self.is_cooperative = is_cooperative
        self.generation_id = 0
        self.has_faults = False
        self.is_preparing = False
        self.members: dict[int, Member] = {}
        self.joined: set[int] = set()
        self.next_id = 0
        self.commits: dict[TopicPartition, OffsetAndMetadata] = {}
        self.history: list[tuple[TopicPartition, OffsetAndMetadata]] = []
        # (member id, generation, offsets) of requests that are still on their way
        self.late: list[tuple[int, int, dict[TopicPartition, OffsetAndMetadata]]] = []
        # called with a commit after which the coordinator itself has gone back to an earlier one
        self.on_set_back: Callable[[TopicPartition, OffsetAndMetadata], None] = lambda p, lost: None
        self.trace: list[str] = []

    def begin(self) -> None:
        if self.members and not self.is_preparing:
            self.is_preparing, self.joined = True, set()

    def join(self, member: Member) -> None:
        self.joined.add(member.id)
        self.end_if_joined()

    def end_if_joined(self) -> None:
        if not self.is_preparing or not self.members or not self.joined >= self.members.keys():
            return
        self.is_preparing = False
        self.generation_id += 1
        members = list(self.members.values())
        owners = {p: member for member in members for p in member.owned}
        received: dict[int, dict[TopicPartition, int]] = {member.id: {} for member in members}
        for p in self.partitions:
            target, owner = self.random.choice(members), owners.get(p)
            # KIP-429: the partition of another owner is assigned in the generation after its revocation
            if owner is None or owner is target:
                received[target.id][p] = 0
        for member in members:
            member.received = received[member.id]

    def remove(self, member_id: int) -> None:
        """Removes a member that has left or whose session has timed out."""
        if self.members.pop(member_id, None) is not None:
            self.joined.discard(member_id)
            self.begin()
            self.end_if_joined()

    def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, is_late: bool = False) -> None:
        for p, commit in offsets.items():
            known = self.commits.get(p)
            if known is not None and commit.offset < known.offset:
                assert is_late, f"the committed offset of {p} goes back from {known.offset} to {commit.offset}"
            self.commits[p] = commit
            self.history.append((p, commit))
            if known is not None and commit.offset < known.offset:
                self.on_set_back(p, known)
            self.trace.append(f"commit {p} {commit.offset} {commit.metadata[:20]} late={is_late}")

    def deliver_late(self) -> None:
        """A request without a response arrives; the coordinator checks its member and generation."""
        if self.late:
            member_id, generation_id, offsets = self.late.pop(0)
            if member_id in self.members and generation_id == self.generation_id:
                self.store(offsets, is_late=True)

    def restore(self, p: TopicPartition, lost: OffsetAndMetadata) -> None:
        """Undoes the loss of a commit, unless a later offset was committed meanwhile."""
        if self.commits[p].offset < lost.offset:
            self.commits[p] = lost
            self.history.append((p, lost))

    def lose(self) -> None:
        """The coordinator loses a commit that it has acknowledged, and goes back to the one before."""
        if not self.commits:
            return
        p = self.random.choice(sorted(self.commits))
        lost = self.commits[p]
        earlier = [commit for q, commit in self.history if q == p and commit.offset < lost.offset]
        if earlier:
            self.history = [each for each in self.history if each[0] != p or each[1].offset < lost.offset]
            self.commits[p] = earlier[-1]
            self.trace.append(f"lost commit {p} {lost.offset} -> {earlier[-1].offset}")
            self.on_set_back(p, lost)


class Member:
    """`Ownership` of one run of a query: one group member."""

    def __init__(self, coordinator: Coordinator, switch: Callable[[], None], on_committed: Callable[..., None]) -> None:
        self._group = coordinator
        self._switch = switch
        self._on_committed = on_committed
        self.id = -1
        self.owned: dict[TopicPartition, int] = {}
        self.owned_since = -1
        self.received: dict[TopicPartition, int] | None = None
        self.on_revoked: Callable[[set[TopicPartition]], None] = lambda revoked: None
        self.on_late_notice: Callable[[], None] = lambda: None
        self.has_left = False
        self.was_fenced = False

    @property
    def is_removed(self) -> bool:
        return self.id not in self._group.members

    @property
    def generation_id(self) -> int:
        return self.owned_since

    @property
    def rejoin_needed(self) -> bool:
        return not self.has_left and (self.is_removed or self._group.is_preparing or self.received is not None)

    @property
    def retains_partitions(self) -> bool:
        return self._group.is_cooperative and bool(self.owned) and not self.is_removed

    def repeats_commit(self) -> bool:
        return False

    def poll(self, timeout_ms: int) -> bool:
        assert not self.has_left
        was_needed = self.rejoin_needed
        self._switch()
        if self.rejoin_needed and not was_needed and not self._group.is_cooperative:
            # found by this poll, which revokes at once
            self.on_late_notice()
        if self.rejoin_needed:
            self._group.trace.append(f"member {self.id} polls in {self.owned_since}")
        group = self._group
        if self.is_removed:
            self.owned, self.received, self.owned_since = {}, None, -1
            self.id, group.next_id = group.next_id, group.next_id + 1
            group.members[self.id] = self
            group.trace.append(f"member {self.id} is new")
            group.begin()
        self._complete()
        if group.is_preparing and self.id not in group.joined:
            if not group.is_cooperative:
                self.on_revoked(set(self.owned))
                self.owned = {}
            group.join(self)
            self._complete()
        return not self.rejoin_needed

    def _complete(self) -> None:
        if self.received is None:
            return
        self.on_revoked(set(self.owned) - set(self.received))
        is_revoked = not self.received.keys() >= self.owned.keys()
        self.owned, self.received, self.owned_since = self.received, None, self._group.generation_id
        self._group.trace.append(f"member {self.id} generation {self.owned_since} owns {[str(p) for p in self.owned]}")
        if is_revoked:
            self._group.begin()

    def snapshot(self) -> GroupSnapshot:
        if self.has_left:
            return GroupSnapshot(self.owned_since)
        membership = TaskMembership("g", str(self.id), self.owned_since, None, 3000, self._group.is_cooperative)
        return GroupSnapshot(self.owned_since, dict(self.owned), {0: membership} if self.owned_since >= 0 else {})

    def committed(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, str] = NO_IDS
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self._switch()
        return {p: self._group.commits.get(p) for p in partitions}

    def last_commits(self, partitions: Sequence[TopicPartition], metadata: str) -> dict[TopicPartition, int | None]:
        self._switch()
        found = {p: each.offset for p, each in self._group.history if p in partitions and each.metadata == metadata}
        return {p: found.get(p) for p in partitions}

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None = None,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        assert not self.has_left and set(offsets) <= set(self.owned), "commit of partitions that are not owned"
        self._switch()
        if self.is_removed:
            raise GenerationMismatchError(group_id="g", member_id="m", generation_id=self.owned_since, cause="removed")
        # the last commit is retried by the member
        draw = self._group.random.random() if self._group.has_faults and max_rebalance_wait_ms is not None else 1
        if draw < 0.1:
            self._group.trace.append(f"commit by {self.id} fails: {[(str(p), c.offset) for p, c in offsets.items()]}")
        if draw < 0.05:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")
        if draw < 0.1:
            self._group.late.append((self.id, self._group.generation_id, dict(offsets)))
            raise RequestTimeoutError("commit")
        self._group.store(offsets)
        self._on_committed({p: commit.offset for p, commit in offsets.items()})

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], transactions: Transactions
    ) -> None:
        raise NotImplementedError("the simulated queries write nothing")

    def metrics(self) -> Mapping[str, float]:
        return {}

    def step_back(self, reason: str) -> None:
        self._group.remove(self.id)
        self.owned, self.received, self.owned_since = {}, None, -1

    def leave(self, reason: str) -> None:
        if not self.has_left:
            self.has_left, self.was_fenced, self.owned = True, self.is_removed, {}
            self._group.remove(self.id)


class _Clock(ManualClock):
    def __init__(self, on_sleep: Callable[[], None]) -> None:
        super().__init__()
        self._on_sleep = on_sleep

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        self._on_sleep()


class _Cluster(FakeCluster):
    """Logs that all queries share; a request passes control, and may fail."""

    on_request: Callable[[], None] = staticmethod(lambda: None)

    def list_offsets(self, partitions: Any, read_committed: bool | None = None) -> Any:
        self.on_request()
        return super().list_offsets(partitions, read_committed)


class Application:
    """One query with its checkpoint; its program is a random sequence of Spark's and the control socket's calls."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation, self.name = simulation, name
        self.random = simulation.random
        self.start: dict[str, Any] = {}
        self.logged: dict[str, Any] | None = None
        self.delivered: Counter[Record] = Counter()
        # delivered, and not committed to the group
        self.pending: dict[TopicPartition, tuple[int, int]] = {}
        # commits of owned partitions that the coordinator has lost, and the query has not repeated
        self.lost: dict[TopicPartition, OffsetAndMetadata] = {}
        self.member: Member | None = None
        self.session: StreamSession | None = None
        self.kill_in: int | None = None
        self.is_drained = False

    def program(self) -> None:
        simulation = self.simulation
        while not self.is_drained:
            try:
                self._run_query()
            except Killed:
                if simulation.scheduler.failure is not None:
                    raise
                self._killed("killed")
            except GroupSourceError as error:
                simulation.events[f"failed: {type(error).__name__}"] += 1
                self.interrupted()
                assert self.session is not None
                self.kill_in = None
                self.session.close("failed")

    def _killed(self, event: str) -> None:
        self.simulation.events[event] += 1
        self.interrupted()
        member, self.kill_in = self.member, None
        assert member is not None
        # the coordinator finds out at the end of the session timeout
        self.simulation.dead.append(member.id)

    def interrupted(self) -> None:
        """Another member may deliver again what this query has delivered and not committed."""
        self.simulation.coordinator.trace.append(f"{self.name} interrupted with {self.pending}")
        for p, (begin, stop) in self.pending.items():
            self.simulation.excused.update((p, offset) for offset in range(begin, stop))
        self.pending = {}
        self.keep_lost()

    def repeats(self, p: TopicPartition, commit: OffsetAndMetadata) -> bool:
        """True if the commit is of this query, and the next rebalance follows its repetition."""
        member, session = self.member, self.session
        if member is None or session is None or not session.reader or session.reader not in commit.metadata:
            return False
        # positions of an assignment that was received between two batches are not resolved
        is_resolved = session.status()["generation"] == member.generation_id
        return p in member.snapshot().owners and is_resolved and not member.rejoin_needed

    def _revoked(self, partitions: set[TopicPartition]) -> None:
        lost = {p: commit.offset for p, commit in self.lost.items() if p in partitions}
        assert not lost, f"{self.name} has not repeated lost commits before a rebalance: {lost}"

    def keep_lost(self) -> None:
        """Restores the commits that the coordinator has lost: this query does not commit them again."""
        for p, lost in self.lost.items():
            self.simulation.coordinator.restore(p, lost)
        self.lost = {}

    def switch(self) -> None:
        """One step: other queries run, and this one may be killed."""
        self.simulation.scheduler.switch(self.name)
        self.simulation.disturb(self)
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Killed

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        for p, offset in offsets.items():
            self.lost.pop(p, None)
            begin, stop = self.pending.get(p, (0, 0))
            if offset >= stop:
                self.pending.pop(p, None)
            elif offset > begin:
                self.pending[p] = (offset, stop)

    def _open(self) -> None:
        simulation = self.simulation
        self.member = Member(simulation.coordinator, self.switch, self.committed)
        self.member.on_late_notice = self.keep_lost
        self.member.on_revoked = self._revoked
        cluster = _Cluster(simulation.logs, clock=_Clock(self.switch))
        cluster.on_request = self._request
        options = {
            "kafka.bootstrap.servers": "h:1",
            "subscribe": "t",
            "kafka.group.id": "g",
            "startingOffsets": simulation.starting,
            "kafka.session.timeout.ms": str(simulation.session_timeout_ms),
        }
        clock = _Clock(self._slept)
        parsed = parse_options(options, "stream")
        self.session = StreamSession(cast(ClusterClient, cluster), parsed, self.member, clock)
        self.clock = clock
        self._finished_reports: list[dict[str, Any]] = []

    def _request(self) -> None:
        self.switch()
        if self.random.random() < 0.02 and not self.simulation.is_ending:
            raise RequestTimeoutError("ListOffsets")

    def _slept(self) -> None:
        self.switch()
        session = self.session
        # between two attempts of a call of Spark, the control socket's thread gets the lock
        if session is not None and not session._lock._is_owned():  # type: ignore[attr-defined]
            self._control()

    def _run_query(self) -> None:
        simulation, random = self.simulation, self.random
        self._open()
        session, member = self.session, self.member
        assert session is not None and member is not None
        if self.logged is not None:
            simulation.events["replay"] += 1
            self._run_batch(self.start, self.logged)
        while True:
            self.switch()
            self.clock.advance_ms(2_000)
            if not simulation.is_ending and random.random() < 0.1:
                self.kill_in = random.randrange(12)
            limits = random.choice([NO_LIMITS, Limits(max_offsets=7)])
            given = None if not self.start else self.start
            end = json.loads(json.dumps(session.latest_offset(given, limits)))
            if session.drained.is_set():
                self.is_drained = True
                self.pending_after_drain()
                return
            if json.dumps(end) != json.dumps(self.start):
                self.switch()
                self.logged = end
                self._run_batch(self.start, end)
            for _ in range(random.choice([0, 1, 1, 8, 30])):
                self.switch()
                self._control()
            if not simulation.is_ending and random.random() < 0.05:
                # without a batch in flight the control socket's thread completes the drain
                simulation.events["drain"] += 1
                if random.random() < 0.5:
                    simulation.coordinator.lose()
                if session.request_drain(self.start):
                    self.pending_after_drain()
                    return
            if self._is_ended():
                self.is_drained = session.request_drain(self.start if random.random() < 0.5 else None)
                simulation.events["drain"] += 1
                if self.is_drained:
                    self.pending_after_drain()
                    return

    def _is_ended(self) -> bool:
        """True once this query may leave: at any time while others remain; the last one has read everything."""
        if not self.simulation.is_ending:
            return False
        if self.simulation.is_last(self):
            ends = {p: end for p, (_, end) in self.simulation.logs.items()}
            return self.simulation.is_complete() and decode_offset(self.start).positions == ends
        return self.random.random() < 0.05

    def pending_after_drain(self) -> None:
        if self.member is not None and not self.member.was_fenced:
            assert not self.lost, f"{self.name} has drained without repeating lost commits {self.lost}"
            assert not self.pending, f"{self.name} has drained without committing {self.pending}"
        self.interrupted()

    def _control(self) -> None:
        """One call of the control socket's thread."""
        session, random = self.session, self.random
        assert session is not None
        try:
            if random.random() < 0.5 and self._finished_reports:
                # late, twice, or out of order
                report = random.choice(self._finished_reports)
                self.simulation.events["report"] += 1
                session.batch_finished(json.loads(json.dumps(report)))
            else:
                before = self.member.owned_since if self.member else -1
                session.rejoin_if_idle()
                if self.member and self.member.owned_since != before:
                    self.simulation.events["idle rejoin"] += 1
        except GroupSourceError:
            # logged by the control server
            self.simulation.events["control error"] += 1

    def _run_batch(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        session, member = self.session, self.member
        assert session is not None and member is not None
        given_up = self.clock.now_ms()
        tasks = session.input_partitions(start, end)
        is_timed_out = self.clock.now_ms() - given_up >= self.simulation.replay_limit_ms
        self.simulation.events["replay timed out"] += is_timed_out
        self.switch()
        for task in tasks:
            self._check_fenced(task.membership)
        for task in tasks:
            for p, begin, stop in task.ranges:
                if stop > begin:
                    if is_timed_out:
                        self.simulation.excused.update((p, offset) for offset in range(begin, stop))
                    self.simulation.deliver(self, p, begin, stop)
                    known = self.pending.get(p, (begin, stop))
                    self.pending[p] = (known[0], stop)
                    if task.membership is None or member.is_removed:
                        self.interrupted()
        self.start, self.logged = end, None
        session.commit()
        self.switch()
        self._finished_reports.append(end)

    def _check_fenced(self, membership: TaskMembership | None) -> None:
        group = self.simulation.coordinator
        if membership is None:
            return
        is_member = int(membership.member_id) in group.members
        if not is_member or (
            not membership.retains_partitions and membership.generation_id != group.generation_id
        ):
            raise GenerationMismatchError(
                group_id="g", member_id=membership.member_id, generation_id=membership.generation_id, cause="removed"
            )


class Simulation:
    """Queries of one group until everything produced is delivered and all have drained."""

    session_timeout_ms = 60_000
    # 12 times the default of max.poll.interval.ms
    replay_limit_ms = 3_600_000

    def __init__(self, seed: int, partitions: Sequence[TopicPartition], queries: int = 3, steps: int = 1_500) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(self.random)
        self.coordinator = Coordinator(self.random, partitions, is_cooperative=self.random.random() < 0.5)
        self.coordinator.on_set_back = self._set_back
        self.starting = self.random.choice(["earliest", "latest", "-3"])
        self.logs = {p: (0, self.random.randrange(10)) for p in partitions}
        distance = {"earliest": 10**6, "latest": 0, "-3": 3}[self.starting]
        self.begins = {p: max(end - distance, 0) for p, (_, end) in self.logs.items()}
        self.scheduler.describe = self.missing
        self.steps, self.is_ending, self.is_produced = steps, False, False
        self.dead: list[int] = []
        self.excused: set[Record] = set()
        self.events: Counter[str] = Counter()
        self.deliveries: dict[Record, list[str]] = {}
        self.applications = [Application(self, f"q{n}") for n in range(queries)]

    def run(self) -> None:
        first, *others = self.applications
        # startingOffsets of the group are resolved before records are produced
        first._open()
        assert first.session is not None
        first.start = json.loads(json.dumps(first.session.latest_offset(None, NO_LIMITS)))
        first.session.input_partitions({}, first.start)
        first.logged, first.start = first.start, {}
        self.coordinator.has_faults = True
        self.dead.append(first.member.id if first.member else -1)
        self.is_produced = True
        self.scheduler.run({each.name: each.program for each in self.applications})
        self.check()

    def disturb(self, application: Application) -> None:
        """What happens in a cluster between two steps of a query."""
        random, group = self.random, self.coordinator
        draw = random.random()
        if self.scheduler.switches > self.steps:
            self.is_ending = True
        if draw < 0.05 and self.dead:
            group.remove(self.dead.pop(random.randrange(len(self.dead))))
        elif draw < 0.10 and group.late:
            self.events["late commit"] += 1
            group.deliver_late()
        elif self.is_ending or not self.is_produced:
            return
        elif draw < 0.14:
            for p, (begin, end) in self.logs.items():
                self.logs[p] = (begin, end + random.randrange(4))
        elif draw < 0.16:
            group.begin()
        elif draw < 0.18:
            self.events["lost commit"] += 1
            group.lose()
        elif draw < 0.185:
            victim = random.choice(self.applications)
            if victim.member is not None and not victim.member.is_removed:
                self.events["fenced"] += 1
                victim.interrupted()
                group.remove(victim.member.id)

    def _set_back(self, p: TopicPartition, lost: OffsetAndMetadata) -> None:
        """A commit is lost: its owner repeats it before the next rebalance. Without such an owner it is kept."""
        for application in self.applications:
            if application.repeats(p, lost):
                known = application.lost.get(p, lost)
                application.lost[p] = max(known, lost, key=lambda commit: commit.offset)
                return
        self.coordinator.restore(p, lost)

    def deliver(self, application: Application, p: TopicPartition, begin: int, stop: int) -> None:
        self.coordinator.trace.append(f"{application.name} delivers {p} {begin} {stop}")
        for offset in range(begin, stop):
            record = (p, offset)
            known = self.deliveries.setdefault(record, [])
            application.delivered[record] += 1
            if known and record not in self.excused:
                raise AssertionError(f"{record} is delivered by {application.name} after {known}, without need")
            known.append(application.name)

    def missing(self) -> list[Record]:
        """Returns the records that were not delivered."""
        return sorted(
            (p, offset)
            for p, (_, end) in self.logs.items()
            for offset in range(self.begins[p], end)
            if (p, offset) not in self.deliveries
        )

    def is_complete(self) -> bool:
        return not self.missing()

    def is_last(self, application: Application) -> bool:
        return all(each is application or each.is_drained for each in self.applications)

    def check(self) -> None:
        lost = self.missing()
        assert not lost, f"lost: {lost[:5]}"
        ends = {p: end for p, (_, end) in self.logs.items() if end > self.begins[p]}
        found = {p: commit.offset for p, commit in self.coordinator.commits.items() if p in ends}
        assert found == ends, f"the committed offsets {found} are not the delivered ones {ends}"
