"""Checks as a table: read facts, then evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from spark_groupsource.errors import GroupSourceError

T = TypeVar("T")
Facts = Mapping[str, Any]
"""Name of a check -> what it read."""


class Status(str, Enum):
    """Result of a check."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


class CheckLine(NamedTuple):
    """One line: the observed fact, and what to do unless it is good."""

    check: str
    status: Status
    text: str
    fix: str = ""


class CheckResult(NamedTuple):
    """What an evaluation returns: a line without the name of its check."""

    status: Status
    text: str
    fix: str = ""


def _always(target: object) -> bool:
    return True


@dataclass(frozen=True)
class Check(Generic[T]):
    """One check.

    Attributes:
        read: reads the facts from the target, given those of earlier checks; a `GroupSourceError` is one result.
        evaluate: pure; returns one result or more.
        needs: an earlier check that must have a good result; empty for none.
        applies: whether the user requests the check.
        on_error: status if `read` raises.
        fix: what to do if `read` raises an error that does not say it.
    """

    name: str
    read: Callable[[T, Facts], Any]
    evaluate: Callable[[Any], Iterable[CheckResult]]
    needs: str = ""
    applies: Callable[[T], bool] = _always
    on_error: Status = Status.BAD
    fix: str = ""


def run_checks(checks: Sequence[Check[T]], target: T) -> list[CheckLine]:
    """Runs the checks in order."""
    lines: list[CheckLine] = []
    facts: dict[str, Any] = {}
    for check in (check for check in checks if check.applies(target)):
        if check.needs and not any(line.check == check.needs and line.status is Status.GOOD for line in lines):
            lines.append(CheckLine(check.name, Status.UNKNOWN, f"Not checked: {check.needs} is not good."))
            continue
        try:
            facts[check.name] = check.read(target, facts)
        except GroupSourceError as error:
            lines.append(failed(check.name, error, check.on_error, check.fix))
        else:
            lines += [CheckLine(check.name, *result) for result in check.evaluate(facts[check.name])]
    return lines


def failed(check: str, error: GroupSourceError, status: Status = Status.BAD, fix: str = "") -> CheckLine:
    """Returns the line of an error, whose message is one sentence with the fact and others with what to do."""
    fact, _, remedy = " ".join(str(error).split()).partition(". ")
    return CheckLine(check, status, fact.removesuffix(".") + ".", remedy or fix)


def outcome(call: Callable[[], Any]) -> Any:
    """Returns the result of a call, or the `GroupSourceError` that it raises."""
    try:
        return call()
    except GroupSourceError as error:
        return error


def each(outcomes: Mapping[Any, Any], good: Callable[[Any, Any], str], fix: str) -> list[CheckResult]:
    """Returns one result for each entry of several outcomes: bad for an error."""
    return [
        CheckResult(*failed("", found, fix=fix)[1:])
        if isinstance(found, GroupSourceError)
        else CheckResult(Status.GOOD, good(key, found))
        for key, found in outcomes.items()
    ]
