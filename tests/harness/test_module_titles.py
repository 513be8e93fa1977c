"""Titles of modules, and names of classes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    file
    for directory in ("spark_groupsource", "jobs", "tests", "benchmarks", "docs")
    for file in sorted((ROOT / directory).rglob("*.py"))
]
TITLE_WORDS = 12


def test_first_lines_have_at_most_12_words() -> None:
    wrong = {}
    for file in FILES:
        docstring = re.match(r'"""(.*?)("""|\n)', file.read_text("utf-8"))
        title = docstring[1] if docstring else ""
        if not 0 < len(title.split()) <= TITLE_WORDS:
            wrong[file.relative_to(ROOT).as_posix()] = title
    assert wrong == {}


def test_names_of_public_classes_are_unique() -> None:
    """A search for a class finds one."""
    files: dict[str, list[str]] = {}
    for file in FILES:
        if file.is_relative_to(ROOT / "spark_groupsource"):
            for name in re.findall(r"^class ([A-Z]\w*)", file.read_text("utf-8"), re.MULTILINE):
                files.setdefault(name, []).append(file.relative_to(ROOT).as_posix())
    assert {name: found for name, found in files.items() if len(found) > 1} == {}
