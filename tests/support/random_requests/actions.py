"""One request to two brokers, and what requests are made of.

An action is the same for both brokers; it builds its request for one of them (`ComparedSide`), whose responses it reads
afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from support.compared_sides import ComparedSide, Request

from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.wire.api_keys import ApiKey

TOPICS = ("t0", "t1", "t2")
GROUPS = ("g0", "g1")
MEMBERS = ("m0", "m1", "m2")
PRODUCERS = ("p0", "p1")
TRANSACTIONAL_IDS = ("x0", "x1")


class Action(NamedTuple):
    """One request.

    Attributes: `text`, names it in a report; `member`, the connection on which it may wait, None if it has a response
    at once; `is_repeatable`, whether it changes nothing, so that it can be sent again until the brokers agree;
    `is_alike`, False where the brokers differ on purpose afterwards, or Kafka's behavior depends on chance.
    """

    text: str
    api: ApiKey
    version: int
    build: Callable[[ComparedSide], Any]
    read: Callable[[ComparedSide, Any], None] = lambda side, response: None
    member: str | None = None
    is_repeatable: bool = False
    is_alike: Callable[[ComparedSide], bool] = lambda side: True

    def request(self, side: ComparedSide) -> Request:
        """The request for one of the brokers."""
        side.broker.version = self.version
        return Request(self.build(side), self.version)


Weighted = list[tuple[Callable[[], Action], int]]
"""Kinds of requests, each with its frequency."""


class Choices:
    """Random parts of requests. `records_ms`: timestamp of the records."""

    def __init__(self, randomness: random.Random, records_ms: int) -> None:
        self.random = randomness
        self.records_ms = records_ms

    def kinds(self) -> Weighted:
        """The kinds of requests of one field."""
        raise NotImplementedError

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return self.random.choice(values)

    def mostly(self, usual: Any, *others: Any) -> Any:
        """The usual value, or one of the others in one of twelve cases."""
        return usual if self.random.random() < 0.92 else self.pick(*others)

    def topic(self) -> str:
        """A topic that mostly exists."""
        return str(self.mostly(self.pick("t0", "t0", "t1"), *TOPICS, "gone"))

    def partition(self) -> int:
        """A partition that mostly exists."""
        return int(self.mostly(self.pick(0, 0, 1), 2, -1))

    def action(
        self, api: ApiKey, text: str, build: Any, *others: Any, since: int = 0, until: int = 99, **more: Any
    ) -> Action:
        """An action in any version that is served."""
        served = SERVED[api]
        version = self.random.randint(max(served.min_version, since), min(served.max_version, until))
        return Action(f"{api.name} v{version} {text}", api, version, build, *others, **more)

    def change(self, api: ApiKey, text: str, build: Any, *others: Any, **more: Any) -> Action:
        """A request without ids that a broker has assigned."""
        return self.action(api, text, lambda side: build(side.broker), *others, **more)

    def repeatable(self, api: ApiKey, text: str, build: Any, **more: Any) -> Action:
        """A request that changes nothing."""
        return self.change(api, text, build, is_repeatable=True, **more)
