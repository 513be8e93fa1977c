"""Rebalances of groups from all sources of a cluster."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.monitor.rebalances.epoch_history import epoch_events, epoch_facts
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.event_sources import group_events
from spark_groupsource.monitor.rebalances.explanation import Explanation
from spark_groupsource.monitor.rebalances.findings import GroupFacts, MemberFacts, findings
from spark_groupsource.monitor.rebalances.group_history import GroupLog, read_groups
from spark_groupsource.monitor.rebalances.group_steps import (
    NO_GENERATION,
    GroupGeneration,
    GroupRecord,
    decode_generation,
    identity,
)
from spark_groupsource.monitor.rebalances.history_events import history_events
from spark_groupsource.monitor.rebalances.rebalance import Rebalance
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.wire.group_events import GroupEvent
from spark_groupsource.wire.group_records import MemberValue


def group_rebalances(cluster: ClusterClient, selection: NameSelection | None) -> dict[str, list[Rebalance]]:
    """Returns the rebalances of the selected groups by time.

    Raises: BrokerError, NetworkError.
    """
    logs, coordinator = read_groups(cluster, selection), group_events(cluster, selection)
    groups = sorted({*logs, *coordinator})
    found = ((group, logs.get(group) or GroupLog(), coordinator.get(group, ())) for group in groups)
    return {group: rebalances_of_group(group, log, events) for group, log, events in found}


def rebalances_of_group(group: str, log: GroupLog, coordinator: Sequence[GroupEvent]) -> list[Rebalance]:
    """Returns the rebalances of one group by time, from its log and the events of the embedded coordinator."""
    history = history_events(group, log.records, log.reports)
    found = rebalances_from_events([*coordinator, *log.reports], history)
    # a group may have been converted from one protocol to another
    found += rebalances_from_events((), epoch_events(group, log.epochs))
    return sorted(found, key=lambda rebalance: rebalance.completed_ms)


class GroupHistory(NamedTuple):
    """Rebalances of one group by time, and what else its records show."""

    rebalances: list[Rebalance]
    facts: GroupFacts

    def explain(self, last: int | None = None) -> Explanation:
        """Explains the last rebalances; None for all."""
        chosen = self.rebalances if last is None else self.rebalances[max(0, len(self.rebalances) - last) :]
        return Explanation(self.facts, chosen, findings(chosen, self.facts))


def read_history(cluster: ClusterClient, group: str) -> GroupHistory:
    """Reads the rebalances of one group. Raises: BrokerError, NetworkError."""
    selection = NameSelection((group,))
    log = read_groups(cluster, selection).get(group) or GroupLog()
    return history_of_group(group, log, group_events(cluster, selection).get(group, ()))


def history_of_group(group: str, log: GroupLog, coordinator: Sequence[GroupEvent]) -> GroupHistory:
    """Returns the history of one group, from its log and the events of the embedded coordinator."""
    found = rebalances_of_group(group, log, coordinator)
    return GroupHistory(found, epoch_facts(group, log.epochs) if log.epochs else group_facts(group, log.records))


def group_facts(group: str, records: Sequence[GroupRecord]) -> GroupFacts:
    """Returns the members that the group records contain."""
    known: dict[str, MemberFacts] = {}
    last = NO_GENERATION
    for record in records:
        if record.value is not None and record.value.members:
            last = decode_generation(record, record.value)
            known.update((m.member_id, _member_facts(m, last)) for m in record.value.members)
    members = tuple(known[m.member_id] for m in last.value.members)
    return GroupFacts(group, last.value.protocol_name, members, known)


def _member_facts(member: MemberValue, generation: GroupGeneration) -> MemberFacts:
    return MemberFacts(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        member.session_timeout_ms,
        member.rebalance_timeout_ms if member.rebalance_timeout_ms >= 0 else None,
        len(generation.partitions_of(identity(member))),
    )
