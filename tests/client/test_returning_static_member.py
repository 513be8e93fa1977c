"""Static member that returns between the two rebalances of a cooperative hand-over."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_group import T0, T1, Bench, described

from spark_groupsource.client.membership.assignment import unassigned
from spark_groupsource.errors import ErrorCode, NetworkError, RemoteProtocolError
from spark_groupsource.model import Assignment
from spark_groupsource.wire.consumer_protocol import encode_assignment

STATIC = {"assignors": ("cooperative-sticky",), "group_instance_id": "i"}
ONE, OTHER = (encode_assignment(Assignment((partition,))) for partition in (T0, T1))


def returned(response: Any, **settings: Any) -> Bench:
    """A static member that was assigned T0 without a rebalance; `response` is the DescribeGroups response."""
    bench = Bench(**(settings or STATIC))
    bench.script.is_leader, bench.script.assigned = False, (T0,)
    bench.script.prepare("DescribeGroups", response)
    bench.poll()
    bench.run_members()
    return bench


def test_unassigned_partitions_request_a_rebalance() -> None:
    bench = returned(lambda request: described(ONE, b""))
    assert bench.member.rejoin_needed and bench.member.rejoin_reason == "unassigned partitions: t-1"
    bench.script.assigned = (T0, T1)
    assert bench.settle().partitions == (T0, T1)
    first, second = bench.script.requests("JoinGroup")[-2:]
    assert (first.member_id, second.member_id) == ("", "m1")
    assert bench.script.sent_apis().count("DescribeGroups") == 1, "it looks for unassigned partitions once"


@pytest.mark.parametrize(
    "response",
    [
        lambda request: described(ONE, OTHER),
        lambda request: described(ONE, state="PreparingRebalance"),
        lambda request: described(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        lambda request: described(ONE, b"\x7f"),
        NetworkError("peer closed"),
    ],
    ids=["all assigned", "rebalancing", "error", "unreadable", "lost"],
)
def test_without_unassigned_partitions_no_rebalance_is_requested(response: Any) -> None:
    bench = returned(response)
    assert not bench.member.rejoin_needed
    assert bench.settle().partitions == (T0,)
    assert len([request for request in bench.script.requests("JoinGroup") if request.member_id]) == 0


@pytest.mark.parametrize(
    "settings", [{"assignors": ("cooperative-sticky",)}, {"assignors": ("range",), "group_instance_id": "i"}], ids=str
)
def test_dynamic_and_eager_members_do_not_look_for_unassigned_partitions(settings: Any) -> None:
    bench = returned(lambda request: described(), **settings)
    bench.settle()
    assert "DescribeGroups" not in bench.script.sent_apis()


def test_unassigned_partitions() -> None:
    assert unassigned({"t": 2}, []) == unassigned({"t": 2}, [b""]) == (T0, T1)
    assert unassigned({"t": 2}, [OTHER]) == (T0,)
    assert unassigned({"t": 1}, [ONE, OTHER]) == ()
    with pytest.raises(RemoteProtocolError):
        unassigned({"t": 1}, [b"\x00"])
