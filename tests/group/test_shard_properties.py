"""Invariants and restarts under random requests and append failures."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulation.invariants import check_counters, check_state, check_timers, persistent_state
from support.examples import scaled
from support.group_context import CONFIG, GroupContext

from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.broker.group.members import Protocols
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition

GROUPS = st.sampled_from(["a", "a", "b"])
INSTANCES = st.sampled_from([None, None, "i-0", "i-1"])
LISTS = [(("range", b""),), (("range", b""), ("sticky", b"")), (("sticky", b""), ("range", b""))]
PROTOCOLS = st.sampled_from(LISTS)
NUMBERS = st.integers(0, 6)
RARELY = st.sampled_from([False, False, False, True])


class Coordinator(RuleBasedStateMachine):
    """Random requests; appends sometimes fail."""

    def __init__(self) -> None:
        super().__init__()
        self.context = GroupContext(replace(CONFIG, group_max_size=5, offsets_retention_minutes=1))
        self.failed = False

    @initialize(members=st.lists(INSTANCES, max_size=3, unique_by=lambda instance: instance or object()))
    def start(self, members: list[str | None]) -> None:
        for instance in members:
            self.context.join(group="a", instance=instance, protocols=LISTS[1])
        self.complete_rebalance("a")

    def member(self, group_id: str, at: int) -> tuple[str, str | None, int]:
        """Returns a current member, a former member or none."""
        group = self.context.shard.group(group_id)
        members = list(group.members.values()) if group else []
        generation_id = group.generation_id if group else 0
        if at < len(members):
            return members[at].member_id, members[at].group_instance_id, generation_id
        if group and group.pending_joins:
            return sorted(group.pending_joins)[0], None, generation_id
        return "made-up", None, generation_id

    @rule(group=GROUPS, instance=INSTANCES, protocols=PROTOCOLS, version=st.sampled_from([3, 5, 9]))
    def join_new(self, group: str, instance: str | None, protocols: Protocols, version: int) -> None:
        if instance is not None:
            version = max(version, 5)
        self.context.join(group=group, instance=instance, protocols=protocols, version=version)

    @rule(group=GROUPS, at=NUMBERS, protocols=PROTOCOLS)
    def join_known(self, group: str, at: int, protocols: Protocols) -> None:
        member_id, instance, _ = self.member(group, at)
        self.context.join(member_id, group=group, instance=instance, protocols=protocols, version=9)

    @rule(group=GROUPS)
    def all_join(self, group: str) -> None:
        found = self.context.shard.group(group)
        for member in list(found.members.values()) if found else []:
            instance = member.group_instance_id
            self.context.join(member.member_id, group=group, instance=instance, protocols=member.protocols)

    @rule(group=GROUPS)
    def all_sync(self, group: str) -> None:
        found = self.context.shard.group(group)
        members = list(found.members) if found else []
        for member_id in members:
            assignments = {m: f"{m}@{found.generation_id}".encode() for m in members}
            self.context.sync(
                member_id, found.generation_id, assignments, group=group, protocol_name=found.protocol_name or "none"
            )

    @rule(group=GROUPS)
    def complete_rebalance(self, group: str) -> None:
        """Makes a group Stable, unless appends fail."""
        self.context.release_appends()
        self.all_join(group)
        if not self.context.shard.store.contains(group):
            self.context.join(group=group)
        found = self.context.shard.group(group)
        for _ in range(4):
            if found is not None and found.state is PREPARING_REBALANCE:
                self.context.advance(50)
        self.all_sync(group)

    @rule(group=GROUPS, at=NUMBERS, stale=st.booleans())
    def sync(self, group: str, at: int, stale: bool) -> None:
        member_id, instance, generation_id = self.member(group, at)
        none = {"protocol_type": None, "protocol_name": None}
        self.context.sync(member_id, generation_id - stale, {}, group=group, instance=instance, version=4, **none)

    @rule(group=GROUPS, at=NUMBERS)
    def heartbeat(self, group: str, at: int) -> None:
        member_id, instance, generation_id = self.member(group, at)
        self.context.heartbeat(member_id, generation_id, group=group, instance=instance)

    @rule(group=GROUPS, at=NUMBERS)
    def leave(self, group: str, at: int) -> None:
        member_id, instance, _ = self.member(group, at)
        self.context.leave((member_id, instance), group=group)

    @rule(group=GROUPS, at=NUMBERS, offset=st.integers(0, 99), partition=st.integers(0, 2), simple=st.booleans())
    def commit(self, group: str, at: int, offset: int, partition: int, simple: bool) -> None:
        member_id, _, generation_id = self.member(group, at)
        if simple:
            member_id, generation_id = "", -1
        self.context.release_appends()
        before = self.context.fetch(("topic", partition), group=group)[TopicPartition("topic", partition)]
        (error,) = self.context.commit(offset, member_id, generation_id, group=group, partitions=[partition])
        after = self.context.fetch(("topic", partition), group=group)[TopicPartition("topic", partition)]
        assert after == (offset if error is ErrorCode.NONE else before)

    @rule(group=GROUPS, partition=st.integers(0, 2))
    def delete_offset(self, group: str, partition: int) -> None:
        self.context.delete_offsets(("topic", partition), group=group)

    @rule(group=GROUPS, is_run=RARELY)
    def delete_group(self, group: str, is_run: bool) -> None:
        if not is_run:
            return
        self.context.release_appends()
        self.context.delete_groups(group)

    @rule()
    def expire_offsets(self) -> None:
        self.context.settle(self.context.shard.expire_offsets(self.context.clock.instant()))

    @rule(duration_ms=st.sampled_from([1, 50, 50, 100, 100, 250, 500, 60_000]))
    def wait(self, duration_ms: int) -> None:
        self.context.advance(duration_ms)

    @rule(error=st.sampled_from([None, None, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.MESSAGE_TOO_LARGE]))
    def set_append_error(self, error: ErrorCode | None) -> None:
        self.context.append_error = error
        self.failed = self.failed or error is not None

    @rule(hold=st.booleans())
    def hold_appends(self, hold: bool) -> None:
        self.context.release_appends()
        self.context.hold_appends = hold

    @rule(is_run=RARELY)
    def restart(self, is_run: bool) -> None:
        if not is_run:
            return
        self.context.release_appends()
        self.context.settle(self.context.shard.on_unloaded(self.context.clock.instant()))
        assert self.context.delayed_count() == 0
        count = self.context.request_count
        self.context = GroupContext(self.context.config, log=self.context.log)
        self.context.request_count = count  # member ids stay unique
        self.failed = False

    @invariant()
    def replay_of_the_log_equals_the_store(self) -> None:
        store = GroupStore()
        for key, value in self.context.log:
            store.replay(key, value)
        assert store == self.context.shard.store

    @invariant()
    def counters_timers_and_states_are_consistent(self) -> None:
        for group in self.context.shard.groups.values():
            check_counters(group)
            check_timers(group, self.context.timers)
            check_state(group, appends_pending=bool(self.context.held_appends))

    @invariant()
    def restart_restores_empty_and_stable_groups(self) -> None:
        if self.failed or self.context.held_appends:
            return  # the records of an Empty group may be missing
        for group in self.context.shard.groups.values():
            if group.state not in (EMPTY, STABLE):
                continue
            stored = ClassicGroup.from_value(group.group_id, self.context.shard.store.groups.get(group.group_id))
            assert persistent_state(stored) == persistent_state(group)


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=scaled(60), stateful_step_count=40, deadline=None)
