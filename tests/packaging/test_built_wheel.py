"""A built wheel: description, examples and the command that writes them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_groupsource import __version__
from spark_groupsource.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BUILD = """
import sys
from setuptools import build_meta
build_meta.build_sdist(sys.argv[1])
"""
# from the archive of the sources, as pip does
UNPACK_AND_BUILD = """
import os, sys, tarfile
from pathlib import Path
from setuptools import build_meta
(archive,) = Path(sys.argv[1]).glob("*.tar.gz")
with tarfile.open(archive) as opened:
    opened.extractall(sys.argv[1], filter="data")
os.chdir(str(archive)[: -len(".tar.gz")])
build_meta.build_wheel(sys.argv[1])
"""
LINK = re.compile(r"\]\((?!https?://|#)[^)]*\)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    built = tmp_path_factory.mktemp("wheel")
    tree = built / "tree"
    # builds write into the tree
    names = ["setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"]
    names += ["pyspark_groupsource.py", "spark_groupsource", "jobs", "conf", "docs"]
    tree.mkdir()
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    for script in (BUILD, UNPACK_AND_BUILD):
        command = [sys.executable, "-c", script, str(built)]
        run = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=280)
        assert run.returncode == 0, run.stderr[-2_000:]
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.slow
def test_description_has_no_relative_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(opened.read(name).decode())
    text = str(metadata.get_payload())
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert "Getting started" in text and "consumer group" in text and LINK.findall(text) == []
    assert metadata["Version"] == __version__


def test_links_name_the_files_of_the_repository_once_it_has_an_address() -> None:
    specification = importlib.util.spec_from_file_location("groupsource_setup", ROOT / "setup.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    page = "See [docs](docs/a.md#b), [web](https://example.com/x), [here](#top).\n\n![Picture](docs/p.svg)\n\nEnd.\n"
    assert module.description(page) == "See docs, [web](https://example.com/x), [here](#top).\n\nEnd.\n"
    assert "[docs](https://example.com/s/docs/a.md#b)" in module.description(page, "https://example.com/s/")
    assert "![Picture](https://example.com/s/docs/p.svg)" in module.description(page, "https://example.com/s")
    readme = (ROOT / "README.md").read_text()
    assert LINK.findall(readme) and LINK.findall(module.description(readme)) == []


@pytest.mark.slow
def test_wheel_has_the_examples_and_its_command_writes_them(wheel: Path, tmp_path: Path) -> None:
    installed, target = tmp_path / "installed", tmp_path / "examples"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(installed)
    command = [sys.executable, "-m", "spark_groupsource.cli", "examples", str(target)]
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert f"Wrote the examples of groupsource {__version__}" in run.stdout
    written = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    expected = {f"jobs/{path.name}": path.read_bytes() for path in (ROOT / "jobs").glob("*.py")}
    expected |= {f"docs/{path.name}": path.read_bytes() for path in (ROOT / "docs").glob("*.ipynb")}
    expected |= {f"conf/grafana/{path.name}": path.read_bytes() for path in (ROOT / "conf" / "grafana").iterdir()}
    expected["conf/flights.avsc"] = (ROOT / "conf" / "flights.avsc").read_bytes()
    assert written == expected


def test_files_with_other_content_are_not_overwritten_without_force(tmp_path: Path) -> None:
    target = tmp_path / "examples"
    assert CliRunner().invoke(main, ["examples", str(target)]).exit_code == 0
    tour, other = target / "docs" / "tour.ipynb", target / "mine.txt"
    original = tour.read_text()
    # the same content is no change
    assert CliRunner().invoke(main, ["examples", str(target)]).exit_code == 0
    tour.write_text("mine")
    other.write_text("mine")
    (target / "jobs" / "land_parquet.py").unlink()
    result = CliRunner().invoke(main, ["examples", str(target)])
    assert result.exit_code == 1
    assert "has files with other content: docs/tour.ipynb." in result.stderr and "--force" in result.stderr
    assert tour.read_text() == "mine" and not (target / "jobs" / "land_parquet.py").exists()
    assert CliRunner().invoke(main, ["examples", str(target), "--force"]).exit_code == 0
    assert tour.read_text() == original and other.read_text() == "mine"
    (tmp_path / "file").write_text("")
    assert CliRunner().invoke(main, ["examples", str(tmp_path / "file" / "below")]).exit_code == 1
