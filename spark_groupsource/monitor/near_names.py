"""Errors about topics and groups that do not exist, with near names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterable, Iterator

from spark_groupsource.client.admin import list_groups, list_topics
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.arguments import close_names
from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns ``Did you mean 'a' or 'b'?`` with the near names; empty if there are none."""
    *others, last = map(repr, close_names(name, known) or [""])
    if last == "''":
        return ""
    return f"Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


@contextmanager
def suggests_topics(cluster: ClusterClient, names: Iterable[str]) -> Iterator[None]:
    """Adds near names to an error about one of some topics that does not exist. Raises: BrokerError."""
    try:
        yield
    except BrokerError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        near = near_topic(cluster, list(names))
        parts = ("The topic does not exist.", near, "Create it, or correct the name (groupsource topics list).")
        raise BrokerError(error.code, error.operation, " ".join(filter(None, parts))) from error


def near_topic(cluster: ClusterClient, names: list[str]) -> str:
    """Returns a `suggestion` for the first of some topics that does not exist; empty where topics cannot be listed."""
    try:
        errors = cluster.metadata(names).errors
        known = list_topics(cluster, internal=True)
    except GroupSourceError:
        # the user need not be allowed to list topics
        return ""
    missing = [name for name in names if errors.get(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    return suggestion(missing[0], known) if missing else ""


def near_groups(cluster: ClusterClient, group: str) -> str:
    """Returns a `suggestion` for a group that does not exist; empty where the groups cannot be listed."""
    try:
        return suggestion(group, (listed.group_id for listed in list_groups(cluster)))
    except GroupSourceError:
        return ""


def missing_group_text(cluster: ClusterClient, group: str) -> str:
    """Returns that a consumer group does not exist, with near names."""
    found = (f"Consumer group {group!r} does not exist.", near_groups(cluster, group), "Run: groupsource groups list.")
    return " ".join(filter(None, found))
