"""Explanation of rebalances in sentences, as text, HTML and JSON."""

from __future__ import annotations

import html
from datetime import datetime, timezone
from typing import Any, Mapping, NamedTuple, Sequence

from spark_groupsource.log_text import escaped
from spark_groupsource.monitor.rebalances.findings import Finding, GroupFacts, MemberFacts
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Origin, Rebalance
from spark_groupsource.wire.member_reasons import REJOIN_WITH_MEMBER_ID

_LEFT = ' style="text-align:left;padding:2px 8px"'
_TIME = ' style="text-align:left;padding:2px 8px;white-space:nowrap"'


class Explanation:
    """Why a group rebalanced: sentences about each rebalance and findings over all of them.

    Attributes:
        rebalances: the explained ones, the oldest first.
        findings: what repeats, and the setting to change.
    """

    def __init__(self, facts: GroupFacts, rebalances: Sequence[Rebalance], findings: Sequence[Finding]) -> None:
        self.group = facts.group
        self.rebalances = tuple(rebalances)
        self.findings = tuple(findings)
        self._facts = facts

    def sentences(self, rebalance: Rebalance) -> list[str]:
        """Returns two or three sentences about one of the rebalances."""
        return explain(rebalance, self._facts)

    def json(self) -> dict[str, Any]:
        """Returns a form of JSON types."""
        rebalances = [
            {
                "generation": r.generation,
                "cause": r.cause.value,
                "client_id": r.actor.client_id if r.actor else None,
                "completed_at": _time(r.completed_ms),
                "text": " ".join(self.sentences(r)),
            }
            for r in self.rebalances
        ]
        return {"group": self.group, "rebalances": rebalances, "findings": [f._asdict() for f in self.findings]}

    def __repr__(self) -> str:
        if not self.rebalances:
            return f"Group {escaped(self.group)}: no rebalance is recorded."
        lines = []
        for rebalance in self.rebalances:
            first, *rest = self.sentences(rebalance)
            lines += [f"{_time(rebalance.completed_ms)}  {first}", *(f"    {text}" for text in rest)]
        if self.findings:
            lines += ["", "Findings:"]
            lines += [f"  - {finding.text} {finding.advice}" for finding in self.findings]
        return "\n".join(map(escaped, lines))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td{_TIME}>{_time(r.completed_ms)}</td><td{_LEFT}>{r.generation}</td>"
            f"<td{_LEFT}>{r.cause.value}</td><td{_LEFT}>{html.escape(escaped(' '.join(self.sentences(r))))}</td></tr>"
            for r in self.rebalances
        )
        found = "".join(
            f"<li>{html.escape(escaped(f.text))} <b>{html.escape(escaped(f.advice))}</b></li>" for f in self.findings
        )
        names = "".join(f"<th{_LEFT}>{name}</th>" for name in ("completed_at", "generation", "cause", "explanation"))
        caption = f"<caption>Rebalances of group {html.escape(escaped(self.group))}</caption>"
        return f"<table>{caption}<thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table><ul>{found}</ul>"


def explain(rebalance: Rebalance, facts: GroupFacts) -> list[str]:
    """Returns two or three sentences: cause, duration and effect, and the setting of the cause."""
    unit = _EPOCH if facts.has_epochs else "Generation"
    texts = [_cause_sentence(rebalance, unit), _effect_sentence(rebalance, facts)]
    setting = _setting_sentence(rebalance, facts)
    return [text for text in [*texts, setting] if text]


class _Words(NamedTuple):
    """Sentence of a cause; `{actor}` is the member. `setting` follows where it is not empty."""

    text: str
    setting: str = ""


_EPOCH = "Epoch"
_GONE = _Words("{actor} left, or its session expired")
_WORDS: Mapping[Cause, _Words] = {
    Cause.JOINED: _Words("{actor} joined"),
    Cause.LEFT: _Words("{actor} left"),
    Cause.SESSION_EXPIRED: _Words(
        "{actor} sent no heartbeat within its session timeout and was removed",
        "Setting: session.timeout.ms{session}; or find out what stopped the process.",
    ),
    Cause.POLL_EXCEEDED: _Words(
        "{actor} took longer than max.poll.interval.ms for a batch and left",
        "Setting: max.poll.interval.ms{poll}, or smaller batches (maxOffsetsPerTrigger; max.poll.records).",
    ),
    Cause.JOIN_TIMED_OUT: _Words(
        "{actor} did not join in time and was removed, after the others had waited for the rebalance timeout",
        "Setting: max.poll.interval.ms, which decides the rebalance timeout{rebalance}, or smaller batches "
        "(maxOffsetsPerTrigger; max.poll.records).",
    ),
    Cause.SUBSCRIPTION_CHANGED: _Words("{actor} subscribed to other topics"),
    Cause.PARTITIONS_CHANGED: _Words("the partitions of the subscribed topics changed"),
    Cause.LEADER_REJOINED: _Words("the leader {actor} joined again without a change"),
    Cause.ASSIGNOR_CHANGED: _Words(
        "the assignor changed when {actor} joined", "Setting: partition.assignment.strategy."
    ),
    Cause.COORDINATOR_MOVED: _Words("the coordinator of the group moved or restarted"),
    Cause.COOPERATIVE_SECOND_ROUND: _Words(
        "second rebalance of a cooperative hand-over: the partitions that {actor} revoked were assigned"
    ),
    Cause.STATIC_REPLACED: _Words("static member {actor} returned with a new member id"),
    Cause.REMOVED_BY_OPERATOR: _Words("{actor} was removed by an operator"),
    Cause.UNKNOWN: _Words("the cause is not known"),
}


