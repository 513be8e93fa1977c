"""Simulation of the group coordinator with random clients and faults.

    python tests/simulation/coordinator_simulation.py --seed 7 --schedules 100000
    python tests/simulation/coordinator_simulation.py --seed 7 --only 1234 --trace
    python tests/simulation/coordinator_simulation.py --replay failure.txt --trace

Of `tests/simulation`, `schedule.py` draws a schedule from a seed and a number, `run.py` runs it on a simulated
clock, and `checks.py` checks it after every event. A failure prints seed, number and the shortened schedule, which
``--replay`` reads from a file, or from standard input if the file is ``-``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple, Sequence

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from simulation.run import run  # noqa: E402
from simulation.schedule import Event, Schedule, draw, from_text, shorten, to_text  # noqa: E402


class Failure(NamedTuple):
    """A failing schedule, shortened, and its violation."""

    seed: int
    number: int
    what: str
    events: Sequence[Event]
    drawn_count: int

    def __str__(self) -> str:
        return (
            f"# seed {self.seed}, schedule {self.number}: {self.what}\n"
            f"# {len(self.events)} of its {self.drawn_count} events are enough; python "
            f"tests/simulation/coordinator_simulation.py --replay FILE --trace shows more\n{to_text(self.events)}"
        )


def simulate(seed: int, numbers: range) -> Failure | None:
    """Runs schedules until the first failure."""
    for number in numbers:
        events = draw(seed, number)
        what = run(events)
        if what is not None:
            return shortened(seed, number, events, what)
    return None


def shortened(seed: int, number: int, events: Schedule, what: str) -> Failure:
    """Returns the failure with a minimal schedule that violates the same invariant."""
    kind = what.partition(":")[0]
    few = shorten(events, lambda fewer: (run(fewer) or "").partition(":")[0] == kind)
    return Failure(seed, number, run(few) or what, few, len(events))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exits with status 1 if a schedule fails."""
    parser = argparse.ArgumentParser(description="Simulates the group coordinator.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one schedule of the seed")
    parser.add_argument("--replay", metavar="FILE", help="the schedule in a file, - for standard input")
    parser.add_argument("--trace", action="store_true", help="print requests and responses")
    options = parser.parse_args(arguments)
    if options.replay is not None or options.only is not None:
        if options.replay is None:
            events = draw(options.seed, options.only)
        else:
            events = from_text(sys.stdin.read() if options.replay == "-" else Path(options.replay).read_text())
        print(to_text(events))
        what = run(events, print if options.trace else None)
        print(what or "no violations")
        return 1 if what else 0
    failure = simulate(options.seed, range(options.schedules))
    print(failure or f"{options.schedules} schedules of seed {options.seed}: no violations")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
