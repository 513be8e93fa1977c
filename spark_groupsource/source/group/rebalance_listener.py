"""User's rebalance listener: loading and calling the class of option rebalanceListener."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition, bounded_names

_OPTION = "rebalanceListener"
_REVOKED, _ASSIGNED, _LOST = "on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost"


def load_rebalance_listener(name: str) -> UserRebalanceListener:
    """Creates an instance of the class named as ``module:Class``, without arguments.

    Raises: ConfigurationError when it cannot be created or lacks a method.
    """
    module_name, _, class_name = name.partition(":")
    try:
        listener = getattr(import_module(module_name), class_name)()
    except Exception as error:
        # a user's module or constructor may raise anything
        raise ConfigurationError(
            f"Option {_OPTION}: {name!r} cannot be created: {type(error).__name__}: {error}. The module must be on the "
            "Python path of the driver."
        ) from error
    missing = ", ".join(method for method in (_REVOKED, _ASSIGNED) if not callable(getattr(listener, method, None)))
    if missing:
        raise ConfigurationError(
            f"Option {_OPTION}: {name!r} has no method {missing}. It needs {_REVOKED} and {_ASSIGNED}, and may have "
            f"{_LOST}, each with the partitions as its argument."
        )
    return UserRebalanceListener(name, listener)


class UserRebalanceListener:
    """Calls the user's object with sorted lists of (topic, partition).

    Names and default are those of Kafka's ConsumerRebalanceListener: lost partitions of a listener without
    ``on_partitions_lost`` are revoked ones.

    Raises: ConfigurationError for any exception of the user's code, so the query fails instead of missing a change.
    """

    def __init__(self, name: str, listener: Any) -> None:
        self._name = name
        self._listener = listener

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._call(_REVOKED, partitions)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._call(_ASSIGNED, partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._call(_LOST if hasattr(self._listener, _LOST) else _REVOKED, partitions)

    def _call(self, method: str, partitions: Sequence[TopicPartition]) -> None:
        call: Callable[[list[TopicPartition]], object] = getattr(self._listener, method)
        try:
            call(list(partitions))
        except Exception as error:
            raise ConfigurationError(
                f"Option {_OPTION}: {self._name}.{method}({bounded_names(partitions)}) raised "
                f"{type(error).__name__}: {error}. Fix the listener and restart the query."
            ) from error
