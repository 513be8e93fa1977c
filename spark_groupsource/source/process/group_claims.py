"""Rejects readers of one application with the same group and topic.

Spark starts a reader process for each query and each ``load()`` in it, and for each side of a self-join whose columns
have the same names. Two of them in one group split the records of a topic, where Spark's Kafka source gives all records
to each. Each reader therefore keeps a locked file with its group and topics in the directory of its application; its
read tasks add the name of the query, which Spark does not pass to readers.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping

from spark_groupsource.common.clock import Clock, SystemClock, format_timestamp_ms
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import bounded_names, topic_matches
from spark_groupsource.source.process.file_locks import SharedLock, lock_exclusive, lock_shared, try_lock_exclusive

# a stopped query releases its group a moment after query.stop() returns
_RELEASE_WAIT_MS = 5_000
_POLL_MS = 100
_NEW_CLAIM, _CLAIM, _QUERY, _FIRST_RECORD = "new_claim.", "claim.", "query.", "first_record."
_NAME_LENGTH = 100

# query file -> the batch that it names
_recorded: dict[str, str | None] = {}
_first_records: dict[str, int] = {}


@dataclass(frozen=True)
class GroupClaim:
    """The group and the topics of one reader; `topics` are those that exist at its start."""

    group_id: str
    cluster_id: str
    topics: tuple[str, ...]
    pattern: str | None
    is_split_allowed: bool
    reader_pid: int
    started_ms: int

    def shared_topics(self, other: GroupClaim) -> list[str]:
        """Returns the topics that a group would split between both, sorted; none if both allow it."""
        if (self.group_id, self.cluster_id) != (other.group_id, other.cluster_id):
            return []
        if self.is_split_allowed and other.is_split_allowed:
            return []
        topics = {topic for topic in self.topics if topic in other.topics or _matches(other.pattern, topic)}
        return sorted(topics | {topic for topic in other.topics if _matches(self.pattern, topic)})


class ClaimedGroup:
    """A claim without a conflict, until it is released.

    Attributes:
        query_file: path to which a read task writes the name of the query.
    """

    def __init__(self, path: Path, locks: list[SharedLock]) -> None:
        self._path, self._locks = path, locks
        self.query_file = str(_query_file(path))

    def release(self) -> None:
        """Permits another reader to claim the group; further calls do nothing."""
        for path in (self._path, Path(self.query_file), _first_record_file(self.query_file)):
            path.unlink(missing_ok=True)
        for lock in self._locks:
            lock.release()


def claim_group(directory: Path, claim: GroupClaim, clock: Clock | None = None) -> ClaimedGroup:
    """Claims a group and its topics; waits a few seconds for a reader that is being stopped.

    Raises: ConfigurationError that names the other query; OSError if the directory cannot be written.
    """
    clock = clock or SystemClock()
    deadline_ms = clock.now_ms() + _RELEASE_WAIT_MS
    while True:
        with lock_exclusive(directory / "claims"):
            shared = [(path, other) for path, other in _claims(directory) if claim.shared_topics(other)]
            if not shared:
                return _write(directory, claim)
            if clock.now_ms() >= deadline_ms:
                raise _conflict(claim, *shared[0])
        clock.sleep_ms(_POLL_MS)


def record_query(query_file: str) -> None:
    """Writes the query and the batch of the running task, once per batch; does nothing on other machines."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    is_recorded = query_file in _recorded and _recorded[query_file] == batch
    if context is None or is_recorded or not os.path.isdir(os.path.dirname(query_file)):
        return
    _recorded[query_file] = batch
    description = context.getLocalProperty("spark.job.description") or ""
    query: dict[str, Any] = {
        # the description of a batch is the name, the ids and the number of the batch, separated by line breaks
        "name": description.partition("id = ")[0].replace("<br/>", "").strip()[:_NAME_LENGTH],
        "id": context.getLocalProperty("sql.streaming.queryId"),
        "batch": None if batch is None else int(batch),
    }
    _replace(Path(query_file), query)


