"""Files of the wheel: package, type marker, stubs, message schemas."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_groupsource

ROOT = Path(__file__).resolve().parent.parent.parent
# the files that setuptools would put into a wheel, without building one
LIST_FILES = """
import json, sys
from setuptools import Distribution
distribution = Distribution({"script_name": "setup.py"})
distribution.parse_config_files()
command = distribution.get_command_obj("build_py")
command.build_lib = "lib"
command.ensure_finalized()
metadata = distribution.metadata
print(json.dumps({
    "files": sorted(name.removeprefix("lib/") for name in command.get_outputs(include_bytecode=False)),
    "version": metadata.get_version(),
    "requirements": distribution.install_requires,
    "extras": sorted(distribution.extras_require),
}))
"""


class Wheel(NamedTuple):
    """What setuptools would build."""

    files: list[str]
    version: str
    requirements: list[str]
    extras: list[str]


@pytest.fixture(scope="module")
def wheel() -> Wheel:
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    run = subprocess.run([sys.executable, "-c", LIST_FILES], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return Wheel(**json.loads(run.stdout.splitlines()[-1]))


def test_every_source_file_and_nothing_else(wheel: Wheel) -> None:
    package = ROOT / "spark_groupsource"
    kinds = ("*.py", "*.pyi", "py.typed", "resources/*.html", "resources/*.json")
    expected = {str(path.relative_to(ROOT)) for kind in kinds for path in package.rglob(kind)}
    # test_built_wheel.py compares the examples
    files = {name for name in wheel.files if not name.startswith("spark_groupsource/examples/")}
    assert files == expected | {"pyspark_groupsource.py"} and len(files) < len(wheel.files)


def test_every_directory_of_modules_is_a_package() -> None:
    directories = {path.parent for path in (ROOT / "spark_groupsource").rglob("*.py")}
    assert [str(each) for each in directories if not (each / "__init__.py").exists()] == []


def test_installing_the_package_does_not_install_pyspark(wheel: Wheel) -> None:
    assert not [name for name in wheel.requirements if "spark" in name]


def test_each_extra_for_users_is_documented(wheel: Wheel) -> None:
    page = (ROOT / "docs" / "installation.md").read_text()
    missing = [extra for extra in wheel.extras if f"`spark-groupsource[{extra}]`" not in page]
    assert missing == ["demo", "docs", "test"]


def test_the_version_is_the_one_of_the_package(wheel: Wheel) -> None:
    assert wheel.version == spark_groupsource.__version__


def test_pyspark_finds_the_installed_data_source(tmp_path: Path) -> None:
    """PySpark imports each module pyspark_* of the directories of sys.path, also of an editable installation."""
    script = "import pkgutil; print([module.name for module in pkgutil.iter_modules()])"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, env=environment)
    assert b"'pyspark_groupsource'" in found
