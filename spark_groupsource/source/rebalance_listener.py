"""The user's rebalance listener: found by ``module:Class``, called in the reader process, its failures told plainly."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition, bounded_names

_OPTION = "rebalanceListener"
_METHODS = ("revoked", "assigned", "lost")


def load_rebalance_listener(name: str) -> UserRebalanceListener:
    """A new listener of the class named as ``module:Class``, made without arguments.

    Raises: ConfigurationError when it cannot be made or lacks a method.
    """
    module_name, _, class_name = name.partition(":")
    try:
        listener = getattr(import_module(module_name), class_name)()
    except Exception as error:
        # whatever a user's module or constructor raises, the option that named it is the place to mend it
        raise ConfigurationError(
            f"option {_OPTION}: {name!r} cannot be made: {type(error).__name__}: {error}; the module must be on the "
            "Python path of the driver"
        ) from error
    missing = ", ".join(method for method in _METHODS if not callable(getattr(listener, method, None)))
    if missing:
        raise ConfigurationError(
            f"option {_OPTION}: {name!r} lacks {missing}; it needs revoked, assigned and lost, each taking the "
            "partitions"
        )
    return UserRebalanceListener(name, listener)


class UserRebalanceListener:
    """Calls the user's object; partitions are pairs of topic and partition, sorted.

    Raises: ConfigurationError for whatever the user's code raises: it fails the query, and no partition moves unheard.
    """

    def __init__(self, name: str, listener: Any) -> None:
        self._name = name
        self._listener = listener

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("revoked", partitions)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("assigned", partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("lost", partitions)

    def _call(self, method: str, partitions: Sequence[TopicPartition]) -> None:
        try:
            getattr(self._listener, method)(list(partitions))
        except Exception as error:
            raise ConfigurationError(
                f"option {_OPTION}: {self._name}.{method}({bounded_names(partitions)}) raised "
                f"{type(error).__name__}: {error}"
            ) from error
