"""Findings over rebalances: what repeats, and the setting to change."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.model import bounded_names
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Rebalance

_DEFAULT_SESSION_MS = 45_000
_MANY_MEMBERS = 5
_COOPERATIVE_STICKY = "cooperative-sticky"
_SMALLER_BATCHES = "read less per batch (maxOffsetsPerTrigger; other consumers: max.poll.records)"


class MemberFacts(NamedTuple):
    """A member of the last generation with members; timeouts are None if they are not known."""

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    partitions: int = 0


class GroupFacts(NamedTuple):
    """What is known of a group beside its rebalances.

    Attributes:
        protocol: name of the assignor; None if it is not known, and for a group without generations.
        members: of the last generation with members.
        has_epochs: the group uses the consumer, share or streams protocol, whose rebalances are epochs.
        known: all members of the history by member id.
    """

    group: str
    protocol: str | None = None
    members: tuple[MemberFacts, ...] = ()
    known: Mapping[str, MemberFacts] = {}
    has_epochs: bool = False

    def name_of(self, member_id: str | None) -> str | None:
        """Returns the group instance id or client id of a member, its member id if it is not known."""
        known = self.known.get(member_id or "")
        return member_id if known is None else known.group_instance_id or known.client_id


class Finding(NamedTuple):
    """One observation over several rebalances.

    Attributes:
        rule: name of the rule.
        settings: names of the settings to change, the first one first.
        advice: what to do, one sentence.
    """

    rule: str
    text: str
    settings: tuple[str, ...]
    advice: str


def findings(rebalances: Sequence[Rebalance], facts: GroupFacts) -> list[Finding]:
    """Applies every rule to rebalances in the order of time; a rule has at most one finding."""
    found = []
    for name, rule in _RULES.items():
        result = rule(rebalances, facts)
        if result is not None:
            text, settings, advice = result
            found.append(Finding(name, text, settings, advice))
    return found


_Result = tuple[str, tuple[str, ...], str] | None


# -- members that come and go --------------------------------------------------------------------------------


def _poll_exceeded(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    found = _of(rebalances, Cause.POLL_EXCEEDED)
    if not found:
        return None
    # other consumers announce the interval as their rebalance timeout; queries of this package announce more
    others = [r for r in found if r.actor is None or r.actor.application is None]
    value = _timeout_text("max.poll.interval.ms=", others, facts, "rebalance_timeout_ms") or "max.poll.interval.ms"
    text = f"{_clients(found)} did not poll within {value}, {_times(len(found))}: a batch takes longer than that."
    advice = f"Increase max.poll.interval.ms, or {_SMALLER_BATCHES}."
    return text, ("max.poll.interval.ms", "maxOffsetsPerTrigger", "max.poll.records"), advice


def _session_expired(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    found = _of(rebalances, Cause.SESSION_EXPIRED)
    if not found:
        return None
    value = _timeout_text("session.timeout.ms=", found, facts, "session_timeout_ms") or "session.timeout.ms"
    text = f"{_clients(found)} sent no heartbeat within {value}, {_times(len(found))}."
    timeouts = [m.session_timeout_ms for m in _facts_of(found, facts) if m.session_timeout_ms is not None]
    if not _has_returned(rebalances):
        advice = "The process ended without leaving the group; look for its end (out of memory, kill -9, lost host)."
    elif timeouts and min(timeouts) < _DEFAULT_SESSION_MS:
        advice = f"Increase session.timeout.ms (Kafka's default is {_DEFAULT_SESSION_MS}): the process came back after "
        advice += "a pause that was longer, of its machine or of a garbage collection."
    else:
        advice = "Look for long pauses of the process (suspended machine, garbage collection) or a lost network."
    return text, ("session.timeout.ms",), advice


def _join_timed_out(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    found = _of(rebalances, Cause.JOIN_TIMED_OUT)
    if not found:
        return None
    value = _timeout_text(" of ", found, facts, "rebalance_timeout_ms", " ms")
    text = f"{_clients(found)} did not join within the rebalance timeout{value}, {_times(len(found))}; "
    text += "all other members waited for it."
    advice = "Decrease max.poll.interval.ms, which decides the rebalance timeout (of a query of groupsource, 12 times "
    advice += f"the interval or more), or {_SMALLER_BATCHES}."
    return text, ("maxOffsetsPerTrigger", "max.poll.records", "max.poll.interval.ms"), advice


def _flapping(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    joins = Counter(_client(r.actor) for r in _of(rebalances, Cause.JOINED))
    ends = Counter(_client(r.actor) for r in rebalances if r.cause in _ENDS)
    flapping = {client: joins[client] for client in joins if client and min(joins[client], ends[client]) >= 2}
    if not flapping or len(_restarted(rebalances)) > 2 * len(flapping):
        return None
    client, count = max(flapping.items(), key=lambda item: item[1])
    text = f"Client {client} joined {_times(count)} and left {_times(ends[client])} in {len(rebalances)} rebalances."
    advice = (
        "Its log has the reason; group.instance.id with a longer session.timeout.ms avoids the rebalances."
    )
    return text, ("group.instance.id", "session.timeout.ms"), advice


def _rolling_restart(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    restarted = _restarted(rebalances)
    if len(restarted) < 2:
        return None
    names = bounded_names(sorted(restarted))
    text = f"{len(restarted)} dynamic members were restarted one after the other ({names}): two rebalances each."
    advice = "Give each member a group.instance.id (static membership) and a session.timeout.ms longer than a restart."
    return text, ("group.instance.id", "session.timeout.ms"), advice


def _shared_instance_id(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    counts = Counter(r.actor.group_instance_id for r in _of(rebalances, Cause.STATIC_REPLACED) if r.actor)
    if not counts or max(counts.values()) < 3:
        return None
    ((name, count),) = counts.most_common(1)
    text = f"Static member {name} was replaced {_times(count)}: two processes may have the same group.instance.id."
    return text, ("group.instance.id",), "Give each process its own group.instance.id."


# -- members that hold the others up, or change what the group reads ----------------------------------------


def _always_last(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    slowest = [facts.name_of(r.slowest_member) for r in rebalances if r.slowest_member and r.members > 1]
    if len(slowest) < 3:
        return None
    ((name, count),) = Counter(slowest).most_common(1)
    if count < 3 or count < len(slowest) * 0.8:
        return None
    joins = [r.phases.join_ms for r in rebalances if facts.name_of(r.slowest_member) == name and r.phases.join_ms]
    longest = f", up to {max(joins) / 1_000:,.1f} s after the start" if joins else ""
    text = f"Member {name} was the last to join in {count} of {len(slowest)} rebalances{longest}."
    advice = f"Its batches are the longest: {_SMALLER_BATCHES}."
    return text, ("maxOffsetsPerTrigger", "max.poll.records"), advice


def _changing_subscription(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    found = _of(rebalances, Cause.SUBSCRIPTION_CHANGED)
    if len(found) < 2:
        return None
    text = f"{_clients(found)} changed the subscribed topics, {_times(len(found))}."
    advice = "Subscribe to the same topics in every member, or to a pattern once (subscribePattern)."
    return text, ("subscribe", "subscribePattern"), advice


def _rejoining_leader(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    found = _of(rebalances, Cause.LEADER_REJOINED)
    if len(found) < 3:
        return None
    text = f"The leader joined again without a change, {_times(len(found))}."
    advice = (
        "Its application enforces rebalances (enforceRebalance), or its metadata alternate; see its log."
    )
    return text, (), advice


def _moved_coordinators(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    found = _of(rebalances, Cause.COORDINATOR_MOVED)
    if not found:
        return None
    text = f"The coordinator of the group moved to another broker or restarted, {_times(len(found))}."
    return text, (), "Look at the logs of the brokers; the consumers are not the reason."


# -- the present state --------------------------------------------------------------------------------------


def _idle_members(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    idle = [m for m in facts.members if not m.partitions]
    total = sum(m.partitions for m in facts.members)
    if not idle or not total:
        return None
    text = f"{len(idle)} of {len(facts.members)} members have no partitions: the topics have {total}."
    advice = "Run fewer members (option members), or add partitions; idle members take part in every rebalance, too."
    return text, ("members",), advice


def _eager_moves(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    if facts.protocol in (None, _COOPERATIVE_STICKY):
        return None
    # a member that both gains and loses partitions exchanges them with others that remain
    exchanged = [(r, sum(min(m.gained, m.lost) for m in r.moves.values())) for r in rebalances]
    count = sum(number for _, number in exchanged)
    stops = [r for r in rebalances if r.members >= _MANY_MEMBERS and r.unowned_seconds]
    if count:
        affected = sum(1 for _, number in exchanged if number)
        partitions = f"{count:,} partition{'' if count == 1 else 's'}"
        text = f"Assignor {facts.protocol} exchanged {partitions} between members that remained, in {affected} of "
        text += f"{len(rebalances)} rebalances, and every member stopped reading."
    elif len(stops) > 1:
        seconds = sum(r.unowned_seconds or 0 for r in stops)
        text = f"Assignor {facts.protocol} is eager: every member stopped reading in {len(stops)} rebalances of up to "
        text += f"{max(r.members for r in stops)} members, {seconds:,.1f} partition-seconds in all."
    else:
        return None
    advice = "Set partition.assignment.strategy to cooperative-sticky in every member: only what must move stops."
    return text, ("partition.assignment.strategy",), advice


def _duplicate_client_ids(rebalances: Sequence[Rebalance], facts: GroupFacts) -> _Result:
    counts = Counter(m.client_id for m in facts.members if m.group_instance_id is None)
    duplicates = {client: count for client, count in counts.items() if count > 1}
    if not duplicates:
        return None
    client, count = max(duplicates.items(), key=lambda item: item[1])
    text = f"{count} members have the client id {client!r}: causes and logs cannot name the member."
    return text, ("client.id",), "Give each member its own client.id."


_RULES: Mapping[str, Callable[[Sequence[Rebalance], GroupFacts], _Result]] = {
    "poll_exceeded": _poll_exceeded,
    "session_expired": _session_expired,
    "join_timed_out": _join_timed_out,
    "flapping": _flapping,
    "rolling_restart": _rolling_restart,
    "shared_instance_id": _shared_instance_id,
    "always_last": _always_last,
    "changing_subscription": _changing_subscription,
    "rejoining_leader": _rejoining_leader,
    "coordinator_moved": _moved_coordinators,
    "idle_members": _idle_members,
    "eager_moves": _eager_moves,
    "duplicate_client_ids": _duplicate_client_ids,
}
_ENDS = (Cause.LEFT, Cause.SESSION_EXPIRED, Cause.POLL_EXCEEDED, Cause.REMOVED_BY_OPERATOR)


def _of(rebalances: Iterable[Rebalance], cause: Cause) -> list[Rebalance]:
    return [r for r in rebalances if r.cause is cause]


def _has_returned(rebalances: Iterable[Rebalance]) -> bool:
    """Returns whether a client joined again after its session had expired."""
    expired = set()
    for rebalance in rebalances:
        client = _client(rebalance.actor)
        if rebalance.cause is Cause.SESSION_EXPIRED:
            expired.add(client)
        elif rebalance.cause is Cause.JOINED and client in expired:
            return True
    return False


def _restarted(rebalances: Iterable[Rebalance]) -> set[str]:
    """Returns the dynamic clients that left, or expired, and joined again with no other rebalance of them between."""
    ended, restarted = set(), set()
    for rebalance in rebalances:
        client = _client(rebalance.actor)
        if client is None or (rebalance.actor and rebalance.actor.group_instance_id):
            continue
        if rebalance.cause in (Cause.LEFT, Cause.REMOVED_BY_OPERATOR):
            ended.add(client)
        elif rebalance.cause is Cause.JOINED and client in ended:
            restarted.add(client)
    return restarted


def _client(actor: Actor | None) -> str | None:
    return None if actor is None else actor.group_instance_id or actor.client_id


def _clients(found: Iterable[Rebalance]) -> str:
    names = sorted({_client(r.actor) or "unknown" for r in found})
    return ("Client " if len(names) == 1 else "Clients ") + bounded_names(names)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _facts_of(found: Iterable[Rebalance], facts: GroupFacts) -> list[MemberFacts]:
    ids = (r.actor.member_id for r in found if r.actor and r.actor.member_id)
    return [facts.known[member_id] for member_id in ids if member_id in facts.known]


def _timeout_text(start: str, found: Iterable[Rebalance], facts: GroupFacts, field: str, end: str = "") -> str:
    """Returns the timeout that the members have in common, between two texts; "" if it is not known."""
    values = {value for m in _facts_of(found, facts) if (value := getattr(m, field)) is not None}
    return f"{start}{values.pop()}{end}" if len(values) == 1 else ""
