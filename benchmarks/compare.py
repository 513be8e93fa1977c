"""Processor time of the working tree relative to a base commit.

    python benchmarks/compare.py --base COMMIT
    python benchmarks/compare.py --base COMMIT --only decode --rounds 15

The base is checked out below build/. Each side has processes of its own, which alternate after some milliseconds,
because other load on the machine changes the speed of its processors. A ratio above 1 means that the working tree takes
longer. Exits with 1 if the median of a case exceeds the threshold.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Sequence

import decode
import produce
from arrow_clients import own_compiled, own_numpy
from bench.children import checkout_environment
from bench.topics import Topic, ensure
from broker_requests import CASES, PARTITIONS, per_request
from coordinator import Target, create_topic, embedded, wait_until_ready
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "build" / "compare-base"
TOPIC = Topic("compare", 120_000)
_SLICE_S = 0.05

Cases = dict[str, Callable[[], float]]
"""Case -> processor seconds of one unit of work, in this process."""


def repeated(work: Callable[[], object]) -> float:
    """Returns the processor seconds of one call, repeated for a slice."""
    count, began = 0, time.process_time()
    while (took := time.process_time() - began) < _SLICE_S:
        work()
        count += 1
    return took / count


def decode_cases() -> Cases:
    from spark_groupsource.records.columns.compiled_kernel import read_compiled
    from spark_groupsource.records.columns.numpy_kernel import read_numpy

    cases: Cases = {}
    for shape, record, batch_records, codec in decode.SHAPES:
        buffer = decode.log(record, batch_records, codec)
        for name, kernel in (("numpy", read_numpy), ("numba", read_compiled)):
            for columns in (decode.ALL_COLUMNS, ("value",)):
                title = f"decode: {shape}, {codec}, {name}, {'value' if len(columns) == 1 else 'all columns'}"
                cases[title] = partial(repeated, partial(decode.groupsource(kernel, columns), buffer))
    return cases


def append_cases() -> Cases:
    return {
        f"append: {shape.title}, {shape.codec}": partial(_append_s, shape) for shape in produce.SHAPES
    }


def _append_s(shape: produce.Shape) -> float:
    return produce.append_ns(produce.batch(shape)) / 1e9


def read_cases(bootstrap_servers: str) -> Cases:
    return {
        "read task, NumPy parser": partial(repeated, partial(own_numpy, bootstrap_servers, TOPIC)),
        "read task, compiled parser": partial(repeated, partial(own_compiled, bootstrap_servers, TOPIC)),
    }


PREPARED = {"decode": decode_cases, "append": append_cases}


def serve(group: str, bootstrap_servers: str) -> None:
    """Prints the cases, and then the seconds of one call of each case whose name is read from the standard input."""
    cases = read_cases(bootstrap_servers) if group == "read" else PREPARED[group]()
    print("\t".join(cases), flush=True)
    for line in sys.stdin:
        print(cases[line.rstrip("\n")](), flush=True)


@contextmanager
def serving(checkout: Path, group: str, bootstrap_servers: str) -> Iterator[subprocess.Popen[str]]:
    """Yields a process that imports the package of a checkout and measures cases."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", group, "--kafka", bootstrap_servers]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=checkout_environment(checkout)
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def measured_s(process: subprocess.Popen[str], case: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    print(case, file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the process that measures {case!r} has ended")
    return float(line)


def in_process(group: str, rounds: int) -> Iterator[tuple[str, list[float]]]:
    with ExitStack() as stack:
        address = ""
        if group == "read":
            address = stack.enter_context(embedded()).address
            ensure(address, TOPIC)
        sides = [stack.enter_context(serving(checkout, group, address)) for checkout in (ROOT, BASE)]
        cases = [process.stdout.readline().rstrip("\n").split("\t") for process in sides if process.stdout][0]
        for case in cases:
            for process in sides:
                measured_s(process, case)  # the first call compiles and fills caches
            measured = [partial(measured_s, side, case) for side in sides]
            yield case, [alternate(number, measured) for number in range(rounds)]


def alternate(number: int, sides: Sequence[Callable[[], float]]) -> float:
    """Measures both sides, in changing order; returns the ratio of the first to the second."""
    order = (0, 1) if number % 2 == 0 else (1, 0)
    took = {side: sides[side]() for side in order}
    return took[0] / took[1]


def requests(rounds: int) -> Iterator[tuple[str, list[float]]]:
    with ExitStack() as stack:
        targets = [stack.enter_context(embedded(checkout)) for checkout in (ROOT, BASE)]
        for target in targets:
            asyncio.run(create_topic(target.address, "load", PARTITIONS))
            asyncio.run(wait_until_ready(target.address))

        def busy(target: Target, number: int) -> float:
            return asyncio.run(per_request(target, CASES[number]))[0]

        for number, case in enumerate(CASES):
            title = f"broker: {case.title}" + (f", {case.depth} in flight" if case.depth > 1 else "")
            sides = [partial(busy, target, number) for target in targets]
            yield title, [alternate(each, sides) for each in range(rounds)]


GROUPS: dict[str, Callable[[int], Iterator[tuple[str, list[float]]]]] = {
    "decode": partial(in_process, "decode"),
    "read": partial(in_process, "read"),
    "append": partial(in_process, "append"),
    "broker": requests,
}


@contextmanager
def base_checkout(commit: str) -> Iterator[None]:
    """Checks a commit out below build/."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "remove", "--force", str(BASE)], capture_output=True)
    subprocess.run([*git, "add", "--quiet", "--force", "--detach", str(BASE), commit], check=True)
    try:
        yield
    finally:
        subprocess.run([*git, "remove", "--force", str(BASE)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="the commit to compare with")
    parser.add_argument("--only", action="append", default=[], choices=list(GROUPS), help="may be repeated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threshold", type=float, default=1.2, help="largest median ratio of a case")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--kafka", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.kafka)
        return 0
    if not options.base:
        parser.error("--base is required")
    table = Table(title=f"processor time : that of {options.base}")
    for title in ("case", "ratio", "least", "most"):
        table.add_column(title, justify="left" if title == "case" else "right")
    slower = 0
    with base_checkout(options.base):
        for group in options.only or GROUPS:
            for case, ratios in GROUPS[group](options.rounds):
                ratio = statistics.median(ratios)
                slower += ratio > options.threshold
                print(f"{case}: {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
                table.add_row(case, f"{ratio:.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}")
    Console(width=130).print(table)
    print(f"{slower} cases are slower by more than a factor of {options.threshold:g}")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
