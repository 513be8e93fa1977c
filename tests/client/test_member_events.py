"""Rebalance events that members record and report in commit metadata."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from support.memberships import stable

from spark_groupsource.client.cluster.group_offsets import NO_IDS
from spark_groupsource.client.membership import fencing
from spark_groupsource.client.membership.member_commits import MemberCommits
from spark_groupsource.client.membership.member_events import MemberEvents
from spark_groupsource.client.membership.rebalance_log import RebalanceLog
from spark_groupsource.client.membership.shared_membership import LocalMember, SharedMembership
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, ErrorCode, GenerationMismatchError
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.rebalance import Cause, Origin, Rebalance
from spark_groupsource.wire.commit_reports import (
    MAX_REPORT_CHARS,
    author_metadata,
    commit_metadata,
    committed_topic_id,
    decode_report,
    encode_report,
    is_author,
)
from spark_groupsource.wire.group_events import EventKind, GroupEvent

MEMBER = "app-0-01234567-89ab-cdef-0123-456789abcdef"
SESSION_MS = 10_000


def rebalance(
    events: MemberEvents, generation: int, at_ms: int, reason: str = "", is_new: bool = False, is_settled: bool = True
) -> None:
    events.joined(
        "app-0",
        MEMBER,
        reason=reason,
        is_new=is_new,
        sent_ms=at_ms,
        at_ms=at_ms + 30,
        members=[(MEMBER, None, b"")],
        generation_id=generation,
    )
    events.synced(
        "app-0",
        MEMBER,
        assignment_ms=7,
        partitions=[TopicPartition("t", 0)],
        sent_ms=at_ms + 40,
        at_ms=at_ms + 50,
        generation_id=generation,
    )
    if is_settled:
        events.ended(generation)


def reported(events: MemberEvents) -> list[Rebalance]:
    """The rebalances that a reader of the commits finds."""
    report = encode_report(list(events.recorded), "flights", "enrich")
    return rebalances_from_events(decode_report("g", f"{author_metadata('reader')} {report}"))


def test_phases_of_a_rebalance_that_waited_for_a_batch() -> None:
    events = MemberEvents("g")
    rebalance(events, 1, 0, is_new=True)
    events.noticed("app-0", MEMBER, 1_000)
    events.noticed("app-0", MEMBER, 1_100)
    events.prepared("app-0", MEMBER, [TopicPartition("t", 0)], 3_000)
    rebalance(events, 2, 3_010, reason="group is already rebalancing")
    events.first_record(2, 3_400)
    events.lag(2, 10, 1_000)
    events.lag(2, 25, 3_400)
    events.repeated(1, 4, 3_000)
    _, last = reported(events)
    assert (last.generation, last.cause, last.started_ms) == (2, Cause.UNKNOWN, 1_000)
    phases = last.phases
    # the join phase includes the wait, as that of the coordinator
    assert (phases.batch_ms, phases.join_ms, phases.assignment_ms, phases.sync_ms) == (2_000, 2_040, 7, 20)
    assert (last.slowest_member, last.members) == (MEMBER, 1)
    assert (phases.first_record_ms, last.repeated_records, last.lag_added) == (340, 4, 15)


@pytest.mark.parametrize(("reason", "cause"), [
    ("cached metadata has changed", Cause.PARTITIONS_CHANGED),
    ("subscription has changed", Cause.SUBSCRIPTION_CHANGED),
    ("need to revoke partitions and re-join", Cause.COOPERATIVE_SECOND_ROUND),
])  # fmt: skip
def test_own_action_is_the_cause(reason: str, cause: Cause) -> None:
    events = MemberEvents("g")
    rebalance(events, 2, 0, reason=reason)
    (last,) = reported(events)
    assert (last.cause, last.reason, last.origins["cause"]) == (cause, reason, Origin.SEEN)
    assert last.actor is not None
    assert (last.actor.client_id, last.actor.application, last.actor.query) == ("app-0", "flights", "enrich")


@pytest.mark.parametrize(("silent_ms", "is_noticed", "cause"), [
    (SESSION_MS + 1, False, Cause.SESSION_EXPIRED),
    (200, False, Cause.REMOVED_BY_OPERATOR),
    (200, True, Cause.JOIN_TIMED_OUT),
])  # fmt: skip
def test_member_that_was_removed_reports_it_when_it_is_back(silent_ms: int, is_noticed: bool, cause: Cause) -> None:
    events = MemberEvents("g")
    rebalance(events, 5, 0)
    events.contacted("app-0", 1_000)
    if is_noticed:
        events.noticed("app-0", MEMBER, 1_000)
    now_ms = 1_000 + silent_ms
    events.removed("app-0", MEMBER, 5, "encountered UNKNOWN_MEMBER_ID", SESSION_MS, now_ms, now_ms)
    rebalance(events, 7, 20_000, is_new=True)
    removed, joined = reported(events)
    assert (removed.generation, removed.cause) == (6, cause)
    assert (joined.generation, joined.cause) == (7, Cause.JOINED)


@pytest.mark.parametrize(("sessions", "cause"), [(1, Cause.SESSION_EXPIRED), (0, Cause.REMOVED_BY_OPERATOR)])
def test_removal_that_a_commit_shows_is_of_the_generation_of_the_commit(monkeypatch, sessions, cause) -> None:
    monkeypatch.setattr(fencing, "find_generation", lambda *arguments, **options: -1)
    membership, generation = stable()
    settings = GroupSettings(group_id="g", topics=("t",))
    shared, clock = SharedMembership(settings), ManualClock()
    member = LocalMember(0, "app-0", membership, {})
    shared.events.contacted("app-0", clock.now_ms())
    clock.advance_ms(sessions * membership.config.session_timeout_ms)
    cluster = Mock(commit_each=Mock(return_value=[BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "Commit")]))
    with pytest.raises(GenerationMismatchError):
        MemberCommits(cluster, shared, "g", clock).commit([(member, {})], None, NO_IDS)
    assert membership.generation != generation, "the member has reset its generation"
    (removed,) = shared.events.recorded
    assert (removed.kind, removed.client_id) == (EventKind.MEMBER_LEFT, "app-0")
    assert removed.member_id == generation.member_id
    assert (removed.generation, removed.detail["cause"]) == (generation.generation_id, cause.value)
    assert removed.at_ms == clock.timestamp_ms()


def test_the_generation_of_a_group_is_looked_up_once_for_all_fenced_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup waits two seconds for a generation that is not in the log yet, with the lock of the session."""
    lookups: list[int] = []

    def find(*arguments: Any, newer_than: int) -> int:
        lookups.append(newer_than)
        return 9

    monkeypatch.setattr(fencing, "find_generation", find)
    shared, clock = SharedMembership(GroupSettings(group_id="g", members=4, topics=("t",))), ManualClock()
    members = [LocalMember(index, f"app-{index}", stable()[0], {}) for index in range(4)]
    for member in members[2:]:
        member.membership.on_leave("was removed")
    fenced = [BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "Commit")] * 2
    commits = MemberCommits(Mock(commit_each=Mock(return_value=fenced)), shared, "g", clock)
    for _ in range(2):
        with pytest.raises(GenerationMismatchError, match="generation is now 9"):
            commits.commit([(member, {}) for member in members], None, NO_IDS)
    assert len(lookups) == 2


