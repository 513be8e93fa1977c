"""Partition assignors; the group leader runs them (pure).

It knows members, subscriptions, partition counts and racks. It knows no request, generation of its own or clock: the
leader in `client/membership/assignment.py` passes all of it in, and sends what is returned.

An assignment
=============

1. Each member names its assignors in JoinGroup, each with user data (`Assignor.user_data`): the sticky assignors encode
   the partitions owned last (`user_data.py`). The coordinator chooses one that all members have.
2. The leader calls `Assignor.assign` with the members in the order of the JoinGroup response and gets the partitions of
   each: range and round-robin (`range_roundrobin.py`), or the sticky ones (`sticky.py`), by the faster way if all
   subscriptions are equal (`constrained_assignment.py`), else by the general one (`general_assignment.py`).
3. Each member gets its own partitions with the SyncGroup response, and `Assignor.on_assignment` is called.

A cooperative assignor assigns no partition while another member owns it: that member revokes it first, and a second
rebalance assigns it.

Foreign members lead the same groups, so an assignment must be the one that a Java leader computes, down to the order in
which ties are broken: `java_order.py` has the iteration orders of Java's collections, `rack_info.py` Kafka's rules for
racks. Vectors of Java's assignors are the tests.

Users supply their own with ``module:Class`` (`load_assignor`); `user_assignors.py` calls it and checks its assignments.
One with the method of `Configurable` gets the offsets of the group, which it may request while it assigns.
"""

from __future__ import annotations

from importlib import import_module
from typing import Callable, Mapping, Protocol, Sequence, runtime_checkable

from spark_groupsource.assign.range_roundrobin import RangeAssignor, RoundRobinAssignor
from spark_groupsource.assign.sticky import CooperativeStickyAssignor, StickyAssignor
from spark_groupsource.assign.user_assignors import UserAssignor
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, Subscription, TopicPartition

__all__ = [
    "Assignment",
    "Assignor",
    "Configurable",
    "CooperativeStickyAssignor",
    "GroupMember",
    "GroupOffsets",
    "PartitionRacks",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
    "TopicPartition",
    "load_assignor",
]

_ATTRIBUTES = ("name", "cooperative", "user_data", "assign", "on_assignment")
_SETTING = "kafka.partition.assignment.strategy"


class Assignor(Protocol):
    """Interface of an assignor; users can supply their own. A subclass needs `name`, `cooperative` and `assign`.

    Each member has its own instance, created without arguments.

    Attributes:
        name: the protocol name for which members vote; the same in all of them.
        cooperative: whether members keep their partitions while they rejoin (KIP-429). `assign` must then not assign
            a partition to a member while another member owns it.
    """

    @property
    def name(self) -> str: ...

    @property
    def cooperative(self) -> bool: ...

    def user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """Returns the user data of a member's subscription.

        Args:
            owned: the partitions that the member was last assigned.
            generation_id: the generation of that assignment, -1 if there was none.
        """
        return None

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        """Returns member id -> partitions, with an entry for every member.

        Args:
            partitions: topic -> partition count of every subscribed topic that exists.
            members: in the order of the JoinGroup response.
            racks: the racks of the replicas, if known.
        """

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Is called in each member with its assignment."""
        return None


class GroupOffsets(Protocol):
    """Offsets that an assignor may request; the methods are those of Kafka's consumer.

    Each sends requests and raises BrokerError or NetworkError after kafka.default.api.timeout.ms.
    """

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the committed offsets of the group; a partition without one is absent."""

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the log start offsets."""

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the high watermarks; with isolation.level=read_committed the last stable offsets."""


@runtime_checkable
class Configurable(Protocol):
    """Interface of an assignor that needs offsets, as Kafka's Configurable gives one its settings."""

    def configure(self, offsets: GroupOffsets) -> None:
        """Is called once, before every other method."""


_BUILT_IN: dict[str, Callable[[], Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def is_built_in(assignor: Assignor) -> bool:
    """Returns whether an assignor is one of this package, which never blocks."""
    return type(assignor) in _BUILT_IN.values()


def load_assignor(name: str) -> Assignor:
    """Returns a new assignor by name, or of a user's class ``module:Class``.

    Raises: ConfigurationError if there is no such assignor, or the class lacks a member of `Assignor`.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise ConfigurationError(
            f"Option {_SETTING} must be one of {', '.join(_BUILT_IN)} or module:Class, got {name!r}."
        )
    try:
        assignor = getattr(import_module(module_name), class_name)()
    except Exception as error:
        # the user's module or constructor may raise anything; the option that names it is what to fix
        raise ConfigurationError(
            f"Option {_SETTING}: creating assignor {name!r} failed: {type(error).__name__}: {error}."
        ) from error
    missing = ", ".join(part for part in _ATTRIBUTES if not hasattr(assignor, part))
    if not missing and not (assignor.name and isinstance(assignor.name, str)):
        # a subclass of the protocol that does not set it
        missing = "a name"
    if missing:
        raise ConfigurationError(
            f"Option {_SETTING}: assignor {name!r} lacks {missing}. Implement spark_groupsource.assign.Assignor."
        )
    return UserAssignor(name, assignor)
