"""All benchmarks: ourselves beside rivals, in alternating rounds, written into docs/performance.md.

    python benchmarks/run.py                 # all measures; one takes up to several minutes
    python benchmarks/run.py --quick         # fewer records and rounds
    python benchmarks/run.py --only decode   # one measure; the page is not written
    python benchmarks/run.py --list

Starts one Apache Kafka for all measures. Each measure runs in a child process with a time limit; a measure that fails
or does not end is a row with an error, and the next one starts. Ctrl-C and SIGTERM write the figures so far. The raw
values are in build/benchmarks.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Iterator

from bench.children import checkout_environment, exit_at_sigterm, run_lines
from bench.context import Context, Measure
from bench.figures import Figure
from bench.page import table, write_page
from bench.spark_home import compiled_home
from rich.console import Console
from rich.markdown import Markdown

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "jobs"))

from real_kafka import RealKafka  # noqa: E402

MODULES = (
    "batch_read",
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
QUICK_SCALE, QUICK_ROUNDS = 0.125, 2
_FIGURE = "figure "


def measures() -> dict[str, Measure]:
    found = {}
    for name in MODULES:
        for measure in importlib.import_module(name).MEASURES:
            found[measure.name] = measure
    return found


def run(measure: Measure, context: Context) -> Iterator[Figure]:
    """Yields the figures of a measure that runs in a child process; an error is a figure too."""
    command = [sys.executable, str(Path(__file__)), "--child", measure.name, "--kafka", context.bootstrap_servers]
    command += ["--scale", str(context.scale), "--rounds", str(context.rounds)]
    environment = checkout_environment(ROOT)
    if context.spark_home and not measure.is_installed_spark:
        environment["SPARK_HOME"] = context.spark_home
    try:
        for line in run_lines(command, measure.timeout_s, environment):
            if line.startswith(_FIGURE):
                yield Figure.from_json(line.removeprefix(_FIGURE))
            else:
                print(line, file=sys.stderr)
    except (TimeoutError, RuntimeError) as error:
        yield Figure(measure.name, "", "", error=str(error))


def child(measure: Measure, context: Context) -> int:
    """Runs one measure in this process; prints each figure as a line."""
    try:
        for figure in measure.figures(context):
            print(_FIGURE + figure.to_json(), flush=True)
    except Exception as error:
        traceback.print_exc()
        print(_FIGURE + Figure(measure.name, "", "", error=repr(error)).to_json(), flush=True)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the records, two rounds")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one measure; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the measures")
    parser.add_argument("--scale", type=float, help="factor of the numbers of records")
    parser.add_argument("--rounds", type=int, help="rounds of each measurement")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Kafka; default: one is started")
    parser.add_argument("--page", action="store_true", help="write the page also with --only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    exit_at_sigterm()
    known = measures()
    if options.list:
        print("\n".join(known))
        return 0
    unknown = [name for name in options.only if name not in known]
    if unknown:
        parser.error(f"unknown measure {unknown[0]}; known: {', '.join(known)}")
    scale = options.scale or (QUICK_SCALE if options.quick else 1.0)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else 3)
    if options.child:
        return child(known[options.child], Context(options.kafka, scale, rounds))
    chosen = [known[name] for name in options.only] or list(known.values())
    figures: list[Figure] = []
    with ExitStack() as stack:
        # whatever ends the run, the figures so far are reported
        stack.callback(report, figures, is_page=options.page or not options.only)
        servers = options.kafka or stack.enter_context(RealKafka(KAFKA_CONFIG)).bootstrap_servers
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="groupsource-benchmark-"))
        spark_home = compiled_home(Path(directory) / "spark")
        collect(chosen, Context(servers, scale, rounds, str(spark_home)), figures)
    return int(any(figure.error for figure in figures))


def collect(chosen: list[Measure], context: Context, figures: list[Figure]) -> None:
    """Adds the figures of each measure; an error of one does not end the others."""
    for measure in chosen:
        began = time.monotonic()
        for figure in run(measure, context):
            figures.append(figure)
            ratio = figure.ratio()
            shown = figure.error or (f"ratio {ratio:.2f}" if ratio is not None else f"{max(figure.own):.3g}")
            print(f"{measure.name}: {figure.case} / {figure.rival_name} [{figure.unit}]: {shown}", flush=True)
        print(f"{measure.name}: {time.monotonic() - began:.0f} s", flush=True)


def report(figures: list[Figure], is_page: bool) -> None:
    """Prints the table; writes build/benchmarks.json and, if `is_page`, docs/performance.md."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    raw = [json.loads(figure.to_json()) for figure in figures]
    (build / "benchmarks.json").write_text(json.dumps({"machine": machine(), "figures": raw}, indent=1))
    Console(width=150).print(Markdown("\n".join(table(figures))))
    if is_page and figures:
        write_page(ROOT / "docs" / "performance.md", ROOT / "docs" / "images" / "performance.svg", figures, machine())


if __name__ == "__main__":
    sys.exit(main())
