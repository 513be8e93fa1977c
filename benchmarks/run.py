"""All benchmarks: ourselves beside rivals, in alternating rounds, written into benchmarks/figures.md.

    python benchmarks/run.py                 # all measures, about 13 minutes on two idle processors
    python benchmarks/run.py --quick         # fewer records and rounds, about 3 minutes
    python benchmarks/run.py --full          # more records and rounds, about 40 minutes
    python benchmarks/run.py --only parts    # one measure; --page adds it to the page
    python benchmarks/run.py --list          # the measures with their records, rounds and expected seconds

Starts one Apache Kafka for all measures. Each measure runs in a child process with a time limit; a measure that fails
or does not end is a row with an error, and the next one starts. The figures are written after each measure: those of an
interrupted run remain. The raw values are in build/benchmarks.json, those of the page in benchmarks/figures.json;
`bench/budget.py` has the size of each measure.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from bench.budget import BUDGET, Mode
from bench.budget import table as budget_table
from bench.children import checkout_environment, exit_at_sigterm, run_lines
from bench.context import Context, Measure
from bench.figures import Figure, Results
from bench.page import replace_text, table, write_page
from bench.processor_time import processor_seconds
from bench.spark_home import compiled_home
from rich.console import Console
from rich.markdown import Markdown

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "jobs"))

from real_kafka import RealKafka  # noqa: E402

MODULES = (
    "batch_read",
    "batch_write",
    "parts",
    "arrow_clients",
    "queries",
    "curves",
    "broker",
    "joins",
    "assignors",
    "group_restart",
    "memory",
)
"""Each has `MEASURES`, a tuple of `Measure`."""

KAFKA_CONFIG = {
    "log.cleaner.backoff.ms": "500",
    "log.retention.check.interval.ms": "3600000",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
RAW = ROOT / "build" / "benchmarks.json"
PAGE_RAW = ROOT / "benchmarks" / "figures.json"
"""The raw values of the rows in benchmarks/figures.md, so that one measure can replace its rows there."""
_FIGURE = "figure "
# a busy machine takes several times as long as expected
_EXPECTED_TIMES = 4


def measures() -> dict[str, Measure]:
    found = {}
    for name in MODULES:
        for measure in importlib.import_module(name).MEASURES:
            found[measure.name] = measure
    return found


def run(measure: Measure, context: Context, timeout_s: float) -> Iterator[Figure]:
    """Yields the figures of a measure that runs in a child process; an error is a figure too."""
    command = [sys.executable, str(Path(__file__)), "--child", measure.name, "--kafka", context.bootstrap_servers]
    command += ["--scale", str(context.scale), "--rounds", str(context.rounds)]
    environment = checkout_environment(ROOT)
    if context.spark_home and not measure.is_installed_spark:
        environment["SPARK_HOME"] = context.spark_home
    try:
        for line in run_lines(command, timeout_s, environment):
            if line.startswith(_FIGURE):
                yield Figure.from_json(line.removeprefix(_FIGURE))
            else:
                print(line, file=sys.stderr)
    except (TimeoutError, RuntimeError) as error:
        yield Figure(measure.name, "", "", error=str(error))


def child(measure: Measure, context: Context) -> int:
    """Runs one measure in this process; prints each figure as a line, and its processor time."""
    processor_seconds()
    try:
        for figure in measure.figures(context):
            print(_FIGURE + figure.to_json(), flush=True)
    except Exception as error:
        traceback.print_exc()
        print(_FIGURE + Figure(measure.name, "", "", error=repr(error)).to_json(), flush=True)
    print(f"{measure.name}: processor time {processor_seconds():.0f} s", flush=True)
    return 0


def machine() -> str:
    """Returns a sentence about this machine."""
    import pyarrow
    import pyspark

    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = f" of {lines[0].partition(':')[2].strip()}" if lines else ""
    return (
        f"{time.strftime('%Y-%m-%d')}: {os.cpu_count()} processors{model}, Python {platform.python_version()}, "
        f"PySpark {pyspark.__version__}, PyArrow {pyarrow.__version__}. PySpark's archive has compiled modules "
        "(`groupsource compile-pyspark`), except in the rows that say otherwise. Medians of alternating rounds; in "
        "brackets the range of the ratios. A ratio above 1 means that groupsource is better."
    )


def main() -> int:
    known = measures()
    options = parse(known)
    exit_at_sigterm()
    # each process would compile this package again, which the starts of queries would include
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    mode: Mode = "quick" if options.quick else "full" if options.full else "normal"
    if options.child:
        return child(known[options.child], Context(options.kafka, options.scale, options.rounds))
    names = options.only or [name for name in known if BUDGET[name].size(mode).seconds]
    print("\n".join(budget_table(mode, names)), flush=True)
    if options.list:
        return 0
    is_whole = not options.only
    raw = PAGE_RAW if options.page else RAW
    stored = Results() if is_whole or not raw.exists() else Results.from_json(raw.read_text())
    results = Results(machine(), stored.figures, stored.seconds)
    with ExitStack() as stack:
        servers = options.kafka or stack.enter_context(RealKafka(KAFKA_CONFIG)).bootstrap_servers
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="groupsource-benchmark-"))
        spark_home = compiled_home(Path(directory) / "spark")
        for name in names:
            size = BUDGET[name].size(mode)
            context = Context(servers, options.scale or size.scale, options.rounds or size.rounds, str(spark_home))
            try:
                collect(known[name], context, results, size.seconds)
            finally:
                report(results, list(known) if options.only else names, is_page=is_whole or options.page)
    found = results.in_order(names)
    Console(width=150).print(Markdown("\n".join(table(found))))
    print(f"total: {sum(results.seconds[name] for name in names):.0f} s", flush=True)
    return int(any(figure.error for figure in found))


def parse(known: Mapping[str, Measure]) -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_true", help="fewer records and rounds")
    modes.add_argument("--full", action="store_true", help="more records and rounds; the curve up to 50 M records")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one measure; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the measures and their budget")
    parser.add_argument("--scale", type=float, help="factor of the numbers of records")
    parser.add_argument("--rounds", type=int, help="rounds of each measurement")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Kafka; default: one is started")
    parser.add_argument("--page", action="store_true", help="write the page also with --only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.only if name not in known]
    if unknown:
        parser.error(f"unknown measure {unknown[0]}; known: {', '.join(known)}")
    return options


def collect(measure: Measure, context: Context, results: Results, expected_s: float) -> None:
    """Adds the figures of a measure; an error is a figure too."""
    began = time.monotonic()
    found = results.figures[measure.name] = []
    for figure in run(measure, context, max(measure.timeout_s, _EXPECTED_TIMES * expected_s)):
        found.append(figure)
        ratio = figure.ratio()
        shown = figure.error or (f"ratio {ratio:.2f}" if ratio is not None else f"{max(figure.own):.3g}")
        print(f"{measure.name}: {figure.case} / {figure.rival_name} [{figure.unit}]: {shown}", flush=True)
    took = results.seconds[measure.name] = time.monotonic() - began
    print(f"{measure.name}: {took:.0f} s, expected {expected_s} s", flush=True)


def report(results: Results, names: Sequence[str], is_page: bool) -> None:
    """Writes build/benchmarks.json and, if `is_page`, benchmarks/figures.md; `names` in the order of the page."""
    replace_text(RAW, results.to_json())
    if is_page:
        replace_text(PAGE_RAW, results.to_json())
        missing = [name for name in names if name not in results.figures]
        page, picture = ROOT / "benchmarks" / "figures.md", ROOT / "docs" / "images" / "performance.svg"
        write_page(page, picture, results.in_order(names), results.machine, missing)


if __name__ == "__main__":
    sys.exit(main())
