"""Exceptions and wrong assignments of a user's assignor."""

from __future__ import annotations

import re
from typing import Any, Callable

import pytest

from spark_groupsource.assign import Assignment, GroupMember, Subscription, TopicPartition
from spark_groupsource.assign.user_assignors import UserAssignor
from spark_groupsource.errors import ConfigurationError, NetworkError

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MEMBERS = [GroupMember("a", Subscription(("t",), owned_partitions=(T0, T1))), GroupMember("b", Subscription(("t",)))]


class Given:
    """An assignor with a given result of each method; an exception is raised."""

    name = "given"

    def __init__(self, result: Any, cooperative: bool = False) -> None:
        self.result = result
        self.cooperative = cooperative

    def answer(self, *_: object) -> Any:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    user_data = assign = on_assignment = configure = answer


def assign(result: Any, cooperative: bool = False) -> Any:
    return UserAssignor("module:Class", Given(result, cooperative)).assign({"t": 2}, MEMBERS)


@pytest.mark.parametrize(
    "result",
    [
        {"a": [T0], "b": [T1]},
        {"a": (T0, T1), "b": []},
        # a partition may stay without an owner, and a topic without a subscriber may have one
        {"a": [], "b": [U0]},
    ],
)
def test_assignments(result: dict[str, Any]) -> None:
    assert assign(result) == {member: list(assigned) for member, assigned in result.items()}


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "must return an entry for every member (a, b), got None"),
        ([1, 2], "must return an entry for every member (a, b), got list"),
        ({}, "must return an entry for every member (a, b), got none"),
        ({"a": [], "b": [], "c": []}, "must return an entry for every member (a, b), got a, b, c"),
        ({"a": "t", "b": []}, "must return a list of TopicPartition for each member, got str"),
        ({"a": [("t", 0)], "b": []}, "must return lists of TopicPartition, got ('t', 0) for member a"),
        ({"a": [TopicPartition("t", 0.5)], "b": []}, "must return lists of TopicPartition"),  # type: ignore[arg-type]
        ({"a": [T0], "b": [T0]}, "assigns t-0 more than once"),
        ({"a": [T0, T0], "b": []}, "assigns t-0 more than once"),
        ({"a": [TopicPartition("t", 2), TopicPartition("t", -1)], "b": []}, "assigns t--1, t-2, which does not exist"),
    ],
)
def test_what_is_no_assignment_is_rejected(result: Any, problem: str) -> None:
    text = f"Option kafka.partition.assignment.strategy: module:Class.assign {problem}"
    with pytest.raises(ConfigurationError, match=re.escape(text)) as raised:
        assign(result)
    assert str(raised.value).endswith(". Fix the assignor and restart the query.")


def test_a_cooperative_assignor_moves_a_partition_after_its_owner_has_revoked_it() -> None:
    assert assign({"a": [T0], "b": []}, cooperative=True) == {"a": [T0], "b": []}
    with pytest.raises(ConfigurationError, match="is cooperative, but assigns t-1 to a new member"):
        assign({"a": [T0], "b": [T1]}, cooperative=True)


CALLS: dict[str, Callable[[UserAssignor], object]] = {
    "assign": lambda assignor: assignor.assign({"t": 2}, MEMBERS),
    "user_data": lambda assignor: assignor.user_data(("t",), (), -1),
    "on_assignment": lambda assignor: assignor.on_assignment(Assignment(()), 1),
    "configure": lambda assignor: assignor.configure(None),
}


@pytest.mark.parametrize("method", CALLS)
def test_exceptions_name_the_method(method: str) -> None:
    for error, text in ((ValueError("no idea"), "ValueError: no idea"), (SystemExit(3), "SystemExit: 3")):
        with pytest.raises(ConfigurationError, match=rf"module:Class\.{method} raised {text}\. Fix the assignor"):
            CALLS[method](UserAssignor("module:Class", Given(error)))
    # of a request for offsets: the query retries
    with pytest.raises(NetworkError, match="no broker"):
        CALLS[method](UserAssignor("module:Class", Given(NetworkError("no broker"))))


def test_user_data_is_bytes() -> None:
    with pytest.raises(ConfigurationError, match="user_data must return bytes or None, got str"):
        UserAssignor("module:Class", Given("text")).user_data(("t",), (), -1)
