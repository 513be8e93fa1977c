"""Merge of rebalances: each field from its most exact source."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Origin, Phases, Rebalance

# causes that the history distinguishes no better than a member that took part
_KINDS = (
    frozenset({Cause.LEFT, Cause.SESSION_EXPIRED, Cause.POLL_EXCEEDED, Cause.REMOVED_BY_OPERATOR}),
    frozenset({Cause.PARTITIONS_CHANGED, Cause.LEADER_REJOINED, Cause.COORDINATOR_MOVED}),
)
# cause of the coordinator -> more exact cause that only the history shows
_REFINED = {Cause.LEFT: Cause.POLL_EXCEEDED, Cause.STATIC_REPLACED: Cause.ASSIGNOR_CHANGED}
# effects that a source computes together; an application knows those of its own members only
_EFFECT = ("moves", "partitions_moved", "partitions_unassigned", "members")


def merge_rebalances(
    exact: Iterable[Rebalance], inferred: Iterable[Rebalance], is_coordinator: bool = True
) -> list[Rebalance]:
    """Returns the rebalances of both sources by time; those of the same generation become one.

    A generation number occurs again after its group was deleted, so the nearest in time is chosen.

    Args:
        is_coordinator: whether the coordinator has recorded `exact`; members know their part of the group only.
    """
    left: dict[int, list[Rebalance]] = {}
    for rebalance in inferred:
        left.setdefault(rebalance.generation, []).append(rebalance)
    merged = []
    for rebalance in exact:
        candidates = left.get(rebalance.generation, [])
        if candidates:
            nearest = min(candidates, key=lambda other: abs(other.completed_ms - rebalance.completed_ms))
            candidates.remove(nearest)
            merged.append(merge_rebalance(rebalance, nearest, is_coordinator))
        else:
            merged.append(rebalance)
    return sorted([*merged, *(r for rest in left.values() for r in rest)], key=lambda r: (r.completed_ms, r.generation))


def merge_rebalance(exact: Rebalance, other: Rebalance, is_coordinator: bool = True) -> Rebalance:
    """Returns one rebalance: what `exact` does not have is that of `other`, with its origins."""
    values: dict[str, Any] = exact._asdict()
    origins = dict(exact.origins)
    cause_of = exact if _is_cause_known(exact, other, is_coordinator) else other
    values["cause"] = cause_of.cause
    if cause_of is other or (exact.actor is None and exact.cause is other.cause):
        values["actor"] = other.actor
        _take_origins(origins, other, ["actor"])
    _take_origins(origins, cause_of, ["cause"])
    values["actor"] = _known_actor(values["actor"], other.actor if cause_of is exact else exact.actor)
    values["difference"] = exact.difference or other.difference
    if not _has_effect(exact):
        values |= {name: getattr(other, name) for name in _EFFECT}
        _take_origins(origins, other, _EFFECT)
    for name in ("reason", "started_ms", "slowest_member", "unowned_seconds", "repeated_records", "lag_added"):
        if values[name] is None and getattr(other, name) is not None:
            values[name] = getattr(other, name)
            _take_origins(origins, other, [name])
    values["phases"] = _phases(exact, other, origins)
    if not is_coordinator:
        _take_times(values, other, origins)
    return Rebalance(**values | {"origins": origins})


def _is_cause_known(exact: Rebalance, other: Rebalance, is_coordinator: bool) -> bool:
    """Returns whether the cause of `exact` is taken, and not that of the history."""
    if exact.cause is Cause.UNKNOWN:
        return False
    if other.cause is Cause.UNKNOWN or exact.cause is other.cause:
        return True
    if not is_coordinator:
        return any({exact.cause, other.cause} <= kind for kind in _KINDS)
    # a client that sends no reason leaves alike when it is closed and when its poll interval has elapsed
    return _REFINED.get(exact.cause) is not other.cause or (exact.cause is Cause.LEFT and exact.reason is not None)


def _has_effect(rebalance: Rebalance) -> bool:
    return "partitions_moved" in rebalance.origins


def _phases(exact: Rebalance, other: Rebalance, origins: dict[str, Origin]) -> Phases:
    found = exact.phases._asdict()
    for name, value in other.phases._asdict().items():
        if found[name] is None and value is not None:
            found[name] = value
            _take_origins(origins, other, [name])
    return Phases(**found)


def _take_times(values: dict[str, Any], record: Rebalance, origins: dict[str, Origin]) -> None:
    """Takes the times that the coordinator has stored, where members have reported their part of a rebalance."""
    values["completed_ms"], origins["completed_ms"] = record.completed_ms, Origin.SEEN
    sync_ms, started_ms = record.phases.sync_ms, values["started_ms"]
    if sync_ms is None:
        return
    join_ms = values["phases"].join_ms if started_ms is None else max(record.completed_ms - sync_ms - started_ms, 0)
    values["phases"] = values["phases"]._replace(join_ms=join_ms, sync_ms=sync_ms)
    origins["sync_ms"] = Origin.SEEN
    if started_ms is not None and "started_ms" in origins:
        origins["join_ms"] = origins["started_ms"]


def _known_actor(actor: Actor | None, other: Actor | None) -> Actor | None:
    """Returns the actor, with what the other source knows of the same member."""
    if actor is None or other is None or actor.member_id != other.member_id:
        return actor
    return Actor(*(mine if mine is not None else theirs for mine, theirs in zip(actor, other)))


def _take_origins(origins: dict[str, Origin], source: Rebalance, names: Sequence[str]) -> None:
    origins.update((name, source.origins[name]) for name in names if name in source.origins)
