"""Reads timelines from a cluster, a query or a file."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.arguments import shown
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.monitor.offsets.lag_history import CommitHistory, lag_events
from spark_groupsource.monitor.rebalances.event_sources import file_events, group_events
from spark_groupsource.monitor.rebalances.group_history import GroupLog, GroupLogReader
from spark_groupsource.monitor.rebalances.history_events import history_events
from spark_groupsource.monitor.rebalances.rebalance_sources import rebalances_of_group
from spark_groupsource.monitor.rebalances.timeline import timeline
from spark_groupsource.monitor.rebalances.timeline_values import Timeline
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.notebook.cluster import Cluster, Group, connect
from spark_groupsource.wire.group_events import EventKind, GroupEvent

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


def group_timeline(group: Group, samples: Sequence[GroupEvent] = ()) -> Timeline:
    """Reads the timeline of a group: events of the embedded coordinator, else the history in `__consumer_offsets`.

    What applications of this package report is added. Without samples of the lag, it is that of `lag_history`.

    Args:
        samples: of the lag, of queries of this driver.
    Raises: GroupSourceError for a group that does not exist; BrokerError, NetworkError.
    """
    client, selection = group._cluster._client, NameSelection((group.name,))
    log = GroupLogReader(client, selection, keeps_commits=True).read().get(group.name) or GroupLog()
    coordinator = group_events(client, selection).get(group.name, [])
    if not (log.records or log.reports or coordinator or samples):
        group.check_exists()
    return log_timeline(client, group.name, log, coordinator, samples)


def log_timeline(
    client: ClusterClient,
    group: str,
    log: GroupLog,
    coordinator: Sequence[GroupEvent],
    samples: Sequence[GroupEvent] = (),
) -> Timeline:
    """Returns the timeline of a group whose log, with its commits, and coordinator's events have been read now.

    Raises: NetworkError.
    """
    found = rebalances_of_group(group, log, coordinator)
    history = coordinator or list(history_events(group, log.records, log.reports))
    events = [*history, *log.reports, *samples]
    # a member stays in the record until it has left
    last = log.records[-1].value if log.records else None
    until_ms = client.clock.timestamp_ms() if last is not None and last.members else None
    lag = _inferred_lag(client, group, log.commits, events, until_ms)
    return timeline(group, [*events, *lag], found, until_ms)


def _inferred_lag(
    client: ClusterClient, group: str, commits: CommitHistory, events: Sequence[GroupEvent], until_ms: int | None
) -> list[GroupEvent]:
    """Returns samples of the lag over the time of the events and commits; none if the events have samples.

    Args:
        until_ms: the end, if it is later.
    """
    if not events or any(event.kind is EventKind.LAG_SAMPLED for event in events):
        return []
    times = [event.at_ms for event in events]
    try:
        return list(lag_events(client, group, commits, min(times), max(*times, commits.last_ms or 0, until_ms or 0)))
    except BrokerError as error:
        # the picture of the rebalances needs no permission for the topics
        _log.warning("[group=%s] The lag in the past is unknown: %s", group, error)
        return []


def file_timelines(path: Path) -> dict[str, Timeline]:
    """Reads the timeline of each group of a file of group events. Raises: OSError, CorruptRecordError."""
    by_group: dict[str, list[GroupEvent]] = {}
    for event in file_events(path):
        by_group.setdefault(event.group, []).append(event)
    return {name: timeline(name, events) for name, events in by_group.items()}


def lag_samples(group: Group) -> list[GroupEvent]:
    """Returns the samples of the lag that the queries of this driver in a group keep. Raises: ConfigurationError."""
    from spark_groupsource.source.process.drain import driver_jvm_pid
    from spark_groupsource.source.process.queries import query_events

    events = query_events(driver_jvm_pid(), group.name)
    return [event for event in events if event.kind is EventKind.LAG_SAMPLED and event.group == group.name]


@contextmanager
def query_group(query: StreamingQuery, cluster: Cluster | None = None) -> Iterator[Group]:
    """Connects to the group of a running query of this driver.

    Args:
        cluster: None to connect without security settings.
    Raises: ConfigurationError for another object, and for a query that has not read yet.
    """
    from spark_groupsource.source.process.drain import driver_jvm_pid
    from spark_groupsource.source.process.queries import reader_statuses

    query_id = getattr(query, "id", None)
    # hasattr would read every report
    if query_id is None or "recentProgress" not in dir(query):
        raise ConfigurationError(
            "Argument source must be a streaming query or a group, the result of connect(...).group(name), got "
            f"{shown(query)}."
        )
    if not isinstance(cluster, (Cluster, type(None))):
        raise ConfigurationError(f"Argument cluster must be the result of connect or None, got {shown(cluster)}.")
    statuses = [status for status in reader_statuses(driver_jvm_pid()) if status.get("query_id") == str(query_id)]
    if not statuses or not statuses[0]["group"]:
        raise ConfigurationError(
            f"Query {query.name or query_id} has no group yet: it has read nothing with groupsource. Wait for its "
            "first batch, or pass connect(...).group(...)."
        )
    status: dict[str, Any] = statuses[0]
    if cluster is not None:
        yield cluster.group(status["group"])
        return
    with connect(status["bootstrap_servers"]) as opened:
        yield opened.group(status["group"])