def record_first_record(query_file: str, generation_id: int, at_ms: int) -> None:
    """Records the time of the first record that a task of this process received in a generation, in epoch milliseconds.

    It has a file of its own: tasks of other processes write that of the query.
    """
    if _first_records.get(query_file, -1) >= generation_id or not os.path.isdir(os.path.dirname(query_file)):
        return
    _first_records[query_file] = generation_id
    path = _first_record_file(query_file)
    known = _content(path).get("first_record")
    if not known or known[0] < generation_id:
        _replace(path, {"first_record": [generation_id, at_ms]})


def recorded_query(query_file: str) -> Mapping[str, Any]:
    """Returns what the tasks of one reader recorded; empty if nothing."""
    return {**_content(Path(query_file)), **_content(_first_record_file(query_file))}


def recorded_queries(directory: Path) -> dict[int, Mapping[str, Any]]:
    """Returns the query and batch recorded by the tasks of each running reader, keyed by its process id."""
    found: dict[int, Mapping[str, Any]] = {}
    for path, claim in _claims(directory):
        query = _content(_query_file(path))
        if query:
            found[claim.reader_pid] = query
    return found


def _matches(pattern: str | None, topic: str) -> bool:
    return pattern is not None and topic_matches(pattern, topic)


def _query_file(path: Path) -> Path:
    return path.with_name(_QUERY + path.name.removeprefix(_CLAIM))


def _first_record_file(query_file: str) -> Path:
    path = Path(query_file)
    return path.with_name(_FIRST_RECORD + path.name.removeprefix(_QUERY))


def _content(path: Path) -> Mapping[str, Any]:
    """Returns what is recorded in a file; empty if nothing."""
    try:
        content: Mapping[str, Any] = json.loads(path.read_text())
    except OSError:
        return {}
    return content


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces the content of a file atomically: other processes read it at any time."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content))
        os.replace(temporary, path)
    except OSError:
        # the reader has ended, and its directory is removed
        temporary.unlink(missing_ok=True)


def _claims(directory: Path) -> Iterator[tuple[Path, GroupClaim]]:
    """Yields the claims of running readers and removes those of others."""
    for path in directory.glob(f"{_CLAIM}*"):
        with try_lock_exclusive(path) as is_stale:
            if is_stale:
                path.unlink()
                query_file = _query_file(path)
                query_file.unlink(missing_ok=True)
                _first_record_file(str(query_file)).unlink(missing_ok=True)
                continue
        try:
            fields = json.loads(path.read_text())
        except FileNotFoundError:
            # released meanwhile
            continue
        yield path, GroupClaim(**{**fields, "topics": tuple(fields["topics"])})


def _write(directory: Path, claim: GroupClaim) -> ClaimedGroup:
    descriptor, name = tempfile.mkstemp(prefix=_NEW_CLAIM, dir=directory)
    with open(descriptor, "w") as file:
        json.dump(asdict(claim), file)
    locks = [lock_shared(Path(name)), lock_shared(directory)]
    # a claim is complete and locked as soon as others see it, or they would remove it
    path = directory / f"{_CLAIM}{Path(name).name.removeprefix(_NEW_CLAIM)}"
    os.rename(name, path)
    return ClaimedGroup(path, locks)


def _conflict(claim: GroupClaim, path: Path, other: GroupClaim) -> ConfigurationError:
    return ConfigurationError(
        f"Joining group '{claim.group_id}' failed: {_describe(path, other)} reads "
        f"{bounded_names(claim.shared_topics(other))} in the group, and each record would be delivered to one of the "
        "two only. Give each query and each load() its own kafka.group.id (in a self-join, one load() for each side), "
        "or set option splitBetweenQueries to true in both."
    )


def _describe(path: Path, other: GroupClaim) -> str:
    started = format_timestamp_ms(other.started_ms)
    query = _content(_query_file(path))
    if not query:
        # it has read nothing yet
        return (
            "another query, load() or side of a self-join of this application "
            f"(reader process {other.reader_pid}, started {started})"
        )
    name = f"query {query['name']!r}" if query["name"] else "another query"
    return f"{name} of this application (id {query['id']}, started {started})"
