"""Assignors: which member reads which partition. Pure functions of the model, run by the group leader."""

from __future__ import annotations

from importlib import import_module
from typing import Callable, Mapping, Protocol, Sequence

from spark_groupsource.assign.simple import RangeAssignor, RoundRobinAssignor
from spark_groupsource.assign.sticky import CooperativeStickyAssignor, StickyAssignor
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, TopicPartition

__all__ = [
    "Assignor",
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "load_assignor",
]

_PARTS = ("name", "cooperative", "user_data", "assign", "on_assignment")
_SETTING = "partition.assignment.strategy"


class Assignor(Protocol):
    """Decides who gets what; also the interface of assignors a user brings along.

    Attributes:
        name: what members vote for; the same in all of them.
        cooperative: True when members keep their partitions while they join again; `assign` must then never give to
            one member what another one still owns.
    """

    @property
    def name(self) -> str: ...

    @property
    def cooperative(self) -> bool: ...

    def user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """Bytes for the subscription of a member that was last assigned `owned` in `generation_id` (-1: never)."""

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        """Member id -> partitions, with an entry for every member.

        Args:
            partitions: topic -> partition count of the topics anyone subscribes to and the cluster has.
            members: in the order of the JoinGroup response.
            racks: where the replicas stand, if known.
        """

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Called in each member with what it was assigned."""


_BUILT_IN: dict[str, Callable[[], Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def load_assignor(name: str) -> Assignor:
    """A new assignor by its name, or of the user's class given as ``module:Class``.

    Raises: ConfigurationError when there is no such assignor, or the class does not have what `Assignor` asks for.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise ConfigurationError(
            f"{_SETTING}: {name!r} is no assignor; there are {', '.join(_BUILT_IN)}, and your own as module:Class"
        )
    try:
        assignor: Assignor = getattr(import_module(module_name), class_name)()
    except Exception as error:
        # whatever a user's module or constructor raises, the setting that named it is the place to mend it
        raise ConfigurationError(f"{_SETTING}: {name!r} cannot be made: {type(error).__name__}: {error}") from error
    missing = ", ".join(part for part in _PARTS if not hasattr(assignor, part))
    if missing:
        raise ConfigurationError(f"{_SETTING}: {name!r} lacks {missing}; see spark_groupsource.assign.Assignor")
    return assignor
