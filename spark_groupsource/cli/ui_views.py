"""What the page of ``groupsource ui`` shows, as JSON types."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from spark_groupsource.cli.common import one_line
from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.near_names import missing_group_text
from spark_groupsource.monitor.offsets.cluster_reads import group_lag
from spark_groupsource.monitor.offsets.lag import LagRow, assignment_text, member_row
from spark_groupsource.monitor.rebalances.group_watch import BoundedReads, GroupWatch, condition_of, failure_text
from spark_groupsource.monitor.tables.table_rows import TableQuery, existing_groups, read_rows
from spark_groupsource.notebook.cluster import Cluster
from spark_groupsource.notebook.group_reads import log_timeline
from spark_groupsource.notebook.timeline_chart import TimelineChart
from spark_groupsource.source.process.queries import all_reader_statuses

View = dict[str, Any]
"""Fields of a view; `problem` is the error of the last read, and the other fields are then those of the one before."""

# views of several browsers share a read
_SHARED_MS = 1_000
# the lag of the picture is looked up at many times
_PICTURE_MS = 15_000
_MAX_GROUPS = 16
_SHOWN_REBALANCES = 20
_PARTITION_COLUMNS = frozenset({"log_start_offset", "log_end_offset", "size"})


class ClusterViews:
    """Reads the views of one cluster, one at a time; what is not older than a second is not read again.

    While the cluster does not respond, a view is the last one, with the error and its time. The first read of a view
    may fail, too: then it has the error alone. The next read after the outage succeeds.
    """

    def __init__(self, client: ClusterClient, address: str) -> None:
        self.address = address
        self._client = client
        self._cluster = Cluster(client, address)
        self._reads = BoundedReads(client)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, View]] = OrderedDict()
        self._groups: dict[str, _GroupView] = {}

    def overview(self) -> View:
        """Returns groups, topics and the queries of this machine."""
        return self._read("", self._overview)

    def group(self, name: str) -> View:
        """Returns one group: partitions with owners and lag, members, rebalances with their causes, picture."""

        def read() -> View:
            if name not in self._groups:
                self._groups[name] = _GroupView(self._client, name)
            return self._groups[name].read()

        return self._read(name, read)

    def reset(self, group: str, to: str, topic: str | None, execute: bool) -> View:
        """Returns the plan of a reset, and executes it if asked to.

        Raises: GroupSourceError for a group with members or without existence, and for an impossible reset;
            ConfigurationError for an invalid target; BrokerError, NetworkError.
        """
        with self._lock:
            state = describe_groups(self._client, [group])[group].state
            if state == "Dead":
                raise GroupSourceError(missing_group_text(self._client, group))
            if state != "Empty":
                raise GroupSourceError(
                    f"The offsets of group {group!r} cannot be reset: it is {state}, and its members would overwrite "
                    "them. Stop its applications first."
                )
            plan = self._cluster.group(group).reset(to, topic)
            if execute:
                plan.execute()
            self._kept.pop(group, None)
        return {
            "executed": plan.is_executed,
            "warnings": list(plan.warnings),
            "rows": [{**row._asdict(), "lag": row.lag} for row in plan.rows],
        }

    def _read(self, name: str, read: Callable[[], View]) -> View:
        with self._lock:
            started_ms = self._client.clock.now_ms()
            kept = self._kept.get(name)
            if kept is not None and started_ms - kept[0] < _SHARED_MS and not kept[1]["problem"]:
                return kept[1]
            at = f"{datetime.now():%H:%M:%S}"
            try:
                view = {**self._reads.read(read), "address": self.address, "at": at, "problem": ""}
            except GroupSourceError as error:
                if kept is None:
                    # any text may be requested as a name
                    self._groups.pop(name, None)
                    return {"address": self.address, "at": at, "problem": f"{condition_of(error)}: {one_line(error)}"}
                return {**kept[1], "problem": failure_text(error, kept[1]["at"])}
            view["read_ms"] = self._client.clock.now_ms() - started_ms
            self._kept[name] = self._client.clock.now_ms(), view
            self._kept.move_to_end(name)
            while len(self._kept) > _MAX_GROUPS:
                oldest, _ = self._kept.popitem(last=False)
                self._groups.pop(oldest, None)
            return view

    def _overview(self) -> View:
        described = existing_groups(self._client, None)
        lags = group_lag(self._client, list(described.values()))
        groups = [
            {
                "group": name,
                "state": group.state,
                "members": len(group.members),
                "partitions": len(lags[name]),
                "lag": _sum(lags[name]),
                "topics": sorted({row.topic_partition.topic for row in lags[name]}),
                "assignor": group.protocol,
                "coordinator": f"{group.coordinator.host}:{group.coordinator.port}",
            }
            for name, group in described.items()
        ]
        return {"groups": groups, "topics": self._topics(), "queries": _queries()}

    def _topics(self) -> list[View]:
        topics: dict[str, View] = {}
        for row in read_rows(self._client, TableQuery("partitions", _PARTITION_COLUMNS)):
            empty = {"topic": row["topic"], "partitions": 0, "records": 0, "size": 0, "under_replicated": 0}
            topic = topics.setdefault(row["topic"], empty)
            topic["partitions"] += 1
            topic["under_replicated"] += len(row["isr"]) < len(row["replicas"])
            start, end = row["log_start_offset"], row["log_end_offset"]
            # one unknown partition makes the sum unknown
            known = None if start is None or end is None else end - start
            topic["records"] = None if topic["records"] is None or known is None else topic["records"] + known
            topic["size"] = None if topic["size"] is None or row["size"] is None else topic["size"] + row["size"]
        return list(topics.values())


class _GroupView:
    """Reads what is new of one group."""

    def __init__(self, client: ClusterClient, name: str) -> None:
        self._client = client
        self._name = name
        self._watch = GroupWatch(client, name, keeps_commits=True)
        self._picture = ""
        self._drawn_ms: int | None = None
        self._progress = ""

    def read(self) -> View:
        """Raises: GroupSourceError for a group that neither exists nor has a history; BrokerError, NetworkError."""
        update = self._watch.update()
        group, history = update.description, update.history
        if group.state == "Dead" and not history.rebalances:
            raise GroupSourceError(missing_group_text(self._client, self._name))
        rows = group_lag(self._client, [group])[self._name]
        now_ms = self._client.clock.now_ms()
        if update.completed or self._drawn_ms is None or now_ms - self._drawn_ms >= _PICTURE_MS:
            self._picture, self._drawn_ms = self._drawn() if history.rebalances else "", now_ms
        # the text is reported once
        self._progress = update.progress or (self._progress if "Rebalance" in group.state else "")
        return {
            "group": self._name,
            "state": group.state,
            "lag": _sum(rows),
            "assignor": group.protocol,
            "coordinator": f"{group.coordinator.host}:{group.coordinator.port}",
            "partitions": [_partition(row) for row in sorted(rows, key=lambda row: row.topic_partition)],
            "members": [member_row(self._name, member) for member in group.members],
            "progress": self._progress,
            "why": history.explain(_SHOWN_REBALANCES).json(),
            "picture": self._picture,
        }

    def _drawn(self) -> str:
        found = log_timeline(self._client, self._name, self._watch.log, self._watch.coordinator_events())
        return TimelineChart(found).svg("notebook")


def _partition(row: LagRow) -> View:
    member = row.member
    return {
        "topic": row.topic_partition.topic,
        "partition": row.topic_partition.partition,
        "current_offset": None if row.committed is None else row.committed.offset,
        "log_end_offset": row.log_end_offset,
        "lag": row.lag,
        "owner": None if member is None else member.group_instance_id or member.client_id,
        "host": None if member is None else member.client_host,
    }


def _sum(rows: list[LagRow]) -> int | None:
    """Returns the sum of the known lags; None if none is known."""
    known = [row.lag for row in rows if row.lag is not None]
    return sum(known) if known else None


def _queries() -> list[View]:
    """Returns the streaming queries of this user on this machine."""
    names = ("query", "group", "state", "generation", "last_batch", "transactional_id", "reader_pid")
    return [
        {**{name: status.get(name) for name in names}, "assignment": _assignment(status)}
        for status in all_reader_statuses()
    ]


def _assignment(status: Mapping[str, Any]) -> str:
    return assignment_text(TopicPartition(*each) for each in status.get("partitions", ()))
