"""Findings over rebalances, and their sentences."""

from __future__ import annotations

from typing import Any

import pytest

from spark_groupsource.client.admin import GroupDescription, MemberDescription
from spark_groupsource.model import Node
from spark_groupsource.monitor.rebalances.explanation import Explanation, explain
from spark_groupsource.monitor.rebalances.findings import GroupFacts, MemberFacts, findings
from spark_groupsource.monitor.rebalances.group_steps import GroupRecord
from spark_groupsource.monitor.rebalances.group_watch import progress_text
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, MemberMove, Origin, Phases, Rebalance
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.group_records import GroupValue, MemberValue

FACTS = GroupFacts("g", "range", (), {"b-1": MemberFacts("b-1", "b", "/h", None, 10_000, 300_000, 1)})


def rebalance(cause: str, client: str | None = "b", generation: int = 1, **fields: Any) -> Rebalance:
    actor = None if client is None else Actor(f"{client}-1", client, "/10.0.0.1")
    values: dict[str, Any] = {
        "group": "g",
        "generation": generation,
        "cause": Cause(cause),
        "reason": None,
        "difference": "",
        "actor": actor,
        "started_ms": None,
        "completed_ms": generation * 1_000,
        "phases": Phases(),
        "slowest_member": None,
        "members": 2,
        "moves": {},
        "partitions_moved": 0,
        "partitions_unassigned": 0,
        "unowned_seconds": None,
        "repeated_records": None,
        "lag_added": None,
        "origins": {},
    }
    return Rebalance(**values | fields)


def sequence(*causes: str) -> list[Rebalance]:
    """Rebalances from ``CAUSE client`` texts."""
    return [rebalance(*text.split(), generation=n) for n, text in enumerate(causes, 1)]  # type: ignore[misc]


