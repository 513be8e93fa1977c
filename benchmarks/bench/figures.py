"""Figures of a benchmark: alternating rounds, ratios and their targets."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Sequence


@dataclass(frozen=True)
class Figure:
    """One row: the same measurement of ourselves and of a rival, in alternating rounds.

    Attributes:
        own, rival: one value per round, in the order of the rounds; both empty after an error.
        is_rate: True if more is better (records per second), False if less is better (seconds, MB).
        least_ratio: the target, rival : own of times and own : rival of rates, so that more is better for us.
        largest_difference: the largest own - rival, instead of `least_ratio`.
        largest_value: the largest own value, instead of `least_ratio`; there is no rival.
        is_detail: the row explains others and is not in the chart.
        error: why there are no values.
    """

    measure: str
    case: str
    unit: str
    own: Sequence[float] = ()
    rival_name: str = ""
    rival: Sequence[float] = ()
    is_rate: bool = False
    least_ratio: float | None = None
    largest_difference: float | None = None
    largest_value: float | None = None
    is_detail: bool = False
    error: str = ""

    def ratios(self) -> list[float]:
        """Returns the ratio of each round; above 1, we are better."""
        pairs = zip(self.own, self.rival)
        return [(a / b if self.is_rate else b / a) for a, b in pairs if a and b]

    def ratio(self) -> float | None:
        """Returns the median ratio, None without a rival."""
        ratios = self.ratios()
        return statistics.median(ratios) if ratios else None

    def difference(self) -> float | None:
        """Returns the median of own - rival."""
        pairs = list(zip(self.own, self.rival))
        return statistics.median(a - b for a, b in pairs) if pairs else None

    def is_target_met(self) -> bool | None:
        """Returns whether the figure is as required; None if nothing is required of it."""
        if self.error:
            return False
        for found, bound, is_upper in (
            (self.ratio(), self.least_ratio, False),
            (self.difference(), self.largest_difference, True),
            (max(self.own, default=None), self.largest_value, True),
        ):
            if bound is not None:
                return found is not None and (found <= bound if is_upper else found >= bound)
        return None

    def distance(self) -> str:
        """Returns what is missing to a target that is not met, else an empty text."""
        if self.error or self.is_target_met() is not False:
            return ""
        ratio, difference = self.ratio(), self.difference()
        if self.least_ratio is not None:
            return "" if ratio is None else f"{1 - ratio / self.least_ratio:.0%} below".replace("%", " %")
        bound = self.largest_value if self.largest_difference is None else self.largest_difference
        found = max(self.own, default=None) if self.largest_difference is None else difference
        return "" if found is None or bound is None else f"{found - bound:.3g} {self.unit} above"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Figure:
        return cls(**json.loads(text))


@dataclass
class Rounds:
    """Collects the values of alternating rounds by name."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def figure(self, measure: str, case: str, unit: str, own: str, rival: str = "", **rest: Any) -> Figure:
        """Returns the figure of two of the names."""
        return Figure(measure, case, unit, self.values[own], rival, self.values.get(rival, []), **rest)


@dataclass
class Results:
    """Figures by measure, and how long each took; `machine` is that of the last run."""

    machine: str = ""
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def in_order(self, names: Sequence[str]) -> list[Figure]:
        return [figure for name in names for figure in self.figures.get(name, [])]

    def to_json(self) -> str:
        raw = {name: [asdict(figure) for figure in figures] for name, figures in self.figures.items()}
        return json.dumps({"machine": self.machine, "seconds": self.seconds, "figures": raw}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Results:
        raw = json.loads(text)
        figures = {name: [Figure(**each) for each in found] for name, found in raw["figures"].items()}
        return cls(raw["machine"], figures, raw["seconds"])
