"""Checks after every event of the simulation.

The checks use requests, responses and the log: one leader and one generation; one owner per partition; acknowledged
commits are never lost; a replay of the log equals the in-memory state. The text of a violation starts with one word for
the violated invariant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from simulation.invariants import check_counters, check_state, check_timers, persistent_state

from spark_groupsource.broker.group import LogRecord
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import EMPTY, STABLE
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)

if TYPE_CHECKING:
    from simulation.broker import Broker, Entry, Waiting

read_key = lru_cache(maxsize=10_000)(decode_key)
read_offset = lru_cache(maxsize=10_000)(decode_offset_value)
read_group = lru_cache(maxsize=10_000)(decode_group_value)


class InvariantViolation(AssertionError):
    """A violated invariant."""


class Cause(NamedTuple):
    """Cause of a call of the shard: a request with its token, a timer, a load, ...; group None is every group."""

    kind: str
    group_id: str | None = None
    request: Any = None
    token: int = 0


class Before(NamedTuple):
    """The group of a request at its arrival."""

    generation_id: int
    member_ids: frozenset[str]
    instance_ids: dict[str, str]


class Log:
    """State of the log, computed without the package: the last record of a key wins."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupValue] = {}
        self.offsets: dict[str, dict[TopicPartition, OffsetValue]] = {}
        # producer -> key -> committed offset and its position in the log
        self.pending: dict[int, dict[OffsetKey, tuple[OffsetValue, int]]] = {}
        self._committed_at: dict[OffsetKey, int] = {}
        self._position = 0

    def take(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        self._position += 1
        what = read_key(key)
        if isinstance(what, GroupKey):
            self.groups.pop(what.group_id, None)
            if value is not None:
                self.groups[what.group_id] = read_group(value)
            return
        assert isinstance(what, OffsetKey)
        if producer_id >= 0 and value is not None:
            self.pending.setdefault(producer_id, {})[what] = (read_offset(value), self._position)
            return
        offsets = self.offsets.setdefault(what.group_id, {})
        offsets.pop(TopicPartition(what.topic, what.partition), None)
        self._committed_at[what] = self._position
        if value is not None:
            offsets[TopicPartition(what.topic, what.partition)] = read_offset(value)
            return
        for pending in self.pending.values():
            pending.pop(what, None)
        if not offsets:
            del self.offsets[what.group_id]

    def end(self, producer_id: int, committed: bool) -> set[str]:
        """Applies the marker of a transaction; returns its groups. Later entries of the log have precedence."""
        ended = self.pending.pop(producer_id, {})
        for key, (value, position) in ended.items():
            if committed and position > self._committed_at.get(key, -1):
                self._committed_at[key] = position
                self.offsets.setdefault(key.group_id, {})[TopicPartition(key.topic, key.partition)] = value
        return {key.group_id for key in ended}

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        keys = [key for pending in self.pending.values() for key in pending if key.group_id == group_id]
        return {TopicPartition(key.topic, key.partition) for key in keys}

    def group_ids(self) -> set[str]:
        pending = {key.group_id for entries in self.pending.values() for key in entries}
        return {*self.groups, *self.offsets, *pending}


def canonical(member_id: str) -> str:
    """Identity of a member: a static member keeps its identity when its member id changes."""
    return member_id.partition("-")[0] if member_id.startswith("i") else member_id


class Checks:
    """Checks one broker; raises InvariantViolation."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.log = Log()
        self._stored_by: dict[int, dict[TopicPartition, int]] = {}
        self._changed: set[str] = set()
        self._last_groups: dict[str, GroupValue] = {}
        self._last_offsets: dict[str, dict[TopicPartition, OffsetValue]] = {}
        self._promises: dict[str, object] = {}
        self._births: dict[str, int] = {}
        self.unstored: set[str] = set()  # groups whose last record could not be appended
        self._leaders: dict[tuple[object, ...], str] = {}
        self._leading: dict[tuple[object, ...], str] = {}
        self._lives: dict[str, tuple[ClassicGroup, int]] = {}
        self._generations: dict[tuple[str, int], int] = {}
        self._acknowledged: dict[str, int] = {}
        self._owners: dict[tuple[object, ...], str] = {}
        self._committers: dict[tuple[object, ...], str] = {}

    # --- requests

    def before(self, request: Any) -> Before | None:
        """Records the state at the arrival of a request."""
        group_id = getattr(request, "group_id", None)
        if not self._broker.is_loaded or not group_id:
            return None
        group = self._broker.shard.group(group_id)
        if group is None:
            return Before(-1, frozenset(), {})
        return Before(group.generation_id, frozenset(group.members), dict(group.static_members))

    def replied(self, token: int, waiting: Waiting, response: Any) -> None:
        """Checks a response before it is sent."""
        check = getattr(self, f"_replied_{type(waiting.request).__name__}", None)
        if check is not None and self._broker.is_loaded:
            check(token, waiting, response)

    def _replied_JoinGroupRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        if response.error_code:
            return
        group = self._group(waiting.request.group_id)
        member_id = response.member_id
        now = response.generation_id == group.generation_id
        _check(now, "generation", "{} joined {}", member_id, response.generation_id)
        _check(member_id in group.members, "generation", "{} joined and is no member", member_id)
        life = self._life(group)
        key = (group.group_id, life, response.generation_id)
        is_leader = response.leader == member_id
        if is_leader and not response.skip_assignment:
            _check(self._leading.setdefault(key, member_id) == member_id, "leader", "{} leads {} too", member_id, key)
        known = self._leaders.setdefault(key, canonical(response.leader))
        _check(known == canonical(response.leader), "leader", "{} and {} lead {}", known, response.leader, key)
        _check(known == canonical(group.leader_id or ""), "leader", "{} leads {}", response.leader, key)
        if is_leader and not response.skip_assignment:
            returned = {member.member_id for member in response.members}
            _check(returned == set(group.members), "leader", "the leader of {} got {}", key, returned)
        last = self._generations.get((group.group_id, life), -1)
        _check(response.generation_id >= last, "generation", "{} comes after {}", key, last)
        self._generations[group.group_id, life] = response.generation_id

    def _replied_SyncGroupRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        if response.error_code:
            return
        request = waiting.request
        group = self._group(request.group_id)
        _check(
            request.generation_id == group.generation_id and group.state is STABLE,
            "generation",
            "{} got an assignment of generation {}, {}",
            request.member_id,
            request.generation_id,
            LazyDescription(group),
        )
        self._check_member(request, group.members.keys(), group.static_members)
        self._acknowledged[group.group_id] = group.generation_id
        partitions: Sequence[TopicPartition] = ()
        if response.assignment:
            partitions = decode_assignment(bytes(response.assignment)).partitions
        sender = canonical(request.member_id)
        generation = (group.group_id, self._births.get(group.group_id, 0), group.generation_id)
        for partition in partitions:
            owner = self._owners.setdefault((*generation, partition), sender)
            _check(owner == sender, "owner", "{} and {} own {} in {}", sender, owner, partition, generation)

    def _replied_HeartbeatRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        if response.error_code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._check_generation(waiting.request, waiting.request.generation_id, waiting.decided)

    def _replied_TxnOffsetCommitRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        request = waiting.request
        names_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
        if self._check_stored(token, request, response) and names_member:
            self._check_generation(request, request.generation_id, waiting.decided)

    def _check_stored(self, token: int, request: Any, response: Any) -> set[TopicPartition]:
        """Checks that acknowledged commits are in the log; returns them."""
        stored = self._stored_by.pop(token, {})
        requested = {TopicPartition(t.name, p.partition_index): p for t in request.topics for p in t.partitions}
        returned = {TopicPartition(t.name, p.partition_index): p for t in response.topics for p in t.partitions}
        done = {partition for partition, entry in returned.items() if not entry.error_code}
        for partition in done:
            offset = requested[partition].committed_offset
            _check(stored.get(partition) == offset, "acknowledged", "{} is not stored: {}", partition, request)
        _check(done == stored.keys(), "acknowledged", "stored {}, acknowledged {}", stored, done)
        return done

    def _replied_OffsetCommitRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        request = waiting.request
        done = self._check_stored(token, request, response)
        if not done:
            return
        generation_id, before = request.generation_id_or_member_epoch, waiting.decided
        assert isinstance(before, Before)
        if generation_id < 0:
            _check(not before.member_ids, "generation", "a simple commit in a group of {}", before.member_ids)
            return
        self._check_generation(request, generation_id, before)
        sender = canonical(request.member_id)
        generation = (request.group_id, self._births.get(request.group_id, 0), generation_id)
        for partition in done:
            other = self._committers.setdefault((*generation, partition), sender)
            _check(other == sender, "owner", "{} and {} committed {} in {}", sender, other, partition, generation)

    def _replied_OffsetFetchRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        groups = response.groups if waiting.version >= 8 else [response]
        for group in groups:
            group_id = group.group_id if waiting.version >= 8 else waiting.request.group_id
            stored = self.log.offsets.get(group_id, {})
            for topic in group.topics:
                for entry in topic.partitions:
                    value = stored.get(TopicPartition(topic.name, entry.partition_index))
                    expected = -1 if value is None else value.offset
                    _check(
                        entry.committed_offset == expected,
                        "acknowledged",
                        "fetched {}, stored {}",
                        entry,
                        expected,
                    )

    def _replied_DeleteGroupsRequest(self, token: int, waiting: Waiting, response: Any) -> None:
        for result in response.results:
            if not result.error_code and not self._broker.held:
                left = result.group_id in self.log.groups or result.group_id in self.log.offsets
                _check(not left, "delete", "{} was deleted and is stored", result.group_id)

    def _check_generation(self, request: Any, generation_id: int, before: object) -> None:
        if before is None:
            return  # the shard was loading
        assert isinstance(before, Before)
        _check(
            generation_id == before.generation_id,
            "generation",
            "{} of generation {} was accepted in {}",
            request.member_id,
            generation_id,
            before.generation_id,
        )
        self._check_member(request, before.member_ids, before.instance_ids)

    def _check_member(self, request: Any, member_ids: Any, instance_ids: dict[str, str]) -> None:
        _check(request.member_id in member_ids, "generation", "{} was accepted and is no member", request.member_id)
        instance_id = request.group_instance_id
        if instance_id is not None:
            _check(
                instance_ids.get(instance_id) == request.member_id,
                "generation",
                "{} was accepted as {}",
                request.member_id,
                instance_id,
            )

    # --- the log

    def appending(self, cause: Cause, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Checks a record before its append: a request or timer must have caused it."""
        what = read_key(key)
        request = type(cause.request).__name__ if cause.request is not None else cause.kind
        if isinstance(what, GroupKey):
            self.unstored.discard(what.group_id)
            if value is None:
                _check(request in ("DeleteGroupsRequest", "expire offsets"), "delete", "{} by {}", what, request)
                _check(self._group(what.group_id).state is EMPTY, "delete", "{} is not empty", what)
                self._births[what.group_id] = self._births.get(what.group_id, 0) + 1
                self._acknowledged.pop(what.group_id, None)
        else:
            assert isinstance(what, OffsetKey)
            if value is None:
                self._check_removal(cause, request, what)
            else:
                writer = "OffsetCommitRequest" if producer_id < 0 else "TxnOffsetCommitRequest"
                _check(request == writer, "acknowledged", "{} was written by {}", what, request)
                stored = self._stored_by.setdefault(cause.token, {})
                stored[TopicPartition(what.topic, what.partition)] = read_offset(value).offset
        self.log.take(key, value, producer_id)
        self._changed.add(what.group_id)
        self._promises.pop(what.group_id, None)

    def _check_removal(self, cause: Cause, request: str, key: OffsetKey) -> None:
        group = self._group(key.group_id)
        if request == "OffsetDeleteRequest":
            named = {topic.name for topic in cause.request.topics}
            allowed = key.topic in named and key.topic not in _subscribed(group)
        elif request == "DeleteGroupsRequest":
            allowed = key.group_id in cause.request.groups_names and not group.members
        elif request == "expire offsets":
            partition = TopicPartition(key.topic, key.partition)
            _check(partition not in self.log.pending_of(key.group_id), "acknowledged", "{} is pending and expired", key)
            since = self.log.offsets[key.group_id][partition].commit_timestamp_ms
            if not group.members and group.state_timestamp_ms >= 0:
                since = min(since, group.state_timestamp_ms)
            age_ms = self._broker.time.timestamp_ms - since
            allowed = age_ms >= self._broker.config.offsets_retention_ms and key.topic not in _subscribed(group)
        else:
            allowed = request == f"drop {key.topic}"
        _check(allowed, "acknowledged", "{} was removed by {}, {}", key, request, LazyDescription(group))

    def append_failed(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            what = read_key(record.key)
            if isinstance(what, GroupKey):
                self.unstored.add(what.group_id)

    def transaction_ended(self, producer_id: int, committed: bool) -> None:
        """Applies a marker of the log."""
        self._changed |= self.log.end(producer_id, committed)

    def reloading(self, log: Sequence[Entry]) -> None:
        """Checks a new shard that loads the log."""
        self.log = Log()
        for entry in log:
            if entry.key is None:
                self.log.end(entry.producer_id, entry.committed)
            else:
                self.log.take(entry.key, entry.value, entry.producer_id)
        self._changed = self.log.group_ids()
        self._last_groups, self._last_offsets = {}, {}
        self._promises.clear()
        self.unstored.clear()
        self._stored_by.clear()

    # --- after each event

    def after(self, cause: Cause) -> None:
        """Checks all invariants after an event."""
        broker = self._broker
        if not broker.is_loaded:
            return
        held = bool(broker.held)
        self._compare()
        groups = broker.shard.groups
        for group in list(groups.values()) if cause.group_id is None else (groups.get(cause.group_id),):
            if group is not None:
                self._check_group(group, held)

    def _compare(self) -> None:
        """Checks the shard against the log; skips objects that have not changed since they were equal."""
        store, log = self._broker.shard.store, self.log
        for group_id in self._changed:
            groups, offsets = store.groups.get(group_id), store.offsets.get(group_id)
            _check(groups == log.groups.get(group_id), "replay", "{}, log {}", groups, log.groups.get(group_id))
            _check(offsets == log.offsets.get(group_id), "replay", "{}, log {}", offsets, log.offsets.get(group_id))
            pending = log.pending_of(group_id)
            _check(
                set(store.pending.partitions_of(group_id)) == pending,
                "replay",
                "{}: log has {} pending",
                group_id,
                pending,
            )
        if self._changed:
            known, stored = set(store.group_ids()), log.group_ids()
            _check(known == stored, "replay", "groups {}, log {}", known, stored)
            self._changed.clear()
            self._last_groups = dict(store.groups)
            self._last_offsets = {group_id: dict(offsets) for group_id, offsets in store.offsets.items()}
        _check(store.groups == self._last_groups, "replay", "{} has become {}", self._last_groups, store.groups)
        _check(store.offsets == self._last_offsets, "replay", "{} has become {}", self._last_offsets, store.offsets)

    def _check_group(self, group: ClassicGroup, held: bool) -> None:
        try:
            check_counters(group)
            check_timers(group, self._broker.timers)
            check_state(group, appends_pending=held)
        except AssertionError as error:
            raise InvariantViolation(f"counters: {error}, {LazyDescription(group)}") from error
        group_id = group.group_id
        acknowledged = self._acknowledged.get(group_id, -1)
        _check(
            group.generation_id >= acknowledged,
            "generation",
            "{}, acknowledged was {}",
            LazyDescription(group),
            acknowledged,
        )
        if held or group_id in self.unstored or group.state not in (EMPTY, STABLE):
            return
        stored = self._promises.get(group_id)
        if stored is None:
            stored = persistent_state(ClassicGroup.from_value(group_id, self.log.groups.get(group_id)))
            self._promises[group_id] = stored
        _check(stored == persistent_state(group), "replay", "live {}, log {}", persistent_state(group), stored)

    def check_all_responses_sent(self) -> None:
        """Checks that every request has a response."""
        waiting = [entry.request for entry in self._broker.waiting.values()]
        _check(not waiting, "responses", "no response to {}", waiting)

    # --- groups

    def _group(self, group_id: str) -> ClassicGroup:
        group = self._broker.shard.group(group_id)
        if group is None:
            raise InvariantViolation(f"group: {group_id} does not exist")
        return group

    def _life(self, group: ClassicGroup) -> int:
        """Returns how many times a group was created; a generation is unique within one creation."""
        known, life = self._lives.get(group.group_id, (None, 0))
        if known is not group:
            life += 1
            self._lives[group.group_id] = (group, life)
        return life


def _check(holds: bool, what: str, text: str, *args: object) -> None:
    if not holds:
        raise InvariantViolation(f"{what}: {text.format(*args)}")


def _subscribed(group: ClassicGroup) -> set[str]:
    """Returns topics to which a member is known to subscribe.

    Excludes members that joined after the last generation, and static members, which may have changed their topics.
    """
    if group.state is not STABLE or group.protocol_name is None:
        return set()
    members = [member for member in group.members.values() if not member.is_static]
    return {topic for m in members for topic in decode_subscription(m.metadata(group.protocol_name)).topics}


class LazyDescription(NamedTuple):
    """Description of a group, formatted only if needed."""

    group: ClassicGroup

    def __format__(self, spec: str) -> str:
        group = self.group
        return f"group {group.group_id} {group.state.value} {group.generation_id} of {sorted(group.members)}"