STATIC = Actor("b-1", "b", "/h", "i")
MEMBERS = (MemberFacts("a-1", "a", "/h", partitions=2), MemberFacts("b-1", "b", "/h"), MemberFacts("b-2", "b", "/h"))
CASES: dict[str, tuple[list[Rebalance], GroupFacts, str, str]] = {
    "poll_exceeded": (
        sequence("POLL_EXCEEDED b", "JOINED b"),
        FACTS,
        "Client b did not poll within max.poll.interval.ms=300000, once: a batch takes longer than that.",
        "maxOffsetsPerTrigger",
    ),
    "session_expired": (
        sequence("SESSION_EXPIRED b", "JOINED b"),
        FACTS,
        "Client b sent no heartbeat within session.timeout.ms=10000, once.",
        "session.timeout.ms",
    ),
    "join_timed_out": (
        sequence("JOIN_TIMED_OUT b"),
        FACTS,
        "Client b did not join within the rebalance timeout of 300000 ms, once; all other members waited for it.",
        "max.poll.interval.ms",
    ),
    "flapping": (
        sequence("JOINED b", "SESSION_EXPIRED b", "JOINED b", "SESSION_EXPIRED b"),
        FACTS,
        "Client b joined twice and left twice in 4 rebalances.",
        "group.instance.id",
    ),
    "rolling_restart": (
        sequence("LEFT a", "JOINED a", "LEFT b", "JOINED b"),
        FACTS,
        "2 dynamic members were restarted one after the other (a, b): two rebalances each.",
        "group.instance.id",
    ),
    "shared_instance_id": (
        [rebalance("STATIC_REPLACED", actor=STATIC, generation=n) for n in range(3)],
        FACTS,
        "Static member i was replaced 3 times: two processes may have the same group.instance.id.",
        "group.instance.id",
    ),
    "always_last": (
        [rebalance("JOINED", "c", n, slowest_member="b-1", phases=Phases(join_ms=n * 1_000)) for n in range(1, 4)],
        FACTS,
        "Member b was the last to join in 3 of 3 rebalances, up to 3.0 s after the start.",
        "maxOffsetsPerTrigger",
    ),
    "changing_subscription": (
        sequence("SUBSCRIPTION_CHANGED b", "SUBSCRIPTION_CHANGED b"),
        FACTS,
        "Client b changed the subscribed topics, twice.",
        "subscribePattern",
    ),
    "rejoining_leader": (
        sequence(*["LEADER_REJOINED a"] * 3),
        FACTS,
        "The leader joined again without a change, 3 times.",
        "",
    ),
    "coordinator_moved": (
        sequence("COORDINATOR_MOVED"),
        FACTS,
        "The coordinator of the group moved to another broker or restarted, once.",
        "",
    ),
    "idle_members": (
        [],
        GroupFacts("g", "range", MEMBERS[:2]),
        "1 of 2 members have no partitions: the topics have 2.",
        "members",
    ),
    "eager_moves": (
        [rebalance("LEFT", moves={"a-1": MemberMove(2, 1), "c-1": MemberMove(1, 1)})],
        FACTS,
        "Assignor range exchanged 2 partitions between members that remained, in 1 of 1 rebalances, and every member "
        "stopped reading.",
        "partition.assignment.strategy",
    ),
    "duplicate_client_ids": (
        [],
        GroupFacts("g", "range", MEMBERS),
        "2 members have the client id 'b': causes and logs cannot name the member.",
        "client.id",
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_finding(rule: str) -> None:
    rebalances, facts, text, setting = CASES[rule]
    found = {finding.rule: finding for finding in findings(rebalances, facts)}
    assert found[rule].text == text and found[rule].advice.endswith(".")
    assert setting in found[rule].settings or not setting


def test_the_rebalance_timeout_of_a_query_is_not_its_poll_interval() -> None:
    """A query announces at least 12 times the interval and has no poll timer; other consumers announce the interval."""
    query = Actor("b-1", "b", "/h", None, "app", "q")
    facts = GroupFacts("g", "range", (), {"b-1": MemberFacts("b-1", "b", "/h", None, 10_000, 3_600_000, 1)})
    late, slow = rebalance("JOIN_TIMED_OUT", actor=query), rebalance("POLL_EXCEEDED", actor=query)
    texts = [*(f.text for f in findings([late, slow], facts)), *explain(late, facts), *explain(slow, facts)]
    assert any("the rebalance timeout of 3600000 ms" in text for text in texts)
    assert any("decides the rebalance timeout (now 3600000)" in text for text in texts)
    assert not any(f"max.poll.interval.ms{sign}" in text for text in texts for sign in ("=", " (now"))
    other = rebalance("POLL_EXCEEDED")
    assert explain(other, FACTS)[-1].startswith("Setting: max.poll.interval.ms (now 300000)")


def test_a_quiet_group_has_no_findings() -> None:
    facts = GroupFacts("g", "cooperative-sticky", (MEMBERS[0],))
    assert findings(sequence("JOINED a", "JOINED b", "COOPERATIVE_SECOND_ROUND a", "LEFT b"), facts) == []
    # a rolling restart is not also flapping
    rules = [f.rule for f in findings(CASES["rolling_restart"][0], FACTS)]
    assert rules == ["rolling_restart"]


def test_sentences() -> None:
    found = rebalance(
        "SESSION_EXPIRED",
        started_ms=0,
        completed_ms=3_500,
        phases=Phases(join_ms=3_000, sync_ms=500, batch_ms=1_200),
        slowest_member="b-1",
        partitions_moved=1,
        unowned_seconds=12.25,
        origins={"cause": Origin.INFERRED},
    )
    assert explain(found, FACTS) == [
        "Generation 1: b (/10.0.0.1) sent no heartbeat within its session timeout and was removed [inferred].",
        "Took 3.5 s (join 3.0 s, sync 500 ms); waited 1.2 s for a batch in flight; last to join was b; 1 partition "
        "moved; 12.2 partition-seconds without an owner; 2 members.",
        "Setting: session.timeout.ms (now 10000); or find out what stopped the process.",
    ]
    for cause in Cause:
        assert 2 <= len(explain(rebalance(cause.value), FACTS)) <= 3


def test_explanation_as_text_html_and_json() -> None:
    rebalances = [rebalance("LEFT", "<b>\n", reason="closed.")]
    found = Explanation(FACTS, rebalances, findings(CASES["poll_exceeded"][0], FACTS))
    lines = repr(found).splitlines()
    assert lines[0] == "1970-01-01 00:00:01 UTC  Generation 1: <b>\\n (/10.0.0.1) left (closed)."
    assert lines[3] == "Findings:" and lines[4].startswith("  - Client b did not poll")
    assert "<b>\\n" not in found._repr_html_() and "&lt;b&gt;\\n" in found._repr_html_()
    # notebooks align cells to the right
    assert '<td style="text-align:left;padding:2px 8px">Generation 1:' in found._repr_html_()
    assert found.json()["rebalances"][0]["cause"] == "LEFT" and found.json()["findings"][0]["rule"] == "poll_exceeded"
    assert repr(Explanation(FACTS, [], [])) == "Group g: no rebalance is recorded."


def test_text_of_a_rebalance_in_progress() -> None:
    subscribed = [MemberDescription(f"{name}-1", None, name, "/h", None, ()) for name in "abc"]
    group = GroupDescription("g", "PreparingRebalance", "consumer", "range", tuple(subscribed), Node(1, "h", 1))
    members = tuple(MemberValue(f"{name}-1", None, name, "/h", 1, 1, b"", b"") for name in "ab")
    records = [GroupRecord(1, GroupValue("consumer", 1, "range", "a-1", 1, members))]
    text = "Rebalance in progress (PreparingRebalance): 3 members, new: c; "
    assert progress_text(group, records, frozenset(), []) == f"{text}waiting for one or more of a, b."
    assert progress_text(group, records, frozenset({"b-1"}), []).startswith(f"{text}still reading: b; waiting")
    started = GroupEvent(2, "g", EventKind.REBALANCE_STARTED)
    joining = [GroupEvent(2, "g", EventKind.MEMBER_JOINING, member_id=f"{name}-1") for name in "ca"]
    events = [joining[0], started, joining[1]]
    assert progress_text(group, records, frozenset(), events) == f"{text}waiting for b."
    # the start of this rebalance is not recorded yet
    events.append(GroupEvent(3, "g", EventKind.ASSIGNED))
    assert progress_text(group, records, frozenset(), events) == f"{text}waiting for one or more of a, b."
    syncing = group._replace(state="CompletingRebalance")
    assert progress_text(syncing, records, frozenset(), []).endswith("waiting for the assignment of the leader.")
