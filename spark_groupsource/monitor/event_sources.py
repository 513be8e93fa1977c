"""Reads events of groups: topic of the embedded broker, metadata of commits, file of option rebalanceLog."""

from __future__ import annotations

from pathlib import Path

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.wire.group_events import GroupEvent


def group_events(cluster: Cluster, groups: NameSelection | None = None) -> dict[str, list[GroupEvent]]:
    """Returns the events of the selected groups that the embedded coordinator has recorded, in order.

    Empty on other brokers, which do not record them.

    Raises: BrokerError, NetworkError.
    """
    return {}


def application_events(cluster: Cluster, groups: NameSelection | None = None) -> dict[str, list[GroupEvent]]:
    """Returns what applications of this package reported of the selected groups in the metadata of their commits.

    On any Kafka, as far back as `__consumer_offsets` is not compacted.

    Raises: BrokerError, NetworkError.
    """
    return {}


def file_events(path: str | Path) -> list[GroupEvent]:
    """Returns the events of a file of option rebalanceLog, in order.

    Raises: OSError; CorruptRecordError for a line that is not of this format.
    """
    return []
