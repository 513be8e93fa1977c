"""One schedule of simulated applications: workloads, faults, invariants.

The invariants are the contract of docs/concepts.md.

A record may be repeated only if the application that delivered it was interrupted before the group had its commit, by
a kill or by a fault that lasted for the session timeout. No member is removed, and no query ends, without such a cause.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any, Callable, Collection, Iterable, Sequence
from unittest import mock

from simulation.applications.simulated_application import MAX_POLL_MS, SESSION_MS, Application, Workload
from simulation.applications.simulated_cluster import Coordinator, SimulatedCluster, SimulatedOffsetsTopic
from simulation.applications.simulated_topic import NODES, TOPIC
from simulation.applications.simulated_transactions import Publishing
from simulation.applications.virtual_kernel import Kernel, Process, replaced_threads

from spark_groupsource.broker.group import GroupConfig
from spark_groupsource.client.membership import commit_history, group_client, offsets_topic
from spark_groupsource.errors import (
    ConfigurationError,
    DataLossError,
    GenerationMismatchError,
    GroupSourceError,
    TransactionAbortedError,
)
from spark_groupsource.model import TopicPartition
from spark_groupsource.source import session
from spark_groupsource.source.group import start_positions
from spark_groupsource.source.positions.offset_json import decode_offset
from spark_groupsource.source.tasks.task_partition import GroupInputPartition

# reconnecting, looking the coordinator up, and the backoff after a fault
_GRACE_MS = 25_000
_REPEAT_MS = 15_000
_END_MS = 240_000
_BOUND_MS = 900_000
_LOAD_MS = 300
_POLL_MS = 500


# the frequent ones are in the list more than once
FAULTS = (
    "kill_one",
    "kill_one",
    "kill_together",
    "kill_together",
    "cut",
    "outage",
    "late_commit",
    "late_commit",
    "crash",
    "move",
    "isolate",
    "pause",
    "jump",
    "restore",
    "slow",
)


FEATURES = ("static", "recreate", "leaders", "transactions", "drain")
"""Dimensions of the extended schedules; those without them are as their seeds have always been."""


class Violation(AssertionError):
    """The contract is violated."""


class ApplicationRun:
    """Two or three applications until everything produced is delivered and all have drained."""

    def __init__(
        self,
        seed: int,
        trace: Callable[[str], None] | None = None,
        faults: Sequence[str] | None = None,
        features: Sequence[str] = (),
    ) -> None:
        """Draws a schedule.

        Args:
            faults: the kinds of faults, in place of random ones.
            features: of which some are drawn; a single one is taken.
        """
        self.seed = seed
        self.features = _drawn(features, Random(f"features of {seed}"))
        self._kinds = faults
        self.random = random = Random(seed)
        self.events: Counter[str] = Counter()
        self.lines: list[str] = []
        self._trace = trace
        self.kernel = Kernel(random, preemption=random.choice([0.0, 0.02, 0.1]))
        config = GroupConfig(group_initial_rebalance_delay_ms=random.choice([0, 500, 3_000]))
        count = random.choice([2, 3, 4])
        self.cluster = SimulatedCluster(self.kernel, random, config, count, self._committed, self._members_changed)
        self.cluster.on_fenced = self._commit_rejected
        self.cluster.on_published = self._published
        self.is_ending = False
        self._produce_ms = random.choice([7_000, 7_000, 40_000])
        self.has_long_batches = random.random() < 0.25
        self.has_long_triggers = random.random() < 0.25
        strategy = random.choice(["range", "cooperative-sticky", "cooperative-sticky", "sticky"])
        self.applications = [
            Application(self, name, self._workload(strategy, name)) for name in "abc"[: random.choice([2, 2, 3])]
        ]
        self._by_name = {each.name: each for each in self.applications}
        self.delivered: dict[TopicPartition, dict[int, list[str]]] = {p: {} for p in self.cluster.ends}
        # records that another application, or the same one, may deliver again
        self.excused: set[tuple[TopicPartition, int]] = set()
        self._excused_own: set[tuple[TopicPartition, int]] = set()
        # partitions whose commit was lost while no application could repeat it, which is as an operator's reset
        self._reset: set[TopicPartition] = set()
        # application -> partition -> batches that are delivered and not committed: begin, end
        self.pending: dict[str, dict[TopicPartition, list[tuple[int, int]]]] = {n: {} for n in self._by_name}
        # application -> partition -> the records that a stateful query that writes exactly once has in its state
        self._states: dict[str, dict[TopicPartition, set[int]]] = {n: {} for n in self._by_name}
        self._set_back: dict[TopicPartition, int] = {}
        self._faults: list[tuple[str, int, int]] = []
        self._members: frozenset[str] = frozenset()
        self._new_member_join_timeout_ms = config.group_new_member_join_timeout_ms
        # member without a response to its first JoinGroup -> when it has joined
        self._new_since_ms: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        # with those that a restarted coordinator has again: their queries may be fenced already
        self._once_removed: set[str] = set()
        self._rebalancing_since_ms: int | None = None
        self._progressed_ms = 0

    def _workload(self, strategy: str, name: str) -> Workload:
        random = self.random
        options = {"kafka.partition.assignment.strategy": strategy}
        if random.random() < 0.1:
            options["onGroupAhead"] = random.choice(["ignore", "fail"])
        if "static" in self.features and random.random() < 0.8:
            options["kafka.group.instance.id"] = name
        if "recreate" in self.features and random.random() < 0.7:
            options["failOnDataLoss"] = "false"
        if "transactions" in self.features:
            options["kafka.transactional.id"] = f"tx-{name}"
            options.pop("onGroupAhead", None)
        return Workload(
            members=random.choice([1, 1, 2]),
            trigger_ms=random.choice([500, 2_000, 5_000, 15_000]),
            batch_ms=random.choice([50, 1_000, 4_000]),
            max_offsets=random.choice([None, 7, 30]),
            is_registered=random.random() < 0.5,
            is_foreign=name == "a" and strategy == "range" and random.random() < 0.4,
            options=options,
        )

    def trace(self, line: str) -> None:
        self.lines.append(f"{self.kernel.now_ms} {line}")
        if self._trace is not None:
            self._trace(self.lines[-1])

    # -- the schedule ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises: Violation; any exception of the product.

        Garbage is collected before the run and not during it: what finalizers do, for example of coroutines that were
        never resumed, would depend on the schedules before this one.
        """
        gc.collect()
        gc.disable()
        try:
            self._run()
        finally:
            gc.enable()

    def _run(self) -> None:
        process = Process(self.kernel, "test")
        logger = logging.getLogger(start_positions.__name__)
        handler = _Warnings(self)
        logger.addHandler(handler)
        former_level = logger.level
        logger.setLevel(logging.WARNING)
        with (
            replaced_threads(self.kernel),
            mock.patch.object(commit_history, "OffsetsTopicReader", SimulatedOffsetsTopic),
            mock.patch.object(offsets_topic, "OffsetsTopicReader", SimulatedOffsetsTopic),
            # a poll ends early when something changes
            mock.patch.object(session, "_POLL_MS", _POLL_MS),
            mock.patch.object(group_client, "_MAX_WAIT_MS", _POLL_MS),
        ):
            try:
                self.kernel.run(process, self._main)
            finally:
                logger.removeHandler(handler)
                logger.setLevel(former_level)

    def _main(self) -> None:
        kernel, random = self.kernel, self.random
        self._produce()
        for application in self.applications:
            kernel.call_in(random.choice([0, 1_000, random.randrange(60_000)]), application.launch)
        for at_ms, fault in sorted(self._schedule(), key=lambda each: each[0]):
            kernel.call_at(at_ms, fault)
        kernel.sleep_ms(_END_MS)
        self.trace("the schedule ends")
        self.is_ending = True
        for link in self.cluster.links():
            link.repair()
        for node in list(self.cluster.stale):
            self.cluster.rejoin(node)
        self._fault("*", _GRACE_MS)
        self._progressed_ms = kernel.now_ms
        while not all(each.is_drained for each in self.applications):
            kernel.sleep_ms(1_000)
            if kernel.now_ms > self._progressed_ms + _BOUND_MS:
                waiting = [each.name for each in self.applications if not each.is_drained]
                raise Violation(f"no progress for {_BOUND_MS} ms: {waiting} wait, missing {self.missing()[:5]}")
        while not self.cluster.coordinator.is_loaded:
            kernel.sleep_ms(_LOAD_MS)
        self._check_end()

    def _schedule(self) -> list[tuple[int, Callable[[], None]]]:
        """Returns the faults of this run; few kinds in one run, so that each has its effect alone, too."""
        random = self.random
        self._kinds = self._kinds or random.sample(FAULTS, random.choice([0, 1, 2, 2, 3, 4]))
        if "transactions" in self.features:
            # a checkpoint that is behind its transactions is an error
            self._kinds = [kind for kind in self._kinds if kind != "restore"]
        if "recreate" in self.features:
            # ListOffsets has no topic id: a node that is cut off names an end of the former log, which ends the query
            self._kinds = [kind for kind in self._kinds if kind != "isolate"]
        methods = [getattr(self, f"_{kind}") for kind in self._kinds]
        faults = [(random.randrange(2_000, _END_MS), random.choice(methods)) for _ in range(6 if methods else 0)]
        for feature, count in (("recreate", 2), ("leaders", 6), ("drain", 4)):
            if feature in self.features:
                method = getattr(self, f"_{feature}")
                faults += [(random.randrange(2_000, _END_MS), method) for _ in range(count)]
        return faults + [(at_ms, self._produce) for at_ms in range(3_000, _END_MS, self._produce_ms)]

    def _produce(self) -> None:
        if not self.cluster.topic.exists:
            return
        for p in self.cluster.ends:
            self.cluster.ends[p] += self.random.choice([0, 0, 1, 3, 10])

    def _fault(self, name: str, duration_ms: int) -> None:
        """Notes a fault of an application, or of all of them; what follows from it is excused."""
        self._faults.append((name, self.kernel.now_ms, self.kernel.now_ms + duration_ms))

    def has_fault(self, name: str, slack_ms: int = SESSION_MS + _GRACE_MS) -> bool:
        now_ms = self.kernel.now_ms
        return any(each in (name, "*") and begin <= now_ms <= end + slack_ms for each, begin, end in self._faults)

    def _one(self) -> Application | None:
        running = [each for each in self.applications if each.is_running]
        return self.random.choice(running) if running else None

    def _kill_one(self) -> None:
        application = self._one()
        if application is not None:
            self._kill(application, self.random.choice([500, 3_000, 20_000, 60_000]))

    def _kill_together(self) -> None:
        restart_ms = self.random.choice([500, 20_000, 40_000])
        for application in [each for each in self.applications if each.is_running]:
            self._kill(application, restart_ms + self.random.randrange(2_000))

    def _kill(self, application: Application, restart_ms: int) -> None:
        self.events["kill"] += 1
        self._check_bound(application)
        application.kill()
        self._interrupted(application, "killed")
        self._fault(application.name, 0)
        self.kernel.call_in(restart_ms, self._relaunch, application)

    def _relaunch(self, application: Application) -> None:
        if not application.is_running and not application.is_drained:
            self.trace(f"{application.name} starts from {application.start.get('t')}, logged {application.logged}")
            application.launch()
            if "drain" in self.features and not self.is_ending and self.random.random() < 0.4:
                self.kernel.call_in(self.random.randrange(20_000), application.request_drain)
            if "crash" in (self._kinds or ()) and self.random.random() < 0.5:
                # commits that are lost shortly before a rebalance
                self.kernel.call_in(self.random.randrange(1_500), self._crash)

    def ended(self, application: Application) -> None:
        """The query of an application has failed; its user starts it again."""
        self._interrupted(application, "failed")
        self.kernel.call_in(self.random.choice([1_000, 15_000]), self._relaunch, application)

    def _drain(self) -> None:
        application = self._one()
        if application is not None:
            application.request_drain()

    def _leaders(self) -> None:
        """Other nodes become the leaders of some partitions, perhaps after a time without one."""
        self.events["leaders"] += 1
        partitions = [p for p in self.cluster.ends if self.random.random() < 0.6]
        without_ms = self.random.choice([0, 0, 1_000, 20_000])
        self.trace(f"leaders of {[str(p) for p in partitions]} move, without one for {without_ms} ms")
        self.cluster.topic.move_leaders(partitions, without_ms)

    def _recreate(self) -> None:
        """Deletes the topic and creates it again; what was not delivered of the former one is lost."""
        if not self.cluster.topic.exists:
            return
        self.events["recreate"] += 1
        without_ms = self.random.choice([1, 500, 5_000, 30_000])
        self.trace(f"the topic is deleted, for {without_ms} ms")
        self._fault("*", without_ms)
        self.cluster.delete_topic()
        for p in self.delivered:
            self.delivered[p] = {}
        self.excused.clear()
        self._excused_own.clear()
        self._reset.clear()
        self._set_back.clear()
        for pending in self.pending.values():
            pending.clear()
        self.kernel.call_in(without_ms, self._created)

    def _created(self) -> None:
        self.trace("the topic is created")
        self.cluster.topic.create()
        self._produce()

    def _restore(self) -> None:
        """Kills an application, whose checkpoint is then replaced by an earlier one."""
        application = self._one()
        if application is not None and len(application.finished) > 3:
            self.events["restore"] += 1
            self._kill(application, 20_000)
            keep = self.random.randrange(1, len(application.finished) - 1)
            # a backup that was taken during a batch has its plan
            planned = application.finished[keep] if keep % 2 else None
            del application.finished[keep:]
            application.start, application.logged = application.finished[-1], planned
            own = decode_offset(application.start)
            # positions in a former topic of the name say nothing of the present one
            is_present = own.topic_ids.get(TOPIC) == str(self.cluster.topic.present.topic_id)
            known = {**own.delivered, **own.positions} if is_present else {}
            for p, end in self.cluster.ends.items():
                self._excuse(p, known.get(p, 0), end, is_own=True)

    def _cut(self) -> None:
        application = self._one()
        if application is None:
            return
        self.events["cut"] += 1
        duration_ms = self.random.choice([3_000, 9_000, 20_000, 60_000])
        nodes = self.random.choice([NODES, (self.random.choice(NODES),), (self.cluster.coordinator_node,)])
        self.trace(f"{application.name} is cut from {nodes} for {duration_ms} ms")
        self._fault(application.name, duration_ms)
        for node in nodes:
            self.cluster.link_of(application.name, node).cut_until_ms = self.kernel.now_ms + duration_ms

    def _outage(self) -> None:
        self.events["outage"] += 1
        duration_ms = self.random.choice([20_000, 90_000, 150_000])
        self.trace(f"outage of {duration_ms} ms")
        self._fault("*", duration_ms)
        for application in self.applications:
            for node in NODES:
                self.cluster.link_of(application.name, node).cut_until_ms = self.kernel.now_ms + duration_ms

    def _late_commit(self) -> None:
        application = self._one()
        # a drain commits twice
        if application is None or application.is_leaving:
            return
        self.events["late commit"] += 1
        # at once: the response alone is lost
        delay_ms = self.random.choice([1, 7_000, 35_000, 70_000, 110_000])
        self.trace(f"the next commit of {application.name} arrives after {delay_ms} ms, without a response")
        for node in NODES:
            self.cluster.link_of(application.name, node).delay_next_commit(delay_ms)

    def _crash(self, *, is_drain: bool = False) -> None:
        self.events["crash"] += 1
        lost = self.random.choice([0, 0, 1, 3])
        if "transactions" in self.features or self.is_ending and not is_drain:
            # no application repeats the commit of an application that has drained
            lost = 0
        self._fault("*", _LOAD_MS)
        is_stable = self._is_stable()
        gone = self.cluster.crash_coordinator(_LOAD_MS, lost)
        self.trace(f"the coordinator restarts; it has lost commits of {[str(p) for p in gone]}")
        for p, left in gone.items():
            # a member that has joined a rebalance no longer owns what it has committed before
            self._went_back(p, left, is_repeated=is_stable)

    def _is_stable(self) -> bool:
        group = self.cluster.coordinator.shard.group("g")
        return group is not None and group.state.value == "Stable"

    def _move(self) -> None:
        self.events["move"] += 1
        self._fault("*", _LOAD_MS)
        self.cluster.move_coordinator(_LOAD_MS)
        self.trace(f"the coordinator moves to {self.cluster.coordinator_node}")

    def _isolate(self) -> None:
        self.events["isolate"] += 1
        node = self.random.choice([self.cluster.coordinator_node, *NODES])
        duration_ms = self.random.choice([15_000, 60_000, 120_000])
        is_ignorant = self.random.random() < 0.5
        self.trace(f"node {node} is isolated for {duration_ms} ms, ignorant: {is_ignorant}")
        moves_leaders = "leaders" in self.features
        self.cluster.isolate(node, is_ignorant=is_ignorant, load_ms=_LOAD_MS, moves_leaders=moves_leaders)
        if self.cluster.stale.get(node) is not None:
            self._fault("*", duration_ms)
        self.kernel.call_in(duration_ms, self.cluster.rejoin, node)

    def _pause(self) -> None:
        application = self._one()
        if application is None:
            return
        duration_ms = self.random.choice([4_000, 15_000, 40_000])
        chosen = [application.driver] if self.random.random() < 0.5 else [
            application.driver, application.reader, application.executor
        ]
        self.events["pause of the driver" if len(chosen) == 1 else "pause"] += 1
        self.trace(f"{application.name} is suspended for {duration_ms} ms: {[each.name for each in chosen]}")
        for process in chosen:
            process.paused_until_ms = self.kernel.now_ms + duration_ms
        if len(chosen) > 1:
            self._fault(application.name, duration_ms)

    def _jump(self) -> None:
        application = self._one()
        if application is not None:
            self.events["jump"] += 1
            application.reader.epoch_offset_ms += self.random.choice([-3_600_000, 3_600_000, 86_400_000])

    def _slow(self) -> None:
        application = self._one()
        if application is not None:
            self.events["slow link"] += 1
            self.trace(f"the link of {application.name} is slow")
            for node in NODES:
                self.cluster.link_of(application.name, node).slow_ms = 40_000

    # -- workloads ---------------------------------------------------------------------------------------------------

    def trigger_ms(self, application: Application) -> int:
        if self.has_long_triggers and not self.is_ending and self.random.random() < 0.2:
            return self.random.choice([MAX_POLL_MS + 5_000, 3 * MAX_POLL_MS])
        return application.workload.trigger_ms

    def batch_ms(self, application: Application) -> int:
        if self.has_long_batches and not self.is_ending and self.random.random() < 0.15:
            return self.random.choice([MAX_POLL_MS + 10_000, 3 * MAX_POLL_MS])
        return application.workload.batch_ms

    def sink_ms(self, application: Application) -> int:
        return self.random.choice([5, 50, 1_000])

    def may_drain(self, application: Application) -> bool:
        """Whether an application may drain: at any time while others remain; the last one has read everything."""
        if any(each is not application and not each.is_leaving and not each.is_drained for each in self.applications):
            may_drain = self.random.random() < 0.2
        else:
            may_drain = not self.missing() and not self._behind()
        # records that are produced after a deletion would be read by none
        may_drain = may_drain and self.cluster.topic.exists
        if may_drain and "crash" in (self._kinds or ()) and self.random.random() < 0.5:
            self._crash(is_drain=True)
        return may_drain

    def _behind(self) -> list[TopicPartition]:
        application = next(each for each in self.applications if not each.is_drained)
        positions = decode_offset(application.start).positions if application.start else {}
        return [p for p, end in self.cluster.ends.items() if end and positions.get(p) != end]

    # -- observations ------------------------------------------------------------------------------------------------

    def _committed(self, p: TopicPartition, offset: int, former: int, member_id: str) -> None:
        if offset != former:
            self.trace(f"{member_id} commits {p} {offset}")
        for name, pending in self.pending.items():
            left = [(max(begin, offset), stop) for begin, stop in pending.get(p, ()) if stop > offset]
            if left:
                pending[p] = left
            elif p in pending:
                del pending[p]
        if offset < former:
            self.trace(f"the commit of {p} by {member_id} goes back from {former} to {offset}")
            application = self._application(member_id)
            is_repeated = application is not None and application.is_running and not _ignores_group(application)
            # the rebalance may end before the member that has joined it repeats its commit
            self._went_back(p, offset, is_repeated=is_repeated and self._is_stable())
        elif offset > former:
            self._set_back.pop(p, None)
            if offset > max(self.delivered[p], default=-1):
                self._reset.discard(p)

    def _went_back(self, p: TopicPartition, offset: int, *, is_repeated: bool = True) -> None:
        """A late commit has arrived, or the coordinator has lost one: the owner commits again within seconds.

        No member repeats the commit of an application that was killed, or replaced because of onGroupAhead=ignore.
        """
        self.events["set back"] += 1
        if not is_repeated:
            self._reset.add(p)
            return
        self._set_back.setdefault(p, self.kernel.now_ms)
        delivered = self.delivered[p]
        last = max(delivered, default=-1)
        for at in range(max(offset, 0), last + 1):
            if at in delivered:
                name = delivered[at][-1]
                if not (self._by_name[name].is_running and self._by_name[name].has_planned):
                    self._reset.add(p)
                    return
                batches = self.pending[name].setdefault(p, [])
                if not any(begin <= at < stop for begin, stop in batches):
                    batches.append((at, at + 1))

    def _application(self, member_id: str) -> Application | None:
        """Returns the application whose present run has a member."""
        # the id of a static member has its group instance id
        name, _, rest = self.cluster.client_ids.get(member_id, member_id).partition(".")
        application = self._by_name.get(name)
        is_present = application is not None and rest.partition("-")[0] == str(application.number)
        return application if is_present else None

    def _members_changed(self, coordinator: Coordinator, cause: Any) -> None:
        if coordinator is not self.cluster.coordinator or not coordinator.is_loaded:
            return
        group = coordinator.shard.group("g")
        is_rebalancing = group is not None and group.state.value == "PreparingRebalance"
        if not is_rebalancing:
            self._rebalancing_since_ms, since_ms = None, self._rebalancing_since_ms
        else:
            since_ms = self._rebalancing_since_ms = self._rebalancing_since_ms or self.kernel.now_ms
        members, new_since_ms = coordinator.members(), self._new_since_ms
        new = sorted(name for name, member in group.members.items() if member.is_new) if group is not None else ()
        self._new_since_ms = {name: new_since_ms.get(name, self.kernel.now_ms) for name in new}
        if members == self._members:
            return
        removed, self._members = self._members - members, members
        for member_id in members & self._removed.keys():
            # the coordinator had not stored the removal before it restarted
            del self._removed[member_id]
        for member_id in sorted(removed):
            waited_ms = self.kernel.now_ms - new_since_ms.get(member_id, self.kernel.now_ms)
            if waited_ms >= self._new_member_join_timeout_ms and cause.kind == "timer SessionTimer":
                # Kafka's bound for the first JoinGroup; the client, which has nothing yet, joins again
                self.events["removed as new"] += 1
            elif cause.kind == "request" and member_id in new_since_ms:
                # the response to the first JoinGroup of a static member was lost, and it has sent another one
                self.events["joined again"] += 1
            else:
                self._member_removed(member_id, cause.kind, since_ms)
        if removed or members:
            self.trace(f"members {sorted(members)} after {cause.kind}")

    def _member_removed(self, member_id: str, kind: str, rebalancing_since_ms: int | None) -> None:
        self._removed[member_id] = self.kernel.now_ms
        self._once_removed.add(member_id)
        application = self._application(member_id)
        if application is None or not application.is_running:
            return
        if application.is_leaving:
            if kind != "request" and self.has_fault(application.name):
                self._interrupted(application, "removed")
            return
        if application.is_replaying and kind == "request":
            return
        waited_ms = self.kernel.now_ms - (rebalancing_since_ms or self.kernel.now_ms)
        if self.has_fault(application.name) or waited_ms >= 12 * MAX_POLL_MS:
            self.events["removed"] += 1
            self._interrupted(application, "removed")
            return
        raise Violation(f"member {member_id} is removed by a {kind} although its application is alive")

    def _was_removed(self, application: Application) -> bool:
        """Returns whether a member of the present run of an application was removed."""
        return any(self._application(member_id) is application for member_id in self._once_removed)

    def _commit_rejected(self, member_id: str) -> None:
        """A member that has joined at a coordinator that was cut off has a generation that the present one rejects."""
        application = self._application(member_id)
        if application is not None and application.is_running and self.has_fault(application.name):
            self._interrupted(application, "fenced")

    def _interrupted(self, application: Application, how: str) -> None:
        """Another application may deliver again what this one has delivered and not committed."""
        pending, self.pending[application.name] = self.pending[application.name], {}
        ranges = {str(p): batches for p, batches in pending.items()}
        self.trace(f"{application.name} is {how} with {ranges} delivered and not committed")
        for p, batches in pending.items():
            since_ms = self._set_back.get(p)
            is_old = since_ms is not None and self.kernel.now_ms - since_ms > _REPEAT_MS
            if is_old and not self.has_fault(application.name):
                raise Violation(f"{application.name}: the commit of {p} went back and was not repeated")
            for begin, stop in batches:
                # the application itself continues at its position, unless the commit looks like an operator's reset
                self._excuse(p, begin, stop, is_own=False)
            if since_ms is not None:
                # no member repeats the commit of an application that has ended
                self._reset.add(p)
                del self._set_back[p]

    def _excuse(self, p: TopicPartition, begin: int, stop: int, *, is_own: bool) -> None:
        records = {(p, offset) for offset in range(begin, stop)}
        self.excused |= records
        if is_own:
            self._excused_own |= records

    def _check_bound(self, application: Application) -> None:
        for p, batches in self.pending[application.name].items():
            if len(batches) > 2 and p not in self._set_back and not self.has_fault(application.name):
                raise Violation(f"{application.name} has not committed {batches} of {p}: more than two batches")

    # -- invariants --------------------------------------------------------------------------------------------------

    def task_ended(self, application: Application, task: GroupInputPartition, checked_ms: int) -> None:
        """A task has ended successfully; its last heartbeat was sent at `checked_ms`."""
        member = task.membership
        removed_ms = None if member is None else self._removed.get(member.member_id)
        if removed_ms is not None and removed_ms < checked_ms and not self.has_fault("*", SESSION_MS):
            raise Violation(f"a task of {application.name} ends although its member was removed at {removed_ms}")

    def deliver(
        self, application: Application, tasks: Iterable[GroupInputPartition], skipped: Collection[TopicPartition]
    ) -> None:
        """The batch of these tasks is in the commit log; `skipped`: partitions of a topic that was deleted."""
        for task in tasks:
            member = task.membership
            is_fenced = member is not None and member.member_id not in self._members
            is_present = task.topic_ids.get(TOPIC) == str(self.cluster.topic.present.topic_id)
            for p, begin, stop in task.ranges:
                if application.is_transactional:
                    self._check_state(application, p, begin, stop)
                elif stop > begin and is_present and p not in skipped:
                    self._deliver(application, p, begin, stop, is_fenced)

    def _published(self, published: list[Publishing]) -> None:
        """A transaction is committed: each record is in the output once, and the group's offsets are its end."""
        self._progressed_ms = self.kernel.now_ms
        for name, (p, begin, stop) in published:
            self.trace(f"{name} publishes {p} [{begin}, {stop})")
            known = self.delivered[p].keys() & range(begin, stop)
            if known:
                raise Violation(f"{p} {min(known)} is published by {name} after {self.delivered[p][min(known)]}")
            self.delivered[p].update({offset: [name] for offset in range(begin, stop)})
        for p, _, _ in (each.range for each in published):
            stored = self.cluster.coordinator.stored(p)
            if self.cluster.coordinator.is_loaded and self.delivered[p].keys() != set(range(stored)):
                raise Violation(f"the committed offset of {p} is {stored}, the output has {len(self.delivered[p])}")

    def _check_state(self, application: Application, p: TopicPartition, begin: int, stop: int) -> None:
        """A stateful query has the records in its state that it has published, and each of them once."""
        state = self._states[application.name].setdefault(p, set())
        for offset in range(begin, stop):
            if self.delivered[p].get(offset) != [application.name]:
                raise Violation(f"{p} {offset} is in the state of {application.name}, which has not published it")
            if offset in state:
                raise Violation(f"{p} {offset} is in the state of {application.name} twice")
            state.add(offset)

    def _deliver(self, application: Application, p: TopicPartition, begin: int, stop: int, is_fenced: bool) -> None:
        self._progressed_ms = self.kernel.now_ms
        self.trace(f"{application.name} delivers {p} [{begin}, {stop}){' fenced' if is_fenced else ''}")
        if is_fenced:
            self._excuse(p, begin, stop, is_own=False)
        delivered = self.delivered[p]
        for offset in range(begin, stop):
            known = delivered.setdefault(offset, [])
            excused = self._excused_own if application.name in known else self.excused
            if known and (p, offset) not in excused and p not in self._reset:
                raise Violation(f"{p} {offset} is delivered by {application.name} after {known}, without need")
            known.append(application.name)
        coordinator = self.cluster.coordinator
        # one that loads has offsets of a deleted topic until it reaches their tombstones
        is_committed = coordinator.is_loaded and stop <= coordinator.stored(p)
        if not is_fenced and not is_committed:
            self.pending[application.name].setdefault(p, []).append((begin, stop))

    def planned(self, application: Application, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Checks which records the first batch of a run leaves out."""
        if application.has_planned or not end or application.first_owned is None:
            return
        application.has_planned = True
        before, after = decode_offset(start), decode_offset(end)
        if before.topic_ids != after.topic_ids or self._was_removed(application):
            # other members may have read on since the first assignment
            return
        reaction = application.workload.options.get("onGroupAhead", "follow")
        for p, stop in after.positions.items():
            known = application.left_out.get(p, before.positions.get(p, before.delivered.get(p)))
            begin = after.acquired.get(p, known)
            if known is None or begin is None or p not in application.first_owned:
                continue
            if begin > known and application.first_owned[p] > known:
                # another member may commit more before the batch is planned
                is_reported = any(f"{p} (" in line and f"> {known})" in line for line in application.warnings)
                if reaction != "follow" or not is_reported:
                    raise Violation(f"{application.name} leaves out {p} [{known}, {begin}) (onGroupAhead={reaction})")
                self.events["followed"] += 1
            elif reaction == "ignore":
                self._excuse(p, known, self.cluster.ends[p], is_own=True)

    def replayed(self, application: Application, tasks: Iterable[GroupInputPartition]) -> None:
        """With onGroupAhead=ignore, a logged batch is read again although the group has passed it."""
        if _ignores_group(application):
            for p, begin, stop in (each for task in tasks for each in task.ranges):
                self._excuse(p, begin, stop, is_own=True)

    def query_failed(self, application: Application, error: GroupSourceError) -> None:
        """Checks that a query has ended with a cause."""
        self.events[f"failed: {type(error).__name__}"] += 1
        self.trace(f"the query of {application.name} fails: {type(error).__name__}: {error}")
        if isinstance(error, ConfigurationError) and "onGroupAhead=fail" in str(error):
            # the user accepts what the group has read
            self.events["onGroupAhead=fail"] += 1
            application.workload = _accepting(application.workload, "onGroupAhead", "follow")
            return
        if isinstance(error, DataLossError) and "recreate" in self.events:
            # the user accepts the loss of the former topic
            application.workload = _accepting(application.workload, "failOnDataLoss", "false")
            return
        is_missing = isinstance(error, ConfigurationError) and "does not exist at" in str(error)
        if is_missing and self.has_fault("*"):
            return
        is_removed = isinstance(error, (GenerationMismatchError, TransactionAbortedError)) and self._was_removed(
            application
        )
        is_starting = not application.has_planned and self.has_fault(application.name)
        # delivery.timeout.ms bounds the transaction of a batch
        is_starting = is_starting or (application.is_transactional and self.has_fault(application.name))
        if not is_removed and not is_starting:
            raise Violation(f"the query of {application.name} ends: {type(error).__name__}: {error}")

    def drained(self, application: Application) -> None:
        self._progressed_ms = self.kernel.now_ms
        self.trace(f"{application.name} has drained")
        self.events["drain"] += 1
        if application.is_restarting:
            self.kernel.call_in(self.random.choice([500, 20_000]), self._relaunch, application)
        pending = self.pending[application.name]
        if pending and not self.has_fault(application.name):
            raise Violation(f"{application.name} has drained without committing {pending}")
        self._interrupted(application, "drained")

    def missing(self) -> list[tuple[TopicPartition, int]]:
        return [(p, at) for p, end in self.cluster.ends.items() for at in range(end) if at not in self.delivered[p]]

    def _check_end(self) -> None:
        missing = self.missing()
        if missing:
            raise Violation(f"lost: {missing[:5]}")
        for p, delivered in self.delivered.items():
            counted = sum(len(state.get(p, ())) for state in self._states.values())
            if "transactions" in self.features and counted != len(delivered):
                raise Violation(f"{len(delivered)} records of {p} are published, and {counted} are in a state")
        ends = {p: end for p, end in self.cluster.ends.items() if end}
        found = {p: self.cluster.coordinator.stored(p) for p in ends}
        for p, end in ends.items():
            # a member that was removed, and drains before it has returned, leaves its last batch to the next one
            if found[p] != end and not {(p, at) for at in range(max(found[p], 0), end)} <= self.excused:
                raise Violation(f"the committed offsets {found} are not the delivered ones {ends}")


class _Warnings(logging.Handler):
    """Passes warnings to the application whose thread has logged them."""

    def __init__(self, run: ApplicationRun) -> None:
        super().__init__(logging.WARNING)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        name = self._run.kernel.current.process.name.partition(" ")[0]
        for application in self._run.applications:
            if application.name == name:
                application.warnings.append(record.getMessage())


def _ignores_group(application: Application) -> bool:
    return application.workload.options.get("onGroupAhead") == "ignore"


def _accepting(workload: Workload, option: str, value: str) -> Workload:
    return replace(workload, options={**workload.options, option: value})


def _drawn(features: Sequence[str], random: Random) -> frozenset[str]:
    """Returns some of the features; not every two of them."""
    drawn = set(random.sample(features, random.choice([1, 1, 2, 3]))) if len(features) > 2 else set(features)
    if "transactions" in drawn:
        # TxnOffsetCommit names the topic, so an offset of the former one may be committed for the new one
        drawn.discard("recreate")
    return frozenset(drawn)
