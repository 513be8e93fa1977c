"""Broker of the simulation: one shard, its log, timers and faults.

The checks run after each call of the shard. A slow append is in the log at once, but its responses are sent when it is
durable, in order; a crash may lose records that are not durable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

from simulation.checks import Cause, Checks
from simulation.clock import SimulationClock

from spark_groupsource.broker.group import (
    GroupConfig,
    GroupShard,
    GroupTimer,
    Outcome,
    RequestContext,
    SetTimer,
    ShardState,
)
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition


@dataclass
class Waiting:
    """A request without a response."""

    request: Any
    version: int
    on_response: Callable[[Any], None]
    decided: object = None


class Entry(NamedTuple):
    """An entry of the log: a record, or the marker of a producer's transaction."""

    key: bytes | None
    value: bytes | None
    producer_id: int = -1
    committed: bool = False

    def replay_into(self, shard: GroupShard) -> None:
        if self.key is None:
            shard.end_transaction(self.producer_id, self.committed)
        else:
            shard.replay(self.key, self.value, producer_id=self.producer_id)


class _Held(NamedTuple):
    outcome: Outcome
    cause: Cause
    log_start: int


class Broker:
    """Successive coordinators of one log."""

    def __init__(self, time: SimulationClock, config: GroupConfig) -> None:
        self.time = time
        self.config = config
        self.incarnation = 0
        self.crashes = 0
        self.shard = GroupShard(0, config)
        self.log: list[Entry] = []
        self.timers: dict[GroupTimer, int] = {}
        self.waiting: dict[int, Waiting] = {}
        self.checks = Checks(self)
        self.fails_until_ms = self.late_until_ms = 0
        self.append_error = ErrorCode.NONE
        self.append_delay_ms = 0
        self.held: deque[_Held] = deque()
        self._held_until_ms = 0
        self._tokens = 0
        self._deleted_while_loading: list[list[TopicPartition]] = []
        self._loaded()

    @property
    def is_loaded(self) -> bool:
        return self.shard.state is ShardState.ACTIVE

    # --- requests and timers

    def receive(self, request: Any, version: int, client_id: str, on_response: Callable[[Any], None]) -> None:
        """Passes a request to the shard; `on_response` is called with the response, now or later."""
        self._tokens += 1
        token = self._tokens
        waiting = self.waiting[token] = Waiting(request, version, on_response)
        waiting.decided = self.checks.before(request)
        context = RequestContext(token, version, client_id, "/127.0.0.1", f"u{token}")
        cause = Cause("request", getattr(request, "group_id", None), request, token)
        self._run(self.shard.handle(request, context, self.time.instant()), cause)

    def _expire(self, incarnation: int, key: GroupTimer, deadline_ms: int) -> None:
        if incarnation == self.incarnation and self.timers.get(key) == deadline_ms:
            del self.timers[key]
            outcome = self.shard.expire(key, self.time.instant())
            self._run(outcome, Cause(f"timer {type(key).__name__}", key.group_id))

    def expire_offsets(self) -> None:
        if self.is_loaded:
            self._run(self.shard.expire_offsets(self.time.instant()), Cause("expire offsets"))

    def drop_partitions(self, partitions: list[TopicPartition]) -> None:
        """Deletes all partitions of a topic; a loading shard is notified when it has loaded."""
        if not self.is_loaded:
            self._deleted_while_loading.append(partitions)
            return
        outcome = self.shard.on_partitions_deleted(partitions, self.time.instant())
        self._run(outcome, Cause(f"drop {partitions[0].topic}"))

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Writes the marker of a transaction, which stays open if the append fails."""
        if self.time.now_ms < self.fails_until_ms:
            return
        entry = Entry(None, None, producer_id, committed)
        self.log.append(entry)
        self.checks.transaction_ended(producer_id, committed)
        if self.is_loaded:
            entry.replay_into(self.shard)
            self.checks.after(Cause("marker"))

    # --- crash and move

    def crash(self, load_ms: int, keep: bool) -> None:
        """Restarts with the log; `keep`: the log has all appended records, durable or not."""
        if self.held and not keep:
            del self.log[self.held[0].log_start :]
        self.crashes += 1
        self.held.clear()
        self.waiting.clear()
        self._seat(load_ms)

    def move(self, load_ms: int) -> None:
        """Unloads the shard, which responds to all delayed requests."""
        self._release(len(self.held))
        if self.is_loaded:
            self._run(self.shard.on_unloaded(self.time.instant()), Cause("move"))
            self.checks.check_all_responses_sent()
        self._seat(load_ms)

    def _seat(self, load_ms: int) -> None:
        self.incarnation += 1
        self.timers.clear()
        self.shard = GroupShard(0, self.config)
        self.checks.reloading(self.log)
        middle = len(self.log) // 2
        self._replay(0, middle)
        self.time.call_in(load_ms, self._load_rest, self.incarnation, middle)

    def _load_rest(self, incarnation: int, start: int) -> None:
        if incarnation == self.incarnation:
            self._replay(start, len(self.log))
            self._loaded()

    def _loaded(self) -> None:
        self._run(self.shard.on_loaded(self.time.instant()), Cause("load"))
        deleted, self._deleted_while_loading = self._deleted_while_loading, []
        for partitions in deleted:
            self.drop_partitions(partitions)

    def _replay(self, start: int, end: int) -> None:
        for entry in self.log[start:end]:
            entry.replay_into(self.shard)

    # --- decide, append, replay, reply

    def _run(self, outcome: Outcome, cause: Cause) -> None:
        self._settle(outcome, cause)
        self.checks.after(cause)

    def _settle(self, outcome: Outcome, cause: Cause) -> None:
        for timer in outcome.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.deadline_ms
                self.time.call_at(timer.deadline_ms, self._expire, self.incarnation, timer.key, timer.deadline_ms)
            else:
                self.timers.pop(timer.key, None)
        if not outcome.records:
            self._reply(outcome)
        elif self.time.now_ms < self.fails_until_ms:
            self.checks.append_failed(outcome.records)
            self._settle(self.shard.append_failed(outcome, self.append_error, self.time.instant()), cause)
        else:
            log_start = len(self.log)
            producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
            for key, value, _ in outcome.records:
                self.checks.appending(cause, key, value, producer_id)
                entry = Entry(key, value, producer_id)
                self.log.append(entry)
            self.shard.replay_appended(outcome, outcome.records)
            if self.time.now_ms < self.late_until_ms or self.held:
                self._hold(_Held(outcome, cause, log_start))
            else:
                self._appended(outcome, cause)

    def _appended(self, outcome: Outcome, cause: Cause) -> None:
        self._reply(outcome)
        self._settle(self.shard.append_succeeded(outcome, self.time.instant()), cause)

    def _hold(self, held: _Held) -> None:
        self.held.append(held)
        delay_ms = self.append_delay_ms if self.time.now_ms < self.late_until_ms else 0
        self._held_until_ms = max(self.time.now_ms + delay_ms, self._held_until_ms)
        self.time.call_at(self._held_until_ms, self._durable, self.incarnation, held)

    def _durable(self, incarnation: int, held: _Held) -> None:
        # appends become durable in order; a move may have completed them before
        if incarnation == self.incarnation and self.held and self.held[0] is held:
            self._release(1)

    def _release(self, count: int) -> None:
        for _ in range(count):
            held = self.held.popleft()
            self._appended(held.outcome, held.cause)
            self.checks.after(held.cause)

    def _reply(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            token, response = reply.token, reply.response
            assert isinstance(token, int)
            waiting = self.waiting.pop(token, None)
            assert waiting is not None, f"second response, or response without a request: {response}"
            self.checks.replied(token, waiting, response)
            waiting.on_response(response)
