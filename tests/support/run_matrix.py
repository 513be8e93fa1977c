"""Runs the Spark part of the tests with each PySpark.

Each Python is used too; the results are in docs/runtimes-matrix.md.

    python tests/support/run_matrix.py [--spark 4.0 ...] [--python 3.11 ...] [--all-pairs]
    python tests/support/run_matrix.py --lowest [--python 3.11]

Each pair has an environment in .venv-matrix. By default each Spark runs with one Python, and each Python with the
newest Spark. Rows of pairs that are not run are kept. ``--lowest`` installs the lowest version of each dependency that
setup.cfg allows, of the extras too, with one Python, and runs the tests of `make check` there; it writes no page.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "jobs"))
from kafka_jars import KAFKA_VERSION  # noqa: E402

KAFKA = KAFKA_VERSION.rpartition(".")[0]
ENVIRONMENTS = ROOT / ".venv-matrix"
PAGE = ROOT / "docs" / "runtimes-matrix.md"
SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# streams, batch reads, restarts, writes, and a job that moves between Spark's Kafka source and this one
TESTS = (
    "source/test_stream.py",
    "source/test_batch_read.py",
    "source/test_restart_positions.py",
    "parity/test_migration.py",
    "sink/test_sink_through_spark.py",
    # skipped where the format has no release for this Spark
    "matrix/test_table_formats.py",
    # skipped where this Spark lacks the feature
    "matrix/test_newer_spark_features.py",
    "source/test_spark_connect.py",
)
# only these run with ``--soak``, in which every Spark test runs on both clusters
SOAK_TESTS = ("source/test_logins_through_spark.py", "matrix/test_old_brokers.py")
PACKAGES = (
    "pytest", "pytest-timeout", "pytest-randomly", "pytest-xdist", "hypothesis", "confluent-kafka", "pandas<3", "py4j",
    "click", "rich", "chispa", "aiokafka", "fastavro", "cryptography", "protobuf", "pyyaml",
)  # fmt: skip
# PySpark 4.0 and 4.1 leave sockets to the garbage collector
IGNORED = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning")
HEADER = """# Tested runtimes

Written by `make test-matrix`: the tests of streams, restarts, batch reads and logins through Spark, one row for each
pair of PySpark and Python; pairs without a row were not run. A test that needs what a Spark does not have is skipped
there; see [runtimes](runtimes.md). Each test runs on the embedded broker or on the newest Kafka of its row; a restart
of a query also on earlier Kafka, where a row names it.

| Spark | Python | Java | Kafka | login | passed | skipped | failed |
|---|---|---|---|---|---|---|---|
"""
_KAFKA = re.compile(r"\[(embedded|kafka|\d+\.\d+\.\d+)\b")
_LOGIN = re.compile(r"test_stream_logs_in\[([\w-]+)\]")


class Pair(NamedTuple):
    """Versions of PySpark and Python, as ``4.0`` and ``3.11``."""

    spark: str
    python: str


def pythons() -> dict[str, str]:
    """Returns the interpreters of this machine, of the PATH and of pyenv."""
    found = {}
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    for version in PYTHONS:
        of_pyenv = [str(path) for path in pyenv if path.parts[-3].startswith(f"{version}.")]
        command = shutil.which(f"python{version}") or next(iter(of_pyenv), None)
        # a shim of pyenv exists for versions that are not selected
        for candidate in filter(None, (command, *of_pyenv)):
            if subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
                found[version] = candidate
                break
    return found


def select(sparks: Iterable[str], available: Iterable[str], all_pairs: bool) -> list[Pair]:
    """Returns the pairs to run: each Spark with the middle Python, and each Python with the newest Spark."""
    sparks, available = list(sparks), list(available)
    middle, newest = available[len(available) // 2], sparks[-1]
    return [Pair(s, p) for s in sparks for p in available if all_pairs or p == middle or s == newest]


def build(pair: Pair, interpreter: str) -> Path | None:
    """Returns the Python of the pair's environment; None if PySpark does not install there."""
    directory = ENVIRONMENTS / f"spark{pair.spark}-python{pair.python}"
    python = directory / "bin" / "python"
    if not (directory / ".ready").exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", str(directory)], check=True)
        packages = [f"pyspark[connect]=={pair.spark}.*", *PACKAGES, "--editable", str(ROOT)]
        if subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages]).returncode:
            return None
        (directory / ".ready").touch()
    return python


