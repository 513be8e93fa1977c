"""Members whose coordinator fails at each step of a rebalance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clients import advertise, fake_broker, group_client, open_cluster
from support.scripted_group import GROUP, T0, T1, Bench, Script, described, follower, joined

from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import ErrorCode, NetworkError, RequestTimeoutError
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.messages import FindCoordinatorResponse, JoinGroupResponse, MetadataResponse

FAILOVER_MS = 9_000
SESSION_MS = 45_000
COORDINATOR_APIS = "Connect JoinGroup SyncGroup Heartbeat OffsetCommit OffsetFetch LeaveGroup DescribeGroups".split()


class FailingScript(Script):
    """A coordinator that fails at a request; another node replaces it after `FAILOVER_MS`.

    Attributes:
        at: API of the request at which it fails.
        failure: its reaction to that request and to each further one until it is replaced.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.at, self.failure = "", NetworkError("Closed.")
        self._failed_ms: int | None = None

    def fail_at(self, api: str, failure: Exception | ErrorCode) -> None:
        self.at, self.failure, self._failed_ms = api, failure, None  # type: ignore[assignment]

    def connect(self) -> None:
        self._fail("Connect", 10_000)
        super().connect()

    def respond(self, request: Any, timeout_ms: int | None) -> Any:
        api = api_of(request).name
        code = self._fail(api, timeout_ms) if api in (*COORDINATOR_APIS, self.at) else None
        if code is None:
            return super().respond(request, timeout_ms)
        self.sent.append((api, request, timeout_ms))
        return self.default_response(request, code)

    def _fail(self, api: str, timeout_ms: int | None) -> ErrorCode | None:
        """Raises, or returns the error code of the response, while the coordinator has failed."""
        if self._failed_ms is None and api == self.at:
            self._failed_ms = self.clock.now_ms()
        if self._failed_ms is None or self.clock.now_ms() - self._failed_ms >= FAILOVER_MS:
            return None
        if isinstance(self.failure, ErrorCode):
            return None if api in ("Connect", "DescribeGroups") else self.failure
        if isinstance(self.failure, RequestTimeoutError):
            self.time_out(timeout_ms)
        raise self.failure


class FailingBench(Bench):
    """A member whose coordinator is a `FailingScript`."""

    script: FailingScript

    def __init__(self, assignor: str) -> None:
        super().__init__(assignors=(assignor,), session_timeout_ms=SESSION_MS)
        self.cluster.script = self.script = FailingScript(self.clock)

    def recover_ms(self) -> int:
        """Polls until the member is settled; returns the time that it took."""
        began_ms = self.clock.now_ms()
        while not self.poll().is_stable:
            before = self.clock.now_ms(), len(self.script.sent)
            self.run_members()
            if before == (self.clock.now_ms(), len(self.script.sent)):
                # nothing is under way: time must lead to the next action
                action = self.member.next_action(self.clock.now_ms())
                assert action.until_ms < self.clock.now_ms() + SESSION_MS, f"nothing is scheduled: {action}"  # type: ignore[union-attr]
                self.clock.advance_ms(action.until_ms - self.clock.now_ms())  # type: ignore[union-attr]
        return self.clock.now_ms() - began_ms


def begin_join(bench: FailingBench) -> None:
    """Joins for the first time."""


def begin_second_join(bench: FailingBench) -> None:
    """Joins again, as after the first of two cooperative rebalances, with owned partitions."""
    bench.recover_ms()
    bench.member.request_rejoin("a test")


def begin_heartbeat(bench: FailingBench) -> None:
    """Sends a heartbeat as a settled member."""
    bench.recover_ms()
    bench.clock.advance_ms(3_000)


