"""Optional dependencies: imports without them, errors that name the extra."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spark_groupsource

ROOT = Path(__file__).parents[2]
# an import of a hidden module fails as if it were not installed
HIDING = """
import sys
from importlib.abc import MetaPathFinder
class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
{code}
"""


def run_without(hidden: set[str], code: str) -> subprocess.CompletedProcess[str]:
    program = HIDING.format(hidden=hidden, code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_the_command_without_click_names_the_extra() -> None:
    run = run_without({"click"}, "from spark_groupsource.cli.__main__ import main; sys.exit(main())")
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert "pip install 'spark-groupsource[cli]'" in run.stderr and len(run.stderr.splitlines()) == 1


def test_the_data_source_without_pyspark_names_the_extra() -> None:
    run = run_without({"pyspark"}, "from spark_groupsource import register")
    assert run.returncode == 1
    assert "pip install 'spark-groupsource[spark]'" in run.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_broker_and_the_command_need_no_pyspark() -> None:
    commands = "checkpoint_command, consume, group_resets, produce_command, topics_command"
    code = f"import spark_groupsource.broker.embedded; from spark_groupsource.cli import {commands}"
    run = run_without({"pyspark", "numba", "rich", "fastavro", "pandas"}, code)
    assert run.returncode == 0, run.stderr


def test_importing_the_package_loads_the_version_alone() -> None:
    code = "import sys, spark_groupsource; print([n for n in sys.modules if n.startswith('spark_groupsource.')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "['spark_groupsource.version']\n", run


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": ""}, sys.executable),
        ({"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        # spark-submit has started Spark; it passes spark.pyspark.python in PYSPARK_PYTHON
        ({"PYSPARK_GATEWAY_PORT": "1"}, "None"),
    ],
)
def test_importing_the_package_chooses_the_interpreter_of_spark(given: dict[str, str], expected: str) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"} | given
    code = "import os, spark_groupsource; print(os.environ.get('PYSPARK_PYTHON'))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert run.stdout == f"{expected}\n", run.stderr


def test_the_version_is_reported_by_the_command() -> None:
    code = "from spark_groupsource.cli.__main__ import main; sys.argv[1:] = ['--version']; main()"
    run = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, timeout=60)
    assert run.stdout == f"groupsource, version {spark_groupsource.__version__}\n"


def test_extras_do_not_install_a_pandas_that_pyspark_warns_of() -> None:
    """PySpark 4.3 gives a FutureWarning at each start with pandas 3."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = {name: text.split() for name, text in parser["options.extras_require"].items()}
    found = {name: [line for line in lines if line.startswith("pandas")] for name, lines in extras.items()}
    assert {name: lines for name, lines in found.items() if lines} == {
        "demo": ["pandas>=2.2,<3"], "notebook": ["pandas>=2.2,<3"]
    }  # fmt: skip