def lowest_versions(text: str) -> list[str]:
    """Returns the lowest version of each dependency of a setup.cfg and its extras, as constraints for pip."""
    config = configparser.ConfigParser()
    config.read_string(text)
    lists = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    names = (line.strip() for each in lists for line in each.splitlines())
    found = (re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", name) for name in names if not name.startswith("#"))
    return sorted({f"{match[1]}=={match[2]}" for match in found if match is not None})


def run_lowest(python: str, interpreter: str) -> bool:
    """Runs the tests that need no Spark, Java or Kafka with the lowest dependencies; returns whether all passed."""
    directory = ENVIRONMENTS / f"lowest-python{python}"
    constraints = ENVIRONMENTS / "lowest.txt"
    executable = directory / "bin" / "python"
    ENVIRONMENTS.mkdir(exist_ok=True)
    constraints.write_text("\n".join(lowest_versions((ROOT / "setup.cfg").read_text())) + "\n")
    subprocess.run([interpreter, "-m", "venv", "--clear", str(directory)], check=True)
    install = [str(executable), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    if subprocess.run([*install, "--editable", f"{ROOT}[fast,test]"]).returncode:
        return False
    marks = "not spark and not java and not kafka and not slow"
    command = [str(executable), "-m", "pytest", "-n", "2", "-q", "-m", marks, "-W", "ignore::DeprecationWarning"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([*command, str(ROOT / "tests")], cwd=ROOT, env=environment).returncode == 0


def run(pair: Pair, python: Path) -> str:
    """Runs the tests; returns the row of the page."""
    reports = []
    for name, tests, options in (("tests", TESTS, ()), ("logins", SOAK_TESTS, ("--soak",))):
        report = ENVIRONMENTS / f"spark{pair.spark}-python{pair.python}-{name}.xml"
        report.unlink(missing_ok=True)
        _run_tests(python, tests, [*options, f"--junit-xml={report}"])
        if not report.exists():
            return f"| {pair.spark} | {pair.python} | | | | 0 | 0 | all |"
        reports.append(ElementTree.parse(report))
    return row(pair, reports)


def _run_tests(python: Path, tests: Iterable[str], options: Iterable[str]) -> None:
    warnings = [part for each in IGNORED for part in ("-W", each)]
    command = [str(python), "-m", "pytest", "-n", "0", "-q", "-m", "spark", *options, *warnings]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON")}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    files = [str(ROOT / "tests" / name) for name in tests]
    subprocess.run([*command, *files], cwd=ROOT, env={**environment, "PATH": path})


def row(pair: Pair, reports: Iterable[ElementTree.ElementTree[ElementTree.Element]]) -> str:
    """Returns the row of one run, from its JUnit reports."""
    counts: Counter[str] = Counter()
    kafkas, logins = set(), set()
    for case in (case for report in reports for case in report.iter("testcase")):
        outcome = next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed")
        counts[outcome] += 1
        if outcome == "passed":
            kafkas.update(_KAFKA.findall(case.get("name", "")))
            logins.update(_LOGIN.findall(case.get("name", "")))
    kafkas = {KAFKA if each == "kafka" else each for each in kafkas}
    failed = counts["failure"] + counts["error"]
    cells = (
        pair.spark, pair.python, java(), ", ".join(sorted(kafkas)), ", ".join(sorted(logins)),
        counts["passed"], counts["skipped"], failed,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def java() -> str:
    """Returns the major version of the Java of the PATH."""
    printed = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', printed)
    return found.group(1) if found else ""


def merged(page: str, rows: Mapping[Pair, str]) -> str:
    """Returns the page with these rows in place of those of the same pairs."""
    known = {Pair(*line.split(" | ")[:2]): f"| {line}" for line in re.findall(r"^\| (\d.*)$", page, re.M)}
    known.update(rows)
    order = sorted(known, key=lambda pair: [tuple(map(int, each.split("."))) for each in pair])
    return HEADER + "".join(f"{known[pair]}\n" for pair in order)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Spark part of the tests with each PySpark and Python.")
    parser.add_argument("--spark", nargs="+", choices=SPARKS, default=SPARKS)
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=PYTHONS)
    parser.add_argument("--all-pairs", action="store_true", help="every Spark with every Python")
    parser.add_argument("--lowest", action="store_true", help="the lowest version of each dependency instead")
    options = parser.parse_args()
    found = {version: path for version, path in pythons().items() if version in options.python}
    missing = [version for version in options.python if version not in found]
    if missing:
        print(f"Not on this machine: Python {', '.join(missing)}.", file=sys.stderr)
    if options.lowest:
        middle = list(found)[len(found) // 2] if found else ""
        return int(not found or not run_lowest(middle, found[middle]))
    rows = {}
    for pair in select(options.spark, found, options.all_pairs) if found else []:
        python = build(pair, found[pair.python])
        if python is None:
            print(f"PySpark {pair.spark} does not install with Python {pair.python}.", file=sys.stderr)
            continue
        rows[pair] = run(pair, python)
        print(rows[pair], flush=True)
        PAGE.write_text(merged(PAGE.read_text() if PAGE.exists() else "", rows))
    return int(not rows or any(not text.endswith("| 0 |") for text in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
