"""Rules that reject options which would be ignored in a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click
from click.core import ParameterSource


class Excludes(NamedTuple):
    """Two options that cannot be given together.

    Attributes:
        values: the values of `other` for which the rule holds; empty for all.
    """

    option: str
    other: str
    values: tuple[str, ...] = ()


class Needs(NamedTuple):
    """An option that has an effect only with one of others.

    Attributes:
        others: options, each alone or with its values: ``--value-format avro|protobuf``.
    """

    option: str
    others: tuple[str, ...]


def check_effects(context: click.Context, rules: Sequence[Excludes | Needs]) -> None:
    """Raises: click.UsageError, which names both options, for the first rule that the command line violates."""
    given = _given(context)
    # an environment variable is for all commands, so one without an effect is no mistake
    typed = _given(context, ParameterSource.ENVIRONMENT)
    for rule in rules:
        if rule.option not in given:
            continue
        if isinstance(rule, Excludes):
            if rule.other in typed and (not rule.values or typed[rule.other] in rule.values):
                value = f" {typed[rule.other]}" if rule.values else ""
                context.fail(f"Options {rule.option} and {rule.other}{value} cannot be given together.")
        elif not any(_is_given(other, given) for other in rule.others):
            context.fail(f"Option {rule.option} has no effect without {_named(rule.others)}.")


def _given(context: click.Context, *other_sources: ParameterSource) -> dict[str, object]:
    """Returns the options of the command line with their values, by the first name of each."""
    not_given = (None, ParameterSource.DEFAULT, *other_sources)
    return {
        param.opts[0]: context.params.get(param.name or "")
        for param in context.command.params
        if param.name and context.get_parameter_source(param.name) not in not_given
    }


def _is_given(other: str, given: dict[str, object]) -> bool:
    option, _, values = other.partition(" ")
    return option in given and (not values or given[option] in values.split("|"))


def _named(others: Sequence[str]) -> str:
    *first, last = others
    return f"{', '.join(first)}{' or ' if first else ''}{last}"
