"""A static member returns between the two rounds of a cooperative hand-over: what it gave up must not stay nobody's."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.scripted_group import T0, T1, Bench, described

from spark_groupsource.client.membership.assignment import unassigned
from spark_groupsource.errors import ErrorCode, NetworkError, RemoteProtocolError
from spark_groupsource.model import Assignment
from spark_groupsource.wire.consumer_protocol import encode_assignment

STATIC = {"assignors": ("cooperative-sticky",), "group_instance_id": "i"}
ONE, OTHER = (encode_assignment(Assignment((partition,))) for partition in (T0, T1))


def returned(answer: Any, **settings: Any) -> Bench:
    """A member that was given T0 without a round, and met `answer` when it looked for what is nobody's."""
    bench = Bench(**(settings or STATIC))
    bench.script.leads, bench.script.assigned = False, (T0,)
    bench.script.once("DescribeGroups", answer)
    bench.poll()
    bench.pump()
    return bench


def test_what_is_nobodys_is_asked_for_in_a_round() -> None:
    bench = returned(lambda request: described(ONE, b""))
    assert bench.member.rejoin_needed and bench.member.rejoin_reason == "unassigned partitions: t-1"
    bench.script.assigned = (T0, T1)
    assert bench.settle().partitions == (T0, T1)
    first, second = bench.script.of("JoinGroup")[-2:]
    assert (first.member_id, second.member_id) == ("", "m1")
    assert bench.script.asked().count("DescribeGroups") == 1, "it looks when it returns, and only then"


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: described(ONE, OTHER),
        lambda request: described(ONE, state="PreparingRebalance"),
        lambda request: described(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        lambda request: described(ONE, b"\x7f"),
        NetworkError("peer closed"),
    ],
    ids=["all is somebody's", "in a round", "error", "unreadable", "lost"],
)
def test_otherwise_it_goes_on_without_a_round(answer: Any) -> None:
    bench = returned(answer)
    assert not bench.member.rejoin_needed
    assert bench.settle().partitions == (T0,)
    assert len([request for request in bench.script.of("JoinGroup") if request.member_id]) == 0


@pytest.mark.parametrize(
    "settings", [{"assignors": ("cooperative-sticky",)}, {"assignors": ("range",), "group_instance_id": "i"}], ids=str
)
def test_members_that_cannot_have_left_anything_do_not_look(settings: Any) -> None:
    bench = returned(lambda request: described(), **settings)
    bench.settle()
    assert "DescribeGroups" not in bench.script.asked()


def test_unassigned_partitions() -> None:
    assert unassigned({"t": 2}, []) == unassigned({"t": 2}, [b""]) == (T0, T1)
    assert unassigned({"t": 2}, [OTHER]) == (T0,)
    assert unassigned({"t": 1}, [ONE, OTHER]) == ()
    with pytest.raises(RemoteProtocolError):
        unassigned({"t": 1}, [b"\x00"])