def _cause_sentence(rebalance: Rebalance, unit: str) -> str:
    # the records of groups with epochs show that a member is gone, not why
    is_gone = unit == _EPOCH and rebalance.cause is Cause.LEFT
    words = _GONE if is_gone else _WORDS[rebalance.cause]
    text = words.text.format(actor=_actor(rebalance.actor))
    if rebalance.cause is Cause.PARTITIONS_CHANGED and rebalance.actor is not None:
        text += f", which the leader {_actor(rebalance.actor)} noticed"
    # every new dynamic member sends this reason
    if rebalance.reason and not rebalance.reason.startswith(REJOIN_WITH_MEMBER_ID):
        text += f" ({rebalance.reason.rstrip('.')})"
    elif rebalance.cause is Cause.UNKNOWN and rebalance.difference:
        text += f" ({rebalance.difference.rstrip('.')})"
    mark = " [inferred]" if rebalance.origins.get("cause") is Origin.INFERRED else ""
    return f"{unit} {rebalance.generation}: {text}{mark}."


def _effect_sentence(rebalance: Rebalance, facts: GroupFacts) -> str:
    parts = []
    phases = rebalance.phases
    known = [(n, v) for n, v in (("join", phases.join_ms), ("sync", phases.sync_ms)) if v is not None]
    if rebalance.started_ms is not None:
        detail = f" ({', '.join(f'{name} {_seconds(value)}' for name, value in known)})" if known else ""
        parts.append(f"took {_seconds(rebalance.completed_ms - rebalance.started_ms)}{detail}")
    else:
        parts += [f"{name} took {_seconds(value)}" for name, value in known]
    if phases.batch_ms:
        parts.append(f"waited {_seconds(phases.batch_ms)} for a batch in flight")
    if rebalance.slowest_member and rebalance.members > 1:
        parts.append(f"last to join was {facts.name_of(rebalance.slowest_member)}")
    if rebalance.partitions_moved:
        parts.append(f"{_count(rebalance.partitions_moved, 'partition')} moved")
    if rebalance.partitions_unassigned:
        parts.append(f"{_count(rebalance.partitions_unassigned, 'partition')} lost their owner")
    if rebalance.unowned_seconds is not None and rebalance.unowned_seconds >= 0.05:
        parts.append(f"{rebalance.unowned_seconds:,.1f} partition-seconds without an owner")
    if rebalance.repeated_records:
        parts.append(f"{_count(rebalance.repeated_records, 'record')} read again")
    parts.append(_count(rebalance.members, "member") if rebalance.members else "the group is empty")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _setting_sentence(rebalance: Rebalance, facts: GroupFacts) -> str:
    member = facts.known.get(rebalance.actor.member_id or "") if rebalance.actor else None
    timeout = _value(member, "rebalance_timeout_ms")
    # other consumers announce the interval as their rebalance timeout; queries of this package announce more
    poll = timeout if rebalance.actor is None or rebalance.actor.application is None else ""
    session = _value(member, "session_timeout_ms")
    return _WORDS[rebalance.cause].setting.format(session=session, poll=poll, rebalance=timeout)


def _value(member: MemberFacts | None, field: str) -> str:
    value = None if member is None else getattr(member, field)
    return "" if value is None else f" (now {value})"


def _actor(actor: Actor | None) -> str:
    if actor is None:
        return "a member"
    name = actor.group_instance_id or actor.client_id or actor.member_id or "a member"
    details = [actor.host or "", f"query {actor.query}" if actor.query else ""]
    if actor.application:
        details.append(f"application {actor.application}")
    detail = ", ".join(text for text in details if text)
    return f"{name} ({detail})" if detail else name


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < 1_000 else f"{duration_ms / 1_000:,.1f} s"


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