def test_poll_exceeded_and_left() -> None:
    events = MemberEvents("g")
    events.left("app-0", MEMBER, 3, Cause.POLL_EXCEEDED, "consumer poll timeout has expired.", 100)
    rebalance(events, 5, 200, is_new=True)
    left, _ = reported(events)
    assert (left.generation, left.cause, left.reason) == (4, Cause.POLL_EXCEEDED, "consumer poll timeout has expired.")


def test_rebalance_that_another_one_supersedes() -> None:
    events = MemberEvents("g")
    rebalance(events, 4, 0, reason="subscription has changed", is_settled=False)
    rebalance(events, 5, 100, reason="group is already rebalancing")
    changed, last = reported(events)
    assert (changed.generation, changed.cause) == (4, Cause.SUBSCRIPTION_CHANGED)
    assert (last.generation, last.cause, last.started_ms) == (5, Cause.UNKNOWN, 100)


def test_events_are_bounded() -> None:
    events = MemberEvents("g")
    for number in range(10_000):
        events.noticed(f"m-{number}", f"m-{number}", number)
    events.ended(1)
    for number in range(10_000):
        events.first_record(1, number)
    assert len(events.recorded) == 5_000
    assert len(events.since(0)[0]) == 5_000 and events.since(events.recorded_count)[0] == []


