"""Generated pages are up to date; file names in pages exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_groupsource.wire.group_events import Cause

ROOT = Path(__file__).resolve().parents[2]
# design.md names files relative to the package, except those of these directories
TOP_LEVEL = ("benchmarks/", "conf/", "docs/", "jobs/", "tests/", ".ci/", ".github/")
DESCRIBED = tuple(path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "conformance.md")
PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"),
    *(f"docs/{page}" for page in DESCRIBED),
)


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("page", PAGES)
def test_every_file_named_in_a_page_exists(page: str) -> None:
    names = re.findall(r"`([\w./-]+/[\w.-]*\.(?:py|md|yml|json|avsc|tsv)|[\w./-]+/)`", (ROOT / page).read_text())
    missing = [name for name in names if not exists(name)]
    assert missing == []


def test_every_name_in_the_design_page_exists_in_the_code() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    names = set(re.findall(r"`(?:[A-Z]\w+\.)?([a-z]+_\w+|(?<=\.)[a-z]\w+)`", text))
    files = list((ROOT / "spark_groupsource").rglob("*.py"))
    code = "\n".join(path.read_text() for path in files)
    known = {*re.findall(r"\w+", code), *(path.stem for path in files)}
    assert names and sorted(names - known) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_code_block_of_the_readme_runs_again_in_its_folder(tmp_path: Path) -> None:
    block = re.search(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None and "```" not in (ROOT / "README.md").read_text()[: block.start()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1"}
    environment.pop("PYSPARK_PYTHON", None)
    for number in range(2):
        run = subprocess.run(
            ["bash", "-ec", block[1]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )
        assert run.returncode == 0, run.stderr
        # each run reads its own 100 records alone, as columns
        assert re.findall(r"^Batch: (\d+)$", run.stdout, re.MULTILINE) == [str(number)]
        assert re.search(r"^\|partition\|offset\|carrier\|delay\|$", run.stdout, re.MULTILINE)
        rows = re.findall(r"^\| +[01]\| +(\d+)\| +UA\| +\d+\|$", run.stdout, re.MULTILINE)
        assert min(map(int, rows)) == 50 * number
        end = 50 * (number + 1)
        assert len(re.findall(rf"^delays +flights +[01] +{end} +{end} +0$", run.stdout, re.MULTILINE)) == 2
        picture = (tmp_path / "first-steps" / "timeline.svg").read_text()
        # each run joins and leaves; its two members do so in one rebalance or in two
        counts = re.findall(r"Group delays: (\d+) rebalances", picture)
        assert picture.startswith("<svg") and int(counts[0]) >= 2 * (number + 1)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_in_a_page_has_a_target(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http:", "https:", "#"))]
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link.partition("#")[0]).exists()]
    assert missing == []


def test_every_test_named_in_the_concepts_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "concepts.md").read_text())
    missing = [test for file, test in named if f"def {test}(" not in (ROOT / "tests" / file).read_text()]
    assert len(named) >= 10 and missing == []


def test_every_cause_of_a_rebalance_is_explained() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().partition("\n### Causes\n")[2].partition("\n#")[0]
    assert re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE) == [cause.value for cause in Cause]


def test_package_diagram_equals_the_imports() -> None:
    diagram = (ROOT / "docs" / "design.md").read_text().partition("flowchart TD")[2].partition("```")[0]
    drawn = {
        (package, imported)
        for package, targets in re.findall(r"^ *(\w+) -[-.].*?> ([\w &]+)$", diagram, re.MULTILINE)
        for imported in targets.split(" & ")
    }
    assert drawn == package_imports()


def package_imports() -> set[tuple[str, str]]:
    """Which package of the project imports which, type-checking imports and imports in functions included."""
    package = ROOT / "spark_groupsource"
    names = {path.parent.name for path in package.glob("*/__init__.py")}
    found = set()
    for path in package.glob("*/**/*.py"):
        owner = path.relative_to(package).parts[0]
        imported = re.findall(r"^ *from spark_groupsource\.(\w+)[\w.]* import ", path.read_text(), re.MULTILINE)
        found.update((owner, name) for name in imported)
    return {(owner, name) for owner, name in found if owner != name and name in names}


def exists(name: str) -> bool:
    """A file of the repository; `wire/frames.py` and the like are files of the package."""
    roots = [ROOT] if name.startswith(TOP_LEVEL) else [ROOT, ROOT / "spark_groupsource"]
    return any((root / name).exists() for root in roots)
