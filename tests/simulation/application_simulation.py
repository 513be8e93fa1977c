"""Simulation of whole applications of one group, with random workloads and faults.

    python tests/simulation/application_simulation.py --seed 7 --schedules 100000
    python tests/simulation/application_simulation.py --seed 1234 --schedules 1 --trace

A schedule is its seed: `--seed 7 --schedules 100` runs the seeds 7 to 106. Of `tests/simulation/applications`,
`application_run.py` draws and runs a schedule and has the invariants, and `virtual_kernel.py` replaces threads.
The schedules are distributed to one process for each processor. Each failing seed is printed with its violation.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from simulation.applications.application_run import FEATURES, ApplicationRun  # noqa: E402

_PER_CALL = 100


class Result(NamedTuple):
    """Violations by seed, and how often what was done in all schedules."""

    violations: dict[int, str]
    events: Counter[str]


def simulate(
    seeds: Sequence[int],
    faults: Sequence[str] | None = None,
    trace: Callable[[str], None] | None = None,
    features: Sequence[str] = (),
) -> Result:
    """Runs the schedules of the seeds; `faults` and `features`: see `ApplicationRun`."""
    logger = logging.getLogger("spark_groupsource")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    result = Result({}, Counter())
    try:
        for seed in seeds:
            run = ApplicationRun(seed, trace, faults, features)
            try:
                run.run()
            except Exception as error:
                result.violations[seed] = f"{type(error).__name__}: {error}"
            result.events.update(run.events)
    finally:
        logger.setLevel(level)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Exits with status 1 if a schedule fails."""
    parser = argparse.ArgumentParser(description="Simulates applications of one group.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--features", nargs="*", default=(), choices=[*FEATURES, "all"], help="of extended schedules")
    parser.add_argument("--trace", action="store_true", help="print what happens; for one schedule")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.schedules)
    features = FEATURES if "all" in options.features else tuple(options.features)
    # each schedule collects its own garbage
    gc.freeze()
    if options.trace:
        results = [simulate(seeds, trace=print, features=features)]
    else:
        parts = [seeds[at : at + _PER_CALL] for at in range(0, len(seeds), _PER_CALL)]
        with ProcessPoolExecutor(options.processes) as pool:
            results = []
            for result in pool.map(partial(simulate, features=features), parts):
                results.append(result)
                for seed, violation in result.violations.items():
                    print(f"seed {seed}: {violation}", flush=True)
    count = sum(len(result.violations) for result in results)
    events: Counter[str] = sum((result.events for result in results), Counter())
    print(f"{options.schedules:,} schedules from seed {options.seed}: {count} violations. {dict(events)}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
