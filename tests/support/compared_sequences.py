"""Finds the first difference of two brokers' responses to equal requests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from support.compared_brokers import Json, differences
from support.compared_sides import ComparedSide
from support.random_requests.actions import GROUPS, TOPICS, TRANSACTIONAL_IDS, Action
from support.random_requests.sequence import RandomRequests
from support.request_cases import admin, data, groups
from support.waiting import wait_until

from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey

_AGREE_S = 10
_LENGTH = 60
"""Requests of a sequence."""
_SHORTEN_S = 120
_WAITS_AFTER_S = 0.15
"""A request without a response after this time waits for the request of another member."""
_RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_CHANGES_TOPICS = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
_ENDS_TRANSACTIONS = frozenset({ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID})

Sides = tuple[ComparedSide, ComparedSide]


class ComparedSequence:
    """Performs actions on both sides, whose topics, groups and transactional ids begin with the same new prefix."""

    def __init__(self, embedded: str, kafka: str, prefix: str) -> None:
        self.sides: Sides = ComparedSide("embedded", embedded, prefix), ComparedSide("Kafka", kafka, prefix)
        self._waiting: dict[str, Action] = {}

    def __enter__(self) -> ComparedSequence:
        for side in self.sides:
            for topic in ("t0", "t1"):
                side.broker.exchange(admin.create(topic, partitions=2, retention_ms="-1")(side.broker), 5)
            for kind, names in ((0, GROUPS), (1, TRANSACTIONAL_IDS)):
                wait_until(lambda: _has_coordinators(side, kind, names), "coordinators are known", 60)
        self._settle_topics()
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            # thousands of topics would make Kafka slow
            side.broker.exchange(admin.delete(*TOPICS)(side.broker), 6)
            side.close()

    def perform(self, action: Action) -> list[str]:
        """Sends the request of an action, unless its member waits or the brokers need not agree.

        Returns the differences of its responses and of those to members that have waited.
        """
        if not action.is_alike(self.sides[0]):
            return []
        if action.member is None:
            found = self._exchange(action)
        elif action.member in self._waiting:
            return []
        else:
            for side in self.sides:
                side.post(action.member, action.request(side))
            self._waiting[action.member] = action
            found = self._take(action.member, _WAITS_AFTER_S)
        if action.api in _CHANGES_TOPICS:
            self._settle_topics()
        elif action.api in _ENDS_TRANSACTIONS:
            for side in self.sides:
                wait_until(lambda: not _is_ending(side), "the markers are written", 60)
        for member in list(self._waiting):
            found += self._take(member, 0)
        return found

    def _exchange(self, action: Action) -> list[str]:
        end_s = time.monotonic() + _AGREE_S
        while True:
            results = [_exchanged(side, action) for side in self.sides]
            found = list(differences(results[0][0], results[1][0]))
            if not found or not action.is_repeatable or time.monotonic() > end_s:
                break
            time.sleep(0.02)
        for side, (_, response) in zip(self.sides, results):
            if response is not None:
                action.read(side, response)
        return [f"{action.text}: {line}" for line in found]

    def _take(self, member: str, timeout_s: float) -> list[str]:
        """Returns the differences of the responses to a waiting request; none while both brokers let it wait."""
        ready = [side.has_response(member, timeout_s) for side in self.sides]
        if not any(ready):
            return []
        action = self._waiting.pop(member)
        for side, is_ready in zip(self.sides, ready):
            if not is_ready and not side.has_response(member, _AGREE_S):
                return [f"{action.text}: {side.label} does not respond"]
        results = [side.take(member) for side in self.sides]
        for side, (_, response) in zip(self.sides, results):
            if response is not None:
                action.read(side, response)
        return [f"{action.text}: {line}" for line in differences(results[0][0], results[1][0])]

    def _settle_topics(self) -> None:
        """Waits until both brokers have applied the last change of topics, also to committed offsets."""
        wanted = admin.metadata(*TOPICS)
        offsets = groups.fetch_offsets(*((group, None) for group in GROUPS))

        def agree(build: Callable[[Any], Any], version: int) -> bool:
            ours, theirs = (side.comparable(side.broker.exchange(build(side.broker), version)) for side in self.sides)
            return not list(differences(ours, theirs))

        wait_until(lambda: agree(wanted, 9), "both brokers have the same topics", 60)
        wait_until(lambda: all(_has_leaders(side) for side in self.sides), "partitions have leaders", 60)
        wait_until(lambda: agree(offsets, 8), "both brokers have the same offsets", 60)


def first_difference(embedded: str, kafka: str, prefix: str, actions: Sequence[Action]) -> tuple[int, list[str]] | None:
    """Returns the number of actions up to the first difference, and its lines."""
    with ComparedSequence(embedded, kafka, prefix) as sequence:
        for number, action in enumerate(actions, 1):
            try:
                found = sequence.perform(action)
            except AssertionError as error:
                found = [f"{action.text}: {error}"]
            if found:
                return number, found
    return None


class Comparison:
    """Runs sequences on a pair of brokers. `sent` is the number of requests so far."""

    def __init__(self, embedded: str, kafka: str, seed: int) -> None:
        self._brokers = embedded, kafka
        self._names: Iterator[str] = (f"c{seed}-{time.time_ns() // 1000:x}-{number}" for number in count())
        self.sent = 0

    def run(self, actions: list[Action]) -> tuple[list[Action], list[str]] | None:
        """Returns the shortest sequence found that leads to the first difference, and the lines of the difference.

        A difference has to occur twice: on a busy machine, Kafka may handle requests of two connections in another
        order, or apply a change later than usual.
        """
        found = first_difference(*self._brokers, next(self._names), actions)
        self.sent += len(actions) if found is None else found[0]
        if found is None:
            return None
        actions = actions[: found[0]]
        again = first_difference(*self._brokers, next(self._names), actions)
        return None if again is None else self._shortened(actions[: again[0]], again[1])

    def _shortened(self, actions: list[Action], lines: list[str]) -> tuple[list[Action], list[str]]:
        """Omits portions of the sequence, then single actions, while it still leads to a difference of its last."""
        end_s = time.monotonic() + _SHORTEN_S
        size = max(len(actions) // 2, 1)
        while size:
            start = 0
            while start < len(actions) - 1 and time.monotonic() < end_s:
                fewer = [*actions[:start], *actions[min(start + size, len(actions) - 1) :]]
                found = first_difference(*self._brokers, next(self._names), fewer)
                if found is not None and found[0] == len(fewer) and _kinds(found[1]) == _kinds(lines):
                    actions, lines = fewer, found[1]
                else:
                    start += size
            size //= 2
        return actions, lines


def _kinds(lines: list[str]) -> list[str]:
    """The fields that differ, without their values."""
    return [line.partition(": embedded ")[0] for line in lines]


def compare(embedded: str, kafka: str, seed: int, requests: int) -> list[str]:
    """Returns the lines of a report: empty if all responses to `requests` requests are equal."""
    comparison = Comparison(embedded, kafka, seed)
    seeds = random.Random(seed)
    records_ms = int(time.time() * 1000) - 3_600_000
    while comparison.sent < requests:
        own_seed = seeds.randrange(10**6)
        generated = RandomRequests(own_seed, records_ms)
        length = min(_LENGTH, requests - comparison.sent)
        found = comparison.run([generated.next() for _ in range(length)])
        if found is not None:
            actions, lines = found
            steps = [f"  {each.text}" for each in actions]
            return [f"seed {seed}, sequence of seed {own_seed}:", *steps, "differs in:", *lines]
    return []


def _exchanged(side: ComparedSide, action: Action) -> tuple[Json, Any]:
    end_s = time.monotonic() + _AGREE_S
    while True:
        result = side.exchange(action.request(side))
        if time.monotonic() > end_s or not _RETRIED & set(_codes(result[0])):
            return result
        time.sleep(0.02)


def _codes(value: Json) -> list[int]:
    if isinstance(value, dict):
        own = [inner for name, inner in value.items() if name.endswith("error_code") and isinstance(inner, int)]
        return own + [code for inner in value.values() for code in _codes(inner)]
    return [code for inner in value for code in _codes(inner)] if isinstance(value, list) else []


def _has_coordinators(side: ComparedSide, kind: int, names: Sequence[str]) -> bool:
    request = groups.find(*(side.broker.name(name) for name in names), kind=kind)(side.broker)
    if any(each.error_code for each in side.broker.exchange(request, 4).coordinators):
        return False
    if kind == 0:
        listed = groups.fetch_offsets(*((name, None) for name in names))(side.broker)
        return not any(each.error_code for each in side.broker.exchange(listed, 8).groups)
    return all(state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND for state in _transactions(side))


def _has_leaders(side: ComparedSide) -> bool:
    topics = side.broker.exchange(admin.metadata(*TOPICS)(side.broker), 9).topics
    if any(partition.error_code for topic in topics for partition in topic.partitions):
        return False
    # a Kafka that has the metadata of a new partition may not lead it yet
    short_names = {side.broker.name(short): short for short in TOPICS}
    parts = [(short_names[topic.name], number, -1) for topic in topics for number in range(len(topic.partitions))]
    offsets = side.broker.exchange(data.list_offsets(*parts)(side.broker), 7).topics
    return not any(partition.error_code for topic in offsets for partition in topic.partitions)


def _transactions(side: ComparedSide) -> Sequence[Any]:
    names = [side.broker.name(name) for name in TRANSACTIONAL_IDS]
    request = messages.DescribeTransactionsRequest(transactional_ids=names)
    states: Sequence[Any] = side.broker.exchange(request, 0).transaction_states
    return states


def _is_ending(side: ComparedSide) -> bool:
    return any(state.transaction_state.startswith("Prepare") for state in _transactions(side))
