"""Rebalances of groups from all sources of a cluster."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.monitor.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.event_sources import application_events, group_events
from spark_groupsource.monitor.explanation import Explanation
from spark_groupsource.monitor.findings import GroupFacts, MemberFacts, findings
from spark_groupsource.monitor.group_history import group_records
from spark_groupsource.monitor.group_steps import NO_GENERATION, Generation, GroupRecord, decode_generation, identity
from spark_groupsource.monitor.rebalance import Rebalance
from spark_groupsource.monitor.rebalance_merge import merge_rebalances
from spark_groupsource.monitor.rebalances import rebalances
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.wire.group_records import MemberValue


def group_rebalances(cluster: Cluster, selection: NameSelection | None) -> dict[str, list[Rebalance]]:
    """Returns the rebalances of the selected groups by time.

    Raises: BrokerError, NetworkError.
    """
    records = group_records(cluster, selection)
    coordinator = group_events(cluster, selection)
    applications = application_events(cluster, selection)
    found = {}
    for group in sorted({*records, *coordinator, *applications}):
        exact = rebalances_from_events([*coordinator.get(group, ()), *applications.get(group, ())])
        found[group] = merge_rebalances(exact, rebalances(group, records.get(group, ())), group in coordinator)
    return found


class GroupHistory(NamedTuple):
    """Rebalances of one group by time, and what else its records show."""

    rebalances: list[Rebalance]
    facts: GroupFacts

    def explain(self, last: int | None = None) -> Explanation:
        """Explains the last rebalances; None for all."""
        chosen = self.rebalances if last is None else self.rebalances[max(0, len(self.rebalances) - last) :]
        return Explanation(self.facts, chosen, findings(chosen, self.facts))


def read_history(cluster: Cluster, group: str, records: Sequence[GroupRecord] | None = None) -> GroupHistory:
    """Reads the rebalances of one group.

    Args:
        records: of the group, if they are known; None to read them.
    Raises: BrokerError, NetworkError.
    """
    selection = NameSelection((group,))
    if records is None:
        records = group_records(cluster, selection).get(group, [])
    coordinator = group_events(cluster, selection).get(group, [])
    exact = rebalances_from_events([*coordinator, *application_events(cluster, selection).get(group, ())])
    merged = merge_rebalances(exact, rebalances(group, records), bool(coordinator))
    return GroupHistory(merged, group_facts(group, records))


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


def _member_facts(member: MemberValue, generation: Generation) -> MemberFacts:
    return MemberFacts(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        member.session_timeout_ms,
        member.rebalance_timeout_ms if member.rebalance_timeout_ms >= 0 else None,
        len(generation.partitions_of(identity(member))),
    )