FAILURES: dict[str, Exception | ErrorCode] = {
    "frozen": RequestTimeoutError("No response."),
    "closed": NetworkError("Closed."),
    "moved": ErrorCode.NOT_COORDINATOR,
    "loading": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "not available": ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
STEPS = [
    (begin, api, failure)
    for begin, apis in (
        (begin_join, ["FindCoordinator", "Connect", "JoinGroup", "SyncGroup"]),
        (begin_second_join, ["JoinGroup", "SyncGroup"]),
        (begin_heartbeat, ["Heartbeat"]),
    )
    for api in apis
    for failure in FAILURES
    # opening a connection has no error code
    if api != "Connect" or isinstance(FAILURES[failure], Exception)
]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(("begin", "api", "failure"), STEPS, ids=[f"{b.__name__}-{a}-{f}" for b, a, f in STEPS])
def test_member_is_settled_within_its_session_after_a_failure(
    begin: Callable[[FailingBench], None], api: str, failure: str, assignor: str
) -> None:
    bench = FailingBench(assignor)
    begin(bench)
    bench.script.fail_at(api, FAILURES[failure])
    bench.run_members()
    took_ms = bench.recover_ms()
    assert took_ms < SESSION_MS
    assert bench.client.view.partitions == (T0, T1)
    assert not any(call == "lost" for call, _ in bench.callbacks())


@pytest.mark.parametrize("failure", FAILURES)
def test_commit_fetch_and_leave_end_within_their_timeouts(failure: str) -> None:
    bench = FailingBench("cooperative-sticky")
    bench.recover_ms()
    committed = {T0: OffsetAndMetadata(3)}
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "OffsetCommit": (60_000, lambda: bench.client.commit(committed)),
        "OffsetFetch": (60_000, lambda: bench.client.committed([T0])),
        "LeaveGroup": (10_000, lambda: bench.client.leave("a test")),
    }
    for api, (limit_ms, call) in calls.items():
        bench.script.fail_at(api, FAILURES[failure])
        began_ms = bench.clock.now_ms()
        call()
        assert bench.clock.now_ms() - began_ms <= limit_ms


# -- the check of a coordinator that delays its response ---------------------------------------------------------------


def delay_response(bench: Bench, api: str, delay_ms: int) -> None:
    def respond(request: Any) -> None:
        bench.script.delay_ms = delay_ms

    bench.script.prepare(api, respond)


STATES = [("JoinGroup", "PreparingRebalance"), ("SyncGroup", "CompletingRebalance")]


@pytest.mark.parametrize(("api", "state"), STATES)
def test_member_waits_for_other_members_without_another_request(api: str, state: str) -> None:
    """Also a leader whose assignor takes longer than request.timeout.ms."""
    bench = follower(T0)
    bench.member.request_rejoin("a test")
    delay_response(bench, api, 100_000)
    bench.script.prepare("DescribeGroups", *[lambda request: described(state=state)] * 6)
    assert bench.settle().is_stable
    assert [bench.script.sent_apis().count(name) for name in ("JoinGroup", "SyncGroup", "DescribeGroups")] == [1, 1, 6]


@pytest.mark.parametrize(("api", "state"), STATES)
@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_coordinator_that_cannot_be_checked_is_waited_for(api: str, state: str, code: ErrorCode) -> None:
    bench = follower(T0)
    bench.member.request_rejoin("a test")
    delay_response(bench, api, 50_000)
    bench.script.prepare("DescribeGroups", *[lambda request: described(code=code)] * 3)
    assert bench.settle().is_stable and bench.script.sent_apis().count(api) == 1


@pytest.mark.parametrize(("api", "state"), STATES)
@pytest.mark.parametrize("answer", ["Stable", "Empty", ErrorCode.GROUP_ID_NOT_FOUND])
def test_member_joins_again_if_the_response_was_lost(api: str, state: str, answer: str | ErrorCode) -> None:
    """The response may be on its way during the first check."""
    bench = follower(T0)
    bench.member.request_rejoin("a test")
    bench.script.prepare(api, RequestTimeoutError("Lost."))
    lost = described(code=answer) if isinstance(answer, ErrorCode) else described(state=answer)
    bench.script.prepare("DescribeGroups", lambda request: lost, lambda request: described(state=state))
    bench.script.prepare("DescribeGroups", lambda request: lost, lambda request: lost)
    assert bench.settle().is_stable
    assert bench.script.sent_apis().count("DescribeGroups") == 4 and bench.script.sent_apis().count("JoinGroup") == 2
    assert bench.clock.now_ms() < 1_000 + 4 * 15_000 + 2_000


def test_response_that_arrives_after_a_check_is_received() -> None:
    bench = follower(T0)
    bench.member.request_rejoin("a test")
    delay_response(bench, "JoinGroup", 20_000)
    assert bench.settle().is_stable
    assert bench.script.sent_apis() == ["JoinGroup", "DescribeGroups", "SyncGroup"]


