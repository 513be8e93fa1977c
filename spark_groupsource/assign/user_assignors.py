"""A user's assignor: its exceptions and assignments name the cause."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Mapping, NoReturn, Sequence, TypeVar

from spark_groupsource.assign.sticky import CooperativeStickyAssignor
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, TopicPartition, bounded_names

_SETTING = "kafka.partition.assignment.strategy"

_Result = TypeVar("_Result")


class UserAssignor:
    """Calls the object of a user as an `Assignor`, and checks what it returns.

    What one member is assigned is read by its query alone: a partition that two members are assigned is read twice, and
    one that does not exist is waited for. Kafka's client checks neither.

    Every method raises ConfigurationError for an exception of the user's code, except those of this package, which a
    request for offsets raises.
    """

    def __init__(self, setting: str, assignor: Any) -> None:
        self._setting = setting
        self._assignor = assignor

    @property
    def name(self) -> str:
        return str(self._assignor.name)

    @property
    def cooperative(self) -> bool:
        return bool(self._assignor.cooperative)

    def configure(self, offsets: object) -> None:
        """Passes the offsets on to an assignor that is `Configurable`."""
        if hasattr(self._assignor, "configure"):
            self._call(lambda: self._assignor.configure(offsets), "configure")

    def user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        found = self._call(lambda: self._assignor.user_data(topics, owned, generation_id), "user_data")
        if found is not None and not isinstance(found, bytes):
            self._reject("user_data", f"must return bytes or None, got {_kind(found)}")
        return found

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self._call(lambda: self._assignor.on_assignment(assignment, generation_id), "on_assignment")

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        found = self._call(lambda: self._assignor.assign(partitions, members, racks), "assign")
        ids = [member.member_id for member in members]
        if not isinstance(found, Mapping) or sorted(map(str, found)) != sorted(ids):
            got = bounded_names(sorted(map(str, found))) or "none" if isinstance(found, Mapping) else _kind(found)
            self._reject("assign", f"must return an entry for every member ({bounded_names(sorted(ids))}), got {got}")
        for member_id, assigned in found.items():
            if not isinstance(assigned, (list, tuple)):
                self._reject("assign", f"must return a list of TopicPartition for each member, got {_kind(assigned)}")
            for each in assigned:
                if not isinstance(each, TopicPartition) or type(each.partition) is not int:
                    self._reject("assign", f"must return lists of TopicPartition, got {each!r} for member {member_id}")
        counts = Counter(each for assigned in found.values() for each in assigned)
        repeated = sorted(each for each, count in counts.items() if count > 1)
        if repeated:
            self._reject("assign", f"assigns {bounded_names(repeated)} more than once")
        missing = sorted(each for each in counts if not 0 <= each.partition < partitions.get(each.topic, 1 << 31))
        if missing:
            self._reject("assign", f"assigns {bounded_names(missing)}, which does not exist")
        if self.cooperative and not isinstance(self._assignor, CooperativeStickyAssignor):
            self._check_cooperative(members, found)
        return {member_id: list(assigned) for member_id, assigned in found.items()}

    def _check_cooperative(
        self, members: Sequence[GroupMember], assigned: Mapping[str, Sequence[TopicPartition]]
    ) -> None:
        """Checks that a partition moves in the rebalance after its owner revoked it (KIP-429)."""
        gained: set[TopicPartition] = set()
        revoked: set[TopicPartition] = set()
        for member in members:
            before, after = set(member.subscription.owned_partitions), set(assigned[member.member_id])
            gained |= after - before
            revoked |= before - after
        if gained & revoked:
            self._reject(
                "assign",
                f"is cooperative, but assigns {bounded_names(sorted(gained & revoked))} to a new member while the "
                "owner still reads it: it must leave a partition out of one assignment before it moves it",
            )

    def _call(self, call: Callable[[], _Result], method: str) -> _Result:
        try:
            return call()
        except GroupSourceError:
            raise
        except (Exception, SystemExit) as error:
            # it may raise anything; SystemExit would end the thread of the members instead of the query
            raise ConfigurationError(
                f"Option {_SETTING}: {self._setting}.{method} raised {type(error).__name__}: {error}. Fix the assignor "
                "and restart the query."
            ) from error

    def _reject(self, method: str, problem: str) -> NoReturn:
        raise ConfigurationError(
            f"Option {_SETTING}: {self._setting}.{method} {problem}. Fix the assignor and restart the query."
        )


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
