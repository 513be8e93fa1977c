"""Metadata of commits: author, ids of topic and cluster, report of rebalances.

The topic id shows whether the offset is one of the present topic: a topic may be deleted and created again, and neither
brokers before Kafka 4.1 nor transactional commits identify topics by their ids. The cluster id shows whether it is one
of this cluster: MirrorMaker copies the metadata of the commits that it translates (MirrorCheckpointTask).

The mark of a transaction shows that the offset is where the output of a query ends, also to a later run that does not
write in transactions.

The first commit of a query after a rebalance carries what its members know of it, so that any client that reads
`__consumer_offsets` knows it, too. The report is about 500 bytes; offset.metadata.max.bytes is 4,096 by default.
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterable, Sequence

from spark_groupsource.log_text import escaped
from spark_groupsource.wire.group_events import Cause, EventKind, GroupEvent

MAX_REPORT_CHARS = 700
_MAX_MEMBERS = 4
_MAX_TEXT = 60
_MAX_METADATA = 8_192
_MAX_GENERATION = 2**31 - 1
_YEAR_3000_MS = 32_503_680_000_000
_PREFIX = "groupsource "
_TOPIC_ID = re.compile(_PREFIX + r'\S* \{"i":"([0-9a-f-]{36})"(?:,"c":"([^"]*)")?[,}]')
_IN_TRANSACTION = re.compile(_PREFIX + r'\S* \{(?:"[ic]":"[^"]*",)*"x":1[,}]')
_CODES = {
    EventKind.REBALANCE_STARTED: "s",
    EventKind.MEMBER_LEFT: "l",
    EventKind.FIRST_RECORD: "f",
    EventKind.REPEATED: "r",
    EventKind.LAG: "g",
    EventKind.BATCH_WAIT_STARTED: "n",
    EventKind.BATCH_WAIT_ENDED: "e",
    EventKind.MEMBER_SYNCING: "y",
    EventKind.MEMBER_JOINING: "j",
    EventKind.JOIN_COMPLETED: "c",
    EventKind.ASSIGNED: "a",
}
"""In the order in which events are kept when the report would be too long."""
_KINDS = {code: kind for kind, code in _CODES.items()}
_EARLIER = frozenset({EventKind.MEMBER_LEFT, EventKind.REPEATED})
"""Events of the generation before the rebalance that they belong to."""
_ANY = _EARLIER | {EventKind.REBALANCE_STARTED}
"""Events that are reported of earlier generations, too."""
_ORDER = {kind: number for number, kind in enumerate(_CODES)}


def author_metadata(reader: str) -> str:
    """Returns what the metadata of every commit of one query starts with; see `is_author`."""
    return f"{_PREFIX}{reader}"


def commit_metadata(
    reader: str, topic_id: str = "", report: str = "", cluster_id: str = "", *, is_in_transaction: bool = False
) -> str:
    """Returns the metadata of a commit.

    Args:
        topic_id: the id as text, empty for a broker without topic ids.
        cluster_id: the id of the cluster of the topic, empty if it is unknown.
        is_in_transaction: whether the offset is committed with the output of a query.
    """
    ids: dict[str, Any] = {"i": topic_id} | ({"c": cluster_id} if cluster_id else {}) if topic_id else {}
    if is_in_transaction:
        ids["x"] = 1
    fields = _dump(ids) if ids else ""
    if fields and report:
        fields = f"{fields[:-1]},{report[1:]}"
    return f"{author_metadata(reader)} {fields or report}".rstrip()


def committed_topic_id(metadata: str, cluster_id: str = "") -> str:
    """Returns the id of the topic that a commit with this metadata is of, "" if the metadata does not have it.

    Args:
        cluster_id: the id of the cluster with the commit: one that was copied from another cluster has no id here.
    """
    found = _TOPIC_ID.match(metadata)
    is_copied = found is not None and found[2] and cluster_id and found[2] != cluster_id
    return found[1] if found and not is_copied else ""


def is_in_transaction(metadata: str) -> bool:
    """Returns whether the metadata are of an offset that was committed with the output of a query."""
    return _IN_TRANSACTION.match(metadata) is not None


def is_author(metadata: str, author: str) -> bool:
    """Returns whether `author` wrote a commit with this metadata, whatever follows its name."""
    return metadata == author or metadata.startswith(f"{author} {{")


def encode_report(events: Sequence[GroupEvent], application: str, query: str | None) -> str:
    """Returns the report of events of one query, "" without events.

    Of several generations the last one is reported, with the members that left, or started, earlier ones.
    """
    generation = max((e.generation for e in events if e.generation is not None), default=None)
    chosen = [e for e in events if e.kind in _CODES and (e.generation == generation or e.kind in _ANY)]
    if generation is None or not chosen:
        return ""
    members = list(dict.fromkeys(e.member_id for e in chosen if e.member_id is not None))[:_MAX_MEMBERS]
    clients = {e.member_id: e.client_id for e in chosen if e.member_id in members}
    begin_ms = min(event.at_ms for event in chosen)
    form: dict[str, Any] = {"g": generation, "a": application[:_MAX_TEXT], "t": begin_ms}
    if query:
        form["q"] = query[:_MAX_TEXT]
    form["m"] = [_member_form(member, clients.get(member)) for member in members]
    entries: list[list[Any]] = []
    left = MAX_REPORT_CHARS - len(_dump(form))
    for event in sorted(chosen, key=lambda each: _ORDER[each.kind]):
        if event.member_id is None or event.member_id in members:
            number = -1 if event.member_id is None else members.index(event.member_id)
            entry = [_CODES[event.kind], event.at_ms - begin_ms, number, *_extra(event, generation)]
            left -= len(_dump(entry)) + 1
            if left < 0:
                break
            entries.append(entry)
    return _dump({**form, "e": entries})


def decode_report(group: str, metadata: str) -> list[GroupEvent]:
    """Returns the events of a report in the metadata of a commit, none if it has no report that can be decoded.

    Any client can write such metadata: texts are escaped, numbers are bounded.
    """
    start = metadata.find(" {")
    if not metadata.startswith(_PREFIX) or start < 0 or len(metadata) > _MAX_METADATA:
        return []
    try:
        form = json.loads(metadata[start:])
        members = [(each, None) if isinstance(each, str) else (each[0], each[1]) for each in form["m"]]
        return sorted(_events(group, form, members), key=lambda event: event.at_ms)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return []


def _events(group: str, form: Any, members: Sequence[tuple[str, str | None]]) -> Iterable[GroupEvent]:
    for code, delay_ms, number, *extra in form["e"]:
        if code not in _KINDS:
            continue
        kind = _KINDS[code]
        member_id, client_id = members[number] if number >= 0 else (None, None)
        detail: dict[str, Any] = {}
        is_earlier = kind in _EARLIER or (kind is EventKind.REBALANCE_STARTED and len(extra) > 2)
        generation = _number(form["g"], _MAX_GENERATION) - (_number(extra[-1], 1_000) if is_earlier else 0)
        if kind in (EventKind.REBALANCE_STARTED, EventKind.MEMBER_LEFT):
            detail = {"cause": Cause(extra[0]).value} | ({"reason": escaped(str(extra[1]))} if extra[1] else {})
        elif kind is EventKind.MEMBER_SYNCING and extra:
            detail = {"assignment_ms": _number(extra[0])}
        elif kind is EventKind.JOIN_COMPLETED and extra:
            detail = {"size": _number(extra[0])}
        elif kind is EventKind.REPEATED:
            detail = {"records": _number(extra[0])}
        elif kind is EventKind.LAG:
            detail = {"lag": _number(extra[0])}
        yield GroupEvent(
            _number(form["t"], _YEAR_3000_MS) + _number(delay_ms, _YEAR_3000_MS),
            group,
            kind,
            generation,
            None if member_id is None else escaped(str(member_id)),
            _text(_client_id(member_id, client_id)),
            application=escaped(str(form["a"])),
            query=_text(form.get("q")),
            detail=detail,
        )


def _extra(event: GroupEvent, generation: int) -> list[Any]:
    detail = event.detail
    is_earlier = event.kind in _EARLIER or (event.kind in _ANY and event.generation != generation)
    behind = [generation - (event.generation or 0)] if is_earlier else []
    if event.kind in (EventKind.REBALANCE_STARTED, EventKind.MEMBER_LEFT):
        reason = str(detail.get("reason") or "")[:_MAX_TEXT]
        return [detail.get("cause"), reason, *behind]
    if event.kind is EventKind.MEMBER_SYNCING and "assignment_ms" in detail:
        return [detail["assignment_ms"]]
    if event.kind is EventKind.JOIN_COMPLETED and detail.get("members"):
        return [len(detail["members"])]
    if event.kind is EventKind.REPEATED:
        return [detail.get("records", 0), *behind]
    return [detail.get("lag", 0)] if event.kind is EventKind.LAG else []


def _member_form(member_id: str, client_id: str | None) -> str | list[str]:
    is_derived = client_id is None or _client_id(member_id, None) == client_id
    return member_id[:300] if is_derived else [member_id[:300], (client_id or "")[:_MAX_TEXT]]


def _client_id(member_id: str | None, client_id: str | None) -> str | None:
    """The coordinator appends a dash and a UUID of 36 characters to the client id of a dynamic member."""
    if client_id is not None or member_id is None:
        return client_id
    return member_id[:-37] if member_id[-37:-36] == "-" else None


def _number(value: Any, limit: int = 2**53) -> int:
    """Raises: ValueError for another value than an integer from 0 to `limit`."""
    if not isinstance(value, int) or not 0 <= value <= limit:
        raise ValueError(value)
    return value


def _text(value: Any) -> str | None:
    return None if value is None else escaped(str(value))


def _dump(form: Any) -> str:
    return json.dumps(form, separators=(",", ":"))
