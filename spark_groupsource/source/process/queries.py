"""Rows of table queries, requested from the readers of this application."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence, TypeVar

from spark_groupsource.errors import NetworkError
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.offsets.lag import assignment_text
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.monitor.tables.table_rows import Row
from spark_groupsource.source.control_client import ControlClient
from spark_groupsource.source.positions.offset_json import GROUP_KEY
from spark_groupsource.source.process.control_socket import (
    all_control_sockets,
    control_directory,
    control_sockets,
    pid_of,
    reader_of,
)
from spark_groupsource.source.process.group_claims import recorded_queries
from spark_groupsource.wire.group_events import GroupEvent

_log = logging.getLogger(__name__)

_Reply = TypeVar("_Reply")

_DRAIN_MS = 500
_MAX_THREADS = 32


def query_rows(driver: int, group: NameSelection | None, readers: Collection[int] | None = None) -> list[Row]:
    """Returns one row for each running reader of the application, of the selected groups and process ids.

    Raises: ConfigurationError as `control_directory`.
    """
    rows = [_row(each) for each in reader_statuses(driver) if readers is None or each["reader_pid"] in readers]
    return sorted(
        (row for row in rows if group is None or (row["group"] is not None and group.matches(row["group"]))),
        key=lambda row: (row["group"] or "", row["reader_pid"]),
    )


def reader_statuses(driver: int) -> list[dict[str, Any]]:
    """Returns the state of each running reader of the application, with the query that it has read for.

    Raises: ConfigurationError as `control_directory`.
    """
    return _statuses(control_sockets(driver))


def all_reader_statuses() -> list[dict[str, Any]]:
    """Returns the states of the readers of every application of this user with this ``TMPDIR``, as `reader_statuses`.

    Raises: ConfigurationError as `control_directory`.
    """
    return _statuses(all_control_sockets())


def _statuses(paths: Sequence[Path], with_events: bool = False) -> list[dict[str, Any]]:
    if not paths:
        return []

    def ask(path: Path) -> Mapping[str, Any] | None:
        return _request(path, lambda reader: reader.status(with_events))

    with ThreadPoolExecutor(min(len(paths), _MAX_THREADS), "groupsource queries") as pool:
        statuses = list(pool.map(ask, paths))
    # the names of the queries are beside the sockets
    recorded = {directory: recorded_queries(directory) for directory in {path.parent for path in paths}}
    return [
        {**status, **_query(recorded[path.parent].get(status["reader_pid"], {}))}
        for path, status in zip(paths, statuses)
        if status is not None
    ]


def query_statuses(driver: int, query_id: str, with_events: bool) -> list[dict[str, Any]]:
    """Returns the state of each reader of one query, asked once; empty before the query's first batch has ended.

    Args:
        with_events: adds the events of its members as field `events`.
    Raises: ConfigurationError as `control_directory`; CorruptRecordError.
    """
    recorded = recorded_queries(control_directory(driver))
    paths = [path for path in control_sockets(driver) if recorded.get(pid_of(path), {}).get("id") == query_id]
    return _statuses(paths, with_events)


def drain_readers(driver: int, names: Sequence[str], ends: Sequence[Mapping[str, Any]]) -> set[int]:
    """Requests a drain from the readers of a query, and waits a short time; returns their process ids.

    Args:
        names: the query's name or id, or names of its readers: where tasks run on other machines, the id is unknown.
        ends: end offsets of its last batch, if that is checkpointed; see `StreamSession.request_drain`.
    Raises: ConfigurationError as `control_directory`.
    """
    proofs = {str(end.get(GROUP_KEY, {}).get("reader", "")): end for end in ends}
    recorded = recorded_queries(control_directory(driver))
    found = set()
    for path in control_sockets(driver):
        reader, pid = reader_of(path), pid_of(path)
        query = recorded.get(pid, {})
        if {query.get("name"), query.get("id")} & {*names} or any(name.startswith(reader) for name in names):
            found.add(pid)
            _drain(path, next((end for name, end in proofs.items() if name.startswith(reader)), None))
    return found


def _drain(path: Path, proof: Mapping[str, Any] | None) -> None:
    reader = ControlClient.connect(path)
    if reader is None:
        return
    # without a reply the batch is still running, or the reader has ended
    with reader, suppress(NetworkError):
        reader.request_drain(proof)
        reader.await_drained(_DRAIN_MS)


def query_events(driver: int, query: str) -> list[GroupEvent]:
    """Returns the events of the members of one query of the application, oldest first; by its name, id or group.

    Raises: ConfigurationError as `control_directory`; CorruptRecordError.
    """
    found: list[GroupEvent] = []
    for status in _statuses(control_sockets(driver), with_events=True):
        if query in (status["query"], status["query_id"], status["group"]):
            found += status["events"]
    return sorted(found, key=lambda event: event.at_ms)


def _query(recorded: Mapping[str, Any]) -> dict[str, Any]:
    return {"query": recorded.get("name"), "query_id": recorded.get("id"), "last_batch": recorded.get("batch")}


def _row(status: Mapping[str, Any]) -> Row:
    partitions = [TopicPartition(*each) for each in status.get("partitions", ())]
    generation = status.get("generation", -1)
    return {
        "query": status["query"] or None,
        "query_id": status["query_id"],
        "group": status["group"],
        "state": status["state"],
        "generation": generation if generation >= 0 else None,
        "partitions": len(partitions),
        "assignment": assignment_text(partitions),
        "last_batch": status["last_batch"],
        "transactional_id": status.get("transactional_id"),
        "published_batch": status.get("published_batch"),
        "metrics": json.dumps(status["metrics"]) if status.get("metrics") else None,
        "last_offsets": json.dumps(status["end"]) if status.get("end") else None,
        "reader_pid": status["reader_pid"],
    }


def _request(path: Path, request: Callable[[ControlClient], _Reply]) -> _Reply | None:
    """Returns the reply of one reader; None for the socket of an ended one."""
    reader = ControlClient.connect(path)
    if reader is None:
        return None
    with reader:
        try:
            return request(reader)
        except NetworkError as error:
            _log.warning("[socket=%s] No reply from the reader: %s", path, error)
            return None