def test_report_of_many_members_and_long_names_is_short() -> None:
    events = MemberEvents("g" * 200)
    for number in range(200):
        client = f"{'c' * 200}-{number}"
        events.joined(client, f"{client}-id", reason="r" * 300, is_new=True, sent_ms=1, at_ms=2, members=[])
    events.ended(1)
    report = encode_report(list(events.recorded), "a" * 500, "q\n\x1b" * 500)
    assert len(report) <= MAX_REPORT_CHARS + 1_500 < 4_096
    assert report.isprintable()


@pytest.mark.parametrize("metadata", [
    "",
    "x {",
    "groupsource r",
    "groupsource r {",
    'groupsource r {"g":1}',
    'groupsource r {"g":1,"a":2,"t":"x","m":[],"e":[["s"]]}',
    'groupsource r {"g":1,"a":"a","t":1,"m":[],"e":[["s",1,0,"JOINED",""]]}',
    'groupsource r {"g":1,"a":"a","t":1,"m":5,"e":0}',
    'groupsource r {"g":[],"a":"a","t":1,"m":[],"e":[["f",1,-1]]}',
    'groupsource r {"g":1,"a":"a","t":1e300,"m":[],"e":[["f",1,-1]]}',
    'groupsource r {"g":1,"a":"a","t":-1,"m":[],"e":[["f",1,-1]]}',
    'groupsource r {"g":1,"a":"a","t":1,"m":["m"],"e":[["s",1,0,"NO_CAUSE",""]]}',
    'other {"g":1,"a":"a","t":1,"m":[],"e":[]}',
    "groupsource r [" * 50,
    'groupsource r {"a":' + "[" * 100_000,
])  # fmt: skip
def test_metadata_that_is_no_report_has_no_events(metadata: str) -> None:
    assert decode_report("g", metadata) == []


def test_texts_of_a_report_are_escaped() -> None:
    form = '{"g":1,"a":"a\\n","q":"\\u001b","t":1,"m":["m\\r"],"e":[["s",1,0,"JOINED","x\\ny"]]}'
    (event,) = decode_report("g", f"groupsource r {form}")
    assert (event.application, event.query, event.member_id) == ("a\\n", "\\x1b", "m\\r")
    assert event.detail["reason"] == "x\\ny"


def test_author_with_and_without_report() -> None:
    author = author_metadata("reader")
    assert is_author(author, author) and is_author(f'{author} {{"g":1}}', author)
    assert not is_author(f"{author}2", author) and not is_author("", author)


@pytest.mark.parametrize("report", ["", '{"g":1,"a":"a"}'])
def test_metadata_of_a_commit_have_author_topic_id_and_report(report: str) -> None:
    topic_id = "0b1f3c1e-7f4e-4b43-9d0e-0e3f5d2d7a11"
    without, metadata = commit_metadata("reader", "", report), commit_metadata("reader", topic_id, report)
    assert (committed_topic_id(without), committed_topic_id(metadata)) == ("", topic_id)
    assert is_author(without, author_metadata("reader")) and is_author(metadata, author_metadata("reader"))
    expected = json.loads(report or "{}")
    assert json.loads(metadata.removeprefix("groupsource reader ")) == {"i": topic_id, **expected}
    of_cluster = commit_metadata("reader", topic_id, report, "c1")
    assert json.loads(of_cluster.removeprefix("groupsource reader ")) == {"i": topic_id, "c": "c1", **expected}
    assert [committed_topic_id(of_cluster, c) for c in ("", "c1", "c2")] == [topic_id, topic_id, ""]
    assert committed_topic_id(metadata, "c1") == topic_id and is_author(of_cluster, author_metadata("reader"))
    assert json.loads(without.removeprefix("groupsource reader") or "{}") == expected


