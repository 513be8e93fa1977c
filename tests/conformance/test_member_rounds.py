"""Kafka's AbstractCoordinatorTest: requests of a member and their responses."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.scripted_group import T0, T1, Bench, joined

from spark_groupsource.client.membership.member_requests import MemberRequests
from spark_groupsource.client.membership.membership_values import Generation, Idle
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

COOPERATIVE = {"assignors": ("cooperative-sticky",)}


def joins(bench: Bench) -> list[tuple[int, str]]:
    """Returns the number of protocols and the member id of each JoinGroup."""
    return [(len(request.protocols), request.member_id) for request in bench.script.requests("JoinGroup")]


# -- coordinator lookup ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-002")
@pytest.mark.parametrize("failure", [NetworkError("refused"), ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_lookup_is_retried_with_exponential_backoff(failure: Any) -> None:
    for attempts in range(1, 6):
        bench = Bench(client={"retry_backoff_max_ms": 60_000})
        bench.cluster.call_any(_lookup())
        bench.script.prepare("FindCoordinator", *[failure] * attempts)
        started_ms = bench.clock.now_ms()
        bench.cluster.find_coordinator("g")
        elapsed_ms = bench.clock.now_ms() - started_ms
        backoff_ms = sum(100 * 2**attempt for attempt in range(attempts))
        assert 0.8 * backoff_ms - attempts <= elapsed_ms <= 1.2 * backoff_ms


def _lookup() -> Any:
    from spark_groupsource.wire.messages import FindCoordinatorRequest

    return FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])


@pytest.mark.conformance("AC-045", "CC-125")
@pytest.mark.parametrize("api", ["FindCoordinator", "Connect", "JoinGroup", "SyncGroup"])
def test_authentication_error_is_raised_and_a_later_poll_joins_again(api: str) -> None:
    bench = Bench()
    bench.script.prepare(api, AuthenticationError("wrong password"))
    with pytest.raises(AuthenticationError, match="wrong password"):
        bench.settle()
    assert bench.settle().is_stable


# -- JoinGroup -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-004", "AC-047")
def test_poll_returns_at_its_timeout_and_a_later_one_returns_the_result() -> None:
    bench = Bench()
    assert not bench.poll().is_stable and bench.clock.now_ms() == 1_000
    bench.run_members()
    assert bench.poll().is_stable
    assert joins(bench) == [(2, ""), (2, "m1")] and len(bench.script.requests("SyncGroup")) == 1

    bench = Bench()
    bench.script.prepare("JoinGroup", *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3)
    bench.poll()
    bench.run_members()
    assert not bench.poll().is_stable and len(joins(bench)) == 1, "poll does not wait for the backoff"


@pytest.mark.conformance("AC-005", "CC-029", "CC-077", "CC-009")
@pytest.mark.parametrize(
    "code, remedy",
    [
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (ErrorCode.INVALID_GROUP_ID, "kafka.group.id"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "kafka.session.timeout.ms"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Grant"),
    ],
)
def test_rejected_join_is_raised_with_the_remedy(code: ErrorCode, remedy: str) -> None:
    bench = Bench()
    bench.script.prepare("JoinGroup", code)
    with pytest.raises(BrokerError, match=remedy) as raised:
        bench.settle()
    assert raised.value.code == code and not raised.value.retriable and len(joins(bench)) == 1


@pytest.mark.conformance("AC-006", "AC-007", "AC-008")
@pytest.mark.parametrize(
    "interval_ms, request_timeout_ms, expected_ms",
    [(5_000, 40_000, 65_000), (1_000, 40_000, 40_000), (2**31 - 1, 40_000, 2**31 - 1 + 5_000)],
)
def test_timeout_of_join_includes_the_rebalance_timeout(
    interval_ms: int, request_timeout_ms: int, expected_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[int] = []
    call_delayed = MemberRequests.call_delayed

    def record(self: MemberRequests, request: Any, timeout_ms: int, *arguments: Any) -> Any:
        timeouts.append(timeout_ms)
        return call_delayed(self, request, timeout_ms, *arguments)

    monkeypatch.setattr(MemberRequests, "call_delayed", record)
    bench = Bench(client={"request_timeout_ms": request_timeout_ms}, max_poll_interval_ms=interval_ms)
    bench.settle()
    assert set(timeouts) == {expected_ms}


@pytest.mark.conformance("AC-009")
def test_member_id_of_the_response_is_used() -> None:
    bench = Bench()
    bench.poll()
    bench.members.run_once()
    assert bench.member.generation == Generation(-1, "m1", None) and bench.member.rejoin_needed
    bench.run_members()
    assert joins(bench) == [(2, ""), (2, "m1")]


@pytest.mark.conformance("AC-010", "AC-016")
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_replaced_static_member_is_fenced_during_a_rebalance(api: str) -> None:
    bench = Bench(group_instance_id="i")
    bench.script.prepare(api, ErrorCode.FENCED_INSTANCE_ID)
    with pytest.raises(GenerationMismatchError, match="FENCED_INSTANCE_ID"):
        bench.settle()
    assert len(joins(bench)) == 1, "the join is not retried"


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
def test_responses_with_another_protocol_are_rejected(api: str, fields: dict[str, Any], accepted: bool) -> None:
    bench = Bench(group_instance_id="i")
    script = bench.script

    def join(request: Any) -> Any:
        script.generation_id += 1
        return script.join_response(request, "m1", **fields)

    def sync(request: Any) -> Any:
        response = script.sync_response(request, encode_assignment(Assignment((T0,))))
        for name, value in fields.items():
            setattr(response, name, value)
        return response

    script.prepare(api, join if api == "JoinGroup" else sync)
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
    bench.script.prepare(api, NetworkError("peer closed"))
    assert bench.settle().is_stable
    assert joins(bench) == [(2, "m1"), (2, "m1")]
    first_join, lookup = bench.script.sent_apis().index("JoinGroup"), bench.script.sent_apis().index("FindCoordinator")
    assert lookup > first_join, "the coordinator is looked up again before the second"


@pytest.mark.conformance("AC-014")
def test_join_has_the_reason_of_the_rebalance() -> None:
    bench = Bench()
    bench.settle()
    bench.member.request_rejoin("a test")
    bench.script.prepare("JoinGroup", NetworkError("peer closed"))
    bench.settle()
    bench.member.request_rejoin("x" * 300)
    bench.settle()
    reasons = [request.reason for request in bench.script.requests("JoinGroup")]
    assert reasons == [
        "",
        "need to re-join with the given member-id",
        "a test",
        "rebalance failed due to NetworkError",
        "x" * 255,
    ]
    assert bench.member.rejoin_reason == "", "a completed rebalance clears the reason"


@pytest.mark.conformance("AC-026")
def test_unknown_member_joins_as_a_new_one() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.prepare("JoinGroup", ErrorCode.UNKNOWN_MEMBER_ID)
    assert bench.settle().members[0].member_id == "m2"
    assert joins(bench) == [(2, "m1"), (2, ""), (2, "m2")]


@pytest.mark.conformance("AC-027")
def test_join_is_retried_after_rebalance_in_progress_without_revoking_again() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.prepare("JoinGroup", ErrorCode.REBALANCE_IN_PROGRESS)
    assert bench.settle().is_stable
    assert joins(bench) == [(2, "m1"), (2, "m1")]
    assert bench.callbacks() == [("revoked", (T0, T1)), ("assigned", (T0, T1))]


@pytest.mark.conformance("AC-046")
def test_join_is_retried_after_the_backoff_while_the_coordinator_is_loading() -> None:
    bench = Bench()
    bench.script.prepare("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    bench.poll()
    bench.run_members()
    action = bench.member.next_action(bench.clock.now_ms())
    assert isinstance(action, Idle) and 80 <= action.until_ms - bench.clock.now_ms() <= 120
    assert bench.settle().is_stable and bench.script.sent_apis().count("FindCoordinator") == 1


# -- outdated responses ----------------------------------------------------------------------------------------------


def renamed(bench: Bench, code: ErrorCode) -> Any:
    """Returns a step: an error response, after the member has got another generation."""

    def step(request: Any) -> Any:
        bench.member.generation = Generation(7, "other", "range")
        return bench.script.default_response(request, code)

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
def test_response_of_an_older_generation_is_ignored(api: str, code: ErrorCode) -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.script.prepare(api, renamed(bench, code))
    bench.members.run_once()
    assert bench.member.generation == Generation(7, "other", "range") and bench.member.rejoin_needed


@pytest.mark.conformance("AC-021", "AC-022", "AC-024")
@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
)
def test_heartbeat_response_of_an_older_generation_is_ignored(code: ErrorCode) -> None:
    bench = joined()
    bench.script.prepare("Heartbeat", renamed(bench, code))
    bench.heartbeat()
    assert bench.member.generation == Generation(7, "other", "range")
    assert bench.poll().is_stable and bench.callbacks() == []


@pytest.mark.conformance("AC-015", "CC-145")
@pytest.mark.parametrize("settings, callback", [({}, "revoked"), (COOPERATIVE, "lost")])
def test_member_reset_during_sync_ignores_the_response_and_joins_again(settings: Any, callback: str) -> None:
    bench = joined(**settings)
    bench.member.request_rejoin("a test")
    bench.script.prepare("SyncGroup", lambda request: bench.member.on_leave("poll timeout"))
    assert bench.settle().is_stable
    # an eager member has revoked its partitions before it joins
    assert bench.callbacks() == [(callback, (T0, T1)), ("assigned", (T0, T1))]
    assert [member_id for _, member_id in joins(bench)] == ["m1", "", "m2"]


# -- heartbeats ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-020", "AC-023")
def test_rebalance_in_progress_between_join_and_sync_is_ignored() -> None:
    bench = joined(heartbeat_interval_ms=20)
    bench.member.request_rejoin("a test")
    script = bench.script
    script.prepare("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
    # the leader computes its assignment for longer than a heartbeat interval
    bench.members.assignor_ms = 100
    assert bench.settle().is_stable and len(joins(bench)) == 1
    apis = script.sent_apis()
    assert apis.index("JoinGroup") < apis.index("Heartbeat") < apis.index("SyncGroup")
    assert not bench.member.rejoin_needed


@pytest.mark.conformance("AC-025")
def test_static_member_fenced_by_a_heartbeat_raises_from_poll() -> None:
    bench = joined(group_instance_id="i")
    bench.script.prepare("Heartbeat", ErrorCode.FENCED_INSTANCE_ID)
    bench.heartbeat()
    assert bench.client.rejoin_needed
    with pytest.raises(GenerationMismatchError, match="kafka.group.instance.id"):
        bench.poll()


def test_heartbeat_waits_for_its_response_until_the_session_timeout() -> None:
    bench = joined(client={"request_timeout_ms": 30_000}, session_timeout_ms=10_000, heartbeat_interval_ms=3_000)
    started_ms = bench.clock.now_ms()
    bench.script.prepare("Heartbeat", RequestTimeoutError("no response"))
    bench.heartbeat()
    assert bench.clock.now_ms() - started_ms == 10_000
    assert not bench.cluster.has_coordinator("g"), "the coordinator is looked up again"
    bench.heartbeat()
    assert bench.poll().is_stable and joins(bench) == []


def test_heartbeat_is_sent_on_a_new_connection_before_the_login_expires() -> None:
    bench = joined()
    # private: the connection that the members share, whose login expires after minutes
    pipeline = bench.client.loop.connections._pipeline
    assert pipeline is not None
    connections = bench.script.connections
    pipeline.is_expired = True  # type: ignore[misc]
    bench.heartbeat()
    bench.heartbeat()
    assert bench.script.connections == connections + 1 and bench.poll().is_stable
    assert bench.script.sent_apis() == ["Heartbeat", "Heartbeat"]


def test_missing_permission_to_find_the_coordinator_is_raised_from_poll() -> None:
    bench = joined()
    bench.script.prepare("Heartbeat", ErrorCode.NOT_COORDINATOR)
    bench.heartbeat()
    bench.script.prepare("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    bench.heartbeat()
    assert bench.client.rejoin_needed
    with pytest.raises(BrokerError, match="FindCoordinator of group 'g' failed: GROUP_AUTHORIZATION_FAILED"):
        bench.poll()
    assert bench.settle().is_stable


@pytest.mark.conformance("AC-034")
def test_unexpected_exception_in_the_thread_is_raised_from_poll() -> None:
    bench = joined()
    bench.script.prepare("Heartbeat", LookupError("a bug"))
    bench.heartbeat()
    assert bench.client.rejoin_needed
    with pytest.raises(LookupError, match="a bug"):
        bench.poll()
    assert bench.settle().is_stable


def test_leader_removed_while_it_computes_the_assignment_sends_no_sync() -> None:
    bench = joined(heartbeat_interval_ms=20)
    bench.member.request_rejoin("a test")
    bench.script.prepare("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
    bench.members.assignor_ms = 100
    bench.poll()
    bench.run_members()
    bench.members.assignor_ms = 0
    assert bench.script.requests("SyncGroup") == [] and bench.member.generation == Generation()
    assert bench.settle().members[0].member_id == "m2"


@pytest.mark.conformance("AC-036")
def test_concurrent_lookups_send_one_request() -> None:
    bench = Bench()
    with pytest.raises(NetworkError, match="bootstrap.servers"):
        bench.script.prepare("FindCoordinator", *[NetworkError("refused")] * 1_000)
        bench.cluster.find_coordinator("g")
    bench.script.clear_prepared()
    bench.script.sent.clear()
    is_sent, may_respond = threading.Event(), threading.Event()

    def slow(request: Any) -> None:
        is_sent.set()
        assert may_respond.wait(10)

    bench.script.prepare("FindCoordinator", slow)
    with ThreadPoolExecutor(5) as pool:
        found = [pool.submit(bench.cluster.find_coordinator, "g")]
        assert is_sent.wait(10)
        found += [pool.submit(bench.cluster.find_coordinator, "g") for _ in range(4)]
        may_respond.set()
        nodes = {future.result(10) for future in found}
    (node,) = nodes
    assert bench.script.sent_apis() == ["FindCoordinator"]
    bench.cluster.invalidate_coordinator("g", node)
    assert bench.cluster.find_coordinator("g") == node
    assert bench.script.sent_apis() == ["FindCoordinator"] * 2