def test_node_that_is_no_longer_the_coordinator_is_left_at_once() -> None:
    bench = follower(T0)
    bench.member.request_rejoin("a test")
    bench.script.prepare("JoinGroup", RequestTimeoutError("No response."))
    bench.script.prepare("DescribeGroups", lambda request: described(code=ErrorCode.NOT_COORDINATOR))
    assert bench.settle().is_stable
    assert bench.script.sent_apis()[:4] == ["JoinGroup", "DescribeGroups", "FindCoordinator", "JoinGroup"]


def test_join_ends_after_the_rebalance_timeout() -> None:
    bench = follower(T0, max_poll_interval_ms=4_200)
    bench.member.request_rejoin("a test")
    bench.script.prepare("JoinGroup", RequestTimeoutError("No response."))
    bench.script.prepare("DescribeGroups", *[lambda request: described(state="PreparingRebalance")] * 9)
    assert bench.settle().is_stable
    assert 55_000 <= bench.clock.now_ms() - 1_000 < 57_000


def test_heartbeat_failure_of_a_settled_member_is_no_rebalance() -> None:
    bench = joined()
    bench.script.prepare("Heartbeat", *[RequestTimeoutError("No response.")] * 2)
    for _ in range(4):
        bench.heartbeat()
    assert bench.script.requests("JoinGroup") == [] and bench.poll().is_stable


def versions(request: Any, version: int) -> Any:
    return advertise(
        ApiVersions=(0, 3), Metadata=(0, 12), FindCoordinator=(0, 4), JoinGroup=(0, 9), SyncGroup=(0, 5),
        Heartbeat=(0, 4), LeaveGroup=(0, 5), DescribeGroups=(0, 5),
    )  # fmt: skip


@pytest.mark.parametrize("number", [1, 2])
def test_process_that_freezes_during_a_join_is_replaced(number: int) -> None:
    """Over sockets: the first node stops responding when it receives a JoinGroup; connections to it stay open."""
    is_frozen: list[bool] = []

    script = Script(ManualClock())

    def default(request: Any, version: int) -> Any:
        return script.default_response(request)

    served = {"ApiVersions": versions, **dict.fromkeys(("SyncGroup", "Heartbeat", "LeaveGroup"), default)}

    def join(request: Any, version: int) -> Any:
        if version >= 4 and not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m", members=[])
        return default(request, version)

    def freeze(request: Any, version: int) -> Any:
        if number == 2 and not request.member_id:
            return join(request, version)
        is_frozen.append(True)
        return None

    with fake_broker(**served, JoinGroup=freeze) as first, fake_broker(**served, JoinGroup=join) as second:

        def find(request: Any, version: int) -> Any:
            node, address = (2, second.address) if is_frozen else (1, first.address)
            row = FindCoordinatorResponse.Coordinator(
                key=GROUP, node_id=node, host=address.host, port=address.port, error_code=0, error_message=None
            )
            return FindCoordinatorResponse(throttle_time_ms=0, coordinators=[row])

        def describe(request: Any, version: int) -> Any:
            metadata = script.default_response(request)
            rows = ((1, first.address), (2, second.address))
            metadata.brokers = [
                MetadataResponse.MetadataResponseBroker(node_id=n, host=a.host, port=a.port, rack=None) for n, a in rows
            ]
            return metadata

        first.responses["ApiVersions"] = lambda r, v: None if is_frozen else versions(r, v)
        second.responses.update(FindCoordinator=find, Metadata=describe)
        settings = {"retry_backoff_ms": "1"}
        with open_cluster(str(second.address), **settings) as client:
            with group_client(client, GROUP, "t", session_timeout_ms=600, heartbeat_interval_ms=100) as ours:
                assert ours.poll(5_000).is_stable
        sent = [name for name, *_ in first.requests if name in ("ApiVersions", "JoinGroup")]
        # a JoinGroup without a member id is responded to at once; the check of the second has a connection of its own
        after = [["JoinGroup"], ["JoinGroup", "JoinGroup", "ApiVersions"]]
        assert sent[sent.index("JoinGroup") :] == after[number - 1]
