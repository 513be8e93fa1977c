"""What a member sends, and what each answer makes of it: cases of Kafka's AbstractCoordinatorTest and HeartbeatTest."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.scripted_group import T0, T1, Bench, Script, follower, joined
from support.waiting import wait_until

from spark_groupsource.client.membership.state_machine import (
    Generation,
    Idle,
    LeaveOnPollTimeout,
    MarkCoordinatorUnknown,
    MemberConfig,
    Membership,
    SendHeartbeat,
)
from spark_groupsource.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
    RequestTimeoutError,
)
from spark_groupsource.model import Assignment
from spark_groupsource.wire.consumer_protocol import encode_assignment
from spark_groupsource.wire.messages import LeaveGroupResponse

COOPERATIVE = {"assignors": ("cooperative-sticky",)}


def joins(bench: Bench) -> list[tuple[int, str]]:
    """Of each JoinGroup: how many protocols it offered, and the member id."""
    return [(len(request.protocols), request.member_id) for request in bench.script.of("JoinGroup")]


# -- finding the coordinator -----------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-002")
@pytest.mark.parametrize("failure", [NetworkError("refused"), ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_lookup_is_repeated_with_growing_delays(failure: Any) -> None:
    for attempts in range(1, 6):
        bench = Bench(client={"retry_backoff_max_ms": 60_000})
        bench.cluster.call_any(_lookup())
        bench.script.once("FindCoordinator", *[failure] * attempts)
        started_ms = bench.clock.now_ms()
        bench.cluster.find_coordinator("g")
        waited_ms = bench.clock.now_ms() - started_ms
        planned_ms = sum(100 * 2**attempt for attempt in range(attempts))
        assert 0.8 * planned_ms - attempts <= waited_ms <= 1.2 * planned_ms


def _lookup() -> Any:
    from spark_groupsource.wire.messages import FindCoordinatorRequest

    return FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])


@pytest.mark.conformance("AC-045", "CC-125")
@pytest.mark.parametrize("api", ["FindCoordinator", "Connect", "JoinGroup", "SyncGroup"])
def test_refused_credentials_are_raised_and_polling_again_joins_afresh(api: str) -> None:
    bench = Bench()
    bench.script.once(api, AuthenticationError("wrong password"))
    with pytest.raises(AuthenticationError, match="wrong password"):
        bench.settle()
    assert bench.settle().is_stable


# -- JoinGroup -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-004", "AC-047")
def test_poll_ends_in_time_and_a_later_one_takes_the_result() -> None:
    bench = Bench()
    assert not bench.poll().is_stable and bench.clock.now_ms() == 1_000
    bench.pump()
    assert bench.poll().is_stable
    assert joins(bench) == [(2, ""), (2, "m1")] and len(bench.script.of("SyncGroup")) == 1

    bench = Bench()
    bench.script.once("JoinGroup", *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3)
    bench.poll()
    bench.pump()
    assert not bench.poll().is_stable and len(joins(bench)) == 1, "it waits for its back-off outside of poll"


@pytest.mark.conformance("AC-005", "CC-029", "CC-077", "CC-009")
@pytest.mark.parametrize(
    "code, mend",
    [
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (ErrorCode.INVALID_GROUP_ID, "kafka.group.id"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "kafka.session.timeout.ms"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Grant"),
    ],
)
def test_refused_join_is_raised_with_its_mend(code: ErrorCode, mend: str) -> None:
    bench = Bench()
    bench.script.once("JoinGroup", code)
    with pytest.raises(BrokerError, match=mend) as raised:
        bench.settle()
    assert raised.value.code == code and not raised.value.retriable and len(joins(bench)) == 1


@pytest.mark.conformance("AC-006", "AC-007", "AC-008")
@pytest.mark.parametrize(
    "interval_ms, request_timeout_ms, expected_ms",
    [(60_000, 40_000, 65_000), (10_000, 40_000, 40_000), (2**31 - 1, 40_000, 2**31 - 1 + 5_000)],
)
def test_join_is_waited_for_as_long_as_the_group_may_take(
    interval_ms: int, request_timeout_ms: int, expected_ms: int
) -> None:
    bench = Bench(client={"request_timeout_ms": request_timeout_ms}, max_poll_interval_ms=interval_ms)
    bench.settle()
    assert {timeout_ms for name, _, timeout_ms in bench.script.sent if name == "JoinGroup"} == {expected_ms}


@pytest.mark.conformance("AC-009")
def test_member_id_that_is_given_is_used() -> None:
    bench = Bench()
    bench.poll()
    bench.thread.run_once()
    assert bench.member.generation == Generation(-1, "m1", None) and bench.member.rejoin_needed
    bench.pump()
    assert joins(bench) == [(2, ""), (2, "m1")]


@pytest.mark.conformance("AC-010", "AC-016")
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_replaced_static_member_is_fenced_during_a_rebalance(api: str) -> None:
    bench = Bench(group_instance_id="i")
    bench.script.once(api, ErrorCode.FENCED_INSTANCE_ID)
    with pytest.raises(GenerationMismatchError, match="FENCED_INSTANCE_ID"):
        bench.settle()
    assert len(joins(bench)) == 1, "it is not tried again behind the owner's back"


@pytest.mark.conformance("AC-011")
@pytest.mark.parametrize(
    "api, fields, accepted",
    [
        ("JoinGroup", {"protocol_type": None}, True),
        ("JoinGroup", {"protocol_type": "consumer"}, True),
        ("JoinGroup", {"protocol_type": "connect"}, False),
        ("SyncGroup", {"protocol_type": None, "protocol_name": None}, True),
        ("SyncGroup", {"protocol_type": "connect"}, False),
        ("SyncGroup", {"protocol_name": "sticky"}, False),
    ],
)
def test_answers_of_another_protocol_are_refused(api: str, fields: dict[str, Any], accepted: bool) -> None:
    bench = Bench(group_instance_id="i")
    script = bench.script

    def join(request: Any) -> Any:
        script.generation_id += 1
        return script.join_answer(request, "m1", **fields)

    def sync(request: Any) -> Any:
        answer = script.sync_answer(request, encode_assignment(Assignment((T0,))))
        for name, value in fields.items():
            setattr(answer, name, value)
        return answer

    script.once(api, join if api == "JoinGroup" else sync)
    if accepted:
        assert bench.settle().is_stable
    else:
        with pytest.raises(BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"):
            bench.settle()


@pytest.mark.conformance("AC-012", "AC-013", "CC-076")
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_lost_connection_during_a_rebalance_keeps_the_member_id(api: str) -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.once(api, NetworkError("peer closed"))
    assert bench.settle().is_stable
    assert joins(bench) == [(2, "m1"), (2, "m1")]
    first_join, lookup = bench.script.asked().index("JoinGroup"), bench.script.asked().index("FindCoordinator")
    assert lookup > first_join, "the coordinator is looked up again before the second"


@pytest.mark.conformance("AC-014")
def test_reason_of_a_join() -> None:
    bench = Bench()
    bench.settle()
    bench.member.request_rejoin("a test")
    bench.script.once("JoinGroup", NetworkError("peer closed"))
    bench.settle()
    bench.member.request_rejoin("x" * 300)
    bench.settle()
    reasons = [request.reason for request in bench.script.of("JoinGroup")]
    assert reasons == [
        "",
        "need to re-join with the given member-id",
        "a test",
        "rebalance failed due to NetworkError",
        "x" * 255,
    ]
    assert bench.member.rejoin_reason == "", "a round that succeeded leaves none"


@pytest.mark.conformance("AC-026")
def test_unknown_member_joins_as_a_new_one() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.once("JoinGroup", ErrorCode.UNKNOWN_MEMBER_ID)
    assert bench.settle().members[0].member_id == "m2"
    assert joins(bench) == [(2, "m1"), (2, ""), (2, "m2")]


@pytest.mark.conformance("AC-027")
def test_rebalance_during_a_join_repeats_the_join_without_revoking_again() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.once("JoinGroup", ErrorCode.REBALANCE_IN_PROGRESS)
    assert bench.settle().is_stable
    assert joins(bench) == [(2, "m1"), (2, "m1")]
    assert bench.told == [("revoked", (T0, T1)), ("assigned", (T0, T1))]


@pytest.mark.conformance("AC-046")
def test_coordinator_that_loads_is_asked_again_after_the_backoff() -> None:
    bench = Bench()
    bench.script.once("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    bench.poll()
    bench.pump()
    action = bench.member.next_action(bench.clock.now_ms())
    assert isinstance(action, Idle) and 80 <= action.until_ms - bench.clock.now_ms() <= 120
    assert bench.settle().is_stable and bench.script.asked().count("FindCoordinator") == 1


# -- answers that are late -------------------------------------------------------------------------------------------


def renamed(bench: Bench, answer: ErrorCode) -> Any:
    """A step during which the member gets another generation, before `answer` arrives."""

    def step(request: Any) -> Any:
        bench.member.generation = Generation(7, "other", "range")
        return getattr(bench.script, f"_{type(request).__name__.removesuffix('Request')}")(request, answer)

    return step


@pytest.mark.conformance("AC-017", "AC-018", "AC-019")
@pytest.mark.parametrize(
    "api, code",
    [
        ("JoinGroup", ErrorCode.UNKNOWN_MEMBER_ID),
        ("SyncGroup", ErrorCode.UNKNOWN_MEMBER_ID),
        ("SyncGroup", ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_answer_for_an_older_generation_resets_nothing(api: str, code: ErrorCode) -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.script.once(api, renamed(bench, code))
    bench.thread.run_once()
    assert bench.member.generation == Generation(7, "other", "range") and bench.member.rejoin_needed


@pytest.mark.conformance("AC-021", "AC-022", "AC-024")
@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
)
def test_heartbeat_response_of_an_older_generation_is_ignored(code: ErrorCode) -> None:
    bench = joined()
    bench.script.once("Heartbeat", renamed(bench, code))
    bench.beat()
    assert bench.member.generation == Generation(7, "other", "range")
    assert bench.poll().is_stable and bench.told == []


@pytest.mark.conformance("AC-015", "CC-145")
@pytest.mark.parametrize("settings, handed_over", [({}, "revoked"), (COOPERATIVE, "lost")])
def test_member_reset_during_sync_drops_the_answer_and_joins_again(settings: Any, handed_over: str) -> None:
    bench = joined(**settings)
    bench.member.request_rejoin("a test")
    bench.script.once("SyncGroup", lambda request: bench.member.on_leave("poll time-out"))
    assert bench.settle().is_stable
    # an eager member had given up everything before it joined
    assert bench.told == [(handed_over, (T0, T1)), ("assigned", (T0, T1))]
    assert [member_id for _, member_id in joins(bench)] == ["m1", "", "m2"]


# -- heartbeats ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-020", "AC-023")
def test_rebalance_heard_between_join_and_sync_changes_nothing() -> None:
    bench = joined(heartbeat_interval_ms=20)
    bench.member.request_rejoin("a test")
    script = bench.script
    script.once("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)

    def slow(request: Any) -> None:
        # the leader takes longer than a heartbeat interval for its assignment
        bench.clock.advance_ms(20)
        wait_until(lambda: script.of("Heartbeat"), "a heartbeat while the leader decides", 10)

    script.once("Metadata", slow)
    assert bench.settle().is_stable and len(joins(bench)) == 1
    asked = script.asked()
    assert asked.index("JoinGroup") < asked.index("Heartbeat") < asked.index("SyncGroup")
    assert not bench.member.rejoin_needed


@pytest.mark.conformance("AC-025")
def test_static_member_fenced_by_a_heartbeat_raises_from_poll() -> None:
    bench = joined(group_instance_id="i")
    bench.script.once("Heartbeat", ErrorCode.FENCED_INSTANCE_ID)
    bench.beat()
    assert bench.client.rejoin_needed
    with pytest.raises(GenerationMismatchError, match="kafka.group.instance.id"):
        bench.poll()


@pytest.mark.conformance("AC-034")
def test_unexpected_exception_in_the_thread_is_raised_from_poll() -> None:
    bench = joined()
    bench.script.once("Heartbeat", LookupError("a bug"))
    bench.beat()
    assert bench.client.rejoin_needed
    with pytest.raises(LookupError, match="a bug"):
        bench.poll()
    assert bench.settle().is_stable


def stable_member() -> Membership:
    """A member of ten seconds' session and a minute's poll interval, stable since 0."""
    bench = Bench(session_timeout_ms=10_000, max_poll_interval_ms=60_000)
    bench.clock._now_ms = 0
    bench.settle()
    return bench.member


@pytest.mark.conformance("HB-001", "HB-002", "HB-003")
def test_heartbeat_is_due_after_its_interval() -> None:
    member = stable_member()
    assert member.next_action(0) == Idle(3_000) == member.next_action(2_999)
    # late is due, never less than nothing to wait
    assert member.next_action(3_000) == SendHeartbeat() == member.next_action(5_000)


@pytest.mark.conformance("HB-004")
def test_session_ends_without_an_answer() -> None:
    member = stable_member()
    for now_ms in (3_000, 6_000, 9_000):
        member.heartbeat_request(now_ms)
        member.on_heartbeat_failure(now_ms, 3_000)
    assert member.next_action(9_999) == Idle(10_000)
    assert member.next_action(10_000) == MarkCoordinatorUnknown()


@pytest.mark.conformance("HB-005", "HB-007")
def test_answers_do_not_stand_for_the_owner() -> None:
    member = stable_member()
    for now_ms in range(3_000, 60_000, 3_000):
        assert member.next_action(now_ms) == SendHeartbeat()
        member.heartbeat_request(now_ms)
        member.on_heartbeat_response(0, member.generation, now_ms)
    assert member.next_action(60_000) == LeaveOnPollTimeout()
    member.on_poll(60_000)
    assert member.next_action(60_000) == SendHeartbeat()


@pytest.mark.conformance("HB-006")
def test_joining_restarts_all_three_timers() -> None:
    member = Membership(MemberConfig("g", ("range",), rebalance_timeout_ms=60_000, session_timeout_ms=10_000), 0)
    script = Script(joined().clock)
    member.prepare(("t",))
    request = member.join_request([("range", b"")])
    # the round took as long as it may
    member.on_join_response(script.join_answer(request, "m1"), member.generation, 59_000)
    assert member.next_action(59_000) == Idle(62_000)
    assert member.next_action(68_999) == SendHeartbeat() and member.next_action(69_000) == MarkCoordinatorUnknown()
    member.restart_session_timer(118_999)
    assert member.next_action(118_999) == SendHeartbeat() and member.next_action(119_000) == LeaveOnPollTimeout()


# -- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-028", "AC-029", "CC-057", "CC-058")
@pytest.mark.parametrize("instance_id", [None, "i"])
def test_dynamic_members_leave_on_close_and_static_ones_do_not(instance_id: str | None) -> None:
    bench = joined(group_instance_id=instance_id)
    bench.client.close()
    sent = [row for request in bench.script.of("LeaveGroup") for row in request.members]
    assert [row.member_id for row in sent] == ([] if instance_id else ["m1"])
    assert bench.member.generation == Generation() and bench.client.view.partitions == ()


@pytest.mark.conformance("AC-030")
def test_reason_of_leaving_is_cut() -> None:
    bench = joined()
    bench.client.leave("x" * 300)
    (request,) = bench.script.of("LeaveGroup")
    assert request.members[0].reason == "x" * 255


@pytest.mark.conformance("AC-032")
def test_answer_without_members_is_a_success(caplog: pytest.LogCaptureFixture) -> None:
    bench = joined()
    with caplog.at_level(logging.WARNING):
        bench.client.close()
    assert caplog.text == ""


@pytest.mark.conformance("AC-033")
def test_failed_leave_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    bench = joined()

    def refuse(request: Any) -> Any:
        row = LeaveGroupResponse.MemberResponse
        members = [row(member_id="m1", group_instance_id=None, error_code=ErrorCode.UNKNOWN_MEMBER_ID)]
        return LeaveGroupResponse(error_code=0, members=members)

    bench.script.once("LeaveGroup", refuse)
    with caplog.at_level(logging.WARNING):
        bench.client.close()
    assert "m1" in caplog.text and "UNKNOWN_MEMBER_ID" in caplog.text


@pytest.mark.conformance("CC-059")
def test_member_that_only_has_its_id_leaves() -> None:
    bench = Bench()
    bench.poll()
    bench.thread.run_once()
    bench.client.close()
    (request,) = bench.script.of("LeaveGroup")
    assert request.members[0].member_id == "m1"


@pytest.mark.conformance("CC-130")
def test_close_before_joining_sends_no_request() -> None:
    bench = Bench()
    bench.client.close()
    assert bench.script.sent == [] and bench.clock.now_ms() == 1_000


@pytest.mark.conformance("CC-136")
@pytest.mark.parametrize("api", ["LeaveGroup", "FindCoordinator"])
def test_close_is_bounded_without_responses(api: str) -> None:
    bench = joined()
    bench.cluster._coordinators.clear()
    bench.script.once(api, *[RequestTimeoutError("no answer")] * 10)
    started_ms = bench.clock.now_ms()
    bench.client.close()
    assert bench.clock.now_ms() - started_ms <= 10_000
    assert bench.told == [("revoked", (T0, T1))]


@pytest.mark.conformance("CC-019", "CC-026")
def test_leaving_without_a_generation_reports_lost_once_and_revoked_never() -> None:
    bench = follower(T0)
    bench.script.once("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
    bench.beat()
    bench.client.close()
    bench.client.close()
    assert bench.told == [("lost", (T0,))]
    assert bench.script.of("LeaveGroup") == []


def test_what_is_left_can_still_be_committed_in_the_callback() -> None:
    from spark_groupsource.model import OffsetAndMetadata

    bench = follower(T0)
    bench.listener.on = lambda call: bench.client.commit({T0: OffsetAndMetadata(4)})
    bench.client.close()
    assert bench.script.asked() == ["OffsetCommit", "LeaveGroup"]


def test_leader_removed_during_the_assignment_sends_none() -> None:
    bench = joined(heartbeat_interval_ms=20)
    bench.member.request_rejoin("a test")
    bench.script.once("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
    decided = threading.Event()

    def slow(request: Any) -> None:
        bench.clock.advance_ms(20)
        assert decided.wait(10)

    bench.script.once("Metadata", slow)
    bench.poll()
    bench.pump()
    decided.set()
    assert bench.script.of("SyncGroup") == [] and bench.member.generation == Generation()
    assert bench.settle().members[0].member_id == "m2"


@pytest.mark.conformance("AC-036")
def test_concurrent_lookups_send_one_request() -> None:
    bench = Bench()
    with pytest.raises(NetworkError, match="bootstrap.servers"):
        bench.script.once("FindCoordinator", *[NetworkError("refused")] * 1_000)
        bench.cluster.find_coordinator("g")
    bench.script._steps.clear()
    bench.script.sent.clear()
    asked, answer = threading.Event(), threading.Event()

    def slow(request: Any) -> None:
        asked.set()
        assert answer.wait(10)

    bench.script.once("FindCoordinator", slow)
    with ThreadPoolExecutor(5) as pool:
        found = [pool.submit(bench.cluster.find_coordinator, "g")]
        assert asked.wait(10)
        found += [pool.submit(bench.cluster.find_coordinator, "g") for _ in range(4)]
        answer.set()
        nodes = {future.result(10) for future in found}
    (node,) = nodes
    assert bench.script.asked() == ["FindCoordinator"]
    bench.cluster.forget_coordinator("g", node)
    assert bench.cluster.find_coordinator("g") == node
    assert bench.script.asked() == ["FindCoordinator"] * 2
