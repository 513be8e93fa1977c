"""Comparison of injected rebalances with what each source says of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from chaos.caused_group import Expected, Injection

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.event_sources import group_events
from spark_groupsource.monitor.rebalances.group_history import GroupLog, read_groups
from spark_groupsource.monitor.rebalances.history_events import history_events
from spark_groupsource.monitor.rebalances.rebalance import Cause, Origin, Rebalance
from spark_groupsource.monitor.rebalances.rebalance_sources import rebalances_of_group
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.wire.group_events import GroupEvent

SOURCES = ("events", "own members", "history", "merged")
# lines of Kafka's GroupMetadataManager
_LINE = re.compile(
    r"^(\S+[T ][\d:]+),(\d{3}) INFO \S+ .*?(?:"
    r"Preparing to rebalance group (?P<started>\S+) in state \w+ with old generation (?P<old>\d+) \(reason: (?P<why>.*)"
    r"|Stabilized group (?P<joined>\S+) generation (?P<joined_at>\d+) with"
    r"|Assignment received from leader \S+ for group (?P<assigned>\S+) for generation (?P<assigned_at>\d+)\.)"
)
# JoinGroup of the leader of a Stable group
_BY_LEADER = frozenset({"LEADER_REJOINED", "PARTITIONS_CHANGED", "SUBSCRIPTION_CHANGED", "COOPERATIVE_SECOND_ROUND"})


class Observed(NamedTuple):
    """What the sources have of one group, and what was done to it.

    Attributes:
        coordinator: start, end of the join phase and assignment of each generation, in epoch ms, by its own log.
        noticed_ms: generation -> time at which the last own member was notified, as its process saw it.
        reasons: generation -> reason in the log of the coordinator.
    """

    name: str
    is_cooperative: bool
    injections: Sequence[Injection]
    log: GroupLog
    events: Sequence[GroupEvent]
    coordinator: Mapping[int, Sequence[tuple[int, int, int]]]
    noticed_ms: Mapping[int, int]
    reasons: Mapping[int, str]


class Judged(NamedTuple):
    """One expected rebalance and what a source says; `expected` are the possible ones, at least one."""

    source: str
    expected: Sequence[Expected]
    found: Rebalance | None

    @property
    def wanted(self) -> Expected:
        """The expected rebalance of the cause that was found, else the first one."""
        return max(self.expected, key=lambda each: (self._has_cause(each), self._has_actor(each)))

    @property
    def is_cause_right(self) -> bool:
        return self._has_cause(self.wanted)

    @property
    def is_actor_right(self) -> bool:
        """The client, and the member id if it is known, are the expected ones; without an expected client, always."""
        return self._has_actor(self.wanted)

    def _has_cause(self, expected: Expected) -> bool:
        return self.found is not None and self.found.cause.value == expected.cause

    def _has_actor(self, expected: Expected) -> bool:
        if expected.client is None:
            return True
        actor = None if self.found is None else self.found.actor
        return (
            actor is not None
            and actor.client_id == expected.client
            and expected.member_id in (None, actor.member_id)
        )


def observe(
    cluster: ClusterClient,
    groups: Mapping[str, tuple[bool, Sequence[Injection]]],
    coordinator_log: str = "",
    times: Path | None = None,
) -> list[Observed]:
    """Reads all sources; `groups` are the names, with is_cooperative and the injections."""
    selection = NameSelection(tuple(groups))
    logs, events = read_groups(cluster, selection), group_events(cluster, selection)
    found = []
    for name, (is_cooperative, injections) in groups.items():
        log = logs.get(name) or GroupLog()
        phases, reasons = logged_phases(name, coordinator_log)
        if not phases:
            exact = rebalances_from_events(events.get(name, ()))
            for r in exact:
                if r.started_ms is not None and r.phases.join_ms is not None:
                    times_of = r.started_ms, r.started_ms + r.phases.join_ms, r.completed_ms
                    phases.setdefault(r.generation, []).append(times_of)
        noticed = _noticed(name, times)
        found.append(
            Observed(name, is_cooperative, injections, log, events.get(name, ()), phases, noticed, reasons)
        )
    return found


def logged_phases(group: str, text: str) -> tuple[dict[int, list[tuple[int, int, int]]], dict[int, str]]:
    """Returns the times of each generation, and the reasons, in the log of a real Kafka."""
    started: dict[int, int] = {}
    joined: dict[int, int] = {}
    found: dict[int, list[tuple[int, int, int]]] = {}
    reasons: dict[int, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        at_ms = int(time.mktime(time.strptime(match[1].replace("T", " "), "%Y-%m-%d %H:%M:%S"))) * 1_000 + int(match[2])
        if match["started"] == group:
            started.setdefault(int(match["old"]) + 1, at_ms)
            reasons.setdefault(int(match["old"]) + 1, match["why"])
        elif match["joined"] == group:
            joined[int(match["joined_at"])] = at_ms
        elif match["assigned"] == group:
            generation = int(match["assigned_at"])
            if generation in started and generation in joined:
                found[generation] = [(started[generation], joined[generation], at_ms)]
    return found, reasons


def _noticed(group: str, times: Path | None) -> dict[int, int]:
    found: dict[int, int] = {}
    for line in times.read_text().splitlines() if times is not None and times.exists() else ():
        form = json.loads(line)
        if form["group"] == group:
            found[form["generation"]] = max(found.get(form["generation"], 0), form["noticed_ms"])
    return found


def judge(observed: Sequence[Observed]) -> list[Judged]:
    """Compares the expected rebalances with those of each source."""
    found = []
    for each in observed:
        history = rebalances_from_events((), history_events(each.name, each.log.records))
        sources: Mapping[str, list[Rebalance]] = {
            "events": rebalances_from_events(each.events),
            "own members": rebalances_from_events(each.log.reports),
            "history": history,
            "merged": rebalances_of_group(each.name, each.log, each.events),
        }
        for injection in each.injections:
            window = [r for r in history if injection.from_ms <= r.completed_ms <= injection.to_ms]
            for actual, wanted in paired(injection, window, each.is_cooperative, each.reasons):
                for source in SOURCES:
                    if not sources[source]:
                        continue
                    same = [r for r in sources[source] if r.generation == actual.generation]
                    nearest = min(same, key=lambda r: abs(r.completed_ms - actual.completed_ms), default=None)
                    found.append(Judged(source, wanted, nearest))
    return found


def paired(
    injection: Injection, window: Sequence[Rebalance], is_cooperative: bool, reasons: Mapping[int, str]
) -> Iterator[tuple[Rebalance, Sequence[Expected]]]:
    """Yields each rebalance of an injection with what is expected of it.

    Args:
        reasons: of the coordinator's log: clients may rejoin on their own, for example kafka-python's leader.
    """
    if not _BY_LEADER & {each.cause for each in injection.expected} and injection.action != "restart_broker":
        own = [r for r in window if reasons.get(r.generation, "").startswith("Leader ")]
        window = [r for r in window if r not in own]
        for actual in own:
            yield actual, [Expected(cause, None) for cause in sorted(_BY_LEADER)]
    expected = list(injection.expected)
    second = [Expected("COOPERATIVE_SECOND_ROUND", None)] * is_cooperative
    if not injection.is_ordered or injection.action == "restart_broker":
        for actual in window:
            yield actual, [*expected, *second]
        return
    at = 0
    for actual in window:
        is_second = is_cooperative and at > 0 and actual.cause.value == "COOPERATIVE_SECOND_ROUND"
        if at < len(expected) and not is_second:
            yield actual, [expected[at]]
            at += 1
        elif is_cooperative and actual.moves:
            # the leader may learn of the partitions of two topics one after the other
            is_metadata = "cached metadata has changed" in reasons.get(actual.generation, "")
            yield actual, [*second, *([Expected("PARTITIONS_CHANGED", None)] * is_metadata)]
    if at != len(expected) or (len(window) != at and not is_cooperative):
        causes = [r.cause.value for r in window]
        print(f"{injection.group} {injection.action}: {causes}, expected {[each.cause for each in expected]}")


def report(judged: Sequence[Judged], observed: Sequence[Observed] = ()) -> dict[str, tuple[float, float, int]]:
    """Prints the table, and the wrong ones; returns source -> share of right causes, of right clients, number."""
    reasons = {each.name: each.reasons for each in observed}
    causes = sorted({j.wanted.cause for j in judged})
    print(f"{'cause':<26}" + "".join(f"{source:>24}" for source in SOURCES))
    shares = {}
    for cause in [*causes, "total"]:
        cells = []
        for source in SOURCES:
            chosen = [j for j in judged if j.source == source and cause in (j.wanted.cause, "total")]
            right, actors = sum(j.is_cause_right for j in chosen), sum(j.is_actor_right for j in chosen)
            cells.append(f"{right}/{len(chosen)}, actor {actors}" if chosen else "-")
            if chosen and cause == "total":
                shares[source] = (right / len(chosen), actors / len(chosen), len(chosen))
        print(f"{cause:<26}" + "".join(f"{cell:>24}" for cell in cells))
    for j in judged:
        if not (j.is_cause_right and j.is_actor_right):
            cause = "none" if j.found is None else f"{j.found.cause.value} {j.found.difference} {j.found.actor}"
            where = "" if j.found is None else f"{j.found.group} generation {j.found.generation}"
            logged = "" if j.found is None else reasons.get(j.found.group, {}).get(j.found.generation, "")
            print(f"wrong ({j.source}): expected {[tuple(e) for e in j.expected]}, {where}: {cause} {logged}")
    for source, (share, actor, number) in shares.items():
        print(f"{source}: {share:.1%} of {number} causes, {actor:.1%} of the clients right")
    return shares


def deviations(observed: Sequence[Observed]) -> dict[str, list[int]]:
    """Returns field -> what members and history say minus what the coordinator logged, in ms, of each rebalance."""
    found: dict[str, list[int]] = {}
    for each in observed:
        for r in rebalances_of_group(each.name, each.log, ()):
            if r.generation not in each.coordinator:
                continue
            if r.cause in (Cause.STATIC_REPLACED, Cause.COORDINATOR_MOVED):
                # the one has no join phase, the other starts before the new coordinator knows the group
                continue
            started, joined, completed = min(each.coordinator[r.generation], key=lambda t: abs(t[2] - r.completed_ms))
            noticed = each.noticed_ms.get(r.generation)
            origin = r.origins.get("started_ms", Origin.UNKNOWN).value
            pairs = {
                f"started_ms ({origin})": (r.started_ms, started),
                "completed_ms": (r.completed_ms, completed),
                "join_ms": (r.phases.join_ms, joined - started),
                "sync_ms": (r.phases.sync_ms, completed - joined),
                "notice_ms": (r.phases.notice_ms, None if noticed is None else max(noticed - started, 0)),
            }
            for name, (said, measured) in pairs.items():
                if said is not None and measured is not None:
                    found.setdefault(name, []).append(said - measured)
    return found


def unowned_shares(observed: Sequence[Observed]) -> tuple[float, float] | None:
    """Returns the partition-seconds without an owner of members and history, and of the coordinator's events."""
    said = exact = 0.0
    for each in observed:
        known = rebalances_from_events(each.events)
        for r in rebalances_of_group(each.name, each.log, ()):
            if r.cause is Cause.COORDINATOR_MOVED:
                # the members stop before the new coordinator knows it
                continue
            same = [other for other in known if other.generation == r.generation]
            other = min(same, key=lambda each: abs(each.completed_ms - r.completed_ms), default=None)
            if other is not None and None not in (r.unowned_seconds, other.unowned_seconds):
                said, exact = said + (r.unowned_seconds or 0), exact + (other.unowned_seconds or 0)
    return (said, exact) if exact else None


def deviation_text(values: Sequence[int]) -> str:
    """Median and 95th percentile of the absolute values, and their number."""
    sizes = sorted(map(abs, values))
    return f"{median(sizes):.0f} ms, {sizes[int(len(sizes) * 0.95)]} ms in 95 % of {len(sizes)}"
