"""Loading of assignors by name or class."""

from __future__ import annotations

import pytest

from spark_groupsource.assign import (
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    load_assignor,
)
from spark_groupsource.assign.user_assignors import UserAssignor
from spark_groupsource.errors import ConfigurationError


class EverythingToOne(RangeAssignor):
    """A user's assignor."""

    name = "everything-to-one"


class WithoutAssign:
    name = "incomplete"
    cooperative = False


class Failing:
    def __init__(self):
        raise RuntimeError("no such table")


@pytest.mark.parametrize(
    "name, kind, cooperative",
    [
        ("range", RangeAssignor, False),
        ("roundrobin", RoundRobinAssignor, False),
        ("sticky", StickyAssignor, False),
        ("cooperative-sticky", CooperativeStickyAssignor, True),
        (f"{__name__}:EverythingToOne", UserAssignor, False),
    ],
)
def test_load_assignor(name, kind, cooperative):
    assignor = load_assignor(name)
    assert type(assignor) is kind and assignor.cooperative is cooperative
    assert assignor.name == name or assignor.name == "everything-to-one"
    assert load_assignor(name) is not assignor


@pytest.mark.parametrize(
    "name, reason",
    [
        ("rnage", "must be one of range, roundrobin, sticky, cooperative-sticky or module:Class, got 'rnage'"),
        ("", "got ''"),
        (":Class", "got ':Class'"),
        ("no_such_module_anywhere:Class", "failed: ModuleNotFoundError"),
        (f"{__name__}:Missing", "failed: AttributeError"),
        (f"{__name__}:Failing", "failed: RuntimeError: no such table"),
        (f"{__name__}:WithoutAssign", "lacks user_data, assign, on_assignment"),
    ],
)
def test_assignor_that_cannot_be_created_is_rejected(name, reason):
    with pytest.raises(ConfigurationError, match=f"Option kafka.partition.assignment.strategy.*{reason}"):
        load_assignor(name)