def test_other_metadata_have_no_topic_id() -> None:
    other = 'other {"i":"0b1f3c1e-7f4e-4b43-9d0e-0e3f5d2d7a11"}'
    assert not any(committed_topic_id(each) for each in ("", "m", other, 'groupsource r {"i":1}'))


def test_report_without_events_is_empty() -> None:
    assert encode_report([], "a", None) == ""
    lonely = GroupEvent(1, "g", EventKind.REVOKED, 1)
    assert encode_report([lonely, lonely._replace(generation=None)], "a", None) == ""


def test_rebalances_of_the_log_are_those_in_which_a_member_got_an_assignment() -> None:
    events, log, p0, p1 = MemberEvents("g"), RebalanceLog(), TopicPartition("t", 0), TopicPartition("t", 1)
    rebalance(events, 1, 0, is_new=True, is_settled=False)
    (first,) = log.record(events.ended(1), [p0, p1])
    assert (first.cause, first.generation_id, first.members) == ("joined the group", 1, 1)
    assert (first.started_ms, first.ended_ms, first.join_ms, first.sync_ms) == (0, 50, 30, 10)
    assert (first.gained, first.lost) == ((p0, p1), ())
    # generation 2 was superseded before SyncGroup; the partitions moved up to the last one
    events.joined("app-0", MEMBER, reason="", is_new=False, sent_ms=100, at_ms=120, members=[], generation_id=2)
    rebalance(events, 3, 200, reason="why", is_settled=False)
    events.joined("app-0", MEMBER, reason="", is_new=False, sent_ms=300, at_ms=320, members=[], generation_id=4)
    events.synced("app-0", MEMBER, assignment_ms=None, partitions=[p0], sent_ms=330, at_ms=335, generation_id=4)
    third, fourth = log.record(events.ended(4), [p0])
    assert (third.generation_id, third.cause, third.lost) == (3, "why", ())
    assert (fourth.generation_id, fourth.cause, fourth.lost) == (4, "group is rebalancing", (p1,))
    assert log.record(events.ended(4), [p0]) == [] and log.rebalances == [first, third, fourth]


def test_rebalance_of_many_members_is_complete() -> None:
    """Only the leader, which is the first one here, knows the members of the group."""
    count = 1_000
    events, log = MemberEvents("g", count), RebalanceLog()
    ids = [f"app-{n}-{MEMBER[6:]}" for n in range(count)]
    for n, member_id in enumerate(ids):
        listed = [(each, None, b"") for each in (*ids, "other")] if n == 0 else []
        events.joined(
            f"app-{n}", member_id, reason="", is_new=True, sent_ms=n, at_ms=2_000, members=listed, generation_id=1
        )
    for n, member_id in enumerate(ids):
        owned = [TopicPartition("t", n)]
        events.synced(
            f"app-{n}", member_id, assignment_ms=None, partitions=owned, sent_ms=2_000, at_ms=2_100, generation_id=1
        )
    (rebalance,) = log.record(events.ended(1), [])
    assert (rebalance.members, rebalance.started_ms, rebalance.join_ms) == (count + 1, 0, 2_000)
    assert {event.client_id for event in events.since(0)[0]} == {f"app-{n}" for n in range(count)}


def test_rebalance_that_ends_a_storm_is_in_the_log() -> None:
    events, log, owned = MemberEvents("g"), RebalanceLog(), TopicPartition("t", 0)
    for generation in range(1, 1_001):
        rebalance(events, generation, generation * 100, is_settled=False)
    last = log.record(events.ended(1_000), [owned])[-1]
    assert (last.generation_id, last.gained, last.join_ms, last.sync_ms) == (1_000, (owned,), 30, 10)
    assert len(events.recorded) <= 5_000


def test_events_of_a_rebalance_that_does_not_end_are_bounded() -> None:
    events = MemberEvents("g")
    for number in range(3_000):
        events.noticed("a", "a-1", number)
        events.prepared("a", "a-1", [], number)
    # private: what else refers to events that were dropped
    assert [len(each) for each in events._unassigned.values()] == [len(events._pending)] == [2_000]
    events.joined("a", "a-1", reason="", is_new=False, sent_ms=1, at_ms=2, members=(), generation_id=3)
    assert {event.generation for event in events.ended(4)} == {3}
