"""Transitions of the coordinators' state machines."""

from __future__ import annotations

from enum import Enum
from typing import Callable, Mapping, TypeVar

State = TypeVar("State", bound=Enum)

Transitions = Mapping[State, "frozenset[State]"]
"""State -> the states from which it may be entered."""


class IllegalTransitionError(RuntimeError):
    """A transition that its table does not allow: a bug in the state machine."""


def check_transition(
    entity: str, transitions: Transitions[State], state: State, new_state: State, name: Callable[[State], str]
) -> None:
    """Raises IllegalTransitionError unless `new_state` may be entered from `state`; `name` returns that of a state."""
    if state not in transitions[new_state]:
        raise IllegalTransitionError(f"{entity} cannot transition from {name(state)} to {name(new_state)}.")
