"""Text view of a group: state, members, lag, rebalances."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import NamedTuple, Sequence

from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.log_text import escaped, shortened
from spark_groupsource.monitor.offsets.cluster_reads import group_lag
from spark_groupsource.monitor.offsets.lag import LagRow
from spark_groupsource.monitor.rebalances.group_watch import BoundedReads, GroupWatch, WatchUpdate, failure_text

LAG_POINTS = 120
COLUMNS = ("topic", "partition", "current offset", "log end offset", "lag", "member")
_SHOWN_PARTITIONS, _SHOWN_REBALANCES = 20, 5
# partitions that a small terminal shows at least
_MIN_ROWS = 3
_MAX_LINES = 16


class View(NamedTuple):
    """What the live view shows.

    Attributes:
        rows: cells of the partitions with the largest lag.
        omitted: number of further partitions.
        lags: sums of the lag, the last one now.
        rebalances: the last ones in words.
        read_at: time of the last read that succeeded, if it is not `at`.
        problem: the error of the last read.
    """

    group: str
    state: str
    members: int
    at: str
    lags: Sequence[int]
    rows: Sequence[tuple[str, ...]]
    omitted: int
    rebalances: Sequence[str]
    problem: str = ""
    read_at: str = ""

    @property
    def condition(self) -> str:
        """State, members, lag, and the error of the last read."""
        lag = f", lag {self.lags[-1]:,}" if self.lags else ""
        text = f"{self.state}, {self.members} member{'' if self.members == 1 else 's'}{lag}"
        return f"{text}. {self.problem}" if self.problem else text

    @property
    def summary(self) -> str:
        """One line: time and condition."""
        return f"{self.at}  {self.condition}"


class GroupReader:
    """Reads the view of a group; an error after the first read is part of the view."""

    def __init__(self, settings: ClientSettings, group: str) -> None:
        # its own connections: the view is read by a thread
        self._client = ClusterClient(settings.bootstrap, settings)
        self._name = group
        self._rebalances: list[str] = []
        self._follower = GroupWatch(self._client, group)
        self._reads = BoundedReads(self._client)
        self._lags: deque[int] = deque(maxlen=LAG_POINTS)
        self._last: View | None = None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def read(self) -> View:
        """Returns the view now."""
        at = f"{datetime.now():%H:%M:%S}"
        try:
            description, rows, update = self._reads.read(self._read)
        except GroupSourceError as error:
            if self._last is None:
                raise
            read_at = self._last.at
            # the calls have waited meanwhile
            at = f"{datetime.now():%H:%M:%S}"
            return self._last._replace(at=at, problem=failure_text(error, read_at), read_at=read_at)
        if update.completed:
            explained = repr(update.history.explain(_SHOWN_REBALANCES)).splitlines()
            self._rebalances = [escaped(line) for line in explained[:_MAX_LINES]]
        shown = ([escaped(update.progress)] if update.progress else []) + self._rebalances
        self._lags.append(sum(row.lag or 0 for row in rows))
        largest = sorted(rows, key=lambda row: (-(row.lag or 0), row.topic_partition))[:_SHOWN_PARTITIONS]
        self._last = View(
            escaped(shortened(self._name, 60)), description.state, len(description.members), at, tuple(self._lags),
            [_cells(row) for row in largest], len(rows) - len(largest), shown,
        )  # fmt: skip
        return self._last

    def _read(self) -> tuple[GroupDescription, list[LagRow], WatchUpdate]:
        description = describe_groups(self._client, [self._name])[self._name]
        rows = group_lag(self._client, [description])[self._name]
        return description, rows, self._follower.update()


def _cells(row: LagRow) -> tuple[str, ...]:
    member = row.member
    committed = None if row.committed is None else row.committed.offset
    numbers = ("-" if number is None else f"{number:,}" for number in (committed, row.log_end_offset, row.lag))
    name = "-" if member is None else escaped(shortened(member.group_instance_id or member.client_id, 40))
    return (escaped(row.topic_partition.topic), str(row.topic_partition.partition), *numbers, name)


def text(view: View) -> str:
    """Returns the view as text."""
    lines = [COLUMNS, *view.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    rows = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([f"{view.group}  {view.summary}", sparkline(view.lags), *rows, *lines_below(view)])


def lines_below(view: View) -> list[str]:
    """Returns the lines below the table: omitted partitions, rebalances."""
    more = [f"and {view.omitted:,} more partitions"] if view.omitted else []
    return [*more, *(["", *view.rebalances] if view.rebalances else [])]


def fitted(view: View, width: int, height: int) -> View:
    """Returns the view with the partitions and rebalances that a terminal has lines for."""
    # state, lag, header of the table, omitted partitions, empty line, cursor
    left = height - 5 - _lines_of(view.summary, width)
    texts: list[str] = []
    for line in view.rebalances:
        if sum(_lines_of(each, width) for each in [*texts, line]) > max(left - min(len(view.rows), _MIN_ROWS), 0):
            break
        texts.append(line)
    rows = view.rows[: max(left - sum(_lines_of(each, width) for each in texts), 0)]
    return view._replace(rows=rows, rebalances=texts, omitted=view.omitted + len(view.rows) - len(rows))


def _lines_of(line: str, width: int) -> int:
    return max(-(-len(line) // max(width, 1)), 1)


def sparkline(values: Sequence[int]) -> str:
    """Returns the course of the lag in block characters."""
    highest = max(values, default=0)
    return "".join("▁▂▃▄▅▆▇█"[max(value, 0) * 7 // highest if highest > 0 else 0] for value in values)
