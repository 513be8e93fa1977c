"""A group on a coordinator with a manual clock: entries, diagram."""

from __future__ import annotations

import re

import pytest

from spark_groupsource.broker.group import GroupConfig
from spark_groupsource.notebook.group_scenario import EntryKind, GroupScenario, record_text


def texts(group: GroupScenario, *kinds: EntryKind, member: str = "") -> list[str]:
    return [entry.text for entry in group.entries if entry.kind in kinds and entry.member == member]


def test_initial_delay_is_extended_while_members_join() -> None:
    group = GroupScenario()
    first, second = group.member("first"), group.member("second")
    first.join()
    group.advance(2_999)
    second.join()
    group.advance(3_000)
    assert second.generation_id == -1
    group.advance(1)
    assert (first.generation_id, second.generation_id) == (1, 1)
    fired = [entry.time_ms for entry in group.entries if entry.kind is EntryKind.TIMER_FIRED]
    assert fired == [3_000, 6_000]


def test_settings_of_the_coordinator_apply() -> None:
    group = GroupScenario(config=GroupConfig(group_initial_rebalance_delay_ms=0))
    member = group.member("a")
    member.join()
    group.advance(0)
    assert member.generation_id == 1


def test_stable_group_starts_at_time_zero_with_its_timers() -> None:
    group = GroupScenario()
    a, b = group.stable("a", "b")
    assert (group.now_ms, len(group.entries)) == (0, 1)
    assert set(a.owned).isdisjoint(b.owned) and len({*a.owned, *b.owned}) == 4
    group.advance(44_999)
    assert len(group.entries) == 1
    group.advance(1)  # the sessions of both
    assert [entry.time_ms for entry in group.entries if entry.kind is EntryKind.TIMER_FIRED] == [45_000, 45_000]
    assert texts(group, EntryKind.STATE)[-1] == "Empty, generation 2"


def test_heartbeats_with_the_same_response_are_one_entry() -> None:
    group = GroupScenario()
    a, b = group.stable("a", "b")
    group.advance(30_000, heartbeats=[a, b])
    for member in ("a", "b"):
        (sent,) = texts(group, EntryKind.REQUEST, member=member)
        assert "10 times since 3000 ms" in sent
    c = group.member("c")
    c.join()
    group.advance(6_000, heartbeats=[a])
    assert ["error_code=NONE", "error_code=REBALANCE_IN_PROGRESS"] == [
        text.split()[1] for text in texts(group, EntryKind.RESPONSE, member="a")
    ]


def test_rejected_member_sends_no_further_heartbeats() -> None:
    group = GroupScenario()
    a, b = group.stable("a", "b")
    group.advance(45_000, heartbeats=[b])
    group.advance(9_000, heartbeats=[a, b])
    assert texts(group, EntryKind.RESPONSE, member="a") == ["Heartbeat error_code=UNKNOWN_MEMBER_ID"]
    assert len(texts(group, EntryKind.REQUEST, member="a")) == 1


def test_lost_response_does_not_reach_the_member() -> None:
    group = GroupScenario()
    (a,) = group.stable("a")
    owned = a.owned
    group.topics["flights"] = 2
    a.join()
    a.sync(is_response_lost=True)
    assert (a.generation_id, a.owned) == (2, owned)
    assert len(texts(group, EntryKind.LOST_RESPONSE, member="a")) == 1
    a.sync()
    assert len(a.owned) == 2


def test_new_coordinator_has_the_stored_group_and_offsets() -> None:
    group = GroupScenario()
    (a,) = group.stable("a")
    a.commit(7)
    group.move_coordinator()
    a.fetch_offsets()
    assert "committed_offset=7" in texts(group, EntryKind.RESPONSE, member="a")[-1]
    assert texts(group, EntryKind.STATE) == ["Dead", "Stable, generation 1"]


def test_description_and_log_are_those_of_the_coordinator() -> None:
    group = GroupScenario()
    assert group.describe().group_state == "Dead"
    a, b = group.stable("a", "b")
    described = group.describe()
    assert (described.group_state, [member.member_id for member in described.members]) == ("Stable", ["a-1", "b-1"])
    assert [record_text(*record).partition(",")[0] for record in group.log] == [
        "group: generation 0", "group: generation 1",
    ]  # fmt: skip


def test_diagram_and_listing_have_every_request_and_response() -> None:
    group = GroupScenario()
    a, b = group.stable("a", "b", static=True)
    b.forget()
    b.join()
    a.leave()
    diagram, listing = group.mermaid(), repr(group)
    for member, sent, received in (("m0", "a ->", "a <-"), ("m1", "b ->", "b <-")):
        assert diagram.count(f"{member}->>G: ") == listing.count(sent) == 1
        assert diagram.count(f"G-->>{member}: ") == listing.count(received) == 1
    assert group.markdown() == f"```mermaid\n{diagram}\n```\n\n```text\n{listing}\n```\n"


@pytest.mark.parametrize("names", [("a",), ("a", "b; c#1")])
def test_diagram_has_valid_lines(names: tuple[str, ...]) -> None:
    group = GroupScenario()
    for member in group.stable(*names):
        member.commit(1)
        member.join(is_response_lost=True)
    text = r"([^;#]|#\d+;)+"
    line = re.compile(rf"    (participant \w+ as {text}|Note over [\w,]+: {text}|\w+(->>|-->>|--x)\w+: {text})")
    first, *others = group.mermaid().splitlines()
    assert first == "sequenceDiagram" and [each for each in others if not line.fullmatch(each)] == []
