"""Random sequences of requests."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.random_requests.actions import Action
from support.random_requests.groups import GroupRequests
from support.random_requests.records import RecordRequests
from support.random_requests.topics import TopicRequests
from support.random_requests.transactions import TransactionRequests

_FOCUS = 8


class RandomRequests:
    """Yields actions. Equal seeds yield equal actions. `records_ms`: timestamp of the records."""

    def __init__(self, seed: int, records_ms: int) -> None:
        self._random = random.Random(seed)
        fields = [RecordRequests, GroupRequests, TransactionRequests]
        # many requests of one field reach states that as many of all fields do not
        focus = self._random.choice([*fields, None])
        self._kinds: list[Callable[[], Action]] = []
        for field in (TopicRequests, *fields):
            for kind, weight in field(self._random, records_ms).kinds():
                self._kinds += [kind] * (weight * (_FOCUS if field is focus else 1))

    def next(self) -> Action:
        """The next action."""
        kind = self._random.choice(self._kinds)
        return kind()
