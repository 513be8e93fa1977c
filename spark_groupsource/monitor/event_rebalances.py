"""Rebalances of a group, from its events."""

from __future__ import annotations

from typing import Iterable, Iterator

from spark_groupsource.monitor.rebalance import Rebalance
from spark_groupsource.wire.group_events import GroupEvent


def rebalances_from_events(events: Iterable[GroupEvent]) -> Iterator[Rebalance]:
    """Yields the rebalances of one group by generation, fields SEEN unless the docstring of a field says otherwise.

    `events` are those of the embedded coordinator (`group_events`), of applications (`application_events`, a file), or
    both together in any order: what the applications report is added to the rebalance of its generation. A generation
    that only applications report has the fields that they know. A rebalance is complete when every member has received
    its assignment.
    """
    yield from ()
